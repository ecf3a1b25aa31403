"""Merge the records of all ranks into one timeline: matched calls, a trace for Perfetto, a table, a drawing.

A call that needs all ranks is ready when the last rank has entered it, a broadcast when its root has, and a receive
when the message was sent. Until then a rank *waits* for the last one; after that it *transfers*. A nonblocking call
waits and transfers only while the program waits for its result; the time before that was overlapped with other work.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from autograd.files import replacing

from .clocks import Offset, corrected

__all__ = ["MESSAGES", "CallRecord", "OperationTimes", "RankRecord", "Report", "Row", "SpanRecord", "merged"]


@dataclass(slots=True)
class CallRecord:
    """One call of a communicator on one rank. Times are in nanoseconds.

    Attributes
    ----------
    call, axis : str
        The name of the call, and of the axis that it runs along.
    key, number
        The channel (for messages also the sender and the receiver) and a count. The same call has the same key and
        number on all ranks.
    bytes : int
        The size of the array that the rank passed to the call.
    root : int or None
        A world rank.
    backward : bool
        Whether it was called during a reverse sweep.
    by : str
        The operation that made the call.
    begin, returned : float
        When the call was made, and when it returned.
    wait, end : float
        When the program began to wait for the result, and when it had it. For a blocking call, as `begin` and
        `returned`. If a test found the call complete before the program waited, `end` is the time of that test.
    pending : bool
        Whether the call is nonblocking.
    last, ready : int or None, float
        The world rank that entered the call last, and when. Set when the records of all ranks are merged.
    """

    call: str
    axis: str
    key: Any
    number: int
    bytes: int
    root: int | None
    backward: bool
    by: str
    begin: float = 0
    returned: float = 0
    wait: float = 0
    end: float | None = None
    pending: bool = False
    last: int | None = None
    ready: float = 0

    @property
    def waited_ns(self) -> float:
        """The time for which the program was blocked because another rank had not entered the call."""
        return 0.0 if self.end is None else max(0.0, min(self.ready, self.end) - self.wait)

    @property
    def transferred_ns(self) -> float:
        """The time for which the program was blocked by the transfer, after all needed ranks had entered the call."""
        return 0.0 if self.end is None else max(0.0, self.end - max(self.ready, self.wait))


class OperationTimes(NamedTuple):
    """One operation of the program on one rank; `depth` is the number of operations that it is nested in."""

    name: str
    direction: str
    begin: float
    end: float
    depth: int


class SpanRecord(NamedTuple):
    """One span of the program on one rank: a tape's block ("forward"), a sweep ("backward"), "optimizer", "step", ...

    `elements` counts the results of the operations of forward in it, `rows` the rows of a step's batch.
    """

    name: str
    begin: float
    end: float
    elements: int
    rows: int


@dataclass
class RankRecord:
    """The records of one rank."""

    rank: int
    host: str
    calls: list[CallRecord]
    operations: list[OperationTimes]
    spans: list[SpanRecord] = field(default_factory=list)


class Row(NamedTuple):
    """The totals of one kind of call on one rank.

    Attributes
    ----------
    rank : int
    axis, call, direction : str
    calls, bytes : int
        The number of calls, and the size of the arrays that the rank passed to them.
    waited_s, transferred_s : float
        The time blocked by other ranks, and by transfers.
    waited_for : mapping from int to float
        Seconds waited for each world rank.
    """

    rank: int
    axis: str
    call: str
    direction: str
    calls: int
    bytes: int
    waited_s: float
    transferred_s: float
    waited_for: dict[int, float]

    @property
    def bytes_per_s(self) -> float | None:
        """The size of the arrays divided by the time of their transfers; None if that time is 0."""
        return self.bytes / self.transferred_s if self.transferred_s > 0 and self.bytes else None


@dataclass
class Report:
    """The timeline of all ranks.

    Attributes
    ----------
    rows : list of Row
    span_s : float
        The time from the first to the last recorded event of any rank.
    clock_errors_s : list of float
        For each rank, an upper bound of the error of its times relative to rank 0's clock.
    records : list of RankRecord
        All events, in nanoseconds on rank 0's clock since the first event. Empty on other ranks.
    """

    rows: list[Row]
    span_s: float
    clock_errors_s: list[float]
    records: list[RankRecord] = field(default_factory=list)

    def summary(self) -> Report:
        """A copy without the records."""
        return Report(self.rows, self.span_s, self.clock_errors_s)

    @property
    def waited_for(self) -> dict[int, float]:
        """For each rank, the total time in seconds that all others waited for it, the longest first."""
        total: Counter[int] = Counter()
        for row in self.rows:
            total.update(row.waited_for)
        return dict(total.most_common())

    def __str__(self) -> str:
        errors = max(self.clock_errors_s)
        lines = [f"timeline of {len(self.clock_errors_s)} ranks over {_time(self.span_s)}; clocks agree to within "
                 f"{_time(errors)}"]  # fmt: skip
        table = [("rank", "axis", "call", "direction", "calls", "bytes", "waited", "for", "transferred in", "at")]
        for r in self.rows:
            most = sorted(r.waited_for.items(), key=lambda item: -item[1])[:2]
            whom = ", ".join(f"rank {rank} {_time(s)}" for rank, s in most)
            rate = "" if r.bytes_per_s is None else _rate(r.bytes_per_s)
            table.append((str(r.rank), r.axis, r.call, r.direction, str(r.calls), f"{r.bytes:,}", _time(r.waited_s),
                          whom, _time(r.transferred_s), rate))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        right = (0, 4, 5, 6, 8, 9)
        for row in table:
            cells = [x.rjust(w) if i in right else x.ljust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True))]
            lines.append(("  " + "  ".join(cells)).rstrip())
        waited = ", ".join(f"rank {rank} {_time(s)}" for rank, s in self.waited_for.items())
        return "\n".join([*lines, f"  waited for, by all others: {waited or 'none'}"])

    # -- the trace ---------------------------------------------------------------------------------------------
    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file, atomically."""
        with replacing(path, "timeline") as file:
            file.write(json.dumps(self.trace()).encode())

    def trace(self) -> dict[str, Any]:
        """The trace in Chrome's Trace Event Format (JSON object format): complete events, times in microseconds."""
        found: list[dict[str, Any]] = []
        for record in self.records:
            rank = record.rank
            for name, value in (("process_name", f"rank {rank} on {record.host}"), ("process_sort_index", rank)):
                key = "sort_index" if name == "process_sort_index" else "name"
                found.append({"name": name, "ph": "M", "pid": rank, "tid": 0, "args": {key: value}})
            for tid, value in ((_WORK, "operations"), (_TALK, "communication")):
                found.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": value}})
            for o in record.operations:
                found.append(_event(rank, _WORK, o.name, o.direction, o.begin, o.end, {}))
            for call in record.calls:
                found += _call_events(rank, call)
        return {
            "traceEvents": found,
            "displayTimeUnit": "ns",
            "otherData": {"clock_errors_us": [round(s * 1e6, 3) for s in self.clock_errors_s]},
        }

    # -- the drawing -------------------------------------------------------------------------------------------
    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the operations, waits and transfers of all ranks as a PNG, one row per rank."""
        from matplotlib.figure import Figure  # optional; pyplot is not thread-safe and needs a display

        figure = Figure(figsize=(11, 1.4 + 0.7 * len(self.records)), layout="constrained")
        axes = figure.subplots()
        scale, unit = (1e-6, "ms") if self.span_s >= 2e-3 else (1e-3, "us")
        for k, record in enumerate(self.records):
            work = [(o.begin, o.end) for o in record.operations if o.depth == 0]
            waits = [(c.wait, c.wait + c.waited_ns) for c in record.calls if c.waited_ns > 0]
            moves = [(c.end - c.transferred_ns, c.end) for c in record.calls if c.end and c.transferred_ns > 0]
            hidden = [(c.returned, c.wait) for c in record.calls if c.pending and c.wait > c.returned]
            for spans, where, color, name in (
                (work, (k - 0.38, 0.36), "0.75", "operations"),
                (hidden, (k + 0.30, 0.08), "tab:green", "pending"),
                (waits, (k, 0.30), "tab:red", "waiting for another rank"),
                (moves, (k, 0.30), "tab:blue", "transfer"),
            ):
                bars = [(begin * scale, max(end - begin, 1) * scale) for begin, end in spans]
                axes.broken_barh(bars, where, facecolors=color, label=name if k == 0 else None)
        axes.set_yticks(range(len(self.records)), [f"rank {r.rank}" for r in self.records])
        axes.invert_yaxis()
        axes.set(xlabel=f"{unit} by rank 0's clock", title="Operations above, communication below")
        axes.set_xlim(0, self.span_s * 1e9 * scale * 1.01)
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.legend(frameon=False, ncols=4, loc="outside lower center")
        figure.savefig(path, dpi=150)


_WORK, _TALK = 0, 1


def _event(rank: int, tid: int, name: str, kind: str, begin: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "cat": kind, "ph": "X", "pid": rank, "tid": tid, "ts": round(begin / 1e3, 3),
            "dur": round(max(end - begin, 0.0) / 1e3, 3), "args": args}  # fmt: skip


def _call_events(rank: int, c: CallRecord) -> list[dict[str, Any]]:
    args: dict[str, Any] = {"axis": c.axis, "bytes": c.bytes, "by": c.by, "number": c.number,
                            "direction": "backward" if c.backward else "forward"}  # fmt: skip
    if c.last is not None:
        args |= {"last": f"rank {c.last}", "waited_us": round(c.waited_ns / 1e3, 3)}
    if c.transferred_ns > 0:
        args |= {"transferred_us": round(c.transferred_ns / 1e3, 3), "GB_per_s": round(c.bytes / c.transferred_ns, 3)}
    found = []
    if c.pending:
        found.append(_event(rank, _TALK, f"{c.call} (start)", "communication", c.begin, c.returned, args))
        if c.end is None or c.end <= c.wait:
            return found
        found.append(_event(rank, _TALK, f"{c.call} (wait)", "communication", c.wait, c.end, args))
    elif c.end is not None:
        found.append(_event(rank, _TALK, c.call, "communication", c.begin, c.end, args))
    if c.end is not None and c.waited_ns > 0:
        found.append(_event(rank, _TALK, f"wait for rank {c.last}", "wait", c.wait, c.wait + c.waited_ns, {}))
    if c.end is not None and c.transferred_ns > 0:
        found.append(_event(rank, _TALK, "transfer", "transfer", c.end - c.transferred_ns, c.end, {"bytes": c.bytes}))
    return found


# -- correcting clocks and matching calls ----------------------------------------------------------------------------


def merged(records: Sequence[RankRecord], starts: Sequence[Offset], ends: Sequence[Offset]) -> Report:
    """Convert the records of all ranks to rank 0's clock, in place, match the calls, and sum them up."""
    for record, start, end in zip(records, starts, ends, strict=True):
        _convert(record, partial(corrected, start=start, end=end))
    zero = min((each.begin for r in records for each in _timed(r)), default=0.0)
    for record in records:
        _convert(record, lambda t: t - zero)
    last = [each.end for r in records for each in _timed(r) if each.end is not None]
    last += [c.returned for r in records for c in r.calls]
    _match(records)
    errors = [max(a.error_ns, b.error_ns) / 1e9 for a, b in zip(starts, ends, strict=True)]
    return Report(_rows(records), max(last, default=0.0) / 1e9, errors, list(records))


def _timed(record: RankRecord) -> list[Any]:
    """All that a rank has recorded with a begin and an end."""
    return [*record.calls, *record.operations, *record.spans]


def _convert(record: RankRecord, convert: Callable[[float], float]) -> None:
    """Convert every time of a rank's records."""
    for c in record.calls:
        c.begin, c.returned, c.wait = convert(c.begin), convert(c.returned), convert(c.wait)
        c.end = None if c.end is None else convert(c.end)
    record.operations = [o._replace(begin=convert(o.begin), end=convert(o.end)) for o in record.operations]
    record.spans = [s._replace(begin=convert(s.begin), end=convert(s.end)) for s in record.spans]


MESSAGES = {"send", "lend", "recv"}
_MEETINGS = {
    "agree", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "exchange", "gather", "reduce",
    "reduce_scatter", "scatter",
}  # fmt: skip


def _match(records: Sequence[RankRecord]) -> None:
    """Set `last` and `ready` of every call."""
    met: dict[Any, list[tuple[int, CallRecord]]] = {}
    for record in records:
        for c in record.calls:
            met.setdefault((c.key, c.number), []).append((record.rank, c))
    for (key, _), calls in met.items():
        _, members, peers, call = key
        if peers is not None:
            sent = next(((rank, c) for rank, c in calls if c.call != "recv"), None)
            for _, c in calls:
                if c.call == "recv" and sent is not None:
                    c.last, c.ready = sent[0], sent[1].begin
            continue
        if len(calls) < len(members) or len(members) == 1 or call not in _MEETINGS:
            continue  # some ranks made the call outside the block, or no rank waits for another
        latest, slowest = max(calls, key=lambda item: item[1].begin)
        for rank, c in calls:
            needed = (latest, slowest)
            if call in ("broadcast", "scatter"):
                needed = next((other, d) for other, d in calls if other == c.root)
            elif call in ("reduce", "gather") and rank != c.root:
                needed = (rank, c)  # ranks other than the root need not wait
            c.last, c.ready = needed[0], needed[1].begin


def _rows(records: Sequence[RankRecord]) -> list[Row]:
    rows = []
    for record in records:
        kinds: dict[tuple[str, str, str], list[CallRecord]] = {}
        for c in record.calls:
            kinds.setdefault((c.axis, c.call, "backward" if c.backward else "forward"), []).append(c)
        for (axis, call, direction), calls in kinds.items():
            whom: Counter[int] = Counter()
            for c in calls:
                if c.last is not None and c.last != record.rank and c.waited_ns > 0:
                    whom[c.last] += c.waited_ns / 1e9  # type: ignore[assignment]
            rows.append(Row(record.rank, axis, call, direction, len(calls), sum(c.bytes for c in calls),
                            sum(c.waited_ns for c in calls) / 1e9, sum(c.transferred_ns for c in calls) / 1e9,
                            dict(whom)))  # fmt: skip
    return rows


def _rate(bytes_per_s: float) -> str:
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {unit}"
    return f"{bytes_per_s / 1e3:.3g} kB/s"


def _time(time_s: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if time_s >= size:
            return f"{time_s / size:.3g} {unit}"
    return f"{time_s * 1e6:.3g} us"
