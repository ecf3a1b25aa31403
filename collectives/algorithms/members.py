"""A communicator of some ranks of a group, made without communication, for sets of ranks that change at each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..transports.protocol import Array, Communicator, Pending, Request
from ..transports.steps import finish
from .halving import halving_doubling, recursive_doubling

__all__ = ["Members"]

_MESSAGES = frozenset(("send", "lend", "recv"))
_SHORT_BYTES = 1 << 14  # up to here the latency of lg p more messages costs more than the bytes that they save


class Members(Communicator):
    """Some ranks of a group, which know of each other. It has messages, and a blocking `all_reduce` made of them.

    A communicator of MPI would be made by a call of all its ranks, and there are very many sets of ranks. The messages
    are those of one lane of the group. Two ranks that are both in several sets use them in the same order, so that the
    messages of one set are not taken for those of another.

    Parameters
    ----------
    group : Communicator
    members : sequence of int
        The ranks of the group, in order, the same on each of them. This rank is one of them.
    purpose : str
        The name of the lane.

    Notes
    -----
    Short arrays are summed by recursive doubling, long ones by Rabenseifner's algorithm: ``2 lg p`` messages and
    ``2n(p-1)/p`` bytes a rank. All members get the same bits, which depend on the number of members and their order.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> def program():
    ...     world = cc.world()
    ...     if world.rank == 1:
    ...         return None
    ...     return Members(world, (0, 2, 3), "some").all_reduce(np.full(2, 10.0 ** world.index)).tolist()
    >>> cc.run(program, ranks=4)
    [[1101.0, 1101.0], None, [1101.0, 1101.0], [1101.0, 1101.0]]
    """

    def __init__(self, group: Communicator, members: Sequence[int], purpose: str):
        ranks = tuple([group.ranks[member] for member in members])
        super().__init__(members.index(group.index), ranks, f"{group.name}/{purpose}")
        self.checks = None
        self.axes = group.axes
        self._lane, self._members = group.lane(purpose), members
        self._lane.traffic = self.traffic = group.traffic

    def run(self, request: Request) -> Any:
        if request.call in _MESSAGES:
            return self._lane.run(request._replace(peer=self._members[request.peer]))
        return super().run(request)

    def start(self, request: Request) -> Pending[Any]:
        if request.call in _MESSAGES:
            return self._lane.start(request._replace(peer=self._members[request.peer]))
        return super().start(request)

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        if request.call != "all_reduce" or request.op != "sum":
            raise NotImplementedError(f"{request.call} of '{self.name}'")
        algorithm = recursive_doubling if x.nbytes <= _SHORT_BYTES else halving_doubling
        y: Array = finish(algorithm(self, request, x.copy() if x is out else x, out))
        return y
