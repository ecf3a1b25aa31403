"""A world of any size that never communicates: one rank of it runs, on arrays that have shapes and no values.

Each request is passed to a callback, and its result is constructed from this rank's data alone:

- A `Shaped` operand gives a `Shaped` result. Its shape follows from the request (`request.answer`).
- Real arrays and bytes are control data (extents, used-flags, digests). The other ranks are assumed to send the same
  data as this one, because every rank runs the same program.
- Data that only another rank has (`recv`, `scatter`, a broadcast's header on a rank that is not the root) cannot be
  constructed. The callers require an argument ``like=``.

With ``dry=False`` the results are zeros instead of shapes. Such a group serves to record requests while rules run that
read values (see `probe`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from autograd.arrays.shape_only import DRY, Shaped

from ..checks.channel import Checks
from ..checks.sanitizer import Addend
from .job import Job, Options
from .protocol import Communicator, Request
from .request import answer

__all__ = ["DryCommunicator", "DryJob", "Note"]

Note = Callable[["DryCommunicator", Request], None]
"""``note(group, request)``: called with every request."""


class DryCommunicator(Communicator):
    """One rank's end of a channel of a dry world.

    Parameters
    ----------
    rank : int
        This rank's place in the group.
    ranks : tuple of int
        The world ranks of the members.
    name : str
    note : callable
        Called with every request; see `Note`.
    dry : bool
        Whether data that only another rank has is represented by a shape. If False, it is zeros.
    """

    adds_float16 = True

    def __init__(self, rank: int, ranks: tuple[int, ...], name: str, note: Note, dry: bool = True):
        super().__init__(rank, ranks, name)
        self.dry = dry
        self.checks = None if self.size == 1 else Checks(never=True)
        self._note = note

    def __repr__(self) -> str:
        return f"DryCommunicator('{self.name}', rank {self.index} of {self.size})"

    def _channel_of(self, ranks: tuple[int, ...], name: str, key: str) -> DryCommunicator:
        return DryCommunicator(ranks.index(self.ranks[self.index]), ranks, name, self._note, self.dry)

    def duplicate(self, purpose: str) -> Communicator:  # without the key, which is long in a large world
        return self._channel_of(self.ranks, f"{self.name}/{purpose}", "")

    def _agree(self, call: str, layout: str, is_rooted: bool, addend: Addend | None) -> None:
        """Do nothing: there is only one rank."""

    def _empty(self, count: int, dtype: np.dtype[Any]) -> Any:
        return None

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        self._note(self, request)
        if request.call == "exchange":
            return [bytes(x)] * self.size
        found = answer(request, self.index)
        if found is None:
            return None
        if request.call in ("recv", "scatter", "get", "accumulate"):  # data that only another rank has
            return Shaped(found[:1], found[1], DRY) if self.dry else np.zeros(*found)
        if type(out if x is None else x) is Shaped:
            return Shaped(found[:1], found[1], DRY)
        if request.call == "broadcast":
            return out
        y = self._of_equal_operands(request, x)
        if request.out is None:
            return y
        request.out[...] = y
        return request.out

    def _of_equal_operands(self, request: Request, x: Any) -> Any:
        """The result if every rank has the same operand as this rank."""
        call, size, rank = request.call, self.size, self.index
        if call in ("all_reduce", "reduce"):
            return x.copy() if request.op == "max" else x**size if request.op == "prod" else _times(x, size)
        if call == "scan":
            exclusive, backwards = request.options
            return _times(x, (size - 1 - rank if backwards else rank) + (not exclusive))
        if call == "reduce_scatter":
            return _part(_times(x, size), request.counts, rank)
        if call == "all_to_all":
            return _repeated(_part(x, request.counts, rank), request.receive_counts)
        return _repeated(x, request.counts)


def _times(x: Any, count: int) -> Any:
    """The sum of `count` equal arrays."""
    return np.multiply(x, count > 0 if x.dtype == bool else count, dtype=x.dtype)


def _part(whole: Any, counts: Sequence[int], rank: int) -> Any:
    start = sum(counts[:rank])
    return whole[start : start + counts[rank]]


def _repeated(part: Any, counts: Sequence[int] | None) -> Any:
    return np.concatenate([np.resize(part, n) for n in counts or ()]).astype(part.dtype, copy=False)


class DryJob(Job):
    """One rank of a world of any size, which sends nothing."""

    def __init__(self, size: int, rank: int, note: Note):
        self.size = size
        self.communicator = DryCommunicator(rank, tuple(range(size)), "world", note)

    @classmethod
    def open(cls, options: Options) -> Self:
        return cls(options.size, options.rank, options.note)
