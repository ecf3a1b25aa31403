"""Which rank writes which part of a value: each part once, and replicas in equal shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autograd.arrays.shape_only import is_absent
from autograd.engine.state import state
from autograd.errors import MeshError
from autograd.layouts.layout import Layout, P, Rooted, Shard, V
from autograd.layouts.partition import require_agreed
from autograd.whole import Piece, place_in_whole

from .boxes import Box, cut, whole_box, within
from .manifest import place_suffix

__all__ = [
    "Entry", "Placement", "entry_of", "name_of_replicas", "placement_of", "share_of", "whole_entry",
]  # fmt: skip

_LEAST_CUT = 1 << 20  # bytes; smaller values are written by one rank


@dataclass(frozen=True)
class Entry:
    """A part of a value that this rank writes.

    Attributes
    ----------
    key : str
        The value's path, and its place if it is one of several.
    shape : tuple of int
        Of the whole value.
    layout : dict of str to str
    place : dict of str to int
    box : Box
    array : array
    """

    key: str
    shape: tuple[int, ...]
    layout: dict[str, str]
    place: dict[str, int]
    box: Box
    array: Any


class Placement(NamedTuple):
    """The place of this rank among those that have the values of a layout."""

    axes: tuple[str, ...]  # along which the ranks have equal copies
    k: int  # this rank's place along them
    replicas: int  # the number of ranks along them
    holds: bool  # whether this rank has a copy
    is_divided: bool  # whether it has a part: a label is a Shard
    name: str  # that of the ranks with this one's copies
    place: dict[str, int]  # along the axes on which each rank has a value of its own
    suffix: str  # of the name of such a value in a checkpoint
    labels: dict[str, str]


def placement_of(layout: Layout) -> Placement:
    """The `Placement` of this rank for a layout.

    The stages of a pipeline have different parameters under different names, not several values under one name.
    """
    axes, place, k, replicas, holds, is_divided, grid = [], {}, 0, 1, True, False, layout.grid
    for axis, size, at, label in zip(grid.names, grid.sizes, grid.place, layout.labels, strict=True):
        if type(label) is Shard:
            is_divided = True
        elif size == 1:
            continue
        elif label is V or label is P:
            if axis not in state.distribution.stage_axes:
                place[axis] = int(at)
        elif isinstance(label, Rooted):
            holds = holds and label.root == at
        else:
            axes.append(axis)
            k, replicas = k * size + int(at), replicas * size
    labels = dict(zip(grid.names, map(repr, layout.labels), strict=True))
    name = name_of_replicas(layout, axes)
    return Placement(tuple(axes), k, replicas, holds, is_divided, name, place, place_suffix(place), labels)


def name_of_replicas(layout: Layout, axes: Sequence[str]) -> str:
    """A name of the ranks that have this rank's copies, as in ``dp of tp=1``."""
    grid = layout.grid
    others = [f"{a}={at}" for a, at in zip(grid.names, grid.place, strict=True) if a not in axes]
    return f"{'*'.join(axes)} of {', '.join(others)}"


def share_of(pieces: Mapping[str, tuple[Piece, Placement]], ranks: int) -> list[Entry]:
    """The part of its pieces that this rank writes.

    Values with the same replicas are cut, one after another as if they were one, into as many equal shares as there
    are replicas. So no rank has to know what another one holds. A share ends at a row, and small values are not cut.

    Raises
    ------
    MeshError
        The mesh of a value is not current.
    LayoutError
        The ranks have not agreed on the extents of a Shard.
    """
    here = state.grid
    classes: dict[tuple[str, ...], list[tuple[Entry, int, int]]] = {}
    for path in sorted(pieces):
        piece, at = pieces[path]
        layout = piece.layout
        assert layout is not None
        if layout.grid is not here and (size := math.prod(layout.grid.sizes)) != ranks:
            raise MeshError(
                f"checkpoint.save({path}): it is {layout!r}, and its mesh of {size} ranks is not current; {ranks} call "
                "this\n"
                "  fix: call it inside `with mesh:`, on all ranks"
            )
        if (entry := entry_of(path, piece, at)) is not None:
            classes.setdefault(at.axes, []).append((entry, at.k, at.replicas))
    return [part for members in classes.values() for part in _shares(members)]


def entry_of(path: str, piece: Piece, at: Placement) -> Entry | None:
    """All that this rank holds of a value; None if it holds nothing.

    Raises
    ------
    LayoutError
        The ranks have not agreed on the extents of a Shard.
    """
    array, layout = piece.array, piece.layout
    assert layout is not None
    if not at.holds or is_absent(array):
        return None
    local = tuple(map(int, array.shape))
    shape, box = local, whole_box(local)
    if at.is_divided:
        require_agreed(layout, local, f"checkpoint.save of {path}, which writes this rank's part of the whole value,")
        whole, slices = place_in_whole(local, layout)
        shape, box = tuple(map(int, whole)), tuple([(int(s.start), int(s.stop)) for s in slices])
    return Entry(path + at.suffix, shape, at.labels, at.place, box, array)


def _shares(members: list[tuple[Entry, int, int]]) -> list[Entry]:
    sizes = [entry.array.dtype.itemsize * int(entry.array.size) for entry, _, _ in members]
    total, at, found = sum(sizes), 0, []
    for (entry, k, replicas), size in zip(members, sizes, strict=True):
        first, last = total * k / replicas, total * (k + 1) / replicas
        if replicas == 1:
            found.append(entry)
        elif size < _LEAST_CUT or not entry.box or entry.box[0][1] - entry.box[0][0] < replicas:
            if first <= at + size / 2 < last or (k == replicas - 1 and at + size / 2 >= last):
                found.append(entry)
        else:
            share = cut(entry.box, min(max((first - at) / size, 0), 1), min(max((last - at) / size, 0), 1))
            if share is not None:
                found.append(Entry(entry.key, entry.shape, entry.layout, entry.place, share,
                                   entry.array[within(share, entry.box)]))  # fmt: skip
        at += size
    return found


def whole_entry(key: str, array: Any) -> Entry:
    """The entry of an array of which this rank has the whole."""
    shape = tuple(map(int, array.shape))
    return Entry(key, shape, {}, {}, whole_box(shape), array)
