"""Clock offsets: how far every rank's clock is from rank 0's.

Cristian's method (F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989), section 3): rank
0 asks for the time, and records when it asked and when the answer came. The other clock was read at some time between
the two, so their mean is wrong by at most half the round trip; the shortest of several rounds is kept. The offset is
measured at the start and at the end, and a clock that runs faster or slower is corrected by linear interpolation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..transports.protocol import Communicator

__all__ = ["Offset", "corrected", "cristian", "measure_offsets"]

Clock = Callable[[], int]
"""The time on this rank, in nanoseconds from any origin."""


class Offset(NamedTuple):
    """The offset of another clock from this one.

    Attributes
    ----------
    at_ns : int
        When it was read, by the other clock.
    offset_ns : float
        The other clock's time minus this one's.
    error_ns : float
        A bound on the error of the offset.
    """

    at_ns: int
    offset_ns: float
    error_ns: float


def cristian(rounds: Sequence[tuple[int, int, int]]) -> Offset:
    """The offset of another clock, from rounds of (asked, answer, came back).

    Examples
    --------
    >>> from collectives.inspect.clocks import cristian
    >>> cristian([(0, 1070, 100), (200, 1212, 220)])
    Offset(at_ns=1212, offset_ns=1002.0, error_ns=10.0)
    """
    asked, answer, came_back = min(rounds, key=lambda r: r[2] - r[0])
    return Offset(answer, answer - (asked + came_back) / 2, (came_back - asked) / 2)


def measure_offsets(group: Communicator, clock: Clock, rounds: int = 16) -> list[Offset]:
    """On rank 0 every rank's offset from its own clock, in order; elsewhere nothing. All ranks of the group call it."""
    buffer = np.zeros(1, np.int64)
    if group.rank != 0:
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
    """A time of another rank's clock by rank 0's, between two measured offsets.

    Examples
    --------
    >>> from collectives.inspect.clocks import Offset, corrected
    >>> corrected(1500, Offset(1000, 100.0, 1.0), Offset(2000, 110.0, 1.0))  # it gains 10 in 1000
    1395.0
    """
    span = end.at_ns - start.at_ns
    drift = (end.offset_ns - start.offset_ns) / span if span > 0 else 0.0
    return time_ns - (start.offset_ns + drift * (time_ns - start.at_ns))
