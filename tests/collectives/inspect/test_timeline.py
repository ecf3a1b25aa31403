"""Timelines: who was waited for, at what rate, by one clock; on threads, on processes, and with clocks that lie."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.engine import events
from collectives.inspect import timeline_report
from collectives.inspect.clocks import Offset, corrected, cristian, measure_offsets
from collectives.inspect.observing import observing
from collectives.inspect.timeline_report import CallRecord, OperationTimes, RankRecord, merged
from collectives.transports.protocol import Communicator, Pending, Request, observers
from parallel import DataParallel

from ..launch import launch


def until_blocked(*ranks: int) -> None:
    """Go on once these ranks of this world of threads stand still: they have come to the call at hand."""
    local: Any = cc.world()
    while any(local._world._waits[rank] is None for rank in ranks):
        pass


# -- who was waited for --------------------------------------------------------------------------------------------


def late_program(late: int, call: Callable[[Any], Any]) -> Any:
    def program() -> Any:
        with cc.Mesh(dp=3) as mesh, cc.timeline() as t:
            if mesh.ranks.rank == late:
                until_blocked(*({0, 1, 2} - {late}))
            call(ag.tensor(numpy.ones(1000)))
        return t.report

    return program


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("call", [
    lambda x: cc.all_reduce(x, "dp"), lambda x: cc.all_gather(x, "dp"), lambda x: cc.reduce_scatter(x, "dp"),
    lambda x: cc.all_to_all(x.reshape(10, 100), "dp"),
], ids=["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])  # fmt: skip
def test_the_last_to_come_is_waited_for(late: int, call: Any) -> None:
    (report, *others) = cc.run(late_program(late, call), 3)
    for record in report.records:
        first = record.calls[0]  # later ones are nobody's doing: threads come as they are scheduled
        assert first.last == late and (first.waited_ns > 0) == (record.rank != late)
        assert first.end is not None and first.begin <= first.begin + first.waited_ns <= first.end
    assert report.waited_for[late] > 0 and f"rank {late}" in str(report)
    assert all(other.waited_for == report.waited_for for other in others)


@pytest.mark.parametrize("late", [0, 2])
def test_a_receiver_waits_for_its_sender(late: int) -> None:
    def program() -> Any:
        everyone = cc.world()
        with cc.timeline() as t:
            if everyone.rank == late:
                until_blocked(1)
                everyone.send(numpy.ones(100), 1)
            elif everyone.rank == 1:
                everyone.recv(numpy.empty(100), late)
        return t.report

    (report, *_) = cc.run(program, 3)
    (row,) = [row for row in report.rows if row.call == "recv"]
    assert row.rank == 1 and row.waited_for == {late: row.waited_s} and row.bytes == 800
    (sent,) = [row for row in report.rows if row.call == "send"]
    assert sent.rank == late and sent.waited_s == 0


def records(*begins: int, call: str = "all_reduce", root: int | None = None, end: int = 1000) -> list[RankRecord]:
    """One call of ranks that begin when told and end together."""
    found = []
    for rank, begin in enumerate(begins):
        c = CallRecord(call, "dp", ("dp@0", tuple(range(len(begins))), None, call), 1, 4000, root, False, call)
        c.begin, c.returned, c.wait, c.end = begin, end, begin, end
        found.append(RankRecord(rank, "here", [c], [OperationTimes(call, "forward", begin - 5, end + 5, 0)]))
    return found


def same_clocks(n: int) -> list[Offset]:
    return [Offset(0, 0.0, 0.0)] * n


def test_waits_and_transfers_of_known_times() -> None:
    report = merged(records(100, 700, 300), same_clocks(3), same_clocks(3))
    assert [(r.waited_s, r.waited_for) for r in report.rows] == [(600e-9, {1: 600e-9}), (0, {}), (400e-9, {1: 400e-9})]
    assert all(r.transferred_s == 300e-9 and r.bytes_per_s == pytest.approx(4000 / 300e-9) for r in report.rows)
    assert report.waited_for == {1: 1000e-9} and report.span_s == 910e-9
    # from a root: only it is waited for; to a root: only it waits
    report = merged(records(100, 700, 300, call="broadcast", root=2), same_clocks(3), same_clocks(3))
    assert [r.waited_for for r in report.rows] == [{2: 200e-9}, {}, {}]
    report = merged(records(100, 700, 300, call="reduce", root=2), same_clocks(3), same_clocks(3))
    assert [r.waited_for for r in report.rows] == [{}, {}, {1: 400e-9}]
    # a call that some ranks made outside the block tells nothing
    some = records(100, 700, 300)
    some[1].calls.clear()
    assert not any(r.waited_for for r in merged(some, same_clocks(3), same_clocks(3)).rows)


def test_what_is_hidden_is_not_waited_for() -> None:
    """Rank 1 comes at 700; rank 0 started at 100 and asks for the result at 650 (waits 50), rank 2 at 900 (none)."""
    given_records = records(100, 700, 300)
    for record, wait in zip(given_records, (650, 700, 900), strict=True):
        (c,) = record.calls
        c.pending, c.returned, c.wait = True, c.begin + 10, wait
    report = merged(given_records, same_clocks(3), same_clocks(3))
    assert [r.waited_s for r in report.rows] == [pytest.approx(50e-9), 0, 0]
    assert [r.transferred_s for r in report.rows] == [pytest.approx(x * 1e-9) for x in (300, 300, 100)]
    given_records[2].calls[0].end = None  # never waited for
    names = [e["name"] for e in report.trace()["traceEvents"] if e["ph"] == "X" and e["pid"] == 2 and e["tid"] == 1]
    assert names == ["all_reduce (start)"]


# -- clocks --------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.integers(-(10**12), 10**12),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20),
)
def test_cristian_is_within_its_error(offset: int, delays: list[tuple[int, int]]) -> None:
    now, rounds = 0, []
    for there, back in delays:
        rounds.append((now, now + there + offset, now + there + back))
        now += there + back + 7
    found = cristian(rounds)
    assert abs(found.offset_ns - offset) <= found.error_ns
    assert found.error_ns == min(there + back for there, back in delays) / 2


def lying_clock(rank: int) -> Callable[[], int]:
    """A clock far off and fast or slow, the more the higher the rank."""
    origin = time.perf_counter_ns()
    return lambda: int((time.perf_counter_ns() - origin) * (1 + 0.01 * rank)) + origin + rank * 10**12


def test_measured_offsets_are_within_their_error() -> None:
    origin = time.perf_counter_ns()
    shift = [0, 5 * 10**9, -3 * 10**9, 77]

    def program() -> Any:
        everyone = cc.world()
        return measure_offsets(everyone, lambda: time.perf_counter_ns() - origin + shift[everyone.rank])

    (found, *others) = cc.run(program, 4)
    assert others == [[], [], []]
    for offset, true in zip(found, shift, strict=True):
        assert abs(offset.offset_ns - true) <= offset.error_ns
    assert found[0].error_ns == 0


def causal(report: Any) -> float:
    """The least time from a send's beginning to the end of its receive, over all messages."""
    sends = {(c.key, c.number): c.begin for r in report.records for c in r.calls if c.call == "send"}
    return min(c.end - sends[c.key, c.number] for r in report.records for c in r.calls if c.call == "recv")


def around_a_ring() -> Any:
    everyone = cc.world()
    with cc.timeline(clock=lying_clock(everyone.rank)) as t:
        for _ in range(30):
            everyone.send(numpy.ones(1), (everyone.rank + 1) % everyone.size)
            everyone.recv(numpy.empty(1), (everyone.rank - 1) % everyone.size)
    return t.report


def test_lying_clocks_are_corrected() -> None:
    (report, *_) = cc.run(around_a_ring, 3)
    assert max(report.clock_errors_s) < 100 and report.span_s < 500, "not the thousand seconds between the clocks"
    assert causal(report) >= -2e9 * max(report.clock_errors_s), "no message arrives before it is sent"
    assert report.clock_errors_s[0] == 0 < min(report.clock_errors_s[1:])


def test_without_the_correction_time_would_run_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    monkeypatch.setattr(timeline_report, "corrected", lambda t, start, end: t)
    (report, *_) = cc.run(around_a_ring, 3)
    assert causal(report) < -2e9 * max(report.clock_errors_s) and report.span_s > 1000


def test_drift_is_a_straight_line() -> None:
    start, end = Offset(1000, 50.0, 1.0), Offset(3000, 90.0, 1.0)
    assert [corrected(t, start, end) for t in (1000, 2000, 3000)] == [950, 1930, 2910]
    assert corrected(7, Offset(5, 2.0, 0.0), Offset(5, 2.0, 0.0)) == 5


# -- the trace -----------------------------------------------------------------------------------------------------


def training(path: str | None) -> Callable[[], Any]:
    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            model = DataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), "dp")
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            x = ag.tensor(numpy.ones((5, 4), "float32") * (mesh.ranks.rank + 1))
            with cc.timeline(path) as t:  # the mesh is older than the timeline, and heard
                with ag.Tape() as tape:
                    loss = cc.all_reduce(model(x).sum() / 15, "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
        return t

    return program


def check_trace(trace: dict[str, Any], ranks: int) -> None:
    """What ui.perfetto.dev needs of Chrome's format: whole events, nested on every thread."""
    found = trace["traceEvents"]
    assert {e["ph"] for e in found} == {"X", "M"} and {e["pid"] for e in found} == set(range(ranks))
    assert {e["name"] for e in found if e["ph"] == "M"} == {"process_name", "process_sort_index", "thread_name"}
    for pid in range(ranks):
        for tid in (0, 1):
            own = [e for e in found if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)]
            spans = [(e["ts"], e["ts"] + e["dur"]) for e in own]
            assert spans and min(spans)[0] >= 0
            open_spans: list[tuple[float, float]] = []
            for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
                while open_spans and open_spans[-1][1] <= begin + 0.002:
                    open_spans.pop()
                assert not open_spans or end <= open_spans[-1][1] + 0.002, "events overlap without being nested"
                open_spans.append((begin, end))


def test_a_training_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ranks = cc.run(training(str(path)), 3)
    trace = json.loads(path.read_text())
    check_trace(trace, 3)
    assert list(tmp_path.iterdir()) == [path], "nothing half-written is left"
    names = [e["name"] for e in trace["traceEvents"] if e["pid"] == 1 and e.get("cat") == "backward"]
    assert names.count("matmul") == 2 and names.count("parameter entry") == 1, "two layers"
    starts = [e for e in trace["traceEvents"] if e["name"] == "all_reduce (start)" and e["pid"] == 2]
    bucket_bytes = (3 * 16 + 32 + 4) * 4
    assert [e["args"]["bytes"] for e in starts] == [bucket_bytes], "gradients on cache lines of their own, and flags"
    assert all(e["args"]["axis"] == "dp" and e["args"]["by"] == "gradient bucket" and e["cat"] == "communication"
               and e["args"]["direction"] == "backward" for e in starts)  # fmt: skip
    rows = {(row.rank, row.call, row.direction): row for row in ranks[2].report.rows}
    assert rows[0, "all_reduce", "forward"].bytes == 4 and rows[0, "all_reduce", "backward"].bytes == bucket_bytes
    assert rows[1, "exchange", "forward"].calls == 3, "the entry, backward and step compare replicas"
    assert not ranks[1].report.records and ranks[0].report.records, "the records are on rank 0, the summary everywhere"
    assert str(ranks[0]) == str(ranks[1])


def test_a_drawing(tmp_path: Path) -> None:
    def program() -> None:
        t = training(None)()
        t.plot(tmp_path / "timeline.png")

    cc.run(program, 3)
    image = (tmp_path / "timeline.png").read_bytes()
    assert image.startswith(b"\x89PNG") and len(image) > 10_000


def test_on_processes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    outcome = launch("timeline_program.py", 3, str(path), limit_s=60, RINGTAPE_CHECK="always")
    shown = f"{outcome.out}\n{outcome.err}"
    assert outcome.code == 0 and not outcome.is_late, shown
    found = json.loads(re.search(r"FOUND (.*)", outcome.out)[1])  # type: ignore[index]
    assert found["last"] == [[0, 1], [1, 1], [2, 1]], shown
    begins = dict(found["starts"])
    assert begins[1] > max(begins[0], begins[2]), shown
    assert ["dp", "agree", "forward"] in found["kinds"] and ["dp", "all_reduce", "backward"] in found["kinds"], shown
    assert found["early"] >= -2e9 * max(found["errors"]), shown
    check_trace(json.loads(path.read_text()), 3)


# -- on and off ----------------------------------------------------------------------------------------------------


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    seen: list[bool] = []

    def program(fails: bool) -> None:
        with cc.timeline(tmp_path / "trace.json"):
            seen.append(get_ident() in observers)
            cc.world().barrier()
            if fails:
                raise ZeroDivisionError

    cc.run(lambda: program(False), 3)
    assert all(seen) and not observers and not events.listeners
    (tmp_path / "trace.json").unlink()
    with pytest.raises(ZeroDivisionError):
        cc.run(lambda: program(True), 3)
    assert not observers and not events.listeners and not list(tmp_path.iterdir())


def test_a_thread_hears_itself_only() -> None:
    """Another world of threads, inside the block of this one, is not heard."""
    heard: list[str] = []

    def observer(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        heard.append(request.call)
        return run()

    with observing(observer):
        cc.run(lambda: cc.world().barrier(), 2)
        cc.world().exchange(b"x")
        cc.world().start(Request("send", numpy.ones(1), peer=0)).wait()  # which is a send inside
        cc.world().recv(numpy.empty(1), 0)
    assert heard == ["exchange", "send", "recv"], "nor are the calls inside a call"
    cc.world().barrier()
    assert len(heard) == 3


def test_started_calls_work_as_ever() -> None:
    def program() -> Any:
        everyone = cc.world()
        with cc.timeline() as t:
            x = numpy.ones(3)
            pending = everyone.start(Request("all_reduce", x))
            x[:] = 7  # the pending call owns a copy
            unfinished = everyone.start(Request("all_reduce", x))
            assert isinstance(pending, Pending)
            while not pending.test():
                pass
            assert pending.wait().tolist() == pending.wait().tolist() == [2, 2, 2]
        assert unfinished.wait().tolist() == [14, 14, 14], "waited for after the block"
        for record in t.report.records:  # type: ignore[union-attr]
            first, second = (c for c in record.calls if c.call == "all_reduce")
            assert first.begin <= first.returned <= first.end <= first.wait, "complete before the program asked for it"
            assert first.pending and first.waited_ns == 0 and second.end is None
        return [row.calls for row in t.report.rows if row.call == "all_reduce"]  # type: ignore[union-attr]

    assert cc.run(program, 2) == [[2, 2]] * 2


def test_misuse() -> None:
    with cc.dry(2), pytest.raises(cc.MeshError, match="dry run"), cc.timeline():
        pass
    with cc.timeline() as t:
        assert "not ended" in str(t)
        with pytest.raises(cc.MeshError, match="not ended"):
            t.plot("never.png")
    assert "1 ranks" in str(t) and t.report is not None and t.report.waited_for == {}
    with pytest.raises(cc.MeshError, match="entered before"), t:
        pass
