"""Hierarchical all-reduce: sum inside each host first, then inside each rack, so that few bytes cross the slow links.

A *level* divides ranks into *domains*: those of one host, the hosts of one rack, the racks of one row. With the levels
from the inside to the outside, an all-reduce is

1. a reduce-scatter among the ranks of each domain;
2. of each part, the same at the next level, among the ranks that have it, one of each domain; after the last level an
   all-reduce among them;
3. an all-gather among the ranks of each domain.

Each level has an algorithm of its own, and so has the all-reduce between the outermost domains. With ``tree`` inside
the domains of a level, step 1 is a reduce to the first rank of each and step 3 a broadcast from it: fewer messages, for
short arrays.

Rabenseifner, Hager and Jost 2009 ("Hybrid MPI/OpenMP parallel programming on clusters of multi-core SMP nodes"); Jia et
al. 2018 ("Highly scalable deep learning training system with mixed-precision", the section on hierarchical
all-reduce); Cho, Finkler, Serrano, Kung and Hunter 2019 ("BlueConnect: decomposing all-reduce for deep learning on
heterogeneous network hierarchy") for any number of levels.

With g ranks on each of N hosts and a ring between the hosts, the time is that of the algorithms inside the hosts plus
``2(N-1) alpha + 2 (n/g)(N-1)/N beta + (n/g)(N-1)/N gamma``. Each rank sends 2(N-1) messages and ``2 (n/g)(N-1)/N``
bytes to other hosts. With h hosts in each of M racks and rings at both levels a rank sends ``2 (n/g)(h-1)/h`` bytes to
other hosts of its rack and ``2 (n/(gh))(M-1)/M`` to other racks. If domains have different numbers of ranks, the
smallest counts; further ranks of a domain only take part in the steps inside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograd.errors import MeshError
from autograd.layouts.partition import parts

from ..transports.protocol import Array, Communicator, Request
from ..transports.shared_memory.communicator import SharedMemory, shared_memory
from ..transports.steps import Steps, Whole
from . import halving, ring, trees

__all__ = ["Level", "all_reduce", "domains_of", "even_sizes", "names_of", "shared"]

Domains = Sequence[Sequence[int]]
"""For each level, from the inside: a number for each rank, equal for those of one domain."""


def domains_of(group: Communicator, topology: Any = None) -> Domains:
    """The domains of a group's ranks: its hosts, and outside them what the launcher tells, or those of a topology.

    Raises
    ------
    MeshError
        Two ranks on one host are in different domains, or some ranks have more levels than others.
    """
    if topology is not None:
        return list(topology.domains(group.ranks))
    hosts, outer = group.hosts, group.domains
    for level in outer:
        for rank, (host, domain) in enumerate(zip(hosts, level, strict=True)):
            first = hosts.index(host)
            if domain == 0 or level[first] != domain:
                raise MeshError(
                    f"RINGTAPE_PLACE of rank {group.ranks[rank]} "
                    + ("has fewer parts than that of others" if domain == 0 else
                       f"differs from that of rank {group.ranks[first]}, which is on the same host")
                    + "\n  fix: the same on all ranks of a host, with as many parts on every host, as row1/rack3"
                )  # fmt: skip
    return [hosts, *outer]


def even_sizes(domains: Domains) -> list[int]:
    """For each level, how many of the level below each domain has, up to the first level at which they differ.

    Examples
    --------
    >>> even_sizes([[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]]), even_sizes([[0, 0, 1]])
    ([2, 2], [])
    """
    found, ranks = [], list(range(len(domains[0])))
    for level in domains:
        counts = set(Counter(level[rank] for rank in ranks).values())
        if len(counts) > 1:
            break
        found.append(counts.pop())
        ranks = list({level[rank]: rank for rank in reversed(ranks)}.values())  # the first one of each domain
    return found


class Level:
    """The ranks of a group by the domains of a level, with the levels above. All ranks of the group create it together.

    Attributes
    ----------
    inside : Communicator
        The ranks of this domain, in order.
    between : Communicator or None
        The ranks with the same place in every domain; None for ranks whose place is `lanes` or above.
    above : Level or None
        The next level, of the ranks of `between`.
    lanes : int
        The smallest number of ranks of a domain, g.
    count : int
        The number of domains.
    sizes : list of int
        See `even_sizes`.
    levels : int
        The number of levels from here on.
    """

    def __init__(self, group: Communicator, domains: Domains, subgroup: Callable[[list[int], str], Communicator]):
        members: dict[int, list[int]] = {}
        for rank, domain in enumerate(domains[0]):
            members.setdefault(domain, []).append(rank)
        here = members[domains[0][group.index]]
        self.lanes, self.count = min(map(len, members.values())), len(members)
        self.sizes, self.levels = even_sizes(domains), len(domains)
        self.inside = subgroup(here, f"{group.name}/inside")
        self._memory: SharedMemory | None = None
        place = here.index(group.index)
        self.between: Communicator | None = None
        self.above: Level | None = None
        if place < self.lanes:
            lane = [ranks[place] for ranks in members.values()]
            self.between = subgroup(lane, f"{group.name}/between")
            if outer := [[level[rank] for rank in lane] for level in domains[1:]]:
                between = self.between
                self.above = Level(between, outer, lambda of, name: subgroup([lane[rank] for rank in of], name))

    def inside_by(self, algorithm: str) -> Communicator:
        """The ranks of this domain for an algorithm. For ``shared`` they make their memory at the first use."""
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


def _to_first(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """A reduce-scatter whose first rank has all, by a binomial tree."""
    total = out if group.index == 0 else None
    yield from trees.reduce(group, Request("reduce"), x, total, trees.binomial, 1)
    return out


def _from_first(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """An all-gather whose first rank has all, by a binomial tree."""
    if group.index == 0:
        out[...] = x
    return (yield from trees.broadcast(group, Request("broadcast"), None, out, trees.binomial, 1))


INSIDE: dict[str, tuple[Callable[..., Steps[Array]], Callable[..., Steps[Array]]]] = {
    "native": (native, native),
    "shared": (native, native),
    "ring": (ring.reduce_scatter, ring.all_gather),
    "halving_doubling": (halving.reduce_scatter, halving.all_gather),
    "tree": (_to_first, _from_first),
}
BETWEEN: dict[str, Callable[..., Steps[Array]]] = {
    "native": native,
    "ring": ring.all_reduce,
    "recursive_doubling": halving.recursive_doubling,
    "halving_doubling": halving.halving_doubling,
    "tree": lambda group, request, x, out: trees.all_reduce(group, request, x, out, trees.binomial, 1),
}


def names_of(option: str, levels: int) -> list[str]:
    """The algorithm of each level and of the last all-reduce. By default shared memory inside the hosts, then rings.

    Raises
    ------
    MeshError
        More algorithms are given than there are levels.
    """
    names = option.split(",") if option else ["shared", *["ring"] * levels]
    if len(names) - 1 > levels:
        raise MeshError(
            f"algorithm='hierarchical:{option}' was given, for {len(names) - 1} levels; the ranks have {levels}: "
            f"{'hosts alone' if levels == 1 else 'hosts, and domains of them'}\n  fix: RINGTAPE_PLACE=rack3 on each "
            "host, or cc.Mesh(..., topology=), where the algorithm is asked for"
        )
    return names


def all_reduce(level: Level, request: Request, x: Array, out: Array, option: str) -> Steps[Array]:
    """Reduce-scatter inside, the same at the levels above, all-gather inside."""
    names = names_of(option, level.levels)
    # Now, and not in a step: the ranks make the memory together, and steps run when each of them tests or waits.
    return _all_reduce(level, level.inside_by(names[0]), x, out, names)


def _all_reduce(level: Level, here: Communicator, x: Array, out: Array, names: list[str]) -> Steps[Array]:
    scatter, gather = INSIDE[names[0]]
    lanes = 1 if names[0] == "tree" else level.lanes
    extents = parts(x.size, lanes)[0]
    is_alone = here.size == 1
    counts = [extents[i] if i < lanes else 0 for i in range(here.size)]
    part = x
    if not is_alone:
        mine = np.empty(counts[here.index], x.dtype)
        part = yield from scatter(here, Request("reduce_scatter", counts=counts), x, mine)
    between = level.between
    if between is not None and between.size > 1 and here.index < lanes:
        total = out if is_alone else np.empty_like(part)
        if len(names) > 2:
            assert level.above is not None  # as the number of names was compared with that of levels
            part = yield from _all_reduce(level.above, level.above.inside, part, total, names[1:])
        else:
            part = yield from BETWEEN[names[1]](between, Request("all_reduce"), part, total)
    if is_alone:
        return part
    return (yield from gather(here, Request("all_gather", counts=counts), part, out))
