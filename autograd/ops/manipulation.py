"""Linear operations that move elements: flip, roll, repeat, pad, split, diagonals and triangles, differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays.capture import decided
from ..arrays.device import arange_beside, move, on_host
from ..arrays.shape_only import Shaped
from ..engine.primitive import Primitive, op
from ..errors import NotDifferentiable, ShapeError, typed_errors
from ..layouts.layout import Mix
from . import reductions
from .arguments import (
    axes_in_order,
    constant_like,
    instead_of,
    made_like,
    named,
    normal_axes,
    normal_axis,
    operand,
    operands,
    option,
    raw,
    strong,
)
from .indexing import as_parts, getitem, put, taken
from .reductions import require_whole, sum
from .shape import broadcast_to, concatenate, expand_dims, extents, ravel, reshape, sharded_extents, swapaxes, transpose
from .sorting import median

__all__ = [
    "array_split", "delete", "diag", "diagflat", "diagonal", "diff", "dsplit", "ediff1d", "flip", "fliplr",
    "flipud", "gradient", "hsplit", "make_diagonal", "pad", "repeat", "resize", "roll", "rollaxis", "rot90",
    "split", "tile", "trace", "trapezoid", "tril", "triu", "unstack", "vsplit",
]  # fmt: skip

Shape = tuple[int, ...]


def _mixed_axes_dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Dimension rule: the dimensions in the first option are mixed, the others are kept."""
    return [tuple(Mix if i in options[0] else i for i in range(len(shapes[0])))]


# -- flips and rolls -------------------------------------------------------------------------------------------------
_flip_op: Primitive = op(
    "flip", "a", lambda x, axes: np.flip(x, axes), lambda ct, y, x, axes: _flip_op(ct, options=(axes,)),
    dims=_mixed_axes_dims,
)  # fmt: skip
_roll_op: Primitive = op(
    "roll", "a", lambda x, axes, shifts: np.roll(x, shifts, axes),
    lambda ct, y, x, axes, shifts: _roll_op(ct, options=(axes, tuple(-n for n in shifts))),
    dims=_mixed_axes_dims,
    fixes={"mixes": "halo_exchange({x}, {a!r}, 1, periodic=True), for the neighbours of a part as in a stencil"},
)  # fmt: skip


@instead_of(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    """Return the elements in reverse order along axes, or along all. Adjoint: the same flip."""
    axes = normal_axes(None, m.ndim) if axis is None else tuple(sorted(axes_in_order(axis, m.ndim)))
    return _flip_op(m, options=(axes,))


@instead_of(np.flipud)
def flipud(m: Any) -> Any:
    """Return the rows in reverse order. Adjoint: the elements moved back."""
    return flip(m, 0)


@instead_of(np.fliplr)
def fliplr(m: Any) -> Any:
    """Return the columns in reverse order. Adjoint: the elements moved back."""
    return flip(m, 1)


@instead_of(np.rot90)
def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    """Return `m` rotated by `k` quarter turns in the plane of two axes. Adjoint: the cotangent rotated back."""
    a, b = axes_in_order(axes, m.ndim, "axes")
    k = option(k, "rot90", m) % 4
    if k == 0:
        return m
    if k == 2:
        return flip(m, (a, b))
    return swapaxes(flip(m, b), a, b) if k == 1 else flip(swapaxes(m, a, b), b)


@instead_of(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Return the elements shifted cyclically along axes. Adjoint: the cotangent shifted back."""
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), raw(a).shape)
    axis, shift = option(axis, "roll", a), option(shift, "roll", a)
    axes, shifts = np.broadcast_arrays(np.atleast_1d(axis), np.atleast_1d(shift))
    return _roll_op(a, options=(tuple(normal_axis(i, a.ndim) for i in axes.tolist()), tuple(int(n) for n in shifts)))


@instead_of(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """Return `a` with an axis moved before the position `start`. Adjoint: the elements moved back."""
    n = a.ndim
    axis, start = normal_axis(axis, n), start + n if start < 0 else start
    order = [i for i in range(n) if i != axis]
    order.insert(int(start - (axis < start)), axis)
    return transpose(a, order)


# -- repetitions -----------------------------------------------------------------------------------------------------
@instead_of(np.repeat)
def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    """Return each element repeated several times, next to each other. Adjoint: the sum over the repetitions."""
    a = operand(a)
    if axis is None:
        a, axis = ravel(a), 0
    axis = normal_axis(axis, a.ndim)
    counts = on_host(raw(repeats), "repeat", "counts")
    shape = raw(a).shape
    if counts.size != 1:
        if counts.shape != (shape[axis],):
            raise ShapeError(
                f"repeat: {counts.shape} counts were given for dimension {axis} of shape {shape}; needed: one, or one "
                "per element"
            )
        index = move(np.repeat(np.arange(shape[axis]), counts), raw(a))
        return taken(a, (slice(None),) * axis + (index,), by=(repeats,))
    option(repeats, "repeat", a)
    n = max(int(counts.reshape(())), 0)  # NumPy takes a negative count where there is nothing to repeat
    wide = broadcast_to(expand_dims(a, axis + 1), (*shape[: axis + 1], n, *shape[axis + 1 :]))
    return reshape(wide, (*shape[:axis], shape[axis] * n, *shape[axis + 1 :]))


@instead_of(np.tile)
def tile(A: Any, reps: Any) -> Any:
    """Return the whole array repeated along each dimension. Adjoint: the sum over the repetitions."""
    A = operand(A)
    given = np.atleast_1d(option(reps, "tile", A))
    counts = tuple(max(int(n), 0) for n in given)  # NumPy takes -1 where there is nothing to repeat
    n = max(A.ndim, len(counts))
    counts = (1,) * (n - len(counts)) + counts
    shape = (1,) * (n - A.ndim) + tuple(A.shape)
    pairs = reshape(A, tuple(k for s in shape for k in (1, s)))
    wide = broadcast_to(pairs, tuple(k for c, s in zip(counts, shape, strict=True) for k in (c, s)))
    return reshape(wide, tuple(c * s for c, s in zip(counts, shape, strict=True)))


@instead_of(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    """Return an array of the shape `new_shape`, filled with repeated copies of the elements of `a`.

    Adjoint: the sum of the cotangents of the copies of an element.
    """
    shape = extents(new_shape)
    flat = ravel(operand(a))
    if not flat.shape[0]:
        return made_like(partial(np.zeros, shape, flat.dtype), flat)
    index = arange_beside(raw(flat), math.prod(map(int, shape))) % int(flat.shape[0])
    return reshape(taken(flat, index, by=shape), shape)


# -- padding ---------------------------------------------------------------------------------------------------------
_INDEX_MODES = ("edge", "reflect", "symmetric", "wrap")
_OF_LINES: dict[str, Any] = {
    "maximum": reductions.max, "mean": reductions.mean, "median": median, "minimum": reductions.min,
}  # fmt: skip
"""The functions of the modes that pad each line with a number computed from its elements."""


def _pad_widths(x: Any, pad_width: Any) -> Any:
    """The numbers of elements to add before and after each dimension, as pairs."""
    n = x.ndim
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(i, pad_width.get(i - n, 0)) for i in range(n)]
        pad_width = [(w, w) if isinstance(w, int) else tuple(w) for w in pad_width]
    else:
        pad_width = option(pad_width, "pad", x)
    return np.broadcast_to(np.asarray(pad_width), (n, 2)).tolist()


@instead_of(np.pad, in_float32=True)
def pad(array: Any, pad_width: Any, mode: str = "constant", **words: Any) -> Any:
    """Return the array padded at the ends of each dimension.

    Modes: "constant"; those that repeat elements of the array: "edge", "reflect", "symmetric", "wrap"; those that
    repeat a number computed from each line: "maximum", "mean", "median", "minimum"; "linear_ramp"; and "empty", which
    pads with zeros here. The cotangent of a repeated element is the sum over its copies; constants get none.

    Raises
    ------
    NotDifferentiable
        A function as the mode, or ``reflect_type="odd"``.
    """
    x, widths = array, _pad_widths(array, pad_width)
    shape = raw(x).shape
    if mode in ("constant", "empty"):
        whole = tuple(a + s + b for s, (a, b) in zip(shape, widths, strict=True))
        key = tuple(slice(a, a + s) if a or b else slice(None) for s, (a, b) in zip(shape, widths, strict=True))
        y = put(x, options=(key, whole))
        if not decided(np.any, words.get("constant_values", 0)):
            return y
        border = [s if a or b else 1 for s, (a, b) in zip(shape, widths, strict=True)]  # a part is not padded
        return y + constant_like(np.pad(np.zeros(border, x.dtype), widths, **words), x)
    if mode in _OF_LINES or mode == "linear_ramp":
        return _pad_by_lines(x, widths, mode, **words)
    if mode not in _INDEX_MODES or words.get("reflect_type", "even") != "even":
        known = ", ".join(map(repr, (*_INDEX_MODES, *_OF_LINES, "linear_ramp", "empty")))
        raise NotDifferentiable(f"pad with mode={mode!r} {words or ''} has no derivative here; needed: 'constant' or "
                                f"one of {known}")  # fmt: skip
    for i, (before, after) in enumerate(widths):
        if before or after:
            index = np.pad(np.arange(shape[i]), (before, after), mode)  # type: ignore[call-overload]  # NumPy's types name each mode
            x = taken(x, (slice(None),) * i + (move(index, raw(x)),))
    return x


def _pad_by_lines(x: Any, widths: Any, mode: str, stat_length: Any = None, end_values: Any = 0) -> Any:
    """Pad one dimension after the other with numbers that are computed from its lines at each end."""
    lengths = np.broadcast_to(np.asarray(stat_length, object), (x.ndim, 2)).tolist()
    ends = np.broadcast_to(np.asarray(end_values), (x.ndim, 2)).tolist()
    for i, (before, after) in enumerate(widths):
        if not (before or after):
            continue
        require_whole("pad", x, (i,))
        n = int(raw(x).shape[i])
        if mode == "linear_ramp":
            first, last = _slice(x, i, 0, 1), _slice(x, i, n - 1, n)
            pieces = [_ramp(first, i, before, ends[i][0], False), x, _ramp(last, i, after, ends[i][1], True)]
        else:
            heads = n if lengths[i][0] is None else min(lengths[i][0], n)
            tails = n if lengths[i][1] is None else min(lengths[i][1], n)
            function = _OF_LINES[mode]
            left = function(_slice(x, i, 0, heads), i, keepdims=True)
            right = function(_slice(x, i, n - tails, n), i, keepdims=True)
            pieces = [repeat(left, before, i), x, repeat(right, after, i)]
        kept = (before, 1, after)
        x = concatenate([piece for piece, count in zip(pieces, kept, strict=True) if count], i)
    return x


def _ramp(edge: Any, axis: int, count: int, end: Any, falls: bool) -> Any:
    """Numbers from `end` towards the edge of an array, without it, or from there to `end`."""
    share = arange_beside(raw(edge), count) / max(count, 1)
    share = (share[::-1] if falls else share).reshape((-1,) + (1,) * (edge.ndim - axis - 1))
    share = constant_like(share.astype(edge.dtype), edge)
    return edge * share + (1 - share) * end


# -- splits: each part is a slice, so the operand's cotangent is the sum of those of its slices ----------------------
@instead_of(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Return the parts of an array along an axis: a number of nearly equal ones, or cut at given indices.

    Adjoint: the cotangents of the parts, joined.
    """
    axis = normal_axis(axis, ary.ndim)
    n = int(raw(ary).shape[axis])
    indices_or_sections = option(indices_or_sections, "split", ary)
    if indices_or_sections.__class__ is int or np.ndim(indices_or_sections) == 0:
        sections = int(indices_or_sections)
        if sections < 1:
            raise ShapeError(f"array_split into {sections} parts; needed: at least one")
        small, longer = divmod(n, sections)
        cuts = [i * small + min(i, longer) for i in range(1, sections)]
    else:
        cuts = [int(i) for i in on_host(raw(indices_or_sections), "split", "indices")]
    ends = [0, *cuts, n]
    before = (slice(None),) * axis
    return as_parts([getitem(ary, (*before, slice(a, b))) for a, b in zip(ends[:-1], ends[1:], strict=True)])


@instead_of(np.split)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Return the parts of an array along an axis: a number of equal ones, or cut at given indices.

    Adjoint: the cotangents of the parts, joined.

    Raises
    ------
    ShapeError
        The extent cannot be divided into that number of equal parts.
    """
    axis = normal_axis(axis, ary.ndim)
    n = int(raw(ary).shape[axis])
    is_number = isinstance(indices_or_sections, int | np.integer)
    # a rank has only its part of a sharded dimension, which is refused below whatever its extent here
    if is_number and n % int(indices_or_sections) and axis not in sharded_extents(ary):
        raise ShapeError(f"split of an extent of {n} into {indices_or_sections} equal parts. Fix: array_split")
    return array_split.__wrapped__(ary, indices_or_sections, axis)


@instead_of(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """Return the parts along the first dimension, as `split` does. Adjoint: the cotangents of the parts, joined."""
    return split(ary, indices_or_sections, 0)


@instead_of(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """Return the parts along the second dimension, or along the only one, as `split` does.

    Adjoint: the cotangents of the parts, joined.
    """
    return split(ary, indices_or_sections, 1 if ary.ndim > 1 else 0)


@instead_of(np.dsplit)
def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """Return the parts along the third dimension, as `split` does. Adjoint: the cotangents of the parts, joined."""
    return split(ary, indices_or_sections, 2)


@instead_of(np.unstack)
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Return the sub-arrays along an axis as a tuple; that axis is removed.

    Adjoint: the cotangents of the parts, joined.
    """
    (axis,) = axes_in_order(axis, x.ndim)
    return as_parts(tuple(x[(slice(None),) * axis + (i,)] for i in range(int(x.shape[axis]))))


@instead_of(np.delete)
def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """Return `arr` without the entries `obj` along an axis, or of the flattened array.

    Adjoint: the cotangent at the places of the elements that were taken, and 0 elsewhere.
    """
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = normal_axis(axis, arr.ndim)
    left = np.delete(np.arange(int(arr.shape[axis])), on_host(raw(obj), "delete", "obj"))
    return taken(arr, (slice(None),) * axis + (move(left, raw(arr)),), by=(obj,))


# -- diagonals and triangles -----------------------------------------------------------------------------------------
def _diagonal_dims(shapes: Sequence[Shape], options: Any) -> Any:
    _, a, b, _ = options
    return [tuple(Mix if i in (a, b) else i - (i > a) - (i > b) for i in range(len(shapes[0])))]


def _make_diagonal_dims(shapes: Sequence[Shape], options: Any) -> Any:
    _, a, b, shape = options
    free = [i for i in range(len(shape)) if i not in (a, b)]
    return [(*free, Mix)]


def _make_diagonal(x: Any, offset: int, a: int, b: int, shape: Shape) -> Any:
    if type(x) is Shaped:
        return Shaped(shape, x.dtype, x.why)
    out = np.zeros_like(x, shape=shape)
    n = x.shape[-1]
    key: list[Any] = [slice(None)] * len(shape)
    at = arange_beside(x, n)
    key[a], key[b] = at + max(-offset, 0), at + max(offset, 0)
    # with two index arrays NumPy puts their common dimension in their place if they are adjacent, else first
    out[tuple(key)] = np.moveaxis(x, -1, min(a, b) if abs(a - b) == 1 else 0)
    return out


_diagonal_op: Primitive = op(
    "diagonal", "a", lambda x, offset, a, b, shape: np.diagonal(x, offset, a, b),
    lambda ct, y, x, *options: _make_diagonal_op(ct, options=options), dims=_diagonal_dims,
)  # fmt: skip
_make_diagonal_op: Primitive = op(
    "make_diagonal", "a", _make_diagonal, lambda ct, y, x, *options: _diagonal_op(ct, options=options),
    dims=_make_diagonal_dims,
)  # fmt: skip


@instead_of(np.diagonal, checked=1)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return the diagonal of two dimensions as the last dimension. Adjoint: `make_diagonal`."""
    n = a.ndim
    shape = tuple(int(k) for k in raw(a).shape)
    axes = normal_axis(axis1, n, "axis1"), normal_axis(axis2, n, "axis2")
    return _diagonal_op(a, options=(int(option(offset, "diagonal", a)), *axes, shape))


@typed_errors
def make_diagonal(D: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return an array with the last dimension of `D` on the diagonal of two new ones, and 0 elsewhere.

    Adjoint: `diagonal`.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> np.make_diagonal(np.array([1.0, 2.0]), 0, -1, -2).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    D = operand(D)
    n = D.ndim + 1
    a, b = axes_in_order((axis1, axis2), n)
    extent = int(raw(D).shape[-1]) + abs(offset)
    shape = [int(k) for k in raw(D).shape[:-1]]
    for i in sorted((a, b)):
        shape.insert(i, extent)
    return _make_diagonal_op(D, options=(int(offset), a, b, tuple(shape)))


@instead_of(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    """Return the k-th diagonal of a matrix, or the matrix with a vector on its k-th diagonal.

    Adjoint: `diag` of the cotangent, of the extents of `v`.
    """
    return make_diagonal(v, k) if v.ndim == 1 else diagonal(v, k)


@instead_of(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Any:
    """Return the matrix with all elements of `v` on its k-th diagonal.

    Adjoint: the diagonal of the cotangent in the shape of `v`.
    """
    return make_diagonal(ravel(v), k)


@instead_of(np.trace, in_float32=True)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
    """Return the sum of a diagonal of two dimensions. Adjoint: the cotangent on the diagonal of zeros."""
    return sum(diagonal.__wrapped__(a, offset, axis1, axis2), -1, dtype)


def _triangle(theirs: Any, function: Any, summary: str) -> Any:
    made: Primitive = op(
        theirs.__name__, "a", function, lambda ct, y, x, k: made(ct, options=(k,)),
        dims=lambda shapes, options: [tuple(Mix if i >= len(shapes[0]) - 2 else i for i in range(len(shapes[0])))],
    )  # fmt: skip

    @instead_of(theirs)
    def triangle(m: Any, k: int = 0) -> Any:
        m = broadcast_to(m, (*raw(m).shape, *raw(m).shape)) if m.ndim == 1 else m
        return made(m, options=(int(option(k, theirs.__name__, m)),))

    return named(triangle, theirs, f"Return the {summary}. Adjoint: the same.")


tril = _triangle(
    np.tril, lambda x, k: np.tril(x, k), "lower triangle of the last two dimensions, with 0 above diagonal `k`"
)
triu = _triangle(
    np.triu, lambda x, k: np.triu(x, k), "upper triangle of the last two dimensions, with 0 below diagonal `k`"
)


# -- differences -----------------------------------------------------------------------------------------------------
def _slice(x: Any, axis: int, a: int | None, b: int | None) -> Any:
    return getitem(x, (slice(None),) * axis + (slice(a, b),))


@instead_of(np.diff, in_float32=True)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return the differences of neighbouring elements along an axis, taken `n` times.

    Adjoint: the negative differences of the cotangent padded with zeros.
    """
    a = operand(a)
    if n == 0:
        return a
    axis = normal_axis(axis, a.ndim)
    if prepend is not None or append is not None:
        parts = [strong(a, x)[1] for x in (prepend, a, append) if x is not None]
        slab = (*a.shape[:axis], 1, *a.shape[axis + 1 :])
        a = concatenate([x if x.ndim else broadcast_to(x, slab) for x in parts], axis)
    for _ in range(n):
        a = _slice(a, axis, 1, None) - _slice(a, axis, None, -1)
    return a


@instead_of(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Return the differences of neighbouring elements of the flattened array, with values put before and after.

    Adjoint: that of `diff`, and the parts of the cotangent for the values before and after.
    """
    ary = operand(ary)
    parts = [x for x in (to_begin, diff(ravel(ary)), to_end) if x is not None]
    return concatenate([ravel(x).astype(ary.dtype) for x in operands(*parts)])


@instead_of(np.gradient, in_float32=True)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any | list[Any]:
    """Return central differences in the interior and one-sided ones at the ends, along each axis.

    Adjoint: the transposed differences of the cotangent.

    Spacings are given as in NumPy: none, one number, or per axis a number or the coordinates.
    """
    f = operand(f)
    axes = normal_axes(None, f.ndim) if axis is None else axes_in_order(axis, f.ndim)
    spacings: list[Any] = list(varargs) * (len(axes) if len(varargs) == 1 and np.ndim(raw(varargs[0])) == 0 else 1)
    spacings = spacings or [1.0] * len(axes)
    if len(spacings) != len(axes):
        raise ShapeError(f"gradient: {len(varargs)} spacings were given for {len(axes)} axes; needed: one, or as many")
    found = [_gradient_along(f, h, i, edge_order) for h, i in zip(spacings, axes, strict=True)]
    return found[0] if len(axes) == 1 else tuple(found)


def _gradient_along(f: Any, spacing: Any, axis: int, edge_order: int) -> Any:
    n = int(raw(f).shape[axis])
    if n < edge_order + 1:
        raise ShapeError(
            f"gradient along an extent of {n} with edge_order={edge_order}; needed: at least {edge_order + 1}"
        )
    spread = (-1,) + (1,) * (f.ndim - axis - 1)
    if np.ndim(raw(spacing)) == 0:
        inner = (_slice(f, axis, 2, None) - _slice(f, axis, None, -2)) / (2.0 * spacing)
        firsts = lasts = (spacing, spacing)
    else:
        h = diff(operand(spacing).astype(f.dtype))
        a, b = reshape(h[:-1], spread), reshape(h[1:], spread)
        before, at, after = _slice(f, axis, None, -2), _slice(f, axis, 1, -1), _slice(f, axis, 2, None)
        inner = -b / (a * (a + b)) * before + (b - a) / (a * b) * at + a / (b * (a + b)) * after
        firsts, lasts = (h[0], h[1] if n > 2 else h[0]), (h[-1], h[-2] if n > 2 else h[-1])
    if edge_order == 1:
        left = (_slice(f, axis, 1, 2) - _slice(f, axis, 0, 1)) / firsts[0]
        right = (_slice(f, axis, -1, None) - _slice(f, axis, -2, -1)) / lasts[0]
    else:
        p, q = firsts
        left = (-(2.0 * p + q) / (p * (p + q)) * _slice(f, axis, 0, 1) + (p + q) / (p * q) * _slice(f, axis, 1, 2)
                - p / (q * (p + q)) * _slice(f, axis, 2, 3))  # fmt: skip
        p, q = lasts
        right = (p / (q * (p + q)) * _slice(f, axis, -3, -2) - (p + q) / (p * q) * _slice(f, axis, -2, -1)
                 + (2.0 * p + q) / (p * (p + q)) * _slice(f, axis, -1, None))  # fmt: skip
    return concatenate([left, inner, right], axis)


@instead_of(np.trapezoid, in_float32=True)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Return the integral along an axis by the trapezoidal rule. Both `y` and `x` have derivatives."""
    y = operand(y)
    at = normal_axis(axis, y.ndim)
    if x is not None:
        x = operand(x)
        dx = reshape(diff(x), (-1,) + (1,) * (y.ndim - at - 1)) if x.ndim == 1 else diff(x, axis=axis)
    return sum(dx * (_slice(y, at, 1, None) + _slice(y, at, None, -1)), axis) * 0.5
