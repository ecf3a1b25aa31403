"""Parts along a dimension: the extent on each rank, splitting, and concatenating."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import dtype_name
from autograd.arrays.shape_only import Shaped
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError, LayoutError, ShapeError
from autograd.layouts.layout import Shard
from autograd.layouts.messages import describe
from autograd.layouts.partition import extents_of_parts, nested_parts, require_fit

from ..checks import modes
from ..declaration.collective import Collective
from ..declaration.compared import compared_layout
from ..mesh import Axis, current_mesh
from ..transports.request import Control

__all__ = [
    "check_inner", "check_outer", "checked_counts", "extents_along", "extents_received", "joined", "normal_dim",
    "split_part",
]  # fmt: skip


def normal_dim(dim: int, shape: Sequence[int], name: str) -> int:
    """A dimension as a non-negative number."""
    if not isinstance(dim, int | np.integer) or not -len(shape) <= dim < len(shape):
        needed = f"an integer from {-len(shape)} to {len(shape) - 1}" if shape else "an array with a dimension"
        raise ShapeError(f"{name}: dim={dim!r} was given for an array of shape {tuple(shape)}; needed: {needed}")
    return int(dim) % len(shape)


def split_part(x: Any, extents: Sequence[int], dim: int, rank: int) -> Any:
    """One rank's part of a whole array, as a copy."""
    start = sum(extents[:rank])
    part = x[(slice(None),) * dim + (slice(start, start + extents[rank]),)]
    return part if type(part) is Shaped else part.copy()


def joined(flat: np.ndarray, shapes: Sequence[tuple[int, ...]], dim: int) -> np.ndarray:
    """Concatenate along a dimension the parts that follow each other in a flat array."""
    pieces, start = [], 0
    for shape in shapes:
        n = int(np.prod(shape, dtype=np.int64))
        pieces.append(flat[start : start + n].reshape(shape))
        start += n
    return np.concatenate(pieces, axis=dim)


def extents_along(x: Tensor, axis: Axis, dim: int, collective: Collective) -> tuple[tuple[int, ...], bool]:
    """The extent of `dim` on each rank, and whether it was known without communication.

    The labels of a Shard give the extents if the ranks have agreed on them. Otherwise the ranks exchange them, also
    where several axes divide the dimension into parts other than those of the array_split rule: an inner label knows
    only the parts of its own outer part.
    """
    mine, layout, name, ranks = int(x.array.shape[dim]), x.layout, collective.name, axis.group.size
    assert layout is not None
    labels = [layout[a] for a in axis.names]
    for a, label in zip(axis.names, labels, strict=True):
        if isinstance(label, Shard) and label.dim != dim:
            raise LayoutError(
                f"{name}({x.name or 'x'}: {describe(x.array, x.array.shape, layout)}, axis {a!r}, dim={dim})\n"
                f"  axis {a!r}: x is {label!r}: its parts lie along dimension {label.dim}, not along {dim}\n"
                f"  fix: {name}(x, {a!r}, dim={label.dim})"
            )
    if ranks == 1:
        return (mine,), True
    shards = [label for label in labels if isinstance(label, Shard) and label.extent is not None]
    if len(shards) == len(labels):
        sizes = [layout.grid.sizes[layout.grid.axis(a)] for a in axis.names]
        found = None
        if len(shards) == 1:
            found = extents_of_parts(shards[0], sizes[0])
        elif not any(label.extents for label in shards):
            assert shards[0].extent is not None
            found = nested_parts(shards[0].extent, sizes, [label.unit for label in shards])
        if found is not None:
            require_fit(layout, x.array.shape)
            return found, True
    if layout.absent_beyond(axis.names):
        return (mine,) * ranks, False  # no rank of the axis holds data, and the label has no extents
    if axis.group.checking:
        _announce(name, x, axis, f"dim={dim}", collective.rooted)
    request = Control("all_gather", np.array([mine], np.int64), counts=[1] * ranks)
    current_mesh().ask(axis.group)
    gathered = axis.group.repeat("extents", request)
    return tuple(gathered.tolist()), False


def _announce(name: str, x: Tensor, axis: Axis, words: str, is_rooted: bool = False) -> None:
    """Compare the exchange of extents that follows, which detects a different call of another rank before it."""
    assert x.layout is not None
    dtype, n, axes = dtype_name(x.array.dtype), x.array.ndim, "*".join(axis.names)
    compared = compared_layout(x.layout, axis.names) if modes.watching else ""
    axis.group.announce(f"{name}(axis={axes!r} {dtype} with {n} dimensions, {words})", compared, is_rooted)


def checked_counts(x: Tensor, axis: Axis, dim: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Check `counts`: one number per rank, which sum to the extent of the dimension."""
    try:
        found = tuple(int(n) for n in counts)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"all_to_all: counts={counts!r} was given; needed: {axis.size} numbers, one for each rank"
        ) from None
    if len(found) != axis.size or min(found) < 0 or sum(found) != x.array.shape[dim]:
        raise ShapeError(
            f"all_to_all: counts={list(found)} was given for dimension {dim} of shape {tuple(x.array.shape)} and the "
            f"{axis.size} ranks of axis {'*'.join(axis.names)!r}; needed: {axis.size} numbers >= 0 that sum to "
            f"{x.array.shape[dim]}"
        )
    return found


def extents_received(
    x: Tensor, axis: Axis, dim: int, counts: Sequence[int], said: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The extent that each rank sends to this one. A rank knows only what it sends, so the ranks exchange the counts.

    Where the program has `said` what each rank sends, it is exchanged only while the ranks compare their calls. A dry
    run without it assumes that all ranks send the same counts.
    """
    group, layout = axis.group, x.layout
    assert layout is not None
    known = None if said is None else _checked_received(axis, counts, said)
    for name in axis.names:
        label = layout[name]
        if isinstance(label, Shard) and label.dim != dim:
            raise LayoutError(
                f"all_to_all({x.name or 'x'}: {describe(x.array, x.array.shape, layout)}, axis "
                f"{'*'.join(axis.names)!r}, split_dim={dim}, concat_dim={dim})\n  axis {name!r}: x is {label!r}: parts "
                f"along dimension {label.dim} do not fit together along {dim}\n  fix: all_to_all(x, {name!r}, "
                f"split_dim={dim}, concat_dim={label.dim})"
            )
    if group.size == 1:
        return tuple(counts)
    if group.dry or layout.absent_beyond(axis.names):
        return known or (counts[group.index],) * group.size
    if known is not None and not group.checking:
        return known
    if group.checking:
        _announce("all_to_all", x, axis, f"dim={dim} along it")
    ones = [1] * group.size
    request = Control("all_to_all", np.array(counts, np.int64), counts=ones, receive_counts=ones)
    current_mesh().ask(group)
    found = tuple(group.repeat("counts", request).tolist())
    if known is not None and found != known:
        raise ShapeError(
            f"all_to_all(axis={'*'.join(axis.names)!r}): received={list(known)} was given; the ranks send "
            f"{list(found)} to rank {group.index}. Needed: on each rank the counts that the others give for it"
        )
    return found


def _checked_received(axis: Axis, counts: Sequence[int], said: Sequence[int]) -> tuple[int, ...]:
    """Check the extents that the ranks send according to the program, as far as this rank can."""
    try:
        found = tuple(int(n) for n in said)
    except (TypeError, ValueError):
        found = ()
    here = axis.group.index
    if len(found) != axis.size or min(found) < 0 or found[here] != counts[here]:
        raise ShapeError(
            f"all_to_all: received={said!r} was given for the {axis.size} ranks of axis {'*'.join(axis.names)!r}, of "
            f"which this one, rank {here}, sends {list(counts)}; needed: {axis.size} numbers >= 0, of which number "
            f"{here} is {counts[here]}"
        )
    return found


def check_outer(x: Tensor, axis: Axis, dim: int, name: str) -> None:
    """Raise LayoutError if an inner axis still splits the dimension along which parts are to be concatenated."""
    for inner, text in _cuts_inside(x, axis, dim, name):
        raise LayoutError(
            f"{text} on this inner axis too: joining the outer parts first would interleave them\n  fix: {name} over "
            f"{inner!r} first, or over the tuple of both axes"
        )


def check_inner(x: Tensor, axis: Axis, dim: int, name: str) -> None:
    """Raise LayoutError if an inner axis already splits the dimension that is to be split."""
    for _, text in _cuts_inside(x, axis, dim, name):
        raise LayoutError(
            f"{text}: the inner axis has cut this dimension already, and the mesh's earlier axis is the outer one\n"
            f"  fix: cut along {axis.names[0]!r} first"
        )


def _cuts_inside(x: Tensor, axis: Axis, dim: int, name: str) -> Iterator[tuple[str, str]]:
    """The axes inside an axis that split a dimension, each with the text of the call and of the label on it."""
    layout = x.layout
    assert layout is not None
    grid = layout.grid
    first = min(grid.axis(a) for a in axis.names)  # axes between those of a tuple count as inner to its first
    for inner, label in zip(grid.names[first + 1 :], layout.labels[first + 1 :], strict=True):
        if isinstance(label, Shard) and label.dim == dim and inner not in axis.names:
            yield inner, (
                f"{name}({x.name or 'x'}: {describe(x.array, x.array.shape, layout)}, axis {'*'.join(axis.names)!r}, "
                f"dim={dim})\n  axis {inner!r}: x is {label!r}"
            )
