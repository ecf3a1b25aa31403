"""The rank that the others wait for, and the likely cause.

Who is waited for. When a rank waits in a communication, it waits for the rank that enters it last. If that rank itself
waits for a third one meanwhile, as in another group of the mesh, that part of the time counts for the third one.

Why. The sums over all steps of a rank are compared with the medians of the other ranks. Five numbers, in seconds, say
how much more time the rank has spent:

==============  =====================================================================================================
``uneven work`` in input, forward and backward, as far as it has more rows, or more elements in the results of its
                operations, than the others: the median of the others times (work / median work - 1), where the work
                is the number of rows or of elements, whichever gives more
``compute``     in forward and backward beyond that, and in the optimizer
``input``       in getting batches, beyond that
``network``     in transfers, after all ranks had entered them. The transfer of a message counts for both its ends, so
                that of several receivers that wait for one sender, the sender has the most
``other``       in its steps, outside of these: logging, checkpoints, evaluation
==============  =====================================================================================================

The largest number names the cause, if it explains at least a tenth of what each of the others has waited for the rank
on average (`LEAST_EXPLAINED`); a smaller one names none. All of them are printed, in milliseconds of all steps, so that
the reader can come to another conclusion. A link
that is slow in both directions of a collective slows all ranks alike: then nobody waits, and no rank is named.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from collectives.inspect.timeline_report import MESSAGES, RankRecord

from .phases import StepTimes, calls_in_steps

__all__ = ["Straggler", "find_straggler", "network_times", "waited_for"]

LEAST_WAITING = 0.01
"""No rank is named if all waiting is a smaller share of the time of all ranks."""


LEAST_EXPLAINED = 0.1
"""No cause is named that explains a smaller share of the waiting of each of the other ranks."""


class Straggler(NamedTuple):
    """The slowest rank, and the likely cause.

    Attributes
    ----------
    rank : int
        A world rank.
    waited_s : float
        How long the others have waited for it, in seconds, added up.
    share : float
        The same as a share of all waiting, 0 to 1.
    cause : str
        "compute", "uneven work", "input", "network" or "other"; "unknown" if none of them explains `LEAST_EXPLAINED` of
        the waiting.
    more_s : dict from str to float
        For each cause, how much more time than the median of the others the rank has spent, in seconds.
    work : float
        Its rows or elements divided by the median of the others.
    mine, others : StepTimes
        The sums of the rank, and the medians of those of the others.
    network_s : dict from int to float
        For each rank the time of its transfers in seconds, those of the messages that it sent included.
    """

    rank: int
    waited_s: float
    share: float
    cause: str
    more_s: dict[str, float]
    work: float
    mine: StepTimes
    others: StepTimes
    network_s: dict[int, float]

    def __str__(self) -> str:
        more = ", ".join(f"{cause} {_ms(seconds)}" for cause, seconds in self.more_s.items())
        return (
            f"rank {self.rank} is the slowest: the others waited {_ms(self.waited_s)} for it "
            f"({self.share:.0%} of all waiting)\n  likely cause: {self.cause}{self._reason()}\n"
            f"  more than the median of the others: {more}"
        )

    def _reason(self) -> str:
        mine, others = self.mine, self.others
        if self.cause == "compute":
            same = others.compute_s * max(self.work, 1.0)
            ratio = f"{mine.compute_s / same:.2g} times the median of the others" if same else "the others have none"
            per = "row" if mine.rows and others.rows else "element"
            return f". Forward and backward took {_ms(mine.compute_s)}, per {per} {ratio}" * (mine.compute_s > same)
        if self.cause == "uneven work":
            return (
                f". It has {mine.rows:g} rows and {mine.elements:.4g} elements; the median of the others is "
                f"{others.rows:g} and {others.elements:.4g}"
            )
        if self.cause == "input":
            return f". It got its batches in {_ms(mine.input_s)}; the median of the others is {_ms(others.input_s)}"
        if self.cause == "other":
            return (
                f". Its steps took {_ms(mine.other_s)} outside of forward, backward and optimizer; the median of the "
                f"others is {_ms(others.other_s)}"
            )
        if self.cause == "network":
            times, most = self.network_s, max(self.network_s, key=lambda r: self.network_s[r])
            also = f". Rank {most} has the most: {_ms(times[most])}" * (most != self.rank)
            return (
                f". Its transfers took {_ms(times[self.rank])} after all ranks had entered them; the median of the "
                f"others is {_ms(times[self.rank] - self.more_s['network'])}{also}"
            )
        return f": no phase explains {LEAST_EXPLAINED:.0%} of what each of the others has waited for it"


def _ms(seconds: float) -> str:
    """A time in the unit of the report."""
    return f"{seconds * 1e3:.3f} ms"


def find_straggler(
    totals: dict[int, StepTimes], network_s: dict[int, float], waited_s: dict[int, float]
) -> Straggler | None:
    """Return the rank that the others have waited for most, or None if no rank stands out.

    A rank stands out if all waiting is at least 1 % of the time of all ranks, and its share of the waiting is at least
    one quarter, and 1.5 times an even share (3/4 with two ranks).

    Parameters
    ----------
    totals : dict from int to StepTimes
        For each rank the sums over its steps.
    network_s : dict from int to float
        The result of `network_times`.
    waited_s : dict from int to float
        The result of `waited_for`.
    """
    waiting = sum(waited_s.values())
    if len(totals) < 2 or waiting <= LEAST_WAITING * sum(t.step_s for t in totals.values()):
        return None
    rank = max(waited_s, key=lambda r: waited_s[r])
    share = waited_s[rank] / waiting
    if rank not in totals or share < max(0.25, 1.5 / len(totals)):
        return None
    mine = totals[rank]
    others = StepTimes(*map(median, zip(*(t for r, t in totals.items() if r != rank), strict=True)))
    work = max(
        (has / usual for has, usual in ((mine.rows, others.rows), (mine.elements, others.elements)) if usual),
        default=1.0,
    )
    more: dict[str, float] = {"uneven work": 0.0}
    for cause, has, usual in (
        ("compute", mine.compute_s, others.compute_s), ("input", mine.input_s, others.input_s),
    ):  # fmt: skip
        by_work = min(max(0.0, (work - 1) * usual), max(0.0, has - usual))
        more["uneven work"] += by_work
        more[cause] = has - usual - by_work
    more["compute"] += mine.optimizer_s - others.optimizer_s
    more["network"] = network_s[rank] - median(s for r, s in network_s.items() if r != rank)
    more["other"] = mine.other_s - others.other_s
    cause = max(more, key=lambda c: more[c])
    least = LEAST_EXPLAINED * waited_s[rank] / (len(totals) - 1)
    cause = cause if more[cause] >= least else "unknown"
    return Straggler(rank, waited_s[rank], share, cause, more, work, mine, others, network_s)


def waited_for(records: Sequence[RankRecord]) -> dict[int, float]:
    """For each rank the seconds that all others waited for it in their steps, those that pass on its delay included."""
    waits: dict[int, list[tuple[float, float, int]]] = {}
    for record in records:
        waits[record.rank] = sorted(
            (c.wait, c.wait + c.waited_ns, c.last)
            for c in calls_in_steps(record)
            if c.last is not None and c.last != record.rank and c.waited_ns > 0
        )
    ends = {rank: [end for _, end, _ in found] for rank, found in waits.items()}
    total = dict.fromkeys(waits, 0.0)

    def blame(rank: int, begin: float, end: float, depth: int) -> None:
        own = end - begin
        if depth < len(records):  # else the clocks' errors make a circle
            i = bisect_right(ends[rank], begin)
            while i < len(waits[rank]) and waits[rank][i][0] < end:
                a, b, other = waits[rank][i]
                a, b = max(a, begin), min(b, end)
                if b > a:
                    own -= b - a
                    blame(other, a, b, depth + 1)
                i += 1
        total[rank] += own / 1e9

    for found in waits.values():
        for begin, end, last in found:
            blame(last, begin, end, 0)
    return total


def network_times(records: Sequence[RankRecord]) -> dict[int, float]:
    """For each rank the seconds of transfers in its steps, those of its messages at their receivers included."""
    total = {record.rank: 0.0 for record in records}
    for record in records:
        for c in calls_in_steps(record):
            total[record.rank] += c.transferred_ns / 1e9
            if c.call in MESSAGES and c.last is not None and c.last != record.rank:
                total[c.last] += c.transferred_ns / 1e9
    return total
