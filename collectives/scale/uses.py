"""One use of an operation, and what it counts: elements, weights, items, and rows of all ranks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from autograd.layouts.layout import Label, P, Shard, Sum

from .dimensions import Dimensions
from .numbers import counted
from .powers import UNKNOWN, Power

__all__ = ["NORMALISED", "Use", "counts_of_sum", "items_of", "totals_of", "unsure_of", "weights_of"]


class Use(NamedTuple):
    """One use of an operation, along one axis.

    Attributes
    ----------
    op, place : the operation, and its place on the tape
    letters : str
        One for each operand.
    inputs : tuple of Power or None
        Of the operands; None for one that is not on the tape.
    labels, out : the labels of the operands, and of the result
    shapes : of the operands
    extents : of the first operand, as a whole
    maps : what the operation's `dims` say; None without them
    arrays : of the operands, where the node has kept them
    options : of the call
    n : the number of ranks along the axis
    number : the operand that remembers the number of ranks; None without one
    axis : the axis
    decided : what the ranks have decided that a plain number counts
    is_one : whether the result is one value of all ranks, along all axes
    is_of_others : whether the ranks along other axes have decided that a plain number counts their rows
    is_counted_here : whether the ranks have decided that a plain number counts no rows of other ranks, along all axes
        on which the result is not one value of all
    """

    op: Any
    place: int
    letters: str
    inputs: tuple[Power | None, ...]
    labels: tuple[Label | None, ...]
    out: Label
    shapes: tuple[tuple[int, ...], ...]
    extents: tuple[int, ...]
    maps: Any
    arrays: tuple[Any, ...]
    options: Any
    n: int
    number: Any
    axis: str
    decided: str
    is_one: bool = True
    is_of_others: bool = False
    is_counted_here: bool = False

    @property
    def first(self) -> Power:
        """The power of the first operand on the tape."""
        return next((each for each in self.inputs if each is not None), UNKNOWN)


_NONE: frozenset[Any] = frozenset()


def counts_of_sum(dims: Dimensions, counts: frozenset[float]) -> frozenset[float]:
    """The numbers of elements in a sum over rows of values in which numbers were summed before."""
    pairs = [k * (k - 1) for k in dims.extents if dims.extents.count(k) > 1]
    return frozenset((dims.rows, dims.elements, *pairs, *[dims.rows * each for each in counts]))


NORMALISED = frozenset((-1.0,))
"""That of weights whose sum is 1: a sum of elements with these weights is a mean."""
_MASKS = {"where": 0, "smoothed_cross_entropy": 1}
"""The operands that leave out elements."""


def weights_of(use: Use) -> frozenset[float]:
    """The sum of the weights of elements, as the ones of a mask: of an array, a condition, or labels to ignore."""
    x = _mask(use)
    if x is None or not x.size:
        return _NONE
    if use.op.name == "smoothed_cross_entropy":
        return _NONE if use.options[0] is None else frozenset((int(np.count_nonzero(x != use.options[0])),))
    if x.dtype.kind != "b" and (x.min() < 0 or x.min() == x.max() != 0):
        return _NONE
    is_condition = x.dtype.kind == "b" or use.op.name == "where"
    total = float(np.count_nonzero(x) if is_condition else np.sum(x, dtype=np.float64))
    if not math.isfinite(total) or total == x.size:
        return _NONE
    if counted(total, (1.0,)) and x.max() < 1:
        return NORMALISED
    whole = total * (max(math.prod(shape) for shape in use.shapes) // x.size)
    return frozenset([int(k) if k == int(k) else k for k in (total, whole)])


def _mask(use: Use) -> Any:
    """The operand that may be a mask, which is not on the tape; None without one."""
    at = _MASKS.get(use.op.name, -1)
    if use.op.name == "multiply":
        at = next((i for i, each in enumerate(use.inputs) if each is None), -1)
    x = use.arrays[at] if 0 <= at < len(use.arrays) else None
    return x if type(x) is np.ndarray and x.shape and x.dtype.kind in "biuf" else None


def totals_of(use: Use) -> frozenset[int]:
    """The number of elements of all ranks in a sum over a Shard, if the ranks have agreed on it."""
    summed = _summed_parts(use)
    label: Any = use.labels[0] if summed else None
    if not summed or not label.extent:
        return frozenset()
    summed = [d for d in summed if d != label.dim]
    rest = math.prod(int(use.shapes[0][d]) for d in summed)
    whole = math.prod(int(use.extents[d]) for d in summed)  # other axes may divide these dimensions
    rows = {label.extent, int(use.extents[label.dim])}  # of the rows that this axis divides, and of all
    return frozenset(extent * each for extent in rows for each in (1, rest, whole))


def _summed_parts(use: Use) -> list[int]:
    """The dimensions over which an operation sums, if a Shard divides one of them and there are no other rows."""
    label: Any = use.labels[0] if use.labels else None
    if use.out is not P or type(label) is not Shard or use.maps is None:
        return []
    summed = [d for d, place in enumerate(use.maps[0]) if isinstance(place, Sum)]
    is_complete = use.op.name == "sum" or not any(isinstance(place, int) for place in use.maps[0])
    return summed if is_complete and label.dim in summed else []


def items_of(use: Use) -> frozenset[int]:
    """The number of items that a use sums over: the extent of the divided dimension, of all ranks together."""
    label: Any = use.labels[0] if use.labels else None
    if not _summed_parts(use):
        return _NONE
    if label.extent:
        return frozenset((int(use.extents[label.dim]),))
    return frozenset((use.n,)) if use.shapes[0][label.dim] == 1 else _NONE  # perhaps one of each rank


def unsure_of(use: Use) -> frozenset[str]:
    """The axis, where a sum is over parts whose extents the ranks have not agreed on: theirs may differ."""
    label: Any = use.labels[0] if use.labels else None
    return frozenset((use.axis,)) if _summed_parts(use) and not label.extent else _NONE
