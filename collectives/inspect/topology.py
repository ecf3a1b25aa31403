"""A model of a machine for dry runs: ranks per host, and the links inside a host and between hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autograd.errors import MeshError, typed_errors

__all__ = ["Link", "Topology"]


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
    """Hosts with the same number of ranks each.

    Parameters
    ----------
    ranks_per_host : int
        World ranks 0 to ``ranks_per_host - 1`` are on the first host, the next ones on the second, and so on. The last
        host may have fewer.
    inside, between : Link
        The links between two ranks of one host, and between ranks of two hosts.
    reduced_bytes_per_s : float
        1 / gamma: how many bytes one rank adds per second in a reduction. By default, addition takes no time.

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
    >>> machine.hosts([0, 1, 8, 9, 16, 17])
    [2, 2, 2]
    """

    ranks_per_host: int
    inside: Link
    between: Link
    reduced_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        whole = isinstance(self.ranks_per_host, int) and not isinstance(self.ranks_per_host, bool)
        if not whole or self.ranks_per_host < 1:
            raise MeshError(f"Topology: ranks_per_host={self.ranks_per_host!r} was given; needed: 1 or more")
        for name in ("inside", "between"):
            link = getattr(self, name)
            if not isinstance(link, Link):
                raise MeshError(f"Topology: {name}={link!r} was given; needed: Link(latency_s, bytes_per_s)")
        speed = self.reduced_bytes_per_s
        if speed != math.inf:
            _require("reduced_bytes_per_s", speed, _TINY, "a positive number of bytes a second")

    @property
    def gamma_s_per_byte(self) -> float:
        """The time to add one byte."""
        return 1.0 / self.reduced_bytes_per_s

    def hosts(self, ranks: Sequence[int]) -> list[int]:
        """The number of the given ranks on each host that has any of them, in order of the hosts."""
        found: dict[int, int] = {}
        for rank in ranks:
            host = rank // self.ranks_per_host
            found[host] = found.get(host, 0) + 1
        return [found[host] for host in sorted(found)]

    def link(self, ranks: Sequence[int]) -> Link:
        """The slowest link of a group: `inside` if all its ranks are on one host, else `between`."""
        return self.inside if len({rank // self.ranks_per_host for rank in ranks}) <= 1 else self.between


_TINY = 5e-324  # the smallest positive float


def _require(name: str, value: float, least: float, needed: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < least:
        raise MeshError(f"{name}={value!r} was given; needed: {needed}")
