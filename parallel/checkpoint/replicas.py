"""Comparison of the replicas of a run's state, by digests: which value differs, on which ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import is_absent
from autograd.digests import blake2b
from autograd.whole import Piece

from .disk import value_digest
from .ownership import Placement

__all__ = ["Difference", "copies_of", "differ", "differences", "digest_of_text", "exchanged", "ranks_text"]


class Difference(NamedTuple):
    """A value whose replicas differ.

    Attributes
    ----------
    path : str
        As in a checkpoint.
    axes : str
        Those along which the ranks have replicas, as in ``dp*cp``.
    ranks : tuple of int
        The ranks that have replicas.
    digests : tuple of (str or None)
        Those of their replicas; None where a rank has none.
    """

    path: str
    axes: str
    ranks: tuple[int, ...]
    digests: tuple[str | None, ...]

    @property
    def usual(self) -> tuple[int, ...]:
        """The ranks with the most frequent value, of several such values the first."""
        most = max(self.digests, key=self.digests.count)
        return tuple(rank for rank, digest in zip(self.ranks, self.digests, strict=True) if digest == most)

    @property
    def others(self) -> tuple[int, ...]:
        """The other ranks."""
        usual = set(self.usual)
        return tuple(rank for rank in self.ranks if rank not in usual)

    @property
    def is_decided(self) -> bool:
        """Whether more than half of all replicas are equal, and no rank lacks one."""
        return None not in self.digests and 2 * len(self.usual) > len(self.ranks)


def digest_of_text(text: str) -> str:
    """A short digest of a text."""
    return str(blake2b(text.encode(), digest_size=12).hexdigest())


def exchanged(group: Any, text: str, of: str) -> list[Any]:
    """The JSON values of all ranks, given the text of this one's. All ranks call it."""
    return [json.loads(each) for each in group.exchange(text.encode(), of=of)]


def copies_of(pieces: Mapping[str, tuple[Piece, Placement]]) -> dict[str, dict[str, str]]:
    """The digests of the values of which other ranks have replicas: by the name of these ranks, and by path."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(pieces):
        piece, at = pieces[path]
        if at.holds and at.replicas > 1 and not is_absent(piece.array):
            found.setdefault(at.name, {})[path] = value_digest(to_host(piece.array))
    return found


def differ(told: list[dict[str, str]]) -> bool:
    """Whether two ranks have told different digests for the same name."""
    known: dict[str, str] = {}
    return any(known.setdefault(name, text) != text for each in told for name, text in each.items())


def differences(copies: Mapping[str, Mapping[str, str]], group: Any, of: str) -> list[Difference]:
    """The values that differ, in the same order on all ranks. All ranks call it, with the result of `copies_of`."""
    told = exchanged(group, json.dumps(copies), of)
    found = []
    for name in sorted({name for each in told for name in each}):
        members = [(int(rank), each[name]) for rank, each in zip(group.ranks, told, strict=True) if name in each]
        for path in dict.fromkeys(path for _, each in members for path in each):
            digests = tuple(each.get(path) for _, each in members)
            if len(set(digests)) > 1:
                axes = name.partition(" of ")[0]
                found.append(Difference(path, axes, tuple(rank for rank, _ in members), digests))
    return found


def ranks_text(ranks: tuple[int, ...]) -> str:
    """The text ``rank 1``, or ``ranks 1, 2``."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
