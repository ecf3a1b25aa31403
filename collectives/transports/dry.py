"""A world of any size that never communicates: one rank of it runs, on arrays that have shapes and no values.

What the rank would send is noted, and what it would receive is taken from this rank's own knowledge:

- A `Shaped` array gives a `Shaped` result: the shape follows from the call, and the numbers nobody asks for.
- A real array or bytes are what ranks tell each other *about* their program (extents, used-flags, digests). The other
  ranks are taken to have said the same as this one, which is what "every rank runs the same program" means.
- What comes from another rank alone (`recv`, and a broadcast's header off its root) is not known here: the callers ask
  for a ``like=``.

The same stands in for a group where only what would be sent is asked for, with zeros in the place of shapes: a rule
that reads values runs on those (see `inspect.plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograd.arrays.shape_only import DRY, Shaped
from autograd.errors import MeshError, ShapeError

from .arguments import checked_rank
from .protocol import Communicator
from .traffic import Traffic

__all__ = ["DryCommunicator", "Note"]

Note = Callable[["DryCommunicator", str, int, int, int | None], None]
"""``note(group, call, given_bytes, whole_bytes, peer)``: what this rank handed to a call, the size of the whole value,
and for a message the other rank's place in the group."""


class DryCommunicator(Communicator):
    """A channel of a dry world, as one of its ranks has it.

    Parameters
    ----------
    rank : int
        This rank's place in the group.
    ranks : tuple of int
        The world ranks of the members.
    name : str
    note : callable
        Called at every call; see `Note`.
    dry : bool
        Whether what only another rank knows is a shape; else it is zeros.
    """

    checking = False

    def __init__(self, rank: int, ranks: tuple[int, ...], name: str, note: Note, dry: bool = True):
        self.dry = dry
        self.rank = rank
        self.size = len(ranks)
        self.ranks = ranks
        self.name = name
        self.traffic = Traffic()  # stays at zero
        self._tell = note

    def _note(self, call: str, given: int, whole: int, peer: int | None = None) -> None:
        self._tell(self, call, given, whole, peer)

    def __repr__(self) -> str:
        return f"DryCommunicator('{self.name}', rank {self.rank} of {self.size})"

    def subgroup(self, members: Sequence[int], name: str) -> DryCommunicator:
        if self.rank not in members or len(set(members)) < len(members):
            raise MeshError(f"'{name}' of {len(members)} ranks repeats one or leaves out rank {self.rank}")
        ranks = tuple([self.ranks[member] for member in members])
        return DryCommunicator(members.index(self.rank), ranks, name, self._tell, self.dry)

    def duplicate(self, purpose: str) -> DryCommunicator:
        return DryCommunicator(self.rank, self.ranks, f"{self.name}/{purpose}", self._tell, self.dry)

    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        """Nobody is there to disagree."""

    # -- the same shape on all ranks ---------------------------------------------------------------------------
    def broadcast(self, x: Any, root: int) -> Any:
        checked_rank(self, "root", root)
        self._note("broadcast", x.nbytes, x.nbytes)
        return x if type(x) is Shaped else x.copy()

    def reduce(self, x: Any, root: int) -> Any:
        checked_rank(self, "root", root)
        self._note("reduce", x.nbytes, x.nbytes)
        return self._sum(x) if root == self.rank else None

    def all_reduce(self, x: Any) -> Any:
        self._note("all_reduce", x.nbytes, x.nbytes)
        return self._sum(x)

    def maximum(self, x: Any) -> Any:
        self._note("maximum", x.nbytes, x.nbytes)
        return x if type(x) is Shaped else x.copy()

    def product(self, x: Any) -> Any:
        self._note("product", x.nbytes, x.nbytes)
        return x if type(x) is Shaped else x**self.size

    def scan(self, x: Any, exclusive: bool, backwards: bool) -> Any:
        self._note("scan", x.nbytes, x.nbytes)
        if type(x) is Shaped:
            return x
        before = self.size - 1 - self.rank if backwards else self.rank
        return np.multiply(x, before + (not exclusive), dtype=x.dtype)

    def barrier(self) -> None:
        self._note("barrier", 0, 0)

    # -- parts -------------------------------------------------------------------------------------------------
    def gather(self, x: Any, counts: Sequence[int], root: int) -> Any:
        checked_rank(self, "root", root)
        self._check_part(x, counts)
        self._note("gather", x.nbytes, sum(counts) * x.dtype.itemsize)
        return self._joined(x, counts) if root == self.rank else None

    def all_gather(self, x: Any, counts: Sequence[int]) -> Any:
        self._check_part(x, counts)
        self._note("all_gather", x.nbytes, sum(counts) * x.dtype.itemsize)
        return self._joined(x, counts)

    def scatter(self, x: Any, counts: Sequence[int], root: int, dtype: Any) -> Any:
        checked_rank(self, "root", root)
        self._check_counts("counts", counts)
        dtype = np.dtype(dtype)
        if root == self.rank:
            self._check_size(x, sum(counts), "the sum of counts")
        self._note("scatter", x.nbytes if root == self.rank else 0, sum(counts) * dtype.itemsize)
        return self._unknown(counts[self.rank], dtype)

    def reduce_scatter(self, x: Any, counts: Sequence[int]) -> Any:
        self._check_counts("counts", counts)
        self._check_size(x, sum(counts), "the sum of counts")
        self._note("reduce_scatter", x.nbytes, x.nbytes)
        return self._cut(self._sum(x), counts)

    def all_to_all(self, x: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Any:
        self._check_counts("receive_counts", receive_counts)
        self._check_counts("send_counts", send_counts)
        self._check_size(x, sum(send_counts), "the sum of send_counts")
        self._note("all_to_all", x.nbytes, x.nbytes)
        return self._joined(self._cut(x, send_counts), receive_counts)

    # -- one rank to another -----------------------------------------------------------------------------------
    def send(self, x: Any, dst: int) -> None:
        checked_rank(self, "dst", dst)
        self._note("send", x.nbytes, x.nbytes, dst)

    def recv(self, buffer: Any, src: int) -> Any:
        checked_rank(self, "src", src)
        self._note("recv", buffer.nbytes, buffer.nbytes, src)
        return self._unknown(buffer.size, buffer.dtype)

    def get(self, x: Any, runs: Sequence[tuple[int, int, int]]) -> Any:
        taken = sum(count for _, _, count in runs)
        self._note("get", x.nbytes, self._remote(runs) * x.dtype.itemsize)
        return self._unknown(taken, x.dtype)

    def accumulate(self, values: Any, runs: Sequence[tuple[int, int, int]], count: int) -> Any:
        self._note("accumulate", values.nbytes, self._remote(runs) * values.dtype.itemsize)
        return self._unknown(count, values.dtype)

    def exchange(self, data: bytes) -> list[bytes]:
        self._note("exchange", len(data), len(data) * self.size)
        return [bytes(data)] * self.size

    def _remote(self, runs: Sequence[tuple[int, int, int]]) -> int:
        """The elements of other ranks' arrays among the runs."""
        for source, _, _ in runs:
            checked_rank(self, "source", source)
        return sum(count for source, _, count in runs if source != self.rank)

    def _unknown(self, count: int, dtype: Any) -> Any:
        """What only another rank knows."""
        return Shaped((count,), dtype, DRY) if self.dry else np.zeros(count, dtype)

    # -- what the others are taken to have done ----------------------------------------------------------------
    def _sum(self, x: Any) -> Any:
        if type(x) is Shaped:
            return x
        return x.copy() if x.dtype == bool else np.multiply(x, self.size, dtype=x.dtype)

    def _joined(self, part: Any, counts: Sequence[int]) -> Any:
        if type(part) is Shaped:
            return Shaped((sum(counts),), part.dtype, DRY)
        return np.concatenate([np.resize(part, n) for n in counts]).astype(part.dtype, copy=False)

    def _cut(self, whole: Any, counts: Sequence[int]) -> Any:
        start = sum(counts[: self.rank])
        return whole[start : start + counts[self.rank]]

    # -- what a real transport refuses, too --------------------------------------------------------------------
    def _check_counts(self, what: str, counts: Sequence[int]) -> None:
        if len(counts) != self.size or min(counts) < 0:
            raise ShapeError(f"{what} on '{self.name}': {len(counts)} were given; needed: {self.size} counts >= 0")

    def _check_size(self, x: Any, needed: int, meaning: str) -> None:
        if x.size != needed:
            raise ShapeError(f"the array has {x.size} elements where {meaning} is {int(needed)}")

    def _check_part(self, x: Any, counts: Sequence[int]) -> None:
        self._check_counts("counts", counts)
        self._check_size(x, counts[self.rank], "this rank's count")
