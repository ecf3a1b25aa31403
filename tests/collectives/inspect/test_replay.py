"""Replayed ranks have the bits of recorded ones, and records of other programs and damaged files are refused."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.digests import blake2b
from autograd.errors import ArgumentError, CheckpointWarning, CommunicationError, DtypeError, MeshError, OptionError
from collectives.tools.stopping import found_file, place_of
from collectives.transports.record_file import (
    _BLOCK_BYTES,
    CALL,
    Entry,
    RecordWriter,
    decoded,
    digest_of,
    read_record,
)
from collectives.transports.replays.data import Replay
from collectives.transports.replays.recorded import Record
from collectives.transports.replays.replaying import replaying
from parallel import DataParallel, TopK, checkpoint

from ...autograd.arrays.devices import DEVICES, Device
from ...forks import run_python
from ..launch import ROOT, launch


def trained(
    path: str, algorithm: str = "native", dtype: str = "float64", rows: int = 4, adam: bool = False, data: bool = True
) -> Any:
    """The losses of three steps, and a digest of the gradient and the weights of this rank."""
    with cc.record(path, data), cc.Mesh(dp=-1, algorithm=algorithm) as mesh:
        rank = int(mesh.axis("dp").rank)
        w = ag.Parameter(np.random.default_rng(0).normal(size=(5, 3)).astype(dtype), name="w")
        optimizer = (ag.optim.AdamW if adam else ag.optim.SGD)([w], lr=0.01)
        losses = []
        for step in range(3):
            x = ag.tensor(np.random.default_rng(rank * 7 + step).normal(size=(rows, 5)).astype(dtype))
            with ag.Tape() as tape:
                y = x @ cc.cast(w, "dp", to=cc.R)
                loss = cc.all_reduce((y * y).sum(), "dp", to=cc.I)
            tape.backward(loss)
            losses.append(float(loss.array).hex())
            gradient = np.asarray(getattr(w.grad, "array", w.grad)).tobytes()
            optimizer.step()
            optimizer.zero_grad()
        return losses, blake2b(gradient + np.asarray(w.array).tobytes(), digest_size=16).hexdigest()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("algorithm", ["native", "auto", "ring", "reproducible", "hierarchical", "shared"])
@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_bits(ranks: int, algorithm: str, data: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    for dtype, adam in (("float32", True), ("float64", False)):
        first = cc.run(trained, ranks, path, algorithm, dtype, 4, adam, data)
        with replaying(Record(path)) as order:
            assert cc.run(trained, ranks, path, algorithm, dtype, 4, adam, data) == first
        assert not order.first


@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_started_calls_and_messages(data: bool, tmp_path: Path) -> None:
    def program() -> Any:
        with cc.record(tmp_path / "run", data):
            group = cc.world()
            at, n = int(group.index), int(group.size)
            pending = group.start(cc.transports.request.Request("all_reduce", np.full(2, at + 0.5)))
            group.send(np.full(3, float(at)), (at + 1) % n)
            got = group.recv(np.empty(3), (at - 1) % n)
            return pending.wait().tolist(), got.tolist(), group.exchange(bytes([at]) * at)

    first = cc.run(program, 3)
    with replaying(Record(str(tmp_path / "run"))):
        assert cc.run(program, 3) == first


def test_another_program_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    cc.run(trained, 3, path)

    def other() -> None:
        cc.world().all_gather(np.zeros(2), [2, 2, 2])

    with replaying(Record(path)), pytest.raises(CommunicationError, match="rank 0: all_gather"):
        cc.run(other, 3)

    def longer() -> None:
        trained(path)
        cc.world().barrier()
        cc.world().duplicate("more").barrier()

    with replaying(Record(path)), pytest.raises(CommunicationError, match="barrier.*is not in the record"):
        cc.run(longer, 3)


@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_a_failure_is_repeated(data: bool, tmp_path: Path) -> None:
    def program() -> None:
        with cc.record(tmp_path / "run", data), cc.Mesh(dp=3) as mesh:
            if mesh.axis("dp").rank == 1:
                cc.barrier("dp")
            else:
                cc.all_reduce(ag.tensor(1.0), "dp", to=cc.R)

    with pytest.raises(cc.CollectiveMismatch) as recorded:
        cc.run(program, 3)
    allows = "without --rank all ranks" if data else "all ranks together; a record with its data allows one alone"
    assert f"python -m collectives replay {tmp_path / 'run'}" in (said := "".join(recorded.value.__notes__))
    assert allows in said
    with replaying(Record(str(tmp_path / "run"))), pytest.raises(cc.CollectiveMismatch):
        cc.run(program, 3)


def test_a_result_that_was_changed_is_seen(tmp_path: Path) -> None:
    """The planted fault of `test_bits`: another received number changes the bits."""
    path = str(tmp_path / "run")
    first = cc.run(trained, 2, path)
    record = Record(path)
    key = next(k for k, found in record.calls[1].items() if found.call == "all_reduce float64[1]")
    found = record.calls[1][key]
    assert found.entry is not None
    other = decoded(found.entry) + 1.0
    record.calls[1][key] = found._replace(entry=found.entry._replace(data=other.tobytes(), digest=digest_of(other)))
    with replaying(record):
        assert cc.run(trained, 2, path) != first


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "rank-0"
    results = [np.arange(3.0), [b"a", b"bc"], np.zeros((2, 0), np.int16), None]
    writer = RecordWriter(str(path))
    writer.add_text({"key": "text"})
    writer.add(CALL, 1, 2, 3)
    for k, result in enumerate(results):
        writer.add_result(7, k, result)
    killed = path.read_bytes(), read_record(str(path))  # what a killed process leaves
    writer.close()
    whole, data = path.read_bytes(), Path(f"{path}.data").read_bytes()
    entries = read_record(str(path))
    assert [entry[:4] for entry in killed[1]] == [entry[:4] for entry in entries] and len(killed[0]) > len(whole)
    assert entries[1] == Entry(CALL, 1, 2, 3) and json.loads(entries[0].text) == {"key": "text"}
    for entry, result in zip(entries[2:], results, strict=True):
        assert (entry.of, entry.number) == (7, entries.index(entry) - 2)
        np.testing.assert_equal(decoded(entry), result)
    for size in range(19, len(whole)):  # killed while it wrote an entry
        path.write_bytes(whole[:size])
        assert read_record(str(path)) == entries[: len(read_record(str(path)))] != entries
    for at in range(len(whole)):
        for bit in (1, 64):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            with contextlib.suppress(CommunicationError):
                found = read_record(str(path))
                assert len(found) < len(entries) and found == entries[: len(found)]
    path.write_bytes(whole)
    for at in range(len(data)):
        Path(f"{path}.data").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ValueError, match="checksum"):
            for entry in read_record(str(path)):
                decoded(entry)
    Path(f"{path}.data").write_bytes(data[:-1])
    with pytest.raises(CommunicationError, match="bytes of results"):
        read_record(str(path))
    Path(f"{path}.data").unlink()
    with pytest.raises(CommunicationError, match="is damaged"):
        read_record(str(path))
    path.write_bytes(b"")
    with pytest.raises(CommunicationError, match="is no record"):
        read_record(str(path))
    with pytest.raises(CommunicationError, match="holds no record"):
        Record(str(tmp_path / "none"))


def test_results_of_several_blocks(tmp_path: Path) -> None:
    """They are read from the files of a rank that goes on, that was killed while it wrote, and that has ended."""
    path, rng = tmp_path / "rank-0", np.random.default_rng(0)
    sizes = [3, _BLOCK_BYTES - 3, 5, 3 * _BLOCK_BYTES + 1, 0, 7, 7, _BLOCK_BYTES // 2, _BLOCK_BYTES // 2 + 9, 4]
    results = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    results[2:2] = [results[0] + 1]  # in the form of the first

    def check(found: list[Entry]) -> None:
        assert len(found) == len(written)
        for entry, result in zip(found, written, strict=True):
            assert decoded(entry).tobytes() == result.tobytes()

    writer, written = RecordWriter(str(path)), list[np.ndarray]()
    for k, result in enumerate(results):
        writer.add_result(0, k, result)
        written.append(result)
        check(read_record(str(path)))
        with open(f"{path}.data", "ab") as data:  # killed while it appends the block
            size = data.tell()
            data.write(b"part")
            data.flush()
            check(read_record(str(path)))
            data.truncate(size)
    writer.close()
    check(read_record(str(path)))
    assert Path(f"{path}.data").stat().st_size // _BLOCK_BYTES == 1 + sum(sizes + [3]) // _BLOCK_BYTES


def test_a_killed_process_loses_no_result(tmp_path: Path) -> None:
    program = """
import os, sys, numpy
from collectives.transports.record_file import RecordWriter
writer = RecordWriter(sys.argv[1])
for k in range(40):
    writer.add_result(0, k, numpy.full(10_000, k))
os.kill(os.getpid(), 9)
"""
    path = str(tmp_path / "rank-0")
    done = subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, timeout=100, check=False)
    assert done.returncode == -9
    assert [decoded(entry)[[0, -1]].tolist() for entry in read_record(path)] == [[k, k] for k in range(40)]


@pytest.mark.parametrize("facts", [{}, {"rank": "a"}, {"rank": 0, "size": 2, "hosts": 1}, {"rank": 3, "size": 2}])
def test_hostile_facts(facts: dict[str, Any], tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "rank-0"))
    writer.add_text(facts)
    writer.close()
    with pytest.raises(CommunicationError, match="is damaged"):
        Record(str(tmp_path))


# -- what a replay meets -----------------------------------------------------------------------------------------------
def layer_program(path: str, options: dict[str, Any], data: bool) -> Any:
    """Steps of data parallelism with some options; a digest of the weights of this rank, and the losses."""
    random.seed(0)
    settings = {name: value() if callable(value) else value for name, value in options.items()}
    dtype, steps, saves = settings.pop("dtype", "float32"), settings.pop("accumulate", 1), settings.pop("saves", False)
    with cc.record(path, data), cc.Mesh(dp=-1) as mesh:
        rank, rng, losses = int(mesh.ranks.rank), np.random.default_rng(0), []
        net = nn.Sequential(nn.Linear(4, 6, dtype=dtype), nn.Tanh(), nn.Linear(6, 3, dtype=dtype))
        model = DataParallel(net, "dp", **settings)
        optimizer = optim.AdamW(model.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            with model.accumulate() if steps > 1 else contextlib.nullcontext():
                for _ in range(steps):
                    rows = np.array_split(rng.normal(size=(7, 4)).astype(dtype), int(mesh.ranks.size))[rank]
                    x = cc.from_local(rows, {"dp": cc.Shard(0)})
                    with ag.Tape() as tape:
                        loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I) / (7 * steps)
                    tape.backward(loss)
                    losses.append(float(loss.numpy()).hex())
            optimizer.step()
            if saves and step == 1:
                checkpoint.save(f"{path}-saved", {"net": net, "optimizer": optimizer}, step, overwrite=True)
                checkpoint.load(f"{path}-saved", {"net": net, "optimizer": optimizer})
        text = b"".join(np.asarray(p.array).tobytes() for p in net.parameters())
        return losses, blake2b(text, digest_size=16).hexdigest()


CROSSED: dict[str, dict[str, Any]] = {
    **{f"ZeRO {z}": {"zero": z} for z in (1, 2, 3)}, "accumulate": {"accumulate": 2},
    "accumulate, ZeRO 2": {"accumulate": 2, "zero": 2}, "half precision": {"dtype": "float16"},
    "save and load": {"saves": True},
    "compression": {"reduction": lambda: TopK(0.5, smallest=1)}, "small buckets": {"bucket_bytes": 0},
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", CROSSED)
@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_options_of_the_layers(name: str, ranks: int, data: bool, tmp_path: Path) -> None:
    path, options = str(tmp_path / "run"), CROSSED[name]
    first = cc.run(layer_program, ranks, path, options, data)
    before = files(tmp_path)
    says = pytest.warns(CheckpointWarning, match="a replay writes nothing")
    with replaying(Record(path)) as order, says if "saves" in options else contextlib.nullcontext():
        assert cc.run(layer_program, ranks, path, options, data) == first
    assert not order.first and files(tmp_path) == before


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder, with their sizes and the times at which they were written."""
    return {str(each): (each.stat().st_size, each.stat().st_mtime_ns) for each in folder.rglob("*")}


def test_data_that_is_no_bool_is_refused(tmp_path: Path) -> None:
    given: Any = "order"
    with pytest.raises(OptionError, match="data='order' was given; needed: True, or False"), cc.record(tmp_path, given):
        pass


@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_second_order_and_one_sided_access(data: bool, tmp_path: Path) -> None:
    def program() -> Any:
        with cc.record(tmp_path / "run", data), cc.Mesh(dp=-1) as mesh:
            rank, size = int(mesh.ranks.rank), int(mesh.ranks.size)
            x = ag.tensor(np.arange(3.0) + rank, {"dp": cc.V})

            def loss(x: Any) -> Any:
                near = cc.get(x, "dp", (rank + 1) % size)
                return cc.all_reduce((x * x * near).sum(), "dp", to=cc.I)

            product = ag.grad(lambda x: cc.all_reduce((ag.grad(loss)(x) ** 2).sum(), "dp", to=cc.I))(x)
            return product.local.tolist()

    first = cc.run(program, 3)
    with replaying(Record(str(tmp_path / "run"))):
        assert cc.run(program, 3) == first


LINES = (Path(__file__).parent / "programs" / "replay_program.py").read_text().splitlines()
AT = next(n for n, line in enumerate(LINES, 1) if 'fault == "nan"' in line)


# -- ranks that were processes ----------------------------------------------------------------------------------------
def replayed(folder: Path, *options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return run_python("-m", "collectives", "replay", str(folder), *options, typed=typed)


def lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("rank "))


@pytest.mark.parametrize(("name", "ranks"), [("dp", 3), ("zero3", 3), ("tp", 2), ("pp", 2), ("meshes", 2)])
@pytest.mark.parametrize("data", ["1", "0"], ids=["data", "order"])
def test_processes_are_replayed_with_their_bits(name: str, ranks: int, data: str, tmp_path: Path) -> None:
    variables = {"RINGTAPE_RECORD": str(tmp_path / "run"), "RINGTAPE_RECORD_DATA": data}
    done = launch("replay_program.py", ranks, name, limit_s=100, **variables)
    assert done.code == 0, done.err
    again = replayed(tmp_path / "run")
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(lines(done.out)) == ranks and lines(again.stdout) == lines(done.out)
    last = replayed(tmp_path / "run", "--rank", str(ranks - 1))
    if data == "1":
        assert lines(last.stdout) == lines(done.out)[-1:], last.stderr
    else:
        assert last.returncode == 2 and "fix: without --rank, or record with RINGTAPE_RECORD_DATA=1" in last.stderr


@pytest.mark.parametrize("data", ["1", "0"], ids=["data", "order"])
def test_a_failed_job_says_how_to_replay_it_and_ends_in_the_same_way(data: str, tmp_path: Path) -> None:
    variables = {"RINGTAPE_RECORD": str(tmp_path / "run"), "RINGTAPE_RECORD_DATA": data}
    done = launch("replay_program.py", 3, "dp", "fail", limit_s=100, **variables)
    said = f"recorded: python -m collectives replay {tmp_path / 'run'}" + " --rank 1" * int(data)
    assert done.code != 0 and said in done.err.splitlines()
    again = replayed(tmp_path / "run", *said.split()[6:])
    assert again.returncode == 1 and "rank 1 ends by ValueError: stop" in again.stderr


def test_the_first_value_that_is_no_number_is_named_with_line_and_rank(tmp_path: Path) -> None:
    done = launch("replay_program.py", 3, "dp", "nan", limit_s=100, RINGTAPE_RECORD=str(tmp_path / "run"))
    assert done.code == 0 and done.out.count(" nan nan ") == 3  # nothing is raised
    again = replayed(tmp_path / "run", "--first-nan")
    assert again.returncode == 1
    assert f"replay: first: forward multiply at replay_program.py:{AT + 1}, on rank 1" in again.stdout, again.stdout


def test_the_debugger_begins_in_the_program(tmp_path: Path) -> None:
    variables = {"RINGTAPE_RECORD": str(tmp_path / "run"), "RINGTAPE_RECORD_DATA": "1"}
    done = launch("replay_program.py", 2, "dp", "fail", limit_s=100, **variables)
    assert done.code != 0
    typed = f"b {AT}\nc\np ('at', step, rank)\nq\n"
    told = replayed(tmp_path / "run", "--rank", "1", "--pdb", typed=typed)
    assert "replay_program.py(1)<module>()" in told.stdout and "('at', 0, 1)" in told.stdout, told.stdout + told.stderr


@pytest.mark.parametrize("data", ["1", "0"], ids=["data", "order"])
def test_a_replay_stops_at_a_step_a_line_or_an_operation(data: str, tmp_path: Path) -> None:
    variables = {"RINGTAPE_RECORD": str(tmp_path / "run"), "RINGTAPE_RECORD_DATA": data}
    assert launch("replay_program.py", 2, "dp", "nan", limit_s=100, **variables).code == 0
    named = replayed(tmp_path / "run", "--first-nan").stdout
    number = named.partition("--to operation:")[2].split()[0]
    places = ("2", AT + 4, 1), (f"operation:{number}", AT + 1, 2), (f"replay_program.py:{AT + 3}", AT + 3, 0)
    for place, line, step in places[int(data) :]:
        done = replayed(tmp_path / "run", "--rank", "1", "--to", place)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"rank 1 stops at replay_program.py:{line}: " in done.stdout, (place, done.stdout, done.stderr)
        assert f"  step = {step}\n" in done.stdout, (place, done.stdout)
    if data == "1":
        done = replayed(tmp_path / "run", "--to", "tomorrow")
        assert done.returncode == 2 and "replay: --to 'tomorrow' was given; needed: a step" in done.stderr, done.stderr
        return
    typed = "p ('at', step, rank)\nq\n"
    told = replayed(tmp_path / "run", "--rank", "1", "--pdb", "--to", "2", typed=typed)
    assert "('at', 1, 1)" in told.stdout, told.stdout + told.stderr


@pytest.mark.parametrize(("wrong", "says"), [
    ("tomorrow", "needed: a step"), ("1:x", "needed: a step"), (":3", "no such file"), ("none.py:3", "no such file"),
    ("program.py:2", "fix: --to program.py:3"), ("program.py:9", "has no code"),
])  # fmt: skip
def test_wrong_places_are_refused(wrong: str, says: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("x = 1\n\ny = 2\n")
    with pytest.raises(ArgumentError, match=says):
        found_file(place_of(wrong), str(program), "/")


def test_a_replay_with_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    cc.run(trained, 2, path)
    with replaying(Record(path)), pytest.raises(MeshError, match="was recorded with 2\n  fix: the program"):
        cc.run(trained, 3, path)


def test_an_order_that_differs_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    rows = 4

    def program() -> Any:
        return trained(path, rows=rows, data=False)

    first = cc.run(program, 2)
    with pytest.raises(MeshError, match="of rank 1 alone.*\n  fix: record with RINGTAPE_RECORD_DATA=1"):
        Replay(Record(path), 1)
    rows = 5
    with replaying(Record(path)) as order:
        assert cc.run(program, 2) != first
    assert order.first is not None and order.first.before < 4
    assert re.search(r"all_reduce float64\[\d+\] gives other values.*test_replay.py:\d+, call", order.first.text)


@pytest.mark.parametrize("there", DEVICES)
def test_windows_and_arrays_of_a_gpu_are_refused(there: Device, tmp_path: Path) -> None:
    def program(make: Any) -> None:
        with cc.record(tmp_path / "run"):
            make(cc.world())

    with pytest.raises(MeshError, match="record: window on 'world'.*\n  fix: run this program without a record"):
        cc.run(program, 2, lambda group: group.window(np.zeros(3)))
    name = {"fake": "DeviceArray", "cupy": "cupy.ndarray"}[there.name]
    with pytest.raises(DtypeError, match=f"all_reduce on 'world' of a .*{name}: arrays of a GPU are not recorded"):
        cc.run(program, 2, lambda group: group.all_reduce(there.move(np.ones(3, "f4"))))
