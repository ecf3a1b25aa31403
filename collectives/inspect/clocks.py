"""Clock synchronization: measure the offset of every rank's clock from rank 0's clock.

Cristian's method (F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989), section 3): rank
0 asks another rank for the time, and notes the times of the request and of the answer. The other clock was read at some
time between the two, so the midpoint is wrong by at most half the round trip. Of several rounds the shortest one is
used. The offset is measured at the start and at the end of a timeline, and interpolated linearly between them, which
also corrects clocks that run at different speeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from autograd.records.record import RankRecords

from ..transports.protocol import Communicator

__all__ = ["Clock", "Offset", "corrected", "correct_records", "cristian", "measure_offsets"]

Clock = Callable[[], int]
"""Returns the time on this rank in nanoseconds, from an arbitrary origin."""


class Offset(NamedTuple):
    """The offset of another clock from this one.

    Attributes
    ----------
    at_ns : int
        The other clock's time when it was read.
    offset_ns : float
        The other clock's time minus this clock's time.
    error_ns : float
        An upper bound of the error of `offset_ns`.
    """

    at_ns: int
    offset_ns: float
    error_ns: float


def cristian(rounds: Sequence[tuple[int, int, int]]) -> Offset:
    """The offset of another clock from rounds of (time of the request, answer, time when the answer arrived).

    Examples
    --------
    >>> from collectives.inspect.clocks import cristian
    >>> cristian([(0, 1070, 100), (200, 1212, 220)])
    Offset(at_ns=1212, offset_ns=1002.0, error_ns=10.0)
    """
    asked, answer, arrived = min(rounds, key=lambda r: r[2] - r[0])
    return Offset(answer, answer - (asked + arrived) / 2, (arrived - asked) / 2)


def measure_offsets(group: Communicator, clock: Clock, rounds: int = 16) -> list[Offset]:
    """Measure every rank's offset from rank 0's clock. All ranks of the group call it.

    Returns
    -------
    list of Offset
        In order of rank, on rank 0; empty on other ranks.
    """
    buffer = np.zeros(1, np.int64)
    if group.index != 0:
        for _ in range(rounds):
            group.recv(buffer, 0)
            group.send(np.array([clock()], np.int64), 0)
        return []
    found = [Offset(clock(), 0.0, 0.0)]
    for other in range(1, group.size):
        seen = []
        for _ in range(rounds):
            asked = clock()
            group.send(buffer, other)
            answer = int(group.recv(np.zeros(1, np.int64), other)[0])
            seen.append((asked, answer, clock()))
        found.append(cristian(seen))
    return found


def corrected(time_ns: float, start: Offset, end: Offset) -> float:
    """Convert a time of another rank's clock to rank 0's clock, by interpolating between two measured offsets.

    Examples
    --------
    >>> from collectives.inspect.clocks import Offset, corrected
    >>> corrected(1500, Offset(1000, 100.0, 1.0), Offset(2000, 110.0, 1.0))  # the clock gains 10 in 1000
    1395.0
    """
    span = end.at_ns - start.at_ns
    drift = (end.offset_ns - start.offset_ns) / span if span > 0 else 0.0
    return time_ns - (start.offset_ns + drift * (time_ns - start.at_ns))


def correct_records(of: RankRecords, start: Offset, end: Offset) -> None:
    """Convert all times of a rank's records to rank 0's clock, in place.

    Offsets that are within their own error are no evidence of another clock, as on one host: then nothing is changed.
    """
    if all(abs(offset.offset_ns) <= offset.error_ns for offset in (start, end)):
        return
    for record in of.records:
        record.begin_ns, record.end_ns = (round(corrected(t, start, end)) for t in (record.begin_ns, record.end_ns))
        for call in record.calls:
            call.begin_ns, call.end_ns, call.returned_ns, call.wait_ns = (
                round(corrected(t, start, end)) for t in (call.begin_ns, call.end_ns, call.returned_ns, call.wait_ns)
            )
