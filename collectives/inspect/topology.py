"""A model of a machine: ranks per host, and the links inside a host, between hosts, and between racks of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autograd.errors import MeshError, short, typed_errors

from ..algorithms.costs import candidates, hierarchies, level_costs, predict
from ..algorithms.hierarchical import even_sizes

__all__ = ["Link", "Topology", "short_time"]


@typed_errors
@dataclass(frozen=True)
class Link:
    """A link in the alpha-beta model: a message of n bytes takes ``alpha + n beta``.

    Parameters
    ----------
    latency_s : float
        alpha: the time that an empty message takes.
    bytes_per_s : float
        1 / beta: the bandwidth of one rank while all ranks of its host send.
    """

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        _require("latency_s", self.latency_s, 0.0, "a number of seconds that is not negative")
        _require("bytes_per_s", self.bytes_per_s, _TINY, "a positive number of bytes a second")


@typed_errors
@dataclass(frozen=True)
class Topology:
    """Hosts with the same number of ranks each, in racks and so on.

    Parameters
    ----------
    ranks_per_host : int
        World ranks 0 to ``ranks_per_host - 1`` are on the first host, the next ones on the second, and so on. The last
        host may have fewer.
    inside, between : Link
        The links between two ranks of one host, and between ranks of two hosts.
    reduced_bytes_per_s : float
        1 / gamma: how many bytes one rank adds per second in a reduction. By default, addition takes no time.
    outer : sequence of (int, Link)
        Further levels, from the inside: the number of hosts of a rack and the link between racks; the number of racks
        of a row and the link between rows; and so on. `between` is the link of hosts of one rack then.

    Raises
    ------
    MeshError
        A number is negative, zero where it must be positive, not finite, or of the wrong type.

    Examples
    --------
    >>> import collectives as cc
    >>> machine = cc.Topology(8, inside=cc.Link(2e-6, 100e9), between=cc.Link(5e-6, 12e9), reduced_bytes_per_s=200e9)
    >>> machine.link(range(8)) is machine.inside, machine.link([0, 8, 16]) is machine.between
    (True, True)

    Racks of two hosts:

    >>> slow = cc.Link(1e-5, 1e9)
    >>> machine = cc.Topology(2, cc.Link(2e-6, 1e11), cc.Link(5e-6, 1e10), outer=[(2, slow)])
    >>> machine.domains(range(8)), machine.link([0, 2]) is machine.between, machine.link([0, 4]) is slow
    ([[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]], True, True)
    """

    ranks_per_host: int
    inside: Link
    between: Link
    reduced_bytes_per_s: float = math.inf
    outer: tuple[tuple[int, Link], ...] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(each, list | tuple) and len(each) == 2 for each in self.outer):
            raise MeshError(f"Topology: outer={self.outer!r} was given; needed: [(hosts of a rack, Link(...)), ...]")
        object.__setattr__(self, "outer", tuple(tuple(each) for each in self.outer))
        for name, number in (("ranks_per_host", self.ranks_per_host), *(("outer", number) for number, _ in self.outer)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise MeshError(f"Topology: {name}={number!r} was given; needed: 1 or more")
        links = (("inside", self.inside), ("between", self.between), *(("outer", link) for _, link in self.outer))
        for name, link in links:
            if not isinstance(link, Link):
                raise MeshError(f"Topology: {name}={link!r} was given; needed: Link(latency_s, bytes_per_s)")
        speed = self.reduced_bytes_per_s
        if speed != math.inf:
            _require("reduced_bytes_per_s", speed, _TINY, "a positive number of bytes a second")

    @property
    def gamma_s_per_byte(self) -> float:
        """The time to add one byte."""
        return 1.0 / self.reduced_bytes_per_s

    def domains(self, ranks: Sequence[int]) -> list[list[int]]:
        """For each level from the inside, hosts first: the number of the host, the rack and so on of each rank."""
        found, extent = [], 1
        for number in (self.ranks_per_host, *(number for number, _ in self.outer)):
            extent *= number
            found.append([rank // extent for rank in ranks])
        return found

    def link(self, ranks: Sequence[int]) -> Link:
        """The outermost link of a group: `inside` if all its ranks are on one host, `between` if in one rack."""
        links = (self.inside, self.between, *(link for _, link in self.outer))
        return links[sum(len(set(level)) > 1 for level in self.domains(ranks))]

    def links(self, ranks: Sequence[int]) -> tuple[list[tuple[int, float, float]], Link]:
        """The levels of a group, as `collectives.algorithms.predict` takes them, and the outermost link.

        The levels are those that have more than one domain, and the same number of members in each.
        """
        domains = self.domains(ranks)
        spanning = [level for level in domains if len(set(level)) > 1]
        links = (self.inside, self.between, *(link for _, link in self.outer))
        sizes = even_sizes(spanning) if spanning else []
        found = [(size, link.latency_s, 1 / link.bytes_per_s) for size, link in zip(sizes, links, strict=False)]
        return found, self.link(ranks)


    def explain(self, bytes: float, ranks: int | Sequence[int], algorithm: str | None = None) -> str:
        """A table of a hierarchical all-reduce, by level, with the other algorithms below it.

        Parameters
        ----------
        bytes : float
            The size of the array.
        ranks : int or sequence of int
            The world ranks; a number means that many, from 0.
        algorithm : str, optional
            Such as ``hierarchical:shared,tree,ring``. By default the one with the shortest predicted time.

        Returns
        -------
        str
            Messages and bytes are those of the rank that sends most; a member is a rank, a host, a rack and so on.

        Raises
        ------
        MeshError
            The algorithm is not hierarchical, or has more levels than the ranks.

        Examples
        --------
        >>> import collectives as cc
        >>> slow = cc.Link(1e-5, 1e9)
        >>> machine = cc.Topology(2, cc.Link(2e-6, 1e11), cc.Link(5e-6, 1e10), outer=[(2, slow)])
        >>> print(machine.explain(1e6, 16).partition("  without")[0])
        hierarchical:shared,ring,halving_doubling of 1e+06 bytes on 16 ranks: 523 us
            level  members  latency  GB/s         algorithm  messages     bytes    time
                1        2     2 us   100            shared         0         0   48 us
                2        2     5 us    10              ring         2     5e+05   60 us
          between        4    10 us     1  halving_doubling         4  3.75e+05  415 us
        <BLANKLINE>
        """
        _require("explain: bytes", bytes, 0.0, "a number of bytes that is not negative")
        members = list(range(ranks)) if isinstance(ranks, int) else list(ranks)
        levels, link = self.links(members)
        if not levels:
            raise MeshError(f"explain: ranks {short(members)} are on one host, or unevenly on several; needed: several "
                            "hosts with the same number of ranks")  # fmt: skip
        model = (bytes, len(members), link.latency_s, 1 / link.bytes_per_s, self.gamma_s_per_byte)

        def time_of(name: str) -> float:
            return predict("all_reduce", name, *model, levels=levels).time_s

        if algorithm is not None and algorithm.partition(":")[0] != "hierarchical":
            raise MeshError(f"explain: algorithm={algorithm!r} was given; needed: hierarchical, or hierarchical:A,B,C")
        name = min(hierarchies(len(levels)), key=time_of) if algorithm is None else algorithm
        rows = [("level", "members", "latency", "GB/s", "algorithm", "messages", "bytes", "time")]
        found = level_costs(*model, name.partition(":")[2], levels)
        links = [(a, b) for _, a, b in levels[: len(found) - 1]] + [(link.latency_s, 1 / link.bytes_per_s)]
        for k, ((each, size, cost), (alpha, beta)) in enumerate(zip(found, links, strict=True)):
            rows.append((str(k + 1) if k < len(found) - 1 else "between", str(size), short_time(alpha),
                         f"{1e-9 / beta:.3g}", each, str(cost.messages), f"{cost.bytes:.4g}",
                         short_time(cost.time_s)))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
        others = sorted((time_of(each), each) for each in candidates("all_reduce", *model[:4]))
        beside = ", ".join(f"{each} {short_time(seconds)}" for seconds, each in others)
        return "\n".join([f"{name} of {bytes:g} bytes on {len(members)} ranks: {short_time(time_of(name))}", *lines,
                          f"  without levels: {beside}"])  # fmt: skip


def short_time(time_s: float) -> str:
    """A time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if time_s >= size or unit == "us":
            return f"{time_s / size:.3g} {unit}"
    return ""


_TINY = 5e-324  # the smallest positive float


def _require(name: str, value: float, least: float, needed: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < least:
        raise MeshError(f"{name}={value!r} was given; needed: {needed}")
