"""Linear operations that change the shape: reshape, transpose, broadcast, squeeze, concatenate and stack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from ..engine.dispatch import unbroadcast
from ..engine.primitive import Primitive, op
from ..engine.tensor import TENSORS, Tensor
from ..errors import ArgumentError, OptionError, ShapeError, typed_errors
from ..layouts.layout import C, D, I, Mix, R, Shard, Stated, Unagreed
from ..layouts.rank_values import INTEGERS, RANK_NUMBERS, LocalCount, RankInt, rank_axes, rank_number
from .arguments import (
    FIRST,
    ask,
    axes_in_order,
    axes_of_number,
    normal_axes,
    normal_axis,
    one_of,
    operand,
    raw,
    refusal,
    shaped,
    tensors_in,
)
from .indexing import getitem

__all__ = [
    "broadcast_to", "concatenate", "expand_dims", "matrix_transpose", "moveaxis", "ravel", "reshape", "shape",
    "size", "squeeze", "swapaxes", "transpose",
]  # fmt: skip

Shape = tuple[int, ...]


def mixed_axis_dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Dimension rule of operations along one axis, the first option: that dimension is mixed, the others are kept."""
    return [tuple(Mix if i == options[0] else i for i in range(len(shape))) for shape in shapes]


_EMPTY = 1_000_003  # stands for the extent 0 where dimensions are matched by products


def _with_rows(source: Shape, target: Shape, free: int) -> list[list[int]]:
    """Both shapes with numbers of rows in the place of extents of 0, so that their products tell what is matched.

    Empty dimensions keep their order. The dimensions between two of them may differ in the shapes. As where rows and
    tokens are merged, they belong to the empty dimension before them, unless they differ at their end only, or the next
    one is -1 and takes what is left.
    """
    filled = [[_EMPTY if n == 0 else n for n in shape] for shape in (source, target)]
    empty = list(zip(*([k for k, n in enumerate(shape) if n == 0] for shape in (source, target)), strict=False))
    ends = [(-1, -1), *empty, (len(source), len(target))]
    for place, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        between = [shape[a + 1 : b] for shape, a, b in zip(filled, start, end, strict=True)]
        common = next((i for i, (m, n) in enumerate(zip(*between, strict=False)) if m != n), min(map(len, between)))
        is_at_end = common in map(len, between) and (common > 0 or end[1] == free)
        belongs_to_next = place == 0 or (place < len(empty) and is_at_end)
        m, n = map(math.prod, between)
        for shape, k, factor in zip(filled, end if belongs_to_next else start, (n, m), strict=True):
            shape[k] *= factor // math.gcd(m, n)
    return filled


def _homes(target: Sequence[int], given: Sequence[int], free: int) -> tuple[dict[int, set[int]], set[int]]:
    """By sharded dimension the dimensions of the result that may begin with it, and all of these.

    Of extents that differ between ranks: where `target` and `given`, the shape of the operand, have numbers of one
    axis, or at `free`, the place of -1.
    """
    marked = {j: rank_axes(n) for j, n in enumerate(target) if isinstance(n, RANK_NUMBERS) and j != free}
    homes: dict[int, set[int]] = {}
    for i, n in enumerate(given):
        if isinstance(n, RANK_NUMBERS):
            found = {j for j, axes in marked.items() if not axes.isdisjoint(n.axes)}
            homes[i] = found or ({free} if free >= 0 else set())
    local = set(marked).union(*homes.values())
    return homes if local else {}, local


def _entry(b: int, before: int, after: int, homes: set[int] | None, is_local: bool) -> Any:
    """The entry of a dimension which begins dimension b of the result.

    An element along it has `before` elements in the operand, and `after` in the result. `homes` are the dimensions that
    may begin with it, where it is sharded, and `is_local` says whether the extent of b differs between ranks.
    """
    from fractions import Fraction  # loaded lazily: it imports decimal, which is slow to load

    factor = Fraction(before, after)
    if homes and b not in homes:
        return Stated(b) if factor == 1 and not is_local else Mix
    if factor.denominator % _EMPTY == 0:  # rows of no elements: their number does not follow
        return Unagreed(b)
    factor = factor if factor.numerator % _EMPTY else Fraction(0)  # rows of no elements are merged
    return b if factor == 1 else (b, factor)


def _group(
    source: Shape, target: Shape, i: int, j: int, parts: Mapping[int, Any], local: Any
) -> tuple[int, int, bool]:  # fmt: skip
    """The ends of the shortest groups of dimensions from `i` and `j` on; whether their products are equal."""
    b, m, n = j, source[i], target[j]
    i, j = i + 1, j + 1
    while m != n and (m < n and i < len(source) or m > n and j < len(target)):
        if m < n:
            m, i = m * source[i], i + 1
        else:
            n, j = n * target[j], j + 1
    while m == n and i in parts and source[i] == 1 and not (parts[i] or local).isdisjoint(range(b, j)):
        i += 1  # this rank has one row of a dimension that other ranks merge with those before it
    return i, j, m == n


def _reshape_dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Dimension rule of reshape: groups of source and target dimensions with equal products are matched.

    The outermost dimension of a group may stay sharded; inside a group dimensions are split or merged. The shapes are
    those of this rank, but the answer must be the same on all ranks. So a part with one row, or with none, is treated
    like longer parts; and an extent given as -1 or as a number that differs between ranks may be 1 here and longer on
    another rank, so it does not count as a dimension that was inserted.

    A sharded dimension goes where its own extent is given, otherwise where -1 is. Beside these, plain extents are those
    of the whole value: where one of them would take the sharded dimension, -1 would be inferred from a part. Only the
    extent of every part is legal there.
    """
    (source,), target = shapes, tuple(int(n) for n in options[0])
    free = options[2]
    parts, local = _homes(*options)
    if 0 in source:
        source, target = map(tuple, _with_rows(source, target, free))
    entries: list[Any] = [Mix] * len(source)
    ones: list[int] = []  # removed dimensions of extent 1 before a group: each may be a sharded dimension with one row
    i = j = 0
    while i < len(source) and j < len(target):
        if i in parts and target[j] == 1 and j not in local:
            j += 1
            continue
        if source[i] == 1 and i not in parts and j in local and max(parts, default=i) > i:
            i += 1
            continue
        is_one = source[i] == 1 and i not in parts
        if source[i] != target[j] and is_one != (target[j] == 1 and j not in local):
            # a dimension of extent 1 that was inserted or removed does not start a group
            if is_one:
                ones.append(i)
            i, j = i + is_one, j + (not is_one)
            continue
        a, b = i, j
        i, j, is_equal = _group(source, target, i, j, parts, local)
        if is_equal:
            for k in (*ones, a):
                rows = math.prod(source[k + 1 : i]), math.prod(target[b + 1 : j])
                entries[k] = _entry(b, *rows, parts.get(k), b in local)
        ones.clear()
    return [tuple(entries)]


def _extent_of_part(refusal: Any) -> list[str]:
    """The further fix for a new shape that has the extent of this rank's part as a plain number."""
    d = refusal.labels[refusal.at[0]].dim
    has_number = refusal.options[2] >= 0
    return [f"{{x}}.shape[{d}] in the shape, where its number is the extent of this rank's part"] if has_number else []


_reshape = op(
    "reshape", "a", lambda x, shape, *_: x.reshape(shape), lambda ct, y, x, shape, source, *_: reshape(ct, source),
    dims=_reshape_dims, ranked=True, fixes={"mixes": _extent_of_part},
)  # fmt: skip


def shape(a: Any) -> tuple[int, ...]:
    """Return the shape. The extent of a sharded dimension is that of this rank's part, and remembers it."""
    return a.shape if a.__class__ in TENSORS else np.shape(a)


@typed_errors
def size(a: Any, axis: Any = None) -> int:
    """Return the number of elements, in all or along an axis: of this rank's part where a dimension is sharded."""
    if a.__class__ not in TENSORS:
        return np.size(a, axis)
    extents = a.shape if axis is None else [a.shape[i] for i in axes_in_order(axis, len(a.array.shape))]
    return math.prod(extents)


_ALL_INTEGERS = frozenset((int, RankInt, LocalCount))
_ROW_MAJOR = "C"


def extents(shape: Any) -> Any:
    """A shape as a tuple of integers. Those that differ between ranks, also in a Tensor, remember their axes."""
    try:
        found = tuple(shape) if isinstance(shape, Iterable) and getattr(shape, "ndim", True) else (shape,)
        for n in found:
            if n.__class__ is not int:
                index(n)
    except TypeError as error:
        raise ArgumentError(f"shape {shape!r} was given; needed: integers") from error
    return tuple(_extent(n) if n.__class__ in TENSORS else n for n in found)


def _extent(n: Any) -> Any:
    """An integer that a Tensor holds; a rank number where its labels say that the ranks hold different ones."""
    axes = [axis for axis, label in (n.layout or {}).items() if label not in (R, I, C, D)]
    return rank_number(index(n), frozenset(axes))


def reshape(a: Any, shape: Any, order: str = "C", *, copy: Any = None) -> Any:
    """Return the same elements in another shape; one extent may be -1. Adjoint: reshape back.

    Raises
    ------
    ShapeError
        The shape does not hold as many elements, or -1 cannot be inferred.
    """
    x = shaped(a)
    source = x.shape  # the extents of sharded dimensions are numbers that differ between ranks
    if order is not _ROW_MAJOR or copy is not None:
        if not isinstance(order, str):
            raise ArgumentError(f"order={order!r} was given; needed: a string")
        if order not in ("C", "F", "A", "K"):
            raise OptionError(f"order={order!r} was given; needed: 'C', 'F', 'A' or 'K'")
        if isinstance(copy, str):
            raise OptionError(f"copy={copy!r} was given; needed: True, False or None")
    if shape.__class__ is int:
        shape = (shape,)
    try:
        total = math.prod(shape)
    except TypeError:
        total = None
    if shape.__class__ is not tuple or total.__class__ is not int:
        if shape is None:
            return x
        shape = extents(shape)
        total = math.prod(shape)
    if order == "F":
        return transpose(reshape(transpose(x), shape[::-1]))
    if shape == source and all(rank_axes(n) <= rank_axes(m) for n, m in zip(shape, source, strict=True)):
        return x
    free = shape.index(-1) if -1 in shape else -1
    elements = math.prod(raw(x).shape)
    if free >= 0:
        # with one -1 the product of the others is -total, unless one of them remembers the axes on which it differs
        known = -total if total.__class__ is int else math.prod(n for n in shape if n != -1)
        shape = _inferred(source, shape, free, elements, known)
    elif total != elements:
        raise ShapeError(f"reshape of {source} to {shape}; needed: a shape of {elements} elements")
    return _reshape(x, options=(shape, source, free))


def _inferred(source: Shape, shape: Shape, free: int, elements: int, known: int) -> Shape:
    """A new shape with the extent in the place of -1; `known` is the product of the others."""
    if known == 0 and elements == 0:
        if sum(map(_is_empty_part, source)) > sum(map(_is_empty_part, shape)):
            known = 1  # another part is empty, which takes the place of -1
        else:
            elements, known = _with_one_row(source), _with_one_row(shape)
    if shape.count(-1) > 1 or known == 0 or elements % known:
        raise ShapeError(f"reshape of {source} to {shape}: -1 cannot be inferred from {elements} elements")
    found = (*shape[:free], elements // known, *shape[free + 1 :])
    if found[free] != 0:
        return found
    empty = next((i for i, n in enumerate(source) if _is_empty_part(n)), None)
    if empty is None or any(map(_is_empty_part, found)):
        return found
    if math.prod(found[:free]) != math.prod(source[:empty]):
        raise ShapeError(
            f"reshape of {source} to {shape}: this rank's part is empty along dimension {empty}, so the extents before "
            f"-1 do not fit it\n  fix: -1 for the dimension that contains dimension {empty}, or x.shape[{empty}]"
        )
    return found


def _is_empty_part(n: Any) -> bool:
    return bool(n == 0) and isinstance(n, RANK_NUMBERS)


def _with_one_row(shape: Shape) -> int:
    """The number of elements without the extent -1, if a part that is empty on this rank had one row."""
    return math.prod(getattr(n, "of_one_row", 1) if _is_empty_part(n) else n for n in shape if n != -1)


_transpose = op(
    "transpose", "a", lambda x, axes: np.transpose(x, axes),
    lambda ct, y, x, axes: transpose(ct, tuple(int(i) for i in np.argsort(axes))),
    dims=lambda shapes, options: [tuple(options[0].index(i) for i in range(len(options[0])))],
)  # fmt: skip


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """Return the dimensions permuted, or reversed without `axes`. Adjoint: the inverse permutation."""
    x = shaped(a)
    ndim = len(raw(x).shape)
    axes = tuple(range(ndim))[::-1] if axes is None else axes_in_order(axes, ndim, "axes")
    if len(axes) != ndim:
        swap = f"\n  fix: x.swapaxes{axes}, to exchange these two" if len(axes) == 2 else ""
        raise ShapeError(
            f"transpose: axes {axes} were given for an array of {ndim} dimensions; needed: each dimension once{swap}"
        )
    return _transpose(x, options=(axes,))


def swapaxes(a: Any, axis1: Any = None, axis2: Any = None, *, dim0: Any = None, dim1: Any = None) -> Any:
    """Return `a` with two dimensions exchanged. Adjoint: the same exchange."""
    if dim0 is not None or dim1 is not None:
        axis1, axis2 = one_of("swapaxes", axis1, None, dim0), one_of("swapaxes", axis2, None, dim1)
    a = shaped(a)
    axes = list(range(len(raw(a).shape)))
    i, j = normal_axis(axis1, len(axes), "axis1"), normal_axis(axis2, len(axes), "axis2")
    axes[i], axes[j] = j, i
    return _transpose(a, options=(tuple(axes),))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """Return `a` with dimensions moved to other positions; the others keep their order.

    Adjoint: the elements moved back.
    """
    a = shaped(a)
    ndim = len(raw(a).shape)
    sources, targets = axes_in_order(source, ndim, "source"), axes_in_order(destination, ndim, "destination")
    if len(sources) != len(targets):
        raise ShapeError(f"moveaxis of axes {source} to {destination}; needed: as many destinations as sources")
    axes = [i for i in range(ndim) if i not in sources]
    for target, i in sorted(zip(targets, sources, strict=True)):
        axes.insert(target, i)
    return _transpose(a, options=(tuple(axes),))


@typed_errors
def matrix_transpose(x: Any) -> Any:
    """Return the transpose of each matrix: the last two dimensions exchanged.

    Adjoint: the transpose of the cotangent.
    """
    x = x if hasattr(x, "dtype") else operand(x)
    if len(raw(x).shape) < 2:
        raise ShapeError(f"matrix_transpose of shape {raw(x).shape}; needed: at least two dimensions")
    return swapaxes(x, -1, -2)


def _broadcast_dims(shapes: Sequence[Shape], options: Any) -> Any:
    (source,), target = shapes, options[0]
    extra = len(target) - len(source)
    return [tuple(i + extra if n == int(target[i + extra]) else Mix for i, n in enumerate(source))]


_broadcast_to = op(
    "broadcast_to", "a", lambda x, shape, source: np.broadcast_to(x, shape),
    lambda ct, y, x, shape, source: unbroadcast(ct, source), dims=_broadcast_dims, ranked=True,
    beside=lambda options, dim: options[0][:dim] + options[0][dim + 1 :],
)  # fmt: skip


def broadcast_to(array: Any, shape: int | Sequence[int], subok: bool = False) -> Any:
    """Return `array` broadcast to a shape as in NumPy. Adjoint: the sum over the broadcast dimensions."""
    x = shaped(array)
    source = getattr(raw(x), "shape", ())
    if shape.__class__ is not tuple or not _ALL_INTEGERS.issuperset(map(type, shape)):
        shape = (shape,) if isinstance(shape, INTEGERS) else extents(shape)
    return _broadcast_to(x, options=(shape, source))


def common_shape(*shapes: Shape) -> Shape:
    """The shape to which shapes broadcast. Extents that differ between ranks remember their axes."""
    found: list[Any] = list(np.broadcast_shapes(*(tuple(map(int, shape)) for shape in shapes)))
    for shape in shapes:
        for i, n in enumerate(shape, len(found) - len(shape)):
            if isinstance(n, RANK_NUMBERS):
                found[i] = LocalCount(found[i], rank_axes((found[i], n)))
    return tuple(found)


def repeated_to(x: Any, shape: Shape) -> Any:
    """`x` broadcast to a `common_shape`, or `x` itself where no dimension is repeated on any rank.

    A dimension of extent 1 is repeated to the parts of a sharded one, also where this rank's part has extent 1. A
    longer one that is not sharded keeps its extent and its labels, so that an operation with the parts refuses it.
    """
    own = x.shape
    new = (1,) * (len(shape) - len(own))
    wanted = tuple(m if n == 1 or isinstance(n, RANK_NUMBERS) else n for n, m in zip(new + own, shape, strict=True))
    is_same = not new and all(n == m and rank_axes(n) == rank_axes(m) for n, m in zip(own, wanted, strict=True))
    return x if is_same else broadcast_to(x, wanted)


_expand: Primitive = op(
    "expand_dims", "a", lambda x, axes: np.expand_dims(x, axes), lambda ct, y, x, axes: _squeeze(ct, options=(axes,)),
    dims=lambda shapes, options: [tuple(i for i in range(len(shapes[0]) + len(options[0])) if i not in options[0])],
)  # fmt: skip
_squeeze: Primitive = op(
    "squeeze", "a", lambda x, axes: np.squeeze(x, axes), lambda ct, y, x, axes: _expand(ct, options=(axes,)),
    dims=lambda shapes, options: [
        tuple(Mix if i in options[0] else i - sum(a < i for a in options[0]) for i in range(len(shapes[0])))],
)  # fmt: skip


def expand_dims(a: Any, axis: int | Sequence[int] | None = None, *, dim: Any = None) -> Any:
    """Return `a` with new dimensions of extent 1 at the positions `axis` of the result. Adjoint: `squeeze`."""
    if dim is not None:
        axis = one_of("expand_dims", axis, None, dim)
    x = shaped(a)
    count = len(axis) if isinstance(axis, tuple | list) else 1
    if isinstance(axis, np.ndarray | Tensor) and axis.ndim:
        raise ArgumentError(f"expand_dims: axis={axis!r} was given; needed: an integer or a tuple of integers")
    axes = tuple(sorted(axes_in_order(axis, len(raw(x).shape) + count)))
    return _expand(x, options=(axes,)) if axes else x


def sharded_extents(x: Any) -> dict[int, Any]:
    """The extents of the whole value along its sharded dimensions."""
    layout = getattr(x, "layout", None)
    labels = () if layout is None or not layout.special else layout.labels
    # an earlier axis is the outer one, so its extent is the larger
    return {label.dim: label.extent for label in reversed(labels) if isinstance(label, Shard)}


def squeeze(a: Any, axis: int | Sequence[int] | None = None, *, dim: Any = None) -> Any:
    """Return `a` without dimensions of extent 1: those of `axis`, or all. Adjoint: `expand_dims`."""
    if dim is not None:
        axis = one_of("squeeze", axis, None, dim)
    x = shaped(a)
    shape = raw(x).shape
    if axis is None:
        parts = sharded_extents(x)  # a part of extent 1 is no dimension of extent 1
        axes = tuple(i for i, n in enumerate(shape) if parts.get(i, n) == 1)
    else:
        axes = normal_axes(axis, len(shape)) if shape else axes_of_number(axis)
    if any(shape[i] != 1 for i in axes):
        raise ShapeError(f"squeeze of axis {axis} of {shape}; needed: extent 1")
    return _squeeze(x, options=(axes,)) if axes else x


def ravel(a: Any, order: str = "C") -> Any:
    """Return all elements in one dimension. Adjoint: reshape back."""
    return reshape(a, (-1,), order)


def along(a: Any, axis: int | None) -> tuple[Any, int]:
    """`a` and the number of an axis from 0 on; for None all elements of `a` in one dimension, and 0."""
    return (ravel(a), 0) if axis is None else (a, normal_axis(axis, a.ndim))


def _slice_of_operand(ct: Any, y: Any, xs: Any, i: int, axis: int, extents: tuple[int, ...]) -> Any:
    start = sum(extents[:i])
    return getitem(ct, (slice(None),) * axis + (slice(start, start + extents[i]),))


_concatenate = op(
    "concatenate", "a*", lambda *args: np.concatenate(args[:-2], axis=args[-2]), (_slice_of_operand,),
    dims=mixed_axis_dims,
    fixes={"mixes": "halo_exchange({x}, {a!r}, 1), if the neighbours of a part are meant, and zeros at the ends"},
)


def concatenate(arrays: Any, axis: int | None = FIRST, out: Any = None, *, dtype: Any = None,
                casting: str = "same_kind", dim: int | None = None) -> Any:  # fmt: skip
    """Return the arrays joined along an existing axis. Adjoint: each operand gets its slice of the cotangent."""
    if dim is not None:
        axis = one_of("concatenate", axis, FIRST, dim)
    if out is not None or dtype is not None or casting.__class__ is not str or casting != "same_kind":
        if not tensors_in((arrays, out)):
            theirs: Any = np.concatenate
            return theirs(arrays, axis, out, dtype=dtype, casting=casting)
        if out is not None:
            raise refusal("concatenate", {"out": out})
        ask(np.concatenate, (arrays, axis), {"dtype": dtype, "casting": casting})
    xs = [shaped(x) for x in arrays]
    if axis is None:
        xs, axis = [ravel(x) for x in xs], 0
    raws = [raw(x) for x in xs]
    if not raws:
        raise ShapeError("concatenate of no arrays: need at least one array to concatenate")
    ndim = len(raws[0].shape)
    if axis.__class__ is bool:
        raise ArgumentError(f"concatenate: axis={axis} was given; needed: an integer")
    axis = normal_axis(axis, ndim)
    if any(len(r.shape) != ndim for r in raws):
        raise ShapeError(
            f"concatenate of shapes {[r.shape for r in raws]}; needed: arrays with equally many dimensions"
        )
    y = _concatenate(*xs, options=(axis, tuple(int(r.shape[axis]) for r in raws)))
    return y if dtype is None else y.astype(dtype)
