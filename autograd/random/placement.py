"""Which part of a logical tensor a rank generates, and the layout of the draw.

A draw for a Tensor follows the Tensor's layout on each axis:

========================  ============================================  ================================
label of the Tensor       numbers that each rank generates              label of the draw
========================  ============================================  ================================
Shard(d)                  its part of the logical draw                  Shard(d)
R, I, C, D, P, Rooted     the same numbers on all ranks                 D
V                         its own, if the key is along the axis; those  V; refused for other keys
                          of its pieces, if the key is placed there
========================  ============================================  ================================

Ranks of a Partial value use the same numbers because a product with them is linear: the sum of the products is the
product with the sum. A draw of a shape is V on the axes of the key and D on all others.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import LayoutError, ShapeError
from ..layouts.layout import D, Label, Layout, Shard, V
from ..layouts.messages import describe
from ..layouts.partition import require_agreed
from ..layouts.rank_values import rank_axes
from .keys import Place

__all__ = ["Part", "box_of", "coordinates", "extents_of", "of_shape", "of_tensor", "pieces_of"]

Part = tuple[slice, ...]


def coordinates(axes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return (axis, this rank's coordinate) for each axis. Without a mesh all coordinates are 0."""
    grid = state.grid
    return tuple((name, 0 if grid is None else grid.place[grid.axis(name)]) for name in axes)


def _require_pieces(
    x: Tensor, caller: str, layout: Layout, extents: Sequence[int], used: Sequence[Place]
) -> None:  # fmt: skip
    """Raise ShapeError unless the pieces of each place are as long as its dimension, which no other place has."""
    for place in used:
        length = sum(stop - start for start, stop in place.pieces)
        if place.dim >= len(extents) or extents[place.dim] != length or [p.dim for p in used].count(place.dim) > 1:
            raise ShapeError(
                f"{caller}(key, {getattr(x, 'name', '') or 'x'}: {describe(x.array, x.array.shape, layout)})\n"
                f"  axis {place.axis!r}: the key is placed there, with the pieces {list(place.pieces)} of dimension "
                f"{place.dim}, which are {length} long; needed: x with this extent, and one axis for the dimension\n"
                f"  fix: random.placed({place.axis!r}, dim, pieces, extent) with the pieces of this rank's part of x"
            )


def of_tensor(
    x: Tensor, axes: Sequence[str], caller: str, places: Sequence[Place] = ()
) -> tuple[tuple[int, ...], Part, Layout | None]:
    """Return (logical shape, this rank's part, layout of the draw) of a draw for `x`.

    Along a dimension of which this rank holds pieces, the part is that of their concatenation: see `pieces_of`.

    Raises
    ------
    LayoutError
        `x` is Varying on an axis that is not one of `axes` or `places`.
    ShapeError
        The pieces of a place are not as long together as the dimension.
    """
    extents = [int(n) for n in x.array.shape]
    layout = x.layout if state.grid is None or x.layout is not None else x.labelled(state.grid)
    if layout is None:
        return tuple(extents), tuple(slice(0, n) for n in extents), None
    starts = [0] * len(extents)
    known: set[int] = set()
    labels: list[Label] = []
    for name, label in zip(layout.grid.names, layout.labels, strict=True):
        if isinstance(label, Shard):
            require_agreed(layout, x.array.shape, f"{caller}(key, x), which needs the place of this part,")
            assert label.extent is not None and label.offset is not None
            starts[label.dim] += label.offset  # relative to the part of the axes before, which may shard this dimension
            if label.dim not in known:
                known.add(label.dim)
                extents[label.dim] = label.extent
            labels.append(label)
        elif name in axes or (label is V and any(name == place.axis for place in places)):
            labels.append(V)
        elif label is V:
            raise LayoutError(_one_key(caller, x, layout, name))
        else:
            labels.append(D)
    box = tuple(slice(start, start + n) for start, n in zip(starts, x.array.shape, strict=True))
    used = used_places(places, layout, axes)
    _require_pieces(x, caller, layout, extents, used)
    for place in used:
        extents[place.dim] = place.extent
    return tuple(extents), box, layout.grid.layout(labels)


def used_places(places: Sequence[Place], layout: Layout | None, axes: Sequence[str]) -> list[Place]:
    """The places of the axes on which a value is V, and for which the key has no stream of each rank."""
    if layout is None or not places:
        return []
    return [p for p in places if p.axis in layout.grid.names and layout[p.axis] is V and p.axis not in axes]


def pieces_of(box: Part, places: Sequence[Place]) -> Iterator[tuple[Part, Part]]:
    """The pieces of a part as pairs: where they are in the array of the part, and where in the logical tensor.

    Examples
    --------
    >>> from autograd.random.keys import Place
    >>> for pair in pieces_of((slice(0, 2), slice(1, 4)), [Place("cp", 1, ((0, 2), (6, 8)), 8)]):
    ...     print(pair)
    ((slice(0, 2, None), slice(0, 1, None)), (slice(0, 2, None), slice(1, 2, None)))
    ((slice(0, 2, None), slice(1, 3, None)), (slice(0, 2, None), slice(6, 8, None)))
    """
    along = {place.dim: place.pieces for place in places}
    options = []
    for dim, s in enumerate(box):
        found, before = [], 0
        for start, stop in along.get(dim, ((0, s.stop),)):
            first, last = max(s.start, before), min(s.stop, before + stop - start)
            if first < last or dim not in along:
                shift = start - before
                found.append((slice(first - s.start, last - s.start), slice(first + shift, last + shift)))
            before += stop - start
        options.append(found)
    for chosen in product(*options):
        yield tuple(at for at, _ in chosen), tuple(where for _, where in chosen)


def _one_key(caller: str, x: Tensor, layout: Layout, axis: str) -> str:
    """The message for a draw with one key for values that differ between the ranks of an axis."""
    along = f"key.along({axis!r})   (other numbers on every rank)"
    if caller == "dropout":
        along = (
            f"nn.Dropout(p, along={axis!r}), or nn.dropout(x, p, key=key.along({axis!r}))   (another mask on every "
            "rank)"
        )
    return (
        f"{caller}(key, {getattr(x, 'name', '') or 'x'}: {describe(x.array, x.array.shape, layout)})\n"
        f"  axis {axis!r}: the ranks hold different values (Varying), and one key gives them all the same random "
        f"numbers\n  fix: {along}\n"
        f"  or:  cc.from_local(x, {{{axis!r}: Shard(0)}}), if the ranks hold parts of one value\n"
        f"  or:  with random.placed({axis!r}, dim, pieces, extent):, if each rank holds several pieces of one value"
    )


def of_shape(
    shape: Any, axes: Sequence[str], part: Part | None, caller: str
) -> tuple[tuple[int, ...], Part, Layout | None]:
    """Return (logical shape, this rank's part, layout of the draw) of a draw of a shape.

    The layout is None without a mesh, and with `part`, where the caller keeps track of the rank's part.
    """
    extents = extents_of(shape, caller)
    for n in shape if isinstance(shape, tuple | list) else (shape,):
        local = sorted(rank_axes(n) - set(axes))
        if local:
            raise LayoutError(
                f"{caller}(key, shape={tuple(extents)})\n  axis {local[0]!r}: an extent is that of this rank's part, "
                "so each rank would draw the first numbers of the same stream\n"
                f"  fix: {caller}(key, x), the Tensor instead of its shape   (its part of one logical draw)\n"
                f"  or:  key.along({local[0]!r})   (other numbers on every rank)"
            )
    if part is not None or state.grid is None:
        return extents, box_of(part, extents, caller), None
    labels = [V if name in axes else D for name in state.grid.names]
    return extents, box_of(part, extents, caller), state.grid.layout(labels)


def extents_of(shape: int | Sequence[int], caller: str) -> tuple[int, ...]:
    """Return a shape as a tuple of Python ints; raise ShapeError if it is not a shape."""
    try:
        extents = tuple(int(operator.index(n)) for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        extents = (-1,)
    if any(n < 0 for n in extents):
        raise ShapeError(f"{caller}: shape must be non-negative integers, got {shape!r}")
    return extents


def box_of(part: Part | None, shape: tuple[int, ...], caller: str) -> Part:
    """Return the part as slices of Python ints, by default everything; raise ShapeError if it is not inside `shape`."""
    if part is None:
        return tuple(slice(0, n) for n in shape)
    if not isinstance(part, tuple) or not all(isinstance(s, slice) for s in part) or len(part) != len(shape):
        raise ShapeError(f"{caller}: part must be a tuple of {len(shape)} slices for shape {shape}, got {part!r}")
    box = []
    for dim, (s, extent) in enumerate(zip(part, shape, strict=True)):
        try:
            start, stop = int(operator.index(s.start)), int(operator.index(s.stop))
        except TypeError:
            raise ShapeError(f"{caller}: part needs start and stop, got {s} in dimension {dim}") from None
        if s.step not in (None, 1) or not 0 <= start <= stop <= extent:
            raise ShapeError(
                f"{caller}: part must be 0 <= start <= stop <= {extent} without step in dimension {dim}, got {s}"
            )
        box.append(slice(start, stop))
    return tuple(box)
