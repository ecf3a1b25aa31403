"""Masks of attention over a sequence that the ranks of an axis hold in parts.

A mask is *whole* along the axis if it is I, R or a constant: its rows are the queries of the whole sequence, of which
each rank takes its own. If it is Shard of the queries, or Varying, its rows are the queries of this rank. Its columns
are always the keys of the whole sequence, in their own order (not in zigzag order). A mask of keys alone may be in
parts of the sequence, like the tokens: the ranks gather it, since it has no more than one number for each key.
"""

from __future__ import annotations

from typing import Any

from autograd import ops
from autograd.engine.tensor import Tensor
from autograd.errors import LayoutError, ShapeError
from autograd.layouts.layout import C, D, I, R, Shard, V
from autograd.layouts.messages import describe
from autograd.nn.attention import as_mask, both_masks, seen_keys
from collectives import all_gather, cast
from collectives.mesh import Axis
from collectives.ops.arguments import operand

from .order import Order, unzigzag

__all__ = ["all_rows", "of_this_rank", "with_key_padding"]


def with_key_padding(
    mask: Any, key_padding_mask: Any, on: Axis, axis: Any, order: Order, dims: int, caller: str
) -> Tensor | None:
    """A mask of `ops.attention`, and one of keys, as one; None if there is none.

    Parameters
    ----------
    mask : Tensor or array, broadcastable to [..., heads, tokens, keys], or None
        True where a query sees a key.
    key_padding_mask : Tensor or array, [..., keys], or None
        True for padding. Shard of the keys, in zigzag order Varying, or whole.
    dims : int
        The number of dimensions of [..., heads, tokens, keys].
    """
    found = None if mask is None else operand(as_mask(mask, f"{caller}: mask", "attended to"), axis, caller)[0]
    if key_padding_mask is not None:
        what = f"{caller}: key_padding_mask"
        keys = operand(as_mask(key_padding_mask, what), axis, caller)[0]
        if not _is_whole(keys, on):
            last = keys.array.ndim - 1
            for name in on.names:
                _refuse_other(keys, name, on, what, order.zigzag, last, "the keys")
            keys = unzigzag(keys, axis, last) if order.zigzag else all_gather(keys, axis, last)
        found = both_masks(found, seen_keys(keys, dims - 3, what))
    return found


def of_this_rank(mask: Tensor, on: Axis, order: Order, extents: tuple[int, ...], full: tuple[int, ...],
                 caller: str) -> Tensor:  # fmt: skip
    """The rows of this rank's queries, V on the axes. `full` is [..., heads, tokens of this rank, all tokens]."""
    me, whole = on.group.index, _is_whole(mask, on)
    made = _varying(mask, on)
    if whole and mask.array.ndim > 1 and mask.array.shape[-2] != 1:
        _require(mask, (*full[:-2], sum(extents), full[-1]), on, caller)
        rows = [ops.getitem(made, (..., piece, slice(None))) for piece in order.pieces(me, extents)]
        made = rows[0] if len(rows) == 1 else ops.concatenate(rows, -2)
    else:
        for name in () if whole else on.names:
            _refuse_other(mask, name, on, f"{caller}: mask", True, mask.array.ndim - 2, "the queries")
        _require(mask, full, on, caller)
    return made


def all_rows(mask: Tensor, on: Axis, axis: Any, full: tuple[int, ...], extents: tuple[int, ...], heads: slice,
             caller: str) -> Tensor:  # fmt: skip
    """All rows of a mask, and some of its heads, V on the axes. `full` is [..., heads, all tokens, all tokens]."""
    if not _is_whole(mask, on):
        rows = mask.array.ndim - 2
        for name in on.names:
            _refuse_other(mask, name, on, f"{caller}: mask", True, rows, "the queries")
        if rows >= 0 and mask.array.shape[rows] != 1:
            _require(mask, (*full[:-2], extents[on.group.index], full[-1]), on, caller)
            mask = all_gather(mask, axis, rows)
    _require(mask, full, on, caller)
    made = _varying(mask, on)
    if mask.array.ndim > 2 and mask.array.shape[-3] != 1:
        assert mask.layout is not None
        for name, label in mask.layout.items():  # cut on both axes, they are no parts of one value
            made = cast(made, name, to=V) if isinstance(label, Shard) and label.dim == mask.array.ndim - 3 else made
        made = ops.getitem(made, (..., heads, slice(None), slice(None)))
    return made


def _is_whole(mask: Tensor, on: Axis) -> bool:
    """Whether all ranks have the same mask."""
    assert mask.layout is not None
    return all(any(mask.layout[name] is label for label in (I, R, C, D)) for name in on.names)


def _varying(mask: Tensor, on: Axis) -> Tensor:
    """The mask as a value of which each rank uses parts of its own."""
    for name in on.names:
        assert mask.layout is not None
        mask = cast(cast(mask, name, to=R) if mask.layout[name] is I else mask, name, to=V)
    return mask


def _refuse_other(
    mask: Tensor, axis: str, on: Axis, what: str, may_vary: bool, dim: int, of: str
) -> None:
    """Raise LayoutError if a mask that is not whole is neither Shard of `dim` nor, where it may be, Varying."""
    assert mask.layout is not None
    label = mask.layout[axis]
    if (label is V and may_vary) or (isinstance(label, Shard) and label.dim == dim):
        return
    needed = f"Shard({dim}), parts of {of}{', V' * may_vary}, or whole (I, R or a constant)"
    fix = f"cc.all_gather(mask, {axis!r}, {label.dim})" if isinstance(label, Shard) else (
        f"cc.from_local(mask, {{{axis!r}: Shard({dim})}}) where it is made, or ag.constant(mask) of the whole mask")
    raise LayoutError(
        f"{what}({describe(mask.array, mask.array.shape, mask.layout)}, axis {'*'.join(on.names)!r})\n  axis {axis!r}: "
        f"it is {label!r}; needed: {needed}\n  fix: {fix}"
    )


def _require(mask: Tensor, full: tuple[int, ...], on: Axis, caller: str) -> None:
    """Raise ShapeError if a mask does not broadcast to a shape."""
    shape = tuple(map(int, mask.array.shape))
    if len(shape) <= len(full) and all(m in (1, n) for m, n in zip(shape[::-1], full[::-1], strict=False)):
        return
    assert mask.layout is not None
    held = "the whole one, as all ranks have the same" if _is_whole(mask, on) else "that of this rank's queries"
    raise ShapeError(
        f"{caller}: a mask {describe(mask.array, shape, mask.layout)} was given, {held}; needed: one that broadcasts "
        f"to {full}\n  fix: ag.constant(mask) for a mask of the whole sequence, or cc.from_local(rows, {{"
        f"{on.names[0]!r}: Shard({max(len(shape) - 2, 0)})}}) for the rows of this rank's queries"
    )
