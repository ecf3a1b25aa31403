"""Hierarchical all-reduce: sum inside each host first, so that only n/g of each rank's array crosses the network.

1. The ranks of each host run a reduce-scatter.
2. The ranks with the same part, one on each host, run an all-reduce between the hosts.
3. The ranks of each host run an all-gather.

Each level has its own algorithm. Rabenseifner, Hager and Jost 2009 ("Hybrid MPI/OpenMP parallel programming on clusters
of multi-core SMP nodes"); Jia et al. 2018 ("Highly scalable deep learning training system with mixed-precision", the
section on hierarchical all-reduce).

With g ranks on each of N hosts and a ring between the hosts, the time is that of the algorithms inside the hosts plus
``2(N-1) alpha + 2 (n/g)(N-1)/N beta + (n/g)(N-1)/N gamma``. Each rank sends 2(N-1) messages and ``2 (n/g)(N-1)/N``
bytes to other hosts. If hosts have different numbers of ranks, g is the smallest; further ranks of a host only take
part in the steps inside the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autograd.layouts.partition import parts

from ..transports.protocol import Array, Communicator, Request
from ..transports.shared_memory.communicator import SharedMemory, shared_memory
from ..transports.steps import Steps, Whole
from . import halving, ring

__all__ = ["LEVELS", "Hosts", "all_reduce", "shared"]


LEVELS = "shared,ring"
"""The default algorithms inside a host and between hosts."""


class Hosts:
    """The ranks of a group by host. All ranks of the group create it together.

    Attributes
    ----------
    inside : Communicator
        The ranks of this host, in order.
    between : Communicator or None
        The ranks with the same place on every host; None for ranks whose place is `lanes` or above.
    lanes : int
        The smallest number of ranks on a host, g.
    count : int
        The number of hosts.
    """

    def __init__(self, group: Communicator, subgroup: Callable[[list[int], str], Communicator]):
        hosts = group.hosts
        members: dict[int, list[int]] = {}
        for rank, host in enumerate(hosts):
            members.setdefault(host, []).append(rank)
        here = members[hosts[group.index]]
        self.lanes = min(map(len, members.values()))
        self.count = len(members)
        self.inside = subgroup(here, f"{group.name}/inside")
        self._memory: SharedMemory | None = None
        place = here.index(group.index)
        self.between: Communicator | None = None
        if place < self.lanes:
            self.between = subgroup([ranks[place] for ranks in members.values()], f"{group.name}/between")

    def inside_by(self, algorithm: str) -> Communicator:
        """The ranks of this host for an algorithm. For ``shared`` they make their shared memory at the first use."""
        if algorithm != "shared":
            return self.inside
        self._memory = self._memory or shared_memory(self.inside)
        return self._memory


def _single_step(group: Communicator, request: Request) -> Steps[Any]:
    """A call of a communicator as an algorithm with one step.

    It allocates its result: a caller's buffer would have to be the operand `x`, which may be a copy here.
    """
    step = Whole(group, request._replace(out=None))
    yield step
    return step.wait()


def native(group: Communicator, request: Request, x: Any, out: Any) -> Steps[Any]:
    """The transport's own collective."""
    return (yield from _single_step(group, request._replace(x=x)))


def shared(group: Communicator, request: Request, x: Any, out: Any) -> Steps[Any]:
    """The collective by shared memory, for ranks of one host."""
    return (yield from _single_step(shared_memory(group), request._replace(x=x)))


INSIDE: dict[str, tuple[Callable[..., Steps[Array]], Callable[..., Steps[Array]]]] = {
    "native": (native, native),
    "shared": (native, native),
    "ring": (ring.reduce_scatter, ring.all_gather),
    "halving_doubling": (halving.reduce_scatter, halving.all_gather),
}
BETWEEN: dict[str, Callable[..., Steps[Array]]] = {
    "native": native,
    "ring": ring.all_reduce,
    "recursive_doubling": halving.recursive_doubling,
    "halving_doubling": halving.halving_doubling,
}


def all_reduce(hosts: Hosts, request: Request, x: Array, out: Array, inside: str, between: str) -> Steps[Array]:
    """Reduce-scatter inside, all-reduce between, all-gather inside."""
    # Now, and not in a step: the ranks make the memory together, and steps run when each of them tests or waits.
    return _all_reduce(hosts, hosts.inside_by(inside), request, x, out, inside, between)


def _all_reduce(
    hosts: Hosts, here: Communicator, request: Request, x: Array, out: Array, inside: str, between: str
) -> Steps[Array]:
    scatter, gather = INSIDE[inside]
    extents = parts(x.size, hosts.lanes)[0]
    is_alone = hosts.inside.size == 1
    counts = [extents[i] if i < hosts.lanes else 0 for i in range(hosts.inside.size)]
    part = x
    if not is_alone:
        mine = np.empty(counts[hosts.inside.index], x.dtype)
        part = yield from scatter(here, Request("reduce_scatter", counts=counts), x, mine)
    if hosts.between is not None and hosts.between.size > 1:
        total = out if is_alone else np.empty_like(part)
        part = yield from BETWEEN[between](hosts.between, Request("all_reduce"), part, total)
    if is_alone:
        return part
    return (yield from gather(here, Request("all_gather", counts=counts), part, out))
