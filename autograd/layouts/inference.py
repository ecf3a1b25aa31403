"""Infers the layout of a local operation's result from its operands' layouts and its declaration.

Each mesh axis is inferred separately. Sharded dimensions come first: the operation keeps the dimension (the result is
sharded, too), sums over it (the result is Partial), or mixes along it (an error). Then the labels of unsharded values
are combined; only few combinations are legal (see `combine`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import LayoutError
from .layout import C, D, Grid, I, Label, Layout, Mix, P, R, Rooted, Shard, Stated, Sum, Unagreed, V
from .messages import Refused
from .partition import extents_of_parts
from .rank_values import EVERY_AXIS, first_elements, rank_axes

__all__ = [
    "axes_in", "broadcast", "combine", "infer", "layout_of", "require_no_first_elements", "varying",
    "without_false_parts",
]  # fmt: skip


def broadcast(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    """The `dims` of elementwise operations: NumPy's broadcasting. `dispatch` undoes it for cotangents."""
    ndim = max(map(len, shapes))
    return [tuple(range(ndim - len(shape), ndim)) for shape in shapes]


def infer(
    op: Any,
    layouts: Sequence[Layout],
    shapes: Sequence[tuple[int, ...]],
    real: Sequence[bool],
    options: Any,
    arrays: Sequence[Any],
    operands: Sequence[Any] = (),
) -> Layout:
    """Infer the layout of the result of `op`. Raises LayoutError with a reason and a fix if the layouts do not mix.

    For an operand that is not `real` (floating or complex), R and I are treated as C, because it has no cotangent. The
    arrays, and the `operands` that held them, are for the error's text.
    """
    grid = layouts[0].grid
    for layout in layouts:
        if layout.grid is not grid:
            raise LayoutError(f"{op.name}: operands of two meshes, {layouts[0]!r} and {layout!r}; needed: one mesh")
    letters = op.letters(len(layouts))
    maps = op.dims(shapes, options) if op.dims is not None else None
    combined = partial(combine, repeated=[_repeated(x, shape) for x, shape in zip(layouts, shapes, strict=True)])
    result = []
    for k, axis in enumerate(grid.names):
        labels = [
            C if (x.labels[k] is R or x.labels[k] is I) and (letter == "S" or not has) else x.labels[k]
            for x, letter, has in zip(layouts, letters, real, strict=True)
        ]
        try:
            result.append(combined(op, labels, shapes, maps, grid.sizes[k]))
        except Refused as refused:
            from .refusals import REASONS, explain  # loaded for the first refusal

            text = explain(op, layouts, shapes, maps, labels, axis, refused, arrays, combined, operands, options)
            error = LayoutError(text)
            error.is_about_extents = REASONS[refused.args[0]].is_about_extents
            raise error from None
    return grid.layout(result)


def _repeated(layout: Layout, shape: tuple[int, ...]) -> list[bool]:
    """For each dimension whether it has extent 1, so that broadcasting repeats it.

    A sharded dimension counts with the extent of the whole value. That of this rank's part may be 1 here only.
    """
    found = [n == 1 for n in shape]
    for label in reversed(layout.labels if layout.special else ()):  # an earlier axis is the outer one
        if isinstance(label, Shard) and label.dim < len(found):
            found[label.dim] = label.extent == 1
    return found


def combine(
    op: Any, labels: Sequence[Label], shapes: Sequence[tuple[int, ...]], maps: Any, size: int,
    repeated: Sequence[Sequence[bool]],
) -> Label:  # fmt: skip
    """The result's label on one axis of `size` ranks. `labels` holds C for operands without a cotangent."""
    drawn = D in labels
    if drawn and V in labels:
        raise Refused("drawn", labels.index(D), labels.index(V))
    shard, is_contracted = _combine_parts(labels, shapes, maps, size, repeated)
    if is_contracted:
        if shard is not None or any(x in (V, P, I) or type(x) is Rooted for x in labels):
            raise Refused("contraction")
        return P
    labels = [C if x is D else x for x in labels]
    for needy, rule in ((I, _with_invariant), (P, _with_partial)):
        if needy in labels:
            return rule(op, labels)
    if rooted := [x for x in labels if isinstance(x, Rooted)]:
        return _with_rooted(labels, rooted, shard)
    return shard or (V if V in labels else R if R in labels else D if drawn else C)


def _require_matched(
    i: int, along: Sequence[tuple[int, int]], labels: Sequence[Any], shapes: Sequence[tuple[int, ...]], size: int
) -> None:  # fmt: skip
    """Raise Refused if another dimension that is summed over with the sharded one of operand `i` is not cut alike."""
    label = labels[i]
    for j, d in along:
        other = labels[j]
        if not (isinstance(other, Shard) and other.dim == d
                and _same_partition(other, label, size, shapes[j][d], shapes[i][label.dim])):
            raise Refused("unmatched", i, j, d)


def _combine_parts(
    labels: Sequence[Label], shapes: Sequence[tuple[int, ...]], maps: Any, size: int,
    repeated: Sequence[Sequence[bool]],
) -> tuple[Shard | None, bool]:  # fmt: skip
    """The label of the parts of the result, and whether sharded dimensions are summed over."""
    shard = None
    length = 0  # of the dimension of `shard` on this rank
    is_contracted = False
    for i, label in enumerate(labels):
        if not isinstance(label, Shard):
            continue
        entry = Mix if maps is None else maps[i][label.dim]
        if entry is Mix or (type(entry) is Stated and label.is_agreed and len({*extents_of_parts(label, size)}) > 1):
            raise Refused("mixes", i)
        place = _place(entry)[0]
        along = [(j, d) for j, dims in enumerate(maps) for d, e in enumerate(dims) if _place(e)[0] == place]
        if isinstance(entry, Sum):
            _require_matched(i, along, labels, shapes, size)
            is_contracted = True
            continue
        target, n = _label_in_result(label, entry, i, shapes[i][label.dim])
        if shard is not None and not (shard.dim == target.dim and _same_partition(shard, target, size, length, n)):
            raise Refused("cut differently", shard, target, i, size, length, n)
        if shard is None or shard.extent is None:
            shard, length = target, n
        others = [(j, d) for j, d in along if j != i and not repeated[j][d]]
        _require_parts(i, others, labels, shapes, maps)
    return shard, is_contracted


def _require_parts(
    i: int, others: Sequence[tuple[int, int]], labels: Sequence[Label], shapes: Sequence[tuple[int, ...]], maps: Any
) -> None:
    """Raise Refused unless the other operands have parts, too, along the sharded dimension of operand i.

    A Varying operand may have the extent of the part.
    """
    label = labels[i]
    assert isinstance(label, Shard)
    factor = _place(maps[i][label.dim])[1]
    for j, d in others:
        other = labels[j]
        if other is V and shapes[j][d] * _place(maps[j][d])[1] == shapes[i][label.dim] * factor:
            continue
        if not isinstance(other, Shard):
            raise Refused("spans", j, d, i)
        if other.dim != d:
            raise Refused("cut along others", j, i)


def _place(entry: Any) -> tuple[Any, Any]:
    """The place of a dimension: a dimension of the result, and the factor by which its extents are multiplied."""
    return entry if isinstance(entry, tuple) else (entry, 1)


def _label_in_result(label: Shard, entry: Any, i: int, length: int) -> tuple[Shard, Any]:
    """The label of a sharded dimension in the result, where its extents may be multiplied by a factor.

    Also returns the extent there of this rank's part, which has `length` in the operand.
    """
    dim, factor = _place(entry)
    if label.extent is None or type(dim) is Unagreed:
        return Shard(int(dim)), length * factor
    assert label.offset is not None
    found = [n * factor for n in (label.extent, label.offset, *(label.extents or ()))]
    if any(n.denominator != 1 for n in found):
        raise Refused("splits", i)
    extent, offset, *extents = map(int, found)
    unit = label.unit * factor
    made = Shard(dim, extent, offset, int(unit) if unit and unit.denominator == 1 else 1, tuple(extents) or None)
    return made, length * factor


def _same_partition(a: Shard, b: Shard, size: int, length: int, other: int) -> bool:
    """Whether two sharded dimensions are partitioned alike on every rank.

    Where the ranks have not agreed on the extents of one of them, each rank compares its own parts, of `length` and
    `other`: if all ranks find them equal, the partitions are equal, and a rank that does not raises an error.
    """
    if a.extent is None or b.extent is None:
        return length == other
    return a.offset == b.offset and (
        (a.extent == b.extent and a.unit == b.unit and a.extents is b.extents is None)
        or extents_of_parts(a, size) == extents_of_parts(b, size)
    )


def _with_rooted(labels: Sequence[Label], rooted: Sequence[Rooted], shard: Shard | None) -> Label:
    """A value on one rank mixes with others on that rank, and with copies."""
    if shard is not None:
        i = next(i for i, x in enumerate(labels) if isinstance(x, Shard))
        raise Refused("rooted", labels.index(rooted[0]), i)
    if any(x != rooted[0] for x in rooted):
        raise Refused("roots")
    if V in labels:
        raise Refused("rooted", labels.index(rooted[0]), labels.index(V))
    return rooted[0]


def _with_invariant(op: Any, labels: Sequence[Label]) -> Label:
    """I mixes only with I and constants."""
    for j, x in enumerate(labels):
        if x is not I and x is not C:
            raise Refused("invariant", labels.index(I), j)
    return I


def _with_partial(op: Any, labels: Sequence[Label]) -> Label:
    """P is legal if all operands of one letter are P, no other operand is, and the others are R or constant."""
    letters = op.letters(len(labels))
    at = labels.index(P)
    for j, x in enumerate(labels):
        if x is P and letters[j] in "NS":
            raise Refused("not linear", j)
        if x is P and letters[j] != letters[at]:
            raise Refused("both partial", at, j)
        if x is not P and letters[j] == letters[at]:
            raise Refused("added", at, j)
        if x is not P and x is not R and x is not C:
            raise Refused("partial", at, j)
    return P


def layout_of(x: Any, grid: Grid) -> Layout:
    """The layout of an operand that is not a Tensor.

    C for numbers: Python's, NumPy's, and arrays without dimensions. V for arrays and lists. A rank number is V on its
    axes.
    """
    if (differs := rank_axes(x)) and (axes := axes_in(grid, differs)):
        return grid.layout([V if name in axes else C for name in grid.names])
    return grid.uniform(V if isinstance(x, list | tuple) or getattr(x, "shape", ()) != () else C)


def axes_in(grid: Grid, axes: frozenset[str]) -> Sequence[str]:
    """The axes of a rank number that `grid` has."""
    return grid.names if EVERY_AXIS in axes else [name for name in grid.names if name in axes]


def require_no_first_elements(
    op: Any, layouts: Sequence[Layout], arrays: Sequence[Any], options: Any, operands: Sequence[Any] = ()
) -> None:
    """Raise LayoutError for copies of one value of which each rank would take as many elements as a part has.

    ``x[:part.shape[0]]`` are not those of this rank's part, except on the first rank.
    """
    place = first_elements(options)
    if place is None:
        return
    for i, layout in enumerate(layouts):
        for axis in axes_in(layout.grid, rank_axes(options[0])):
            if layout[axis] in (R, I, P, C, D):
                from .texts import first_elements_text  # loaded when it is told

                x = operands[i] if i < len(operands) else None
                raise LayoutError(first_elements_text(op, x, layout, arrays[i], options[0], place, axis))


def varying(layout: Layout, axes: frozenset[str], name: str) -> Layout:
    """The layout of an operand with a rank-dependent option: copies become Varying on the option's axes."""
    on = axes_in(layout.grid, axes)
    for axis in on:
        if layout[axis] is I or layout[axis] is P:
            from .texts import rank_dependent  # loaded when it is told

            raise LayoutError(rank_dependent(name, layout, axis))
    return layout.replace([axis for axis in on if layout[axis] in (R, C, D)], V)


def without_false_parts(out: Layout, beside: Callable[[Any, int], Any], options: Any) -> Layout:
    """The layout of a result, Varying in place of Shard where the ranks hold no parts of one value.

    They do not if options on which the result depends besides its extent along the sharded dimension differ between
    them: see `beside` of `Primitive`.
    """
    labels: list[Label] = list(out.labels)
    false: set[int] = set()  # dimensions
    for k in reversed(range(len(labels))):  # without the parts of an inner axis there are none of an outer one
        x = labels[k]
        if isinstance(x, Shard):
            if x.dim in false or out.grid.names[k] in axes_in(out.grid, rank_axes(beside(options, x.dim))):
                false.add(x.dim)
                labels[k] = V
    return out.grid.layout(labels)
