"""Sizes of gradient buckets, chosen from the times at which gradients are complete and from the measured link.

Large buckets pay the latency of the link less often, and small ones can be sent earlier. Which is better depends on the
model, the processor and the link. During the first backward passes each rank notes when its gradients are complete;
then the ranks time two all-reduces, exchange all times, and take the slowest of each. From these, every rank computes
when the last bucket would arrive for each size (`link.simulate`), so all choose the same sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collectives.transports.protocol import Communicator, Request

from .link import simulate
from .settings import Bucketing

__all__ = ["Measuring", "best_sizes"]

_SWEEPS = 3  # that are noted, after the first one, in which memory is allocated
_SIZES = tuple(1 << k for k in range(18, 26))
_FIRST = (1 << 18, 1 << 20, 1 << 23)
_NEAR = 1.005  # of the least time: then larger buckets, which cost the processor less
_TIMED_BYTES, _TIMES = (1 << 12, 1 << 20), 3


class Measuring:
    """The times of the gradients of some parameters in the first sweeps."""

    def __init__(self, bucketing: Bucketing):
        self.bucketing = bucketing
        """The sizes while it measures."""
        self._sweeps: list[list[float]] = []

    def take(self, ready_s: Sequence[float], end_s: float) -> None:
        """Take the times of one sweep: when each gradient was complete, and when all were."""
        self._sweeps.append([*ready_s, end_s])

    @property
    def is_complete(self) -> bool:
        return len(self._sweeps) > _SWEEPS

    def choose(self, divided: Callable[[int, int], Sequence[Any]], group: Communicator) -> Bucketing:
        """Choose the sizes, given `divided` as in `best_sizes`. All ranks call it, and choose the same ones."""
        group.agree(lambda: f"sizes of the buckets of {len(self._sweeps[0]) - 1} parameters, from measured times")
        mine = np.array([*np.median(self._sweeps[1:], axis=0), *map(_all_reduce_s(group), _TIMED_BYTES)])
        told = group.exchange(mine.tobytes(), of="DataParallel(bucket_bytes='measured')")
        *ready, end, short, long = np.max([np.frombuffer(each) for each in told], axis=0).tolist()
        per_byte = max(long - short, 0.0) / (_TIMED_BYTES[1] - _TIMED_BYTES[0])
        return replace(best_sizes(divided, ready, end, short, per_byte), buffers=self.bucketing.buffers)


def _all_reduce_s(group: Communicator) -> Any:
    """A function of a number of bytes: the least time of some all-reduces of so many."""

    def took(size: int) -> float:
        times, x = [], np.zeros(size // 4, np.float32)
        for _ in range(_TIMES):
            start = time.perf_counter()
            group.run(Request("all_reduce", x, out=x))
            times.append(time.perf_counter() - start)
        return min(times)

    return took


def best_sizes(
    divided: Callable[[int, int], Sequence[Any]], ready_s: Sequence[float], end_s: float, latency_s: float,
    s_per_byte: float,
) -> Bucketing:  # fmt: skip
    """The sizes with which the sum of all gradients ends first; of nearly equal ones the largest.

    Parameters
    ----------
    divided : callable
        ``divided(bucket_bytes, first_bucket_bytes)``: the places of the buckets with these sizes (`buckets.lay_out`).
    ready_s : sequence of float
        When the gradient of each parameter is complete, in seconds from the begin of backward.
    end_s : float
        When backward ends.
    latency_s, s_per_byte : float
        An all-reduce of n bytes takes ``latency_s + n s_per_byte``.

    Examples
    --------
    Four gradients of 1 MiB become complete one after another. On a link that needs 10 ms for each, the first one is not
    kept waiting; where only the latency counts, one bucket takes all:

    >>> import numpy, autograd as ag
    >>> from functools import partial
    >>> from parallel.data.bucket_plan import best_sizes
    >>> from parallel.data.buckets import lay_out
    >>> divided = partial(lay_out, [ag.Parameter(numpy.zeros(1 << 18, "float32")) for _ in range(4)], range(4))
    >>> times = [0.01, 0.02, 0.03, 0.04]
    >>> best_sizes(divided, times, 0.04, 1e-4, 1e-8).bucket_bytes
    1048576
    >>> best_sizes(divided, times, 0.04, 0.01, 0.0).bucket_bytes
    33554432
    """
    ready = np.minimum(ready_s, end_s)
    found: dict[tuple[int, int], float] = {}
    for sizes in ((size, first) for size in _SIZES for first in _FIRST if first <= size):
        buckets = divided(*sizes)
        at = np.maximum.accumulate([ready[list(each.indices)].max() for each in buckets])
        times = [latency_s + each.size * each.like.dtype.itemsize * s_per_byte for each in buckets]
        found[sizes] = max(end_s, simulate(at.tolist(), times, end_s).end_s[-1])
    least = min(found.values())
    return Bucketing(*max(sizes for sizes, end in found.items() if end <= _NEAR * least))
