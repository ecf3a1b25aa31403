"""Run logs and progress: one rank writes, what belongs to one rank only is refused, and a resumed run is continued."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import data
from autograd.errors import (
    ArgumentError,
    DependencyError,
    DtypeError,
    FileError,
    LayoutError,
    OptionError,
    RingtapeError,
)
from collectives import I, R, V
from parallel import CSVSink, Progress, RunLog, TensorBoardSink, plot_log, read_log
from parallel.runs import progress as progress_module


def hidden(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Make packages impossible to import."""
    for name in {*packages, *(m for m in sys.modules if m.partition(".")[0] in packages)}:
        monkeypatch.setitem(sys.modules, name, None)


def test_one_rank_writes_one_line_that_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def program() -> None:
        with cc.Mesh(dp=3):
            x = cc.shard(ag.tensor(np.arange(7.0), {"dp": R}), "dp")
            log = RunLog(path, lr=0.1)
            for step in range(2):
                w = ag.Parameter(np.array([2.0]))
                with ag.Tape() as tape:
                    loss = cc.all_reduce((cc.cast(w, "dp", to=R) * x).sum(), "dp", to=I)
                    log.write(step=step, loss=loss, norms=np.ones(2), n=x.global_shape[0], text="a", none=None)
                tape.backward(loss)
                cc.barrier("dp")
                assert len(path.read_text().splitlines()) == step + 2  # nobody has closed it
                cc.barrier("dp")
            log.close()

    cc.run(program, 3)
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert first["ranks"] == 3 and first["lr"] == 0.1 and re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["started"])
    rows = read_log(path)
    assert [{**row, "crc32": line["crc32"]} for row, line in zip(rows, lines, strict=True)] == lines
    assert [row["step"] for row in rows] == [0, 1]
    assert {k: rows[1][k] for k in ("loss", "norms", "n", "text", "none")} == {
        "loss": 42.0, "norms": [1.0, 1.0], "n": 7, "text": "a", "none": None,
    }  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("record", ["RunLog.write", "Progress.set_postfix", "RunLog"])
def test_what_belongs_to_one_rank_is_refused_with_the_collective_that_helps(
    tmp_path: Path, ranks: int, record: str
) -> None:
    def program() -> list[str]:
        texts = []
        with cc.Mesh(dp=ranks) as mesh:
            log = RunLog(tmp_path / "run.jsonl")
            note = {
                "RunLog.write": log.write, "Progress.set_postfix": Progress([]).set_postfix,
                "RunLog": lambda **facts: RunLog(tmp_path / "run.jsonl", **facts),
            }[record]  # fmt: skip
            x = cc.shard(ag.tensor(np.arange(6.0), {"dp": R}), "dp")
            own = ag.tensor(np.array(1.0 + mesh.place[0]), {"dp": V})
            rooted = cc.reduce(own, "dp", 0)
            for value in (x.sum(), own, x, rooted, mesh.axis("dp").rank, x.shape[0], {"nested": [x.sum()]}):
                with pytest.raises(LayoutError) as error:
                    note(loss=value)
                texts.append(str(error.value))
            loss = x.sum()
            note(loss=cc.all_reduce(loss, "dp", to=I))  # the fixes
            note(loss=cc.all_reduce(own, "dp", to=I), mean=cc.mean(own, "dp"), all=cc.all_gather(x, "dp"))
            note(loss=cc.broadcast(rooted, "dp", 0, to=I), rank=int(mesh.axis("dp").rank), n=x.global_shape[0])
            note(loss=ag.constant(1.0), r=ag.tensor(1.0, {"dp": R}))
        return texts

    for texts in cc.run(program, ranks):
        p, v, shard, rooted, rank, count, nested = texts
        assert p.startswith(f"{record}(loss: f64[] {{dp: P}})\n  axis 'dp': it is Partial: this rank has an addend")
        assert "fix: cc.all_reduce(loss, 'dp', to=I)" in p and "test_runs.py:" in p
        assert "each rank has a value of its own" in v and "cc.all_reduce(loss, 'dp', to=I)" in v and "cc.mean" in v
        assert "cc.all_gather(loss, 'dp')" in shard and "cc.broadcast(loss, 'dp', 0, to=I)" in rooted
        assert "depends on the rank" in rank and "global_shape" in count
        assert "loss['nested'][0]" in nested and "Partial" in nested


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with RunLog(path) as log:
        log.write(text="before")
        for step in range(5):
            log.write(step=step, loss=step / 10, accuracy=0.5)
            log.write(step=step, tested=True)
    with path.open("a") as file:
        file.write('{"step": 5, "lo')  # a crash in the middle of a line
    assert len(read_log(path)) == 11
    with RunLog(path) as log:  # from the checkpoint after step 2
        for step in (3, 4):
            log.write(step=step, loss=step)
    rows = read_log(path)
    assert rows[0]["text"] == "before"
    assert [(row["step"], row.get("loss")) for row in rows[1:]] == [
        (0, 0.0), (0, None), (1, 0.1), (1, None), (2, 0.2), (2, None), (3, 3), (4, 4),
    ]  # fmt: skip
    assert len(read_log(path, repeated=True)) == 13
    with pytest.raises(RingtapeError, match="is closed"):
        log.write(step=5)
    path.write_text("{}\nnonsense\n{}\n")
    with pytest.raises(FileError, match="line 2: .*\n  'nonsense'"):
        read_log(path)


@pytest.mark.parametrize("name", ["started", "time_s", "ranks", "crc32"])
def test_names_that_the_log_uses_are_refused(tmp_path: Path, name: str) -> None:
    """A line with started= was dropped by `read_log`, and time_s= was overwritten."""
    path = tmp_path / "run.jsonl"
    with RunLog(path) as log:
        if name != "ranks":
            with pytest.raises(OptionError, match=f"{name}=3 was given.*\n  fix: .* run_{name}="):
                log.write(step=0, **{name: 3})
        log.write(step=0, **{f"run_{name}": 3})  # the fix
    if name != "time_s":
        with pytest.raises(OptionError, match=f"RunLog: {name}=3"):
            RunLog(path, **{name: 3})
    RunLog(path, **{f"run_{name}": 3}).close()
    (row,) = read_log(path)
    assert row.keys() == {"step", f"run_{name}", "time_s"} and row[f"run_{name}"] == 3


def test_a_line_that_is_missing_or_changed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        with RunLog(path) as log:
            for step in range(3):
                log.write(step=step, loss=step / 7)
    lines = path.read_text().splitlines(keepends=True)
    for wrong in (lines[:2] + lines[3:], [*lines[:2], lines[2].replace("0.142", "0.143"), *lines[3:]],
                  [*lines[:2], lines[2][:-26] + "}\n", *lines[3:]], lines[:2] + lines[3:1:-1] + lines[4:],
                  [*lines[:-1], lines[-1][:-1] + "x"]):  # fmt: skip
        path.write_text("".join(wrong))
        with pytest.raises(FileError, match=r"run.jsonl'\), line [3-8]: it is damaged"):
            read_log(path)
    old = [re.sub(r', "crc32": "\w+"', "", line) for line in lines]
    path.write_text("".join(old[:4] + lines[4:]))  # an older version began it
    assert len(read_log(path, repeated=True)) == 6


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with RunLog(path) as log:
        log.write(a=math.nan, b=ag.tensor(np.float32("inf")), c=[-math.inf, np.float64(0.1)], d={"e": np.float32(0.1)})
        for wrong, error in ((1j, ArgumentError), (np.array(1j), DtypeError), (print, ArgumentError)):
            with pytest.raises(error):
                log.write(loss=wrong)
    line = path.read_text().splitlines()[1]
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (row,) = read_log(path)
    assert math.isnan(row["a"]) and row["b"] == math.inf and row["c"] == [-math.inf, 0.1]
    assert row["d"]["e"] == float(np.float32(0.1))


def test_a_plot_has_the_curves_and_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"step": i, "loss": 1 / (i + 1), "tested": i} for i in range(4)] + [{"step": 4}]
    figure = plot_log(rows, file=tmp_path / "loss.png", logarithmic=True)
    (axes,) = figure.axes
    assert axes.lines[0].get_ydata().tolist() == [1, 1 / 2, 1 / 3, 1 / 4] and axes.get_yscale() == "log"
    assert (tmp_path / "loss.png").read_bytes()[:4] == b"\x89PNG"
    both = plot_log({"a": rows, "b": rows}, ["loss", "tested"])
    assert [t.get_text() for t in both.axes[0].get_legend().get_texts()] == [
        "a, loss", "a, tested", "b, loss", "b, tested"]  # fmt: skip
    with pytest.raises(OptionError, match="no line has 'step' and 'accuracy'; the lines have"):
        plot_log(rows, "accuracy")
    hidden(monkeypatch, "matplotlib")
    with pytest.raises(DependencyError, match=r"pip install 'ringtape\[runs\]'"):
        plot_log(rows)


def test_sinks_get_each_line_on_one_rank(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []
    table = CSVSink(tmp_path / "run.csv")

    def program() -> None:
        with cc.Mesh(dp=3), RunLog(tmp_path / "run.jsonl", sinks=[table, got.append], lr=0.1) as log:
            for step in range(2):
                log.write(step=step, loss=ag.constant(0.5 / (step + 1)), norms=np.ones(2), text="a, b")
            log.write(step=2, accuracy=math.nan)

    cc.run(program, 3)
    assert [{k: x for k, x in row.items() if k != "time_s"} for row in got[:2]] == [
        {"step": step, "loss": 0.5 / (step + 1), "norms": [1.0, 1.0], "text": "a, b"} for step in range(2)
    ]
    with open(tmp_path / "run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["0.5", "0.25", ""] and rows[0]["text"] == "a, b"
    assert rows[0]["norms"] == "[1.0, 1.0]" and [row["accuracy"] for row in rows] == ["", "", "nan"]
    assert [row["step"] for row in read_log(tmp_path / "run.jsonl")] == [0, 1, 2]

    with RunLog(sinks=[CSVSink(tmp_path / "run.csv")]) as log:  # goes on in the same file, with one more column
        log.write(step=3, loss=0.1, late=True)
    with open(tmp_path / "run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"] and rows[0]["late"] == "" and rows[3]["late"] == "True"


def test_wrong_sinks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"neither a path nor a sink[\s\S]*fix: RunLog"):
        RunLog()
    with pytest.raises(ArgumentError, match=r"a list of functions[\s\S]*fix: sinks="):
        RunLog(sinks=print)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="a sink: 3 was given; needed: a function"):
        RunLog(sinks=[3])  # type: ignore[list-item]
    with pytest.raises(FileError, match="os.makedirs"), RunLog(sinks=[CSVSink(tmp_path / "no" / "run.csv")]) as log:
        log.write(loss=1.0)
    hidden(monkeypatch, "tensorboardX")
    with pytest.raises(DependencyError, match=r"TensorBoardSink needs tensorboardX[\s\S]*ringtape\[runs\]"):
        TensorBoardSink(tmp_path)


def test_event_files_of_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra runs")
    from tensorboardX.event_file_writer import RecordWriter  # noqa: F401  # the package is whole
    from tensorboardX.proto.event_pb2 import Event

    with RunLog(sinks=[TensorBoardSink(tmp_path / "board")]) as log:
        for step in (5, 6):
            log.write(step=step, loss=step / 2, losses={"a": 1}, norms=[3.0, 4.0], note="b", none=None)
    (path,) = (tmp_path / "board").iterdir()
    data, events = path.read_bytes(), []
    while data:  # a length of 8 bytes, a checksum of 4, the event, a checksum of 4
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    found = {(value.tag, event.step): value.simple_value for event in events for value in event.summary.value}
    assert found[("loss", 5)] == 2.5 and found[("losses/a", 6)] == 1.0 and found[("norms/1", 5)] == 4.0
    assert any(tag.startswith("note") for tag, _ in found)


def test_progress_without_tqdm_counts_the_examples_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden(monkeypatch, "tqdm")
    out = io.StringIO()
    loader_of = lambda: data.DataLoader(data.TensorDataset(np.arange(22.0)), 4, axis="dp")

    def program() -> Any:
        with cc.Mesh(dp=2):
            loader = loader_of()
            loader.load_state_dict({"epoch": 1, "position": 8, "examples": 22, "key": None})  # a resumed epoch
            shown = Progress(loader, "epoch 1", interval_s=0.0, file=out)
            for (x,) in shown:
                shown.set_postfix(loss=cc.all_reduce(x.sum(), "dp", to=I))
            return shown.count, shown.rate > 0

    assert cc.run(program, 2) == [(22, True)] * 2
    lines = out.getvalue().splitlines()  # rank 0's alone
    assert [line.split(" examples,")[0] for line in lines] == [
        "epoch 1: 12/22", "epoch 1: 16/22", "epoch 1: 20/22", "epoch 1: 22/22", "epoch 1: 22/22"]  # fmt: skip
    assert re.search(r"22/22 examples, [\d.e+]+ examples/s, loss=41$", lines[-1])


def test_progress_of_items_and_of_a_loop_that_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden(monkeypatch, "tqdm")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    for i in Progress(iter(range(9)), total=9, file=out):
        if i == 3:
            break
    assert re.fullmatch(r"\r3/9 items, .* items/s\n", out.getvalue())
    out = Terminal()
    monkeypatch.setattr(progress_module.time, "perf_counter", iter(range(100)).__next__)
    list(Progress([1, 2], file=out))
    assert out.getvalue().count("\r") == 3 and out.getvalue().count("\n") == 1


def test_progress_with_tqdm() -> None:
    pytest.importorskip("tqdm")
    out = io.StringIO()
    shown = Progress(data.DataLoader(data.TensorDataset(np.arange(10)), 4), "epoch 0", file=out)
    for _ in shown:
        shown.set_postfix(loss=0.12345)
    assert all(text in out.getvalue() for text in ("epoch 0: 100%", "10/10", "examples/s, loss=0.123"))
    assert shown.count == 10
