"""Which rank holds which part of a value, from its layout alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .layout import Layout, P, Rooted, Shard, V
from .partition import extents_of_parts

__all__ = ["holdings"]


def holdings(layout: Layout, shape: Sequence[int]) -> list[tuple[tuple[int, ...], str]]:
    """Return what the ranks of a mesh hold of a value: (ranks, text) pairs, in order of the first rank.

    Nothing is communicated: parts whose extents this rank does not know are shown as ``?``.

    Parameters
    ----------
    layout : Layout
    shape : sequence of int
        The shape on this rank.

    Examples
    --------
    >>> from autograd.layouts.layout import Grid, R, Shard
    >>> grid = Grid.of(("dp", "tp"), (2, 2), (0, 0))
    >>> for ranks, text in holdings(grid.layout([R, Shard(1, 5, 0)]), (4, 3)):
    ...     print(ranks, text)
    (0, 2) [:, 0:3]
    (1, 3) [:, 3:5]
    """
    found: dict[str, list[int]] = {}
    for rank, place in enumerate(np.ndindex(*layout.grid.sizes)):
        found.setdefault(_held(layout, len(shape), place), []).append(rank)
    return [(tuple(ranks), text) for text, ranks in found.items()]


def _held(layout: Layout, ndim: int, place: tuple[int, ...]) -> str:
    """The part of a value that the rank at a place of the mesh holds."""
    spans: dict[int, tuple[int, int] | None] = {}
    words = []
    for k, (axis, label) in enumerate(layout.items()):
        if isinstance(label, Rooted) and place[k] != label.root:
            return "nothing"
        if label is P:
            words.append(f"addend {place[k]} of {axis!r} of ")
        elif label is V:
            words.append(f"value {place[k]} of {axis!r}, ")
        elif isinstance(label, Shard):
            spans[label.dim] = _within(spans.get(label.dim), layout, k, label, place)
    dims = []
    for dim in range(ndim):
        span = spans.get(dim)
        dims.append(f"{span[0]}:{span[1]}" if span else "?" if dim in spans else ":")
    return "".join(words) + (f"[{', '.join(dims)}]" if dims else "the number")


def _within(
    outer: tuple[int, int] | None, layout: Layout, k: int, label: Shard, place: tuple[int, ...]
) -> tuple[int, int] | None:
    """The first index and the end of a part, inside the part of the axes before; None if this rank does not know it."""
    if not label.is_agreed:
        return None
    first, end = outer or (0, label.extent or 0)
    before = [j for j in range(k) if isinstance(x := layout.labels[j], Shard) and x.dim == label.dim]
    if before and outer is None:
        return None
    if not all(place[j] == layout.grid.place[j] for j in before):  # another part of the outer axis
        if label.extents:
            return None
        label = Shard(label.dim, end - first, 0, label.unit)
    extents = extents_of_parts(label, layout.grid.sizes[k])
    at = first + sum(extents[: place[k]])
    return at, at + extents[place[k]]
