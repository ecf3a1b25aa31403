"""A link that carries one bucket of gradients at a time, while backward computes the others.

Backward completes the buckets one after another. A bucket's sum over the ranks can start when the bucket is complete,
and the link carries one bucket at a time, in the agreed order, so bucket i is sent

    begin_i = max(ready_i, end_{i-1})        end_i = begin_i + transfer_i

The optimizer starts when backward and the last transfer have ended. Source: Li et al. 2020, "PyTorch Distributed:
experiences on accelerating data parallel training", section 3.2.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autograd.errors import ArgumentError

__all__ = ["Overlap", "simulate"]


class Overlap(NamedTuple):
    """When each bucket is sent, and how much of that time backward hides.

    Attributes
    ----------
    begin_s, end_s : tuple of float
        The begin and the end of each transfer, on the clock of the ready times.
    hidden_s, exposed_s : float
        The time of the transfers before the end of backward, and the time from there to the end of the last one.
    """

    begin_s: tuple[float, ...]
    end_s: tuple[float, ...]
    hidden_s: float
    exposed_s: float

    @property
    def exposed_share(self) -> float:
        """The exposed part of the communication, 0 to 1; 0 if there is none."""
        total = self.hidden_s + self.exposed_s
        return self.exposed_s / total if total else 0.0


def simulate(ready_s: Sequence[float], transfer_s: Sequence[float], backward_end_s: float) -> Overlap:
    """Send each bucket when it is ready and the link is free, in the given order.

    Parameters
    ----------
    ready_s : sequence of float
        When each bucket was complete, in the order in which the buckets are sent.
    transfer_s : sequence of float
        How long the link needs for each bucket.
    backward_end_s : float
        When backward ended, on the same clock.

    Returns
    -------
    Overlap

    Raises
    ------
    ArgumentError
        The numbers of times differ, one is not finite, a transfer takes negative time, or a bucket is ready after the
        end of backward.

    Examples
    --------
    Backward takes 4 s. The second bucket waits for the first one, the last one is ready when backward ends:

    >>> simulate([1.0, 2.0, 4.0], [2.0, 0.5, 1.0], backward_end_s=4.0)
    Overlap(begin_s=(1.0, 3.0, 4.0), end_s=(3.0, 3.5, 5.0), hidden_s=2.5, exposed_s=1.0)
    """
    if len(ready_s) != len(transfer_s):
        raise ArgumentError(
            f"simulate: {len(ready_s)} ready times and {len(transfer_s)} transfers were given; needed: one of each a "
            f"bucket"
        )
    begins: list[float] = []
    ends: list[float] = []
    free = -math.inf
    for i, (ready, transfer) in enumerate(zip(ready_s, transfer_s, strict=True)):
        if not (math.isfinite(ready) and math.isfinite(transfer) and transfer >= 0 and ready <= backward_end_s):
            raise ArgumentError(
                f"simulate: bucket {i} is ready at {ready} s and takes {transfer} s; needed: finite times, a transfer "
                f"of 0 s or more, and ready at the end of backward, {backward_end_s} s, at the latest"
            )
        begins.append(max(ready, free))
        free = begins[-1] + transfer
        ends.append(free)
    exposed = max(0.0, free - backward_end_s)
    return Overlap(tuple(begins), tuple(ends), max(0.0, math.fsum(transfer_s) - exposed), exposed)
