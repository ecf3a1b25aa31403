"""A timeline of all ranks: operations, waits and transfers on one clock, as a trace for Perfetto and as a table.

During the recording, each rank makes records of its own operations, with their times (`autograd.records.times`) and
calls, and notes its spans, by its own clock. At the end, rank 0 collects the records of all ranks, corrects the
clocks (`clocks`), and matches the calls: the n-th call of a channel on one rank belongs to the n-th call on the others.
The time until the last rank has entered a call is waiting; the rest of the call is transfer.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from autograd.engine import events
from autograd.errors import MeshError, check_callable, typed_errors
from autograd.records.plain import packed, unpacked
from autograd.records.record import CallOf, OperationRecord
from autograd.records.times import TimesRecorder

from ..transports.protocol import Communicator
from ..world import world
from .clocks import Clock, Offset, measure_offsets
from .observing import observing
from .recorder import Calls
from .timeline_report import MESSAGES, CallRecord, OperationTimes, RankRecord, Report, Row, SpanRecord, merged

__all__ = ["Timeline", "broadcast_object", "gathered", "timeline"]


@typed_errors
def timeline(path: str | os.PathLike[str] | None = None, *, clock: Clock = time.perf_counter_ns) -> Timeline:
    """Record a timeline of all ranks inside a ``with`` block. At its end rank 0 writes the trace.

    All ranks must enter and leave the block together, because both ends communicate, over a channel of their own.
    Meshes that were made before the block are recorded too. Inside the block every operation takes two readings of the
    clock longer; outside there is no cost.

    Parameters
    ----------
    path : path, optional
        The file that rank 0 writes: JSON for ui.perfetto.dev or chrome://tracing, with one process per rank.
    clock : callable, optional
        Returns the time on this rank in nanoseconds; for tests.

    Returns
    -------
    Timeline
        After the block, `report` has the summary on every rank; ``print(timeline)`` shows it as a table, and `plot`
        draws it.

    Raises
    ------
    MeshError
        In a dry world, where no time passes.

    Notes
    -----
    If the block raises, the records are not collected and no file is written, since other ranks may have ended.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2), cc.timeline() as t:
    ...         cc.all_reduce(ag.tensor([1.0, 2.0]), "dp")
    ...     return [(row.axis, row.call, row.calls, row.bytes) for row in t.report.rows if row.call == "all_reduce"]
    >>> cc.run(program, ranks=2)[0]
    [('dp', 'all_reduce', 1, 16), ('dp', 'all_reduce', 1, 16)]
    """
    return Timeline(path, clock)


@typed_errors
class Timeline:
    """A recording of all ranks, made by `timeline`.

    Attributes
    ----------
    report : Report or None
        The summary; None until the block has ended.
    """

    def __init__(self, path: str | os.PathLike[str] | None, clock: Clock):
        check_callable(clock, "timeline")
        self.path = None if path is None else os.fspath(path)
        self.report: Report | None = None
        self._clock = clock
        self._recorder = TimesRecorder(clock)
        self._calls: list[tuple[CallOf, OperationRecord | None]] = []  # with the operation that makes it
        self._spans: list[SpanRecord] = []
        self._open_spans: list[tuple[str, int, int]] = []
        self._exit: ExitStack | None = None
        self._channel: Communicator | None = None
        self._start: list[Offset] = []

    def __enter__(self) -> Timeline:
        if self._exit is not None:
            raise MeshError("this timeline was entered before. Fix: make a new cc.timeline(...) for each with block")
        everyone = world()
        if everyone.dry:
            raise MeshError("timeline: the current world is a dry run, in which no time passes; needed: real ranks")
        self._channel = everyone.duplicate("timeline")
        self._start = measure_offsets(self._channel, self._clock)
        self._channel.barrier()
        self._exit = ExitStack()
        self._exit.enter_context(observing(Calls(self._clock, self._take)))
        self._exit.enter_context(events.listening(self._recorder))
        self._exit.enter_context(events.listening_to_spans(self._hear_span))
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        assert self._exit is not None and self._channel is not None
        self._exit.close()
        if kind is not None:
            return
        channel = self._channel
        ends = measure_offsets(channel, self._clock)
        rank, made = int(channel.rank), self._recorder.records
        calls = [_of_timeline(call, by, made, rank) for call, by in self._calls]
        depths: list[int] = []
        for record in made:
            depths.append(0 if record.cause is None else depths[record.cause] + 1)
        times = [OperationTimes(r.name, r.direction, r.begin_ns, r.end_ns, depths[r.id]) for r in made if r.end_ns]
        mine = RankRecord(rank, socket.gethostname(), calls, times, self._spans)
        records = gathered(channel, mine, (RankRecord, CallRecord, OperationTimes, SpanRecord))
        if records is not None:
            self.report = merged(records, self._start, ends)
            if self.path is not None:
                self.report.write(self.path)
        summary = broadcast_object(channel, None if self.report is None else self.report.summary(), (Report, Row))
        self.report = self.report or summary

    def __str__(self) -> str:
        return "a timeline whose block has not ended" if self.report is None else str(self.report)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the timeline as a PNG on rank 0; other ranks do nothing. Needs matplotlib."""
        if self.report is None:
            raise MeshError("plot: the with block of this timeline has not ended. Fix: call plot after the block")
        if self.report.records:
            self.report.plot(path)

    # -- recording ---------------------------------------------------------------------------------------------
    def _hear_span(self, edge: str, name: str, rows: int) -> None:
        if edge == "begin":
            self._open_spans.append((name, self._clock(), self._recorder.elements))
            return
        while self._open_spans:  # spans that an error ended have no end event
            name_open, begin, elements = self._open_spans.pop()
            if name_open == name:
                self._spans.append(SpanRecord(name, begin, self._clock(), self._recorder.elements - elements, rows))
                return

    def _take(self, call: CallOf) -> None:
        """Take a call that has begun, with the operation that makes it."""
        self._calls.append((call, self._recorder.current))


def _of_timeline(
    call: CallOf, by: OperationRecord | None, records: Sequence[OperationRecord], rank: int
) -> CallRecord:
    """A call as timelines have it, with the key by which it is matched with the calls of other ranks."""
    is_message = call.call in MESSAGES
    peers = None
    if is_message and call.peer is not None:
        peers = (call.peer, rank) if call.call == "recv" else (rank, call.peer)
    channel = f"{call.channel}, control" if call.is_control else call.channel  # the two are counted apart
    key = channel, call.ranks, peers, "message" if is_message else call.call
    root = None if is_message else call.peer
    cause = by
    while cause is not None and cause.direction != "backward":
        cause = None if cause.cause is None else records[cause.cause]
    return CallRecord(
        call.call, call.axis, key, call.number, call.bytes, root, cause is not None,
        call.call if by is None else by.name, call.begin_ns, call.returned_ns, call.wait_ns,
        call.end_ns if call.has_ended else None, call.is_nonblocking,
    )  # fmt: skip


# -- collecting the records --------------------------------------------------------------------------------------------


def gathered(channel: Communicator, mine: Any, kinds: Sequence[type]) -> list[Any] | None:
    """The records of all ranks on rank 0; None on other ranks. They have objects of `kinds`, as of `packed`."""
    data = np.frombuffer(packed(mine, kinds), np.uint8)
    sizes = channel.all_gather(np.array([data.size], np.int64), [1] * channel.size).tolist()
    whole = channel.gather(data, sizes, 0)
    if whole is None:
        return None
    ends = np.cumsum(sizes).tolist()
    return [unpacked(whole[end - size : end].tobytes(), kinds) for size, end in zip(sizes, ends, strict=True)]


def broadcast_object(channel: Communicator, value: Any, kinds: Sequence[type] = ()) -> Any:
    """Return rank 0's value on every rank of a channel. It has objects of `kinds`, as of `packed`."""
    first = channel.index == 0
    data = np.frombuffer(packed(value, kinds) if first else b"", np.uint8)
    size = channel.broadcast(np.array([data.size], np.int64), 0)
    received = channel.broadcast(data if first else np.empty(int(size[0]), np.uint8), 0)
    return value if first else unpacked(received.tobytes(), kinds)
