"""A user's labels as a Layout: for the axes that are not named, and with the extents of parts.

=====================  ===================================================================
axis                   label
=====================  ===================================================================
named                  the one given; of a Tensor, one that does not contradict its own
of a Tensor, unnamed   its own, if a leaf keeps it (`KEEPS`), else the default
other, unnamed         the default of the leaf: V, or I for a Parameter
=====================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from ..errors import ArgumentError, LayoutError, ShapeError
from .layout import C, D, Grid, I, Label, Layout, P, R, Rooted, Shard, V
from .partition import extents_of_parts, parts, require_fit

__all__ = ["KEEPS", "PARAMETER_KEEPS", "check_shape", "resolve", "with_own_labels"]

PARAMETER_KEEPS = frozenset((P, Shard, Rooted))
KEEPS = PARAMETER_KEEPS | {R, I, C, D}
"""The labels that a leaf made of a Tensor keeps on the axes for which no label is given."""


def with_own_labels(caller: str, x: Any, given: Any, keeps: frozenset[Any], grid: Grid | None) -> Any:
    """The labels for a leaf made of the Tensor `x`: those given, and on the other axes those of `x` that it keeps.

    Raises LayoutError if a label is given that cannot be true of `x`.
    """
    own = x.layout
    if own is None or own.grid is not grid or not isinstance(given, Mapping | None):
        return given
    labels = dict(given or {})
    for axis, have in own.items():
        need = labels.get(axis)
        if need is None:
            if have in keeps or type(have) in keeps:
                labels[axis] = have
        elif isinstance(need, Label) and not _may_state(have, need):
            from .texts import contradiction  # loaded when it is told

            raise LayoutError(contradiction(caller, x, axis, have, need))
    return labels or given


def _may_state(have: Label, need: Label) -> bool:
    """Whether the label `need` can be true of an array whose label is `have`."""
    if have is P or need is P:
        return have is need or have is V
    if type(have) is Shard:
        return need is V or (type(need) is Shard and need.dim == have.dim)
    if type(need) is Shard:
        return have is V or type(have) is Rooted
    return not (have is D and need is V)


def resolve(
    given: Mapping[str, Label] | Layout | None,
    default: Label,
    shape: tuple[int, ...],
    grid: Grid,
    global_shape: Sequence[int] | None = None,
) -> Layout:
    """A user's labels as a Layout: other axes get `default`.

    The extents of a Shard become part of its label if `global_shape` states them, where parts follow numpy's
    array_split rule, or if the label is that of another value. Each rank compares them with its own part.
    """
    if given is not None and not isinstance(given, Mapping):
        raise LayoutError(f"layout={given!r} was given; needed: a mapping from axis to label, like {{'dp': R}}")
    given = {} if given is None else given
    for axis, label in given.items():
        grid.axis(axis)
        if not isinstance(label, Label):
            raise LayoutError(
                f"axis {axis!r}: {label!r} was given; needed: one of R, I, V, P, Shard(dim), Rooted(root)"
            )
    labels = [given.get(name, default) for name in grid.names]
    outer: dict[int, int] = {} if global_shape is None else dict(enumerate(int(n) for n in global_shape))
    if global_shape is not None and len(tuple(global_shape)) != len(shape):
        raise ShapeError(f"global_shape={tuple(global_shape)} was given for a part of shape {shape}: ranks differ")
    for i, label in enumerate(labels):
        if not isinstance(label, Shard):
            continue
        dim = label.dim + len(shape) if label.dim < 0 else label.dim
        if not 0 <= dim < len(shape):
            raise ShapeError(f"axis {grid.names[i]!r}: Shard({label.dim}) was given for an array of shape {shape}")
        if global_shape is not None:
            extents, offsets = parts(outer[dim], grid.sizes[i])
            labels[i] = Shard(dim, outer[dim], offsets[grid.place[i]])
            outer[dim] = extents[grid.place[i]]
        elif label.extent is None:
            labels[i] = Shard(dim)
        else:
            offset = sum(extents_of_parts(label, grid.sizes[i])[: grid.place[i]])
            labels[i] = Shard(dim, label.extent, offset, label.unit, label.extents)
    layout = grid.layout(labels)
    if global_shape is None:
        if layout.special:
            require_fit(layout, shape)
        return layout
    _require_parts(shape, outer, global_shape)
    return layout


def _require_parts(shape: tuple[int, ...], needed: Mapping[int, int], global_shape: Sequence[int]) -> None:
    """Raise ShapeError if this rank's part has another extent than it needs along a dimension."""
    for dim, n in needed.items():
        if n != shape[dim]:
            raise ShapeError(
                f"dimension {dim}: this rank's part has {shape[dim]}, but by the array_split rule of "
                f"global_shape={tuple(global_shape)} it must have {n}\n  fix: cc.from_local(x, layout) without a "
                "global_shape   (the ranks agree on any extents)"
            )


def check_shape(shape: Any) -> None:
    """Raise ArgumentError or ShapeError if `global_shape` is no shape."""
    try:
        extents = [index(n) for n in shape]
    except TypeError as error:
        raise ArgumentError(f"global_shape={shape!r} was given; needed: integers") from error
    if any(n < 0 for n in extents):
        raise ShapeError(f"global_shape={shape!r} was given; needed: extents of at least 0")
