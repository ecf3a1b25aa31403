"""Dimensions of one use of an operation: which are whole, over which it sums, and along which the ranks' values lie.

A dimension that has met one of a Replicated value, as the features of a row meet a weight, is *whole*: it has no rows
of this rank alone. After a gather of Varying values a dimension is *stacked*: the values of the ranks lie along it. The
`dims` that an operation declares say which dimensions meet, and which it sums over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from autograd.layouts.layout import I, Label, R, Sum, V

from .powers import Power

__all__ = ["Dimensions"]


class _Dim(NamedTuple):
    """A dimension of an operand: where it goes, its extent, and what is known of it."""

    place: Any
    extent: int
    is_whole: bool
    is_stacked: bool
    is_on_tape: bool
    is_varying: bool


def _each(
    maps: Any, inputs: Sequence[Power | None], labels: Sequence[Label | None], shapes: Sequence[tuple[int, ...]]
) -> Iterator[_Dim]:
    for dims, state, label, shape in zip(maps, inputs, labels, shapes, strict=False):
        for d, entry in enumerate(dims):
            is_known = state is not None
            is_whole = ((label is R or label is I) and shape[d] > 1) or (state is not None and d in state.whole)
            is_stacked = state is not None and d in state.stacked
            place = entry[0] if isinstance(entry, tuple) else entry
            yield _Dim(place, shape[d], is_whole, is_stacked, is_known, label is V)


class Dimensions:
    """The dimensions of a use: those of its result, and those that are summed over.

    Attributes
    ----------
    whole, stacked : frozenset of int
        Dimensions of the result.
    rows, elements : int
        The extents of the dimensions that are summed over: of those that are not whole, and of all.
    extents : tuple of int
        Of the dimensions that are summed over, each.
    is_complete : bool
        Whether no dimension is left.
    is_sum : bool
        Whether dimensions of a Varying value that are not whole are summed over.
    is_over_ranks : bool
        Whether a stacked dimension is summed over.

    Examples
    --------
    >>> found = Dimensions([(0, Sum("k")), (Sum("k"), 1)], [None, Power()], [V, R], [(5, 3), (3, 2)])
    >>> sorted(found.whole), found.is_sum       # x @ w: the columns are features, and the sum is over features
    ([1], False)
    """

    def __init__(
        self, maps: Any, inputs: Sequence[Power | None], labels: Sequence[Label | None],
        shapes: Sequence[tuple[int, ...]],
    ):  # fmt: skip
        every = [] if maps is None else list(_each(maps, inputs, labels, shapes))
        sums = [dim for dim in every if isinstance(dim.place, Sum)]
        self._keep([dim for dim in every if isinstance(dim.place, int)])
        summed_whole = {dim.place for dim in sums if dim.is_whole and not dim.is_stacked}
        mine = {dim.place: dim for dim in sums if dim.is_on_tape}  # dimensions that meet, once
        self.rows = math.prod([mine[place].extent for place in mine.keys() - summed_whole])
        self.extents = tuple([dim.extent for dim in mine.values()])
        self.elements = math.prod(self.extents)
        summed = [dim for dim in sums if dim.is_stacked or (dim.is_on_tape and dim.place not in summed_whole)]
        self.is_sum = True in [dim.is_varying and dim.is_on_tape for dim in summed]
        self.is_over_ranks = True in [dim.is_stacked for dim in summed]

    def _keep(self, left: Sequence[_Dim]) -> None:
        """Keep what is known of the dimensions of the result."""
        self.whole = frozenset([dim.place for dim in left if dim.is_whole])
        self.stacked = frozenset([dim.place for dim in left if dim.is_stacked])
        self.is_complete = True not in [dim.is_on_tape for dim in left]
