"""The partition of a dimension into one part per rank, by numpy's array_split rule; local and global shapes."""

from __future__ import annotations

from typing import Any

from ..errors import LayoutError, call_site
from .layout import Layout, Shard, V
from .messages import describe
from .rank_values import LocalCount, rank_axes

__all__ = ["global_shape", "level", "local_shape", "parts"]


def parts(extent: int, size: int) -> tuple[list[int], list[int]]:
    """Extents and offsets of parts by numpy's array_split rule: the first ``extent % size`` of them are one longer.

    Examples
    --------
    >>> parts(5, 3)
    ([2, 2, 1], [0, 2, 4])
    """
    small, longer = divmod(extent, size)
    extents = [small + (i < longer) for i in range(size)]
    return extents, [i * small + min(i, longer) for i in range(size)]


def level(extent: int, size: int, unit: int) -> list[int]:
    """The extents of `size` parts, each a multiple of `unit`.

    Examples
    --------
    >>> level(10, 3, 2)
    [4, 4, 2]
    """
    return [n * unit for n in parts(extent // unit, size)[0]]


def local_shape(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a part. Extents of sharded dimensions are `LocalCount`s, which keep their axes."""
    result = list(shape)
    for name, x in layout.items():
        if isinstance(x, Shard) and x.dim < len(result):
            known: Any = result[x.dim]
            result[x.dim] = LocalCount(known, {name, *rank_axes(known)})  # type: ignore[call-overload]
    return tuple(result)


def global_shape(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the whole value. If several axes shard a dimension, the outermost one has the whole extent."""
    for axis, x in layout.items():
        if x is V:
            raise LayoutError(
                f"global_shape({describe(None, shape, layout)})\n  axis {axis!r}: the ranks hold different values "
                f"(Varying), which have no common shape\n  fix: layout={{{axis!r}: Shard(0)}} where it is made, if the "
                "ranks hold parts of one value" + call_site()
            )
    result = [int(n) for n in shape]
    for x in reversed(layout.labels):  # an earlier axis is the outer one, so its extent is the larger
        if isinstance(x, Shard) and x.extent is not None:
            result[x.dim] = x.extent
    return tuple(result)
