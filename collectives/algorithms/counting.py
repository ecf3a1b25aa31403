"""Count the messages and bytes that one rank sends, by running its part of an algorithm without communication.

The messages of an algorithm depend on sizes only, not on the data. So the algorithm runs on a stand-in communicator
whose receives complete at once, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.layouts.partition import parts

from ..transports.protocol import Communicator, Pending, Request
from ..transports.request import REDUCTIONS, answer
from ..transports.steps import finish
from ..transports.traffic import Traffic
from .table import check_name, steps_of, widened

__all__ = ["count_messages"]


class _CountingCommunicator(Communicator):
    """A communicator of one rank that counts messages and sends nothing."""

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
    """Count what one rank sends to each peer in one call.

    Parameters
    ----------
    operation, algorithm : str
        As in `predict`, except ``native``, ``auto``, ``hierarchical`` and ``shared``, whose messages depend on the
        transport or the hosts.
    size : int
        The number of elements of the whole array.
    ranks, rank : int
        The size of the group, and the rank whose messages are counted.
    dtype : dtype
    counts : sequence of int, optional
        The extents of the parts of reduce_scatter and all_gather. Default: nearly equal parts.
    root : int
        Of broadcast and reduce.

    Returns
    -------
    Traffic

    Raises
    ------
    ValueError
        The algorithm cannot be counted.

    Examples
    --------
    >>> count_messages("all_reduce", "ring", 12, ranks=4, rank=1)
    Traffic(6 messages, 72 bytes to 1 ranks)
    """
    algorithm = check_name(algorithm, operation)
    steps = steps_of(operation, algorithm)
    if steps is None or algorithm.startswith(("hierarchical", "shared")):
        raise ValueError(f"algorithm {algorithm!r}: its messages depend on the transport or the hosts")
    group = _CountingCommunicator(rank, tuple(range(ranks)), "counted")
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
