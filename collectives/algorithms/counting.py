"""Exact messages and bytes of one rank, found by running its part of an algorithm with nobody at the other end.

What an algorithm sends depends on sizes alone, so a group whose receives are complete at once is all it needs. Any
number of ranks will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.layouts.partition import parts

from ..transports.protocol import Communicator, Pending, Request
from ..transports.request import REDUCTIONS, answer
from ..transports.traffic import Traffic
from .steps import finish
from .table import check_name, steps_of, widened

__all__ = ["count_messages"]


class _Alone(Communicator):
    """One rank's view of a group that is not there."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.ranks, self.name = rank, size, tuple(range(size)), "counted"
        self.traffic = Traffic()

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        return Pending.done(out)


def count_messages(
    operation: str,
    algorithm: str,
    size: int,
    ranks: int,
    rank: int,
    *,
    dtype: Any = np.float32,
    counts: Sequence[int] | None = None,
    root: int = 0,
) -> Traffic:
    """What one rank sends to each peer in one call.

    Parameters
    ----------
    operation, algorithm : str
        As in `predict`; ``native``, ``auto`` and ``hierarchical`` cannot be counted without the ranks.
    size : int
        Elements of the whole array.
    ranks, rank : int
    counts : sequence of int, optional
        The parts of reduce_scatter and all_gather; nearly equal ones without it.
    root : int

    Examples
    --------
    >>> count_messages("all_reduce", "ring", 12, ranks=4, rank=1)
    Traffic(6 messages, 72 bytes to 1 ranks)
    """
    algorithm = check_name(algorithm, operation)
    steps = steps_of(operation, algorithm)
    if steps is None or algorithm.startswith(("hierarchical", "shared")):
        raise ValueError(f"algorithm {algorithm!r}: what it sends depends on the transport or the hosts")
    group = _Alone(rank, ranks)
    if ranks > 1:
        counts = parts(size, ranks)[0] if counts is None else counts
        x = np.zeros(counts[rank] if operation == "all_gather" else size, dtype)
        x = widened(x) if operation in REDUCTIONS else x
        request = Request(operation, x, counts=counts, root=root)
        found = answer(request, rank)
        out = None if found is None else np.empty(*found)
        with np.errstate(all="ignore"):  # nothing arrives in the buffers
            finish(steps(group, request, None if operation == "broadcast" else x, out))
    return group.traffic
