"""Where a draw lies: which box of which logical tensor a rank makes, and the labels of what it makes.

A draw *for* a Tensor follows that Tensor's layout, axis by axis:

========================  =======================================================  ===================
the Tensor is             what each rank draws                                     the draw is
========================  =======================================================  ===================
Shard(d)                  its own part of the logical draw                         Shard(d)
R, I, C, D, P, Rooted     the same numbers (of addends too: a product with them    D
                          is linear, so it is that of their sum)
V                         refused: values without a place in a logical tensor      V, from `key.along`
========================  =======================================================  ===================

A draw of a shape is D on every axis, for nothing says that ranks differ; and V on the axes that the key is along.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ..engine.state import state
from ..engine.tensor import Tensor
from ..errors import LayoutError, ShapeError, call_site
from ..layouts.layout import D, Label, Layout, Shard, V
from ..layouts.messages import describe
from ..layouts.rank_values import RankInt

__all__ = ["Part", "box_of", "coordinates", "extents_of", "of_shape", "of_tensor"]

Part = tuple[slice, ...]


def coordinates(axes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """This rank's place on each axis; without a mesh every axis has the one place 0, as on a mesh of size 1."""
    grid = state.grid
    return tuple((name, 0 if grid is None else grid.place[grid.axis(name)]) for name in axes)


def of_tensor(x: Tensor, axes: Sequence[str], caller: str) -> tuple[tuple[int, ...], Part, Layout | None]:
    """(logical shape, this rank's box of it, the draw's layout) for a draw that is for `x`."""
    extents = [int(n) for n in x.array.shape]
    layout = x.layout if state.grid is None or x.layout is not None else x.labelled(state.grid)
    if layout is None:
        return tuple(extents), tuple(slice(0, n) for n in extents), None
    starts = [0] * len(extents)
    known: set[int] = set()
    labels: list[Label] = []
    for name, label in zip(layout.grid.names, layout.labels, strict=True):
        if isinstance(label, Shard):
            assert label.extent is not None and label.offset is not None
            starts[label.dim] += label.offset  # the offset in the part that an earlier axis has cut
            if label.dim not in known:
                known.add(label.dim)
                extents[label.dim] = label.extent
            labels.append(label)
        elif name in axes:
            labels.append(V)
        elif label is V:
            shown = describe(x.array, x.array.shape, layout)
            raise LayoutError(
                f"{caller}(key, {x.name or 'x'}: {shown})\n  axis {name!r}: the ranks hold values of their own "
                "(Varying), and one key gives them all the same random numbers\n"
                f"  fix: key.along({name!r})   (other numbers on every rank)\n"
                f"  or:  label x, layout={{{name!r}: Shard(0)}}, if the ranks hold parts of one value" + call_site()
            )
        else:
            labels.append(D)
    box = tuple(slice(start, start + n) for start, n in zip(starts, x.array.shape, strict=True))
    return tuple(extents), box, layout.grid.layout(labels)


def of_shape(
    shape: Any, axes: Sequence[str], part: Part | None, caller: str
) -> tuple[tuple[int, ...], Part, Layout | None]:
    """The same for a draw of a shape. With `part` the program has said whose it is: a plain array, without labels."""
    extents = extents_of(shape, caller)
    for n in shape if isinstance(shape, tuple | list) else (shape,):
        local = sorted(n.axes - set(axes)) if isinstance(n, RankInt) else ()
        if local:
            raise LayoutError(
                f"{caller}(key, shape={tuple(extents)})\n  axis {local[0]!r}: an extent is that of this rank's part, "
                "so each rank would draw the first numbers of the same stream\n"
                f"  fix: {caller}(key, x), the Tensor in the place of its shape   (its part of one logical draw)\n"
                f"  or:  key.along({local[0]!r})   (other numbers on every rank)" + call_site()
            )
    if part is not None or state.grid is None:
        return extents, box_of(part, extents, caller), None
    labels = [V if name in axes else D for name in state.grid.names]
    return extents, box_of(part, extents, caller), state.grid.layout(labels)


def extents_of(shape: int | Sequence[int], caller: str) -> tuple[int, ...]:
    """A shape as plain integers, checked."""
    try:
        extents = tuple(int(operator.index(n)) for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        extents = (-1,)
    if any(n < 0 for n in extents):
        raise ShapeError(f"{caller}: shape must be integers that are not negative, got {shape!r}")
    return extents


def box_of(part: Part | None, shape: tuple[int, ...], caller: str) -> Part:
    """The part with plain integers, checked."""
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
