"""The phases of the steps of one rank, from the records of a timeline.

At each instant a rank is in one phase, the first of this list that applies:

=============  ======================================================================================================
``waiting``    blocked in a communication that another rank has not entered
``transfer``   blocked in a communication that all ranks have entered, or starting one
``input``      getting the batch
``optimizer``  in `Optimizer.step`
``backward``   in a sweep, the recomputation of a checkpoint included
``forward``    in the block of a tape
``other``      in the step, and in none of these: logging, evaluation, ``zero_grad``
=============  ======================================================================================================

Waiting and transfer together are the *exposed* communication: the program is blocked. Communication is *hidden* while
a started call is in flight and the program is in another phase. That is the only meaning of both words in a report.
They are times of the program, in which several calls in flight count once. The end of a call is known when a test or a
wait finds it complete, so that hidden time is an upper bound. A prediction is of the same two times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from collectives.inspect.timeline_report import CallRecord, RankRecord

from ..data.link import simulate

__all__ = ["Buckets", "StepTimes", "calls_in_steps", "medians", "steps_of", "transfer_times", "windows"]


class Buckets(NamedTuple):
    """The communication that the sweeps of a step started, as for the buckets of gradients. Times are in seconds.

    Attributes
    ----------
    transfer_s : float
        The time of the transfers. That of one call is the least over the ranks.
    hidden_s : float
        How long one of them was in flight while the program was in another phase.
    exposed_s : float
        For how long the program was blocked by them: while it started them, and while it waited for them.
    best_exposed_s : float
        The prediction of `data.overlap.simulate` from the times at which they started: with an ideal link that sends
        one bucket at a time while backward goes on. The rest of `transfer_s` is hidden then.
    limit_s : float
        What is exposed with buckets of any size, because the transfers take longer than backward.
    """

    transfer_s: float = 0.0
    hidden_s: float = 0.0
    exposed_s: float = 0.0
    best_exposed_s: float = 0.0
    limit_s: float = 0.0


class StepTimes(NamedTuple):
    """One step of one rank, or the sum or the medians of several. Times are in seconds.

    Attributes
    ----------
    step_s : float
        The whole step, with its input.
    input_s, forward_s, backward_s, waiting_s, transfer_s, optimizer_s, other_s : float
        The time in each phase. They add up to `step_s`.
    hidden_s : float
        How long a started communication was in flight while the program was in another phase.
    rows : float
        The rows of the batch on this rank.
    elements : float
        The elements of the results of all operations of forward.
    """

    step_s: float = 0.0
    input_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    waiting_s: float = 0.0
    transfer_s: float = 0.0
    optimizer_s: float = 0.0
    other_s: float = 0.0
    hidden_s: float = 0.0
    rows: float = 0
    elements: float = 0

    @property
    def exposed_s(self) -> float:
        """The time in which the program was blocked by communication."""
        return self.waiting_s + self.transfer_s

    @property
    def compute_s(self) -> float:
        """Forward and backward, whose time grows with the work."""
        return self.forward_s + self.backward_s


def medians(steps: Sequence[Any]) -> Any:
    """The median of each figure of `StepTimes` or `Buckets`."""
    return type(steps[0])(*map(median, zip(*steps, strict=True)))


def windows(record: RankRecord) -> list[tuple[float, float, float, int, int]]:
    """The steps of a rank: begin of the input, begin and end of the step, its elements and its rows.

    The input of a step is the span "input" before it, or without one the time since the step before.
    """
    spans = sorted((s for s in record.spans if s.name in ("input", "step")), key=lambda s: s.begin)
    found: list[tuple[float, float, float, int, int]] = []
    free, loaded = None, None
    for s in spans:
        if s.name == "input":
            loaded = s.begin
        elif free is None or s.begin >= free:  # else it is nested in another step
            begin = loaded if loaded is not None else s.begin if free is None else free
            found.append((begin, s.begin, s.end, s.elements, s.rows))
            free, loaded = s.end, None
    return found


def calls_in_steps(record: RankRecord) -> list[CallRecord]:
    """The calls that the rank began or began to wait for in a step, or while it got the batch."""
    steps = windows(record)
    begins = [step[0] for step in steps]
    return [c for c in record.calls if (k := bisect_right(begins, c.wait)) and c.wait < steps[k - 1][2]]


# Kinds of intervals. The first ones are phases by priority, in the order of `_FIELDS`.
_WAITING, _TRANSFER, _INPUT, _OPTIMIZER, _BACKWARD, _FORWARD, _OTHER, _IN_FLIGHT, _STARTED = range(9)
_FIELDS = ("waiting_s", "transfer_s", "input_s", "optimizer_s", "backward_s", "forward_s", "other_s")
_SPANS = {"optimizer": _OPTIMIZER, "backward": _BACKWARD, "forward": _FORWARD}


def steps_of(record: RankRecord, transfers: dict[Any, float]) -> list[tuple[StepTimes, Buckets]]:
    """The times of every step of a rank. `transfers` are the `transfer_times` of all ranks."""
    steps = windows(record)
    edges = _edges(record, steps)
    found, active, i = [], [0] * 9, 0
    of_sweeps: set[int] = set()  # the ids of the calls that sweeps have started
    flying = 0  # how many of them are in flight
    for loads, _, end, elements, rows in steps:
        spent = [0.0] * 7
        hidden, hidden_of_sweeps, at = 0.0, 0.0, loads
        started: list[tuple[float, CallRecord]] = []
        while True:
            until = end if i == len(edges) or edges[i][0] > end else max(edges[i][0], at)
            phase = next((kind for kind in range(_OTHER) if active[kind]), _OTHER)
            spent[phase] += until - at
            if active[_IN_FLIGHT] and phase > _TRANSFER:
                hidden += until - at
                hidden_of_sweeps += until - at if flying else 0.0
            at = until
            if i == len(edges) or edges[i][0] > end:
                break
            _, _, kind, change, call = edges[i]
            active[kind] += change
            if kind == _STARTED and call is not None and active[_BACKWARD] and call.begin >= loads:
                started.append((spent[_BACKWARD], call))
                of_sweeps.add(id(call))
            elif kind == _IN_FLIGHT and id(call) in of_sweeps:
                flying += change
            i += 1
        times = {name: ns / 1e9 for name, ns in zip(_FIELDS, spent, strict=True)}
        step = StepTimes((end - loads) / 1e9, hidden_s=hidden / 1e9, rows=rows, elements=elements, **times)
        found.append((step, _buckets(started, hidden_of_sweeps, spent[_BACKWARD], transfers)))
    return found


_Edge = tuple[float, int, int, int, CallRecord | None]
"""An end (0) or a begin (1) of an interval: time, which of them, kind, change of the number of intervals, and call."""


def _edges(record: RankRecord, steps: Sequence[tuple[float, float, float, int, int]]) -> list[_Edge]:
    """The begins and ends of a rank's intervals in order of time, an end before a begin of the same time."""
    edges: list[_Edge] = []
    for s in record.spans:
        if s.name in _SPANS:
            _add(edges, _SPANS[s.name], s.begin, s.end)
    for loads, begin, _, _, _ in steps:
        _add(edges, _INPUT, loads, begin)
    for c in record.calls:
        if c.end is not None:
            _add(edges, _WAITING, c.wait, c.wait + c.waited_ns)
            _add(edges, _TRANSFER, c.end - c.transferred_ns, c.end)
        if c.pending:
            _add(edges, _TRANSFER, c.begin, c.returned)
            if c.end is not None:
                _add(edges, _IN_FLIGHT, c.returned, min(c.wait, c.end), c)
                edges.append((c.begin, 1, _STARTED, 0, c))
    return sorted(edges, key=lambda edge: edge[:2])


def _add(edges: list[_Edge], kind: int, begin: float, end: float, call: CallRecord | None = None) -> None:
    if end > begin:
        edges += [(begin, 1, kind, 1, call), (end, 0, kind, -1, call)]


def _buckets(
    started: list[tuple[float, CallRecord]], hidden: float, backward: float, transfers: dict[Any, float]
) -> Buckets:
    """`started` has the calls, and the time that backward had computed when each started."""
    took = [transfers[c.key, c.number] for _, c in started]
    total = sum(took)
    return Buckets(
        total / 1e9,
        hidden / 1e9,
        sum(c.returned - c.begin + c.waited_ns + c.transferred_ns for _, c in started) / 1e9,
        simulate([ready for ready, _ in started], took, backward).exposed_s / 1e9,
        max(0.0, total - backward) / 1e9,
    )


def transfer_times(records: Sequence[RankRecord]) -> dict[Any, float]:
    """The transfer time of each started call in nanoseconds, by its key and number.

    It begins when all ranks have entered the call and the call before it on the channel has ended. The rank that found
    it complete first knows its end best.
    """
    found: dict[Any, float] = {}
    for record in records:
        lanes: dict[Any, list[CallRecord]] = {}
        for c in record.calls:
            if c.pending and c.end is not None:
                lanes.setdefault(c.key[:2], []).append(c)
        for lane in lanes.values():
            free = 0.0
            for c in lane:
                end = c.returned if c.end is None else c.end
                took = max(0.0, end - max(c.begin, c.ready, free))
                found[c.key, c.number] = min(took, found.get((c.key, c.number), took))
                free = end
    return found
