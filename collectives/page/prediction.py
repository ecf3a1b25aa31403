"""Predicted times of records: computation takes its measured time, communication that of a model of the machine.

The ranks run through the moments of their alignment, each with a clock of its own. A collective begins when its last
rank enters it. A send returns at once, and its message arrives after ``alpha + n beta``. A nonblocking call ends beside
the computation, and the rank waits for it where it did in the measured run. Control messages cost nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from ..inspect.dry_costs import costs
from ..inspect.record import CallOf, RankRecords
from ..inspect.topology import Topology
from .alignment import Link, align, is_message, roots

__all__ = ["predict_times"]

_OF_PARTS = frozenset(("all_gather", "gather", "exchange", "get", "accumulate"))


def predict_times(ranks: Sequence[RankRecords], machine: Topology) -> list[list[tuple[float, float]]]:
    """By rank and record: the predicted begin and end in seconds.

    Parameters
    ----------
    ranks : sequence of RankRecords
        The id of a record is its position.
    machine : Topology

    Examples
    --------
    Two ranks compute for 1 us and 3 us, and then sum 8 bytes, which takes 2 messages of 10 us each:

    >>> import collectives as cc
    >>> from collectives.inspect.record import CallOf, OperationRecord, RankRecords
    >>> def rank(r, end):
    ...     call = CallOf("all_reduce", "dp", "dp", 1, (0, 1), 8, begin_ns=end, end_ns=end, algorithm="ring")
    ...     summed = OperationRecord(1, "forward", "sum", calls=[call], begin_ns=end, end_ns=end)
    ...     return RankRecords(r, records=[OperationRecord(0, "forward", "exp", end_ns=end), summed])
    >>> link = cc.Link(latency_s=10e-6, bytes_per_s=1e15)
    >>> found = predict_times([rank(0, 1000), rank(1, 3000)], cc.Topology(2, link, link))
    >>> [[round(1e6 * end) for _, end in row] for row in found]
    [[1, 23], [3, 23]]
    """
    return _Prediction(ranks, machine).run()


class _Prediction:
    """The clocks of all ranks, in seconds, while they run through the moments."""

    def __init__(self, ranks: Sequence[RankRecords], machine: Topology):
        self._ranks, self._machine = ranks, machine
        alignment = self._alignment = align(ranks)
        self._roots = [roots(of.records) for of in ranks]
        self._clock = [0.0] * len(ranks)
        self._ends: dict[int, float] = {}  # by link: when its communication ends
        self._calls: list[dict[int, list[tuple[int, CallOf]]]] = []  # by rank and step: what it makes, with its link
        self._waits: list[dict[int, list[tuple[int, CallOf]]]] = []  # by rank and step: what it waits for
        link_of = {member: n for n, link in enumerate(alignment.links) for member in link.members}
        for r, (of, inside) in enumerate(zip(ranks, self._roots, strict=True)):
            calls: dict[int, list[tuple[int, CallOf]]] = defaultdict(list)
            waits: dict[int, list[tuple[int, CallOf]]] = defaultdict(list)
            begins = [record.begin_ns for record in of.records]
            for k, record in enumerate(of.records):
                for c, call in enumerate(record.calls):
                    n = link_of[r, k, c]
                    calls[inside[k]].append((n, call))
                    if call.is_nonblocking and call.has_ended:
                        arrival = alignment.links[n].arrival if call.call.startswith("recv") else -1
                        at = bisect_right(begins, call.wait_ns) - 1
                        waits[max(arrival, inside[max(at, k)])].append((n, call))
            self._calls.append(calls)
            self._waits.append(waits)

    def run(self) -> list[list[tuple[float, float]]]:
        steps: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by moment: rank and step
        for r, (inside, moments) in enumerate(zip(self._roots, self._alignment.moments, strict=True)):
            for k, root in enumerate(inside):
                if k == root:
                    steps[moments[k]].append((r, k))
        spans: dict[tuple[int, int], tuple[float, float]] = {}
        for _, together in sorted(steps.items()):
            begins = {r: self._clock[r] for r, _ in together}
            for r, k in together:
                self._clock[r] += self._computation(r, k)
            for n in dict.fromkeys(n for r, k in together for n, call in self._calls[r][k] if not call.is_control):
                self._communicate(n, self._alignment.links[n], together)
            for r, k in together:
                for n, _ in self._waits[r][k]:
                    self._clock[r] = max(self._clock[r], self._ends.get(n, 0.0))
                spans[r, k] = begins[r], self._clock[r]
        return [[self._within(spans[r, root], r, k, root) for k, root in enumerate(inside)]
                for r, inside in enumerate(self._roots)]  # fmt: skip

    def _computation(self, r: int, k: int) -> float:
        """The measured time of a step without its communication, in seconds."""
        record = self._ranks[r].records[k]
        total = record.end_ns - record.begin_ns
        total -= sum(call.end_ns - call.begin_ns for _, call in self._calls[r][k] if not call.is_nonblocking)
        total -= sum(call.end_ns - call.wait_ns for _, call in self._waits[r][k])
        return max(0, total) / 1e9

    def _communicate(self, n: int, link: Link, here: Sequence[tuple[int, int]]) -> None:
        calls = {r: self._ranks[r].records[k].calls[c] for r, k, c in link.members}
        first = next(iter(calls.values()))
        if is_message(first):
            for r, k, c in link.members:  # the sender comes first
                call = self._ranks[r].records[k].calls[c]
                if (r, self._roots[r][k]) not in here:
                    continue
                if not call.call.startswith("recv"):
                    self._ends[n] = self._clock[r] + self._time("send", call, call.bytes)
                elif not call.is_nonblocking:
                    self._clock[r] = max(self._clock[r], self._ends.get(n, 0.0))
        elif n not in self._ends:
            size = sum(call.bytes for call in calls.values()) if first.call.split()[0] in _OF_PARTS else max(
                call.bytes for call in calls.values()
            )
            self._ends[n] = max(self._clock[r] for r in calls) + self._time(first.call, first, size)
            for r, call in calls.items():
                if not call.is_nonblocking:
                    self._clock[r] = self._ends[n]

    def _time(self, name: str, call: CallOf, size: int) -> float:
        """The time of a call by the algorithm that ran; where the model has none of its name, by the fastest."""
        found = {algorithm: cost.time_s for algorithm, cost in costs(name, size, call.ranks, self._machine)}
        return found.get(call.algorithm.partition(":")[0], min(found.values(), default=0.0))

    def _within(self, span: tuple[float, float], r: int, k: int, root: int) -> tuple[float, float]:
        """The times of a record inside a step, at the same parts of the step as measured."""
        step, record = self._ranks[r].records[root], self._ranks[r].records[k]
        length = step.end_ns - step.begin_ns
        if k == root or length <= 0:
            return span
        begin, end = (
            span[0] + (span[1] - span[0]) * min(1.0, max(0.0, (at - step.begin_ns) / length))
            for at in (record.begin_ns, record.end_ns)
        )
        return begin, max(begin, end)
