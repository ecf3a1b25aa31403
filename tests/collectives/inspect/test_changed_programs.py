"""A replay tells of every change: of what one rank gives, of the text, of the record itself. And of nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from collectives.transports.record_file import digest_of
from collectives.transports.replays.order import Order
from collectives.transports.replays.recorded import Record
from collectives.transports.replays.replaying import replaying
from collectives.transports.request import Request

from ... import summary
from ...forks import run_python
from . import replay_cases


# -- changes in one process --------------------------------------------------------------------------------------------
def program(path: str, data: bool, change: str = "") -> list[float]:
    """One call of each kind. A change is made in the middle, on one rank where it names one."""
    with cc.record(path, data), cc.Mesh(dp=-1) as mesh:
        group = mesh.axis("dp").group
        rank, size = int(group.index), int(group.size)
        mine = np.arange(1.0, 5.0) + rank
        if change == "from the third call on" and rank == size - 1:
            mine[2] = np.nextafter(mine[2], 9)
        first = cc.all_reduce(ag.tensor(np.ones(2), {"dp": cc.V}), "dp", to=cc.I).numpy()
        group.barrier()
        if change == "a sum that cancels":
            mine = mine + (rank == 0) - 1.0 * (rank == 1)
        if change == "reversed":
            mine = mine[::-1].copy()
        orders = [3.0, 2.0] if change == "equal calls in another order" else [2.0, 3.0]
        found = [group.all_reduce(mine * factor) for factor in orders]
        large = np.outer(np.arange(80.0), np.ones(80))
        if change == "rows and columns":
            large = large.T
        found.append(group.all_reduce(-large.ravel() if change == "sign" else large.ravel()))
        found.append(group.all_reduce(mine, "max" if change == "operation" else "sum"))
        found.append(group.broadcast(mine.copy(), 1 if change == "root of a broadcast" else 0))
        group.reduce(mine, 1 if change == "root of a reduce" else 0)
        kind = "float32" if change == "dtype" else "float64"
        found.append(group.all_gather(mine.astype(kind), [4] * size))
        counts = [1, 3, *[2] * (size - 2)] if change == "parts" else [2] * size
        found.append(group.reduce_scatter(np.arange(2.0 * size), counts))
        group.send(mine + (change == "message" and rank == 1), (rank + 1) % size)
        found.append(group.recv(np.empty(4), (rank - 1) % size))
        pending = group.start(Request("all_reduce", mine * (5 + (change == "started" and rank == 0))))
        found.append(pending.wait())
        group.exchange(bytes([rank, change == "exchange"]))
        if change != "less":
            found.append(group.all_reduce(mine * 7))
        if change == "more":
            group.barrier()
        if change == "channel":
            group.duplicate("more").barrier()
        if change == "error" and rank == 1:
            raise ValueError("stop")
    return [float(np.sum(x)) for x in [first, *found]]


CHANGES = ("from the third call on", "a sum that cancels", "reversed", "equal calls in another order",
           "rows and columns", "sign", "operation", "root of a broadcast", "root of a reduce", "dtype", "parts",
           "message", "started", "exchange", "less", "more", "channel", "error")  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_every_change_is_told(ranks: int, data: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    first = cc.run(program, ranks, path, data)
    with replaying(Record(path)) as order:
        assert cc.run(program, ranks, path, data) == first
    assert order.first is None
    for change in CHANGES:
        order, error = replayed(path, ranks, data, change)
        assert order.first is not None or isinstance(error, cc.CommunicationError), change


def replayed(path: str, ranks: int, data: bool, change: str) -> tuple[Order, BaseException | None]:
    """How the replay of a changed program differs, and the error of its ranks."""
    error: BaseException | None = None
    with replaying(Record(path)) as order:
        try:
            cc.run(program, ranks, path, data, change)
        except Exception as failure:
            error = failure
    return order, error


@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_the_rank_and_the_call_are_named(data: bool, tmp_path: Path) -> None:
    """Ranks that only have a result of what another one gives are not named."""
    path = str(tmp_path / "run")
    cc.run(program, 4, path, data)
    for change, rank, words in (
        ("from the third call on", 3, "all_reduce float64[4] gives other values than were recorded"),
        ("message", 1, "send float64[4] peer 2 gives other values"),
        ("started", 0, "all_reduce float64[4] gives other values"),
    ):
        order, _ = replayed(path, 4, data, change)
        assert [each.rank for each in order.differences.found] == [rank]
        assert order.first is not None and order.first.text.startswith(words)
        assert f"(at {Path(__file__).name}:" in order.first.text


@pytest.mark.parametrize("data", [True, False], ids=["data", "order"])
def test_a_record_that_was_changed_is_told(data: bool, tmp_path: Path) -> None:
    """The other side: another digest, another name, a call more or less, on any rank, at any call."""
    path, told = str(tmp_path / "run"), 0
    cc.run(program, 3, path, data)
    size = len(Record(path).calls[1])
    for at in range(size):
        for rank, change in ((1, "given"), (2, "name"), (0, "less")):
            record = Record(path)
            calls = record.calls[rank]
            key = list(calls)[at]
            found = calls[key]
            assert found.entry is not None
            if change == "given":
                calls[key] = found._replace(entry=found.entry._replace(given=found.entry.given ^ 4))
            elif change == "name":
                calls[key] = found._replace(call="all_reduce float32[7]")
            else:
                del calls[key]
            error = None
            with replaying(record) as order:
                try:
                    cc.run(program, 3, path, data)
                except cc.CommunicationError as failure:
                    error = failure
            is_own_exchange = found.call == "exchange" and change == "given" and order.first is None
            assert order.first is not None or error is not None or is_own_exchange, (at, change, found)
            told += not is_own_exchange
    assert told >= 3 * size - 2
    record = Record(path)
    record.calls[2]["dp@0 of 0,1,2", 99, ""] = found
    with replaying(record) as order:
        cc.run(program, 3, path, data)
    assert order.first is not None and order.first.rank == 2 and "it ends after" in order.first.text


def of_threads(path: str, block: Callable[[], Any]) -> list[Any]:
    """Run a block of communication before, in, and after a record."""

    def body() -> Any:
        with cc.Mesh(dp=-1):
            before = block()
            with cc.record(path):
                inside = block()
            return before, inside, block()

    return cc.run(body, 3)


def test_what_is_outside_of_the_block_is_not_compared(tmp_path: Path) -> None:
    path, factor = str(tmp_path / "run"), [1.0, 1.0, 1.0] * 3

    def block() -> float:
        group = cc.world()
        return float(group.all_reduce(np.full(2, factor[0]))[0])

    of_threads(path, block)
    with replaying(Record(path)) as order:
        of_threads(path, block)
    assert order.first is None
    factor[0] = 2.0
    with replaying(Record(path)) as order:
        of_threads(path, block)
    assert order.first is not None and order.first.before == 0


DTYPES = "?bBhHiIlLqQefdgFDG"


def changes_of(x: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The array with one element changed, two elements that changed places, reversed, and with another sign."""
    for at in (0, x.size // 2, x.size - 1):
        y = x.copy()
        y[at] = x[at] + np.ones((), x.dtype) if x.dtype.kind != "b" else ~x[at]
        yield y
    if x.size > 1:
        y = x.copy()
        y[0], y[-1] = x[-1], x[0]
        yield y
        yield x[::-1].copy()
    if x.dtype.kind in "fc":
        yield -x
        yield x * 2
    if x.dtype.kind == "c":
        yield x.conj()


@pytest.mark.parametrize("size", [1, 2, 31, 1024, 4096, 8192, 50_000])
def test_digests_differ(size: int) -> None:
    """Also where the bits of all changes together are a multiple of those of a word, as signs of an even number."""
    rng = np.random.default_rng(size)
    for char in DTYPES:
        x = np.asarray(rng.integers(1, 100, size) % (2 if char == "?" else 128)).astype(char)
        if x.dtype.kind in "fc":
            x = x + np.asarray(0.5 if x.dtype.kind == "f" else 0.5 + 0.25j, x.dtype)
        for y in changes_of(x):
            assert np.array_equal(x, y) or digest_of(x) != digest_of(y), (char, size)
        assert digest_of(x) == digest_of(x.copy())


# -- ranks that were processes ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["order", "data"])
def test_changed_programs(kind: str) -> None:
    names = ["a sum that cancels", "a variable", "a module"]
    found = dict(replay_cases.changed_programs([3], [kind], names))
    assert len(found) == 4 and not any(found.values()), found


def test_unchanged_programs() -> None:
    found = dict(replay_cases.unchanged_programs([3], ["order"], ["clock", "seeded", "block"]))
    assert len(found) == 3 and not any(found.values()), found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cases", [replay_cases.changed_programs, replay_cases.unchanged_programs])
def test_all_programs(cases: Callable[[], Iterator[tuple[str, str]]]) -> None:
    found = dict(cases())
    wrong = {name: problem for name, problem in found.items() if problem}
    summary.line(f"replays of {cases.__name__}", f"{len(found)}, wrong: {len(wrong)}")
    assert not wrong


# -- the command ------------------------------------------------------------------------------------------------------
THREADS = """
    import sys
    import numpy, autograd as ag, collectives as cc

    def f(k):
        with cc.Mesh(dp=-1) as mesh:
            x = ag.tensor(numpy.full(2, 1.0 + k) * (1 + int(mesh.axis("dp").rank)), {"dp": cc.V})
            y = cc.all_reduce(x * x, "dp", to=cc.I)
            if len(sys.argv) > 1 and sys.argv[1] == "more":
                y = y + y
            return float(y.numpy()[0])

    print(cc.run(f, 3, 1), cc.run(f, 3, 2))
"""


def test_several_runs_places_and_operations_of_one_side(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(THREADS))
    for name in ("", "more"):
        done = run_python("program.py", *[name] * bool(name), folder=tmp_path, RINGTAPE_RECORD=f"run{name}")
        assert done.returncode == 0, done.stderr
    replay = ("-m", "collectives", "replay", "run")
    done = run_python(*replay, folder=tmp_path)
    assert done.returncode == 0 and "differ" not in done.stdout + done.stderr, done.stdout + done.stderr
    for place, says in (("99", "ended after 0 steps"), ("operation:99", "ended after 3 operations"),
                        ("program.py:10", "ended before it came to this line")):  # fmt: skip
        done = run_python(*replay, "--to", place, folder=tmp_path)
        assert done.returncode == 2 and f"replay: --to {place} was not reached: the program {says}" in done.stderr
    for one, two, where in (("run", "runmore", "runmore"), ("runmore", "run", "runmore")):
        done = run_python(*replay[:3], one, "--first-difference", two, folder=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert f"replay: first: only in {where}: forward add at program.py:10, on rank 0" in done.stdout, done.stdout
    done = run_python(*replay, "--", "more", folder=tmp_path)
    assert done.returncode == 0 and "changed since the record: the arguments" in done.stderr


