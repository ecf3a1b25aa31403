"""The partition of a dimension into one part per rank, and local and global shapes.

Parts follow numpy's array_split rule, unless the ranks have agreed on other extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import LayoutError, ShapeError
from .layout import Layout, Shard, V
from .messages import describe
from .rank_values import LocalCount, rank_axes

__all__ = [
    "extents_of_parts", "global_shape", "labels_of_parts", "level", "local_shape", "nested_parts", "parts",
    "proportional_parts", "require_agreed", "require_fit",
]  # fmt: skip


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


def nested_parts(extent: int, sizes: Sequence[int], units: Sequence[int] = ()) -> tuple[int, ...]:
    """The extent on each rank of a dimension that several axes split, the outer axis first.

    Each axis splits by the rule of ``numpy.array_split``, in multiples of its unit.

    Examples
    --------
    >>> nested_parts(7, (2, 2))
    (2, 2, 2, 1)
    """
    found = [extent]
    for size, unit in zip(sizes, units or [1] * len(sizes), strict=True):
        found = [n for whole in found for n in level(whole, size, unit)]
    return tuple(found)


def proportional_parts(extent: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Extents of parts in proportion to `shares`, rounded by the method of largest remainders.

    Each part gets the whole part of its proportion, and the rest goes to the largest fractions, of equal ones to
    the first. Equal shares give the rule of ``numpy.array_split``.

    Examples
    --------
    >>> proportional_parts(10, (2.0, 1.0, 1.0)), proportional_parts(5, (1, 1, 1)), proportional_parts(3, (0, 1, 1))
    ((5, 3, 2), (2, 2, 1), (0, 2, 1))
    """
    from fractions import Fraction  # loaded lazily: it imports decimal, which is slow to load

    exact = [Fraction(share) for share in shares]  # so that rounding errors decide nothing
    total = sum(exact)
    wanted = [extent * share / total for share in exact]
    found = [int(n) for n in wanted]
    largest = sorted(range(len(found)), key=lambda i: found[i] - wanted[i])
    for i in largest[: extent - sum(found)]:
        found[i] += 1
    return tuple(found)


def extents_of_parts(label: Shard, size: int) -> tuple[int, ...]:
    """The agreed extents of the parts on the `size` ranks of an axis.

    Examples
    --------
    >>> extents_of_parts(Shard(0, 7, 0), 3)
    (3, 2, 2)
    """
    assert label.extent is not None
    return label.extents or tuple(level(label.extent, size, label.unit))


def labels_of_parts(
    dim: int, extents: Sequence[int], sizes: Sequence[int], places: Sequence[int]
) -> list[Shard]:
    """The agreed labels of a dimension that several axes split, the outer axis first.

    Parameters
    ----------
    dim : int
    extents : sequence of int
        The extent on each rank along these axes, in row-major order.
    sizes, places : sequence of int
        The sizes of the axes, and this rank's place on each.

    Examples
    --------
    >>> outer, inner = labels_of_parts(0, (3, 1, 2, 2), (2, 2), (1, 0))
    >>> outer.extent, outer.offset, outer.extents, inner.extents
    (8, 4, (4, 4), (2, 2))
    """
    table = tuple(int(n) for n in extents)
    follows_rule = table == nested_parts(sum(table), sizes)
    found = []
    for size, place in zip(sizes, places, strict=True):
        block = len(table) // size
        along = tuple(sum(table[i * block : (i + 1) * block]) for i in range(size))
        found.append(Shard(dim, sum(along), sum(along[:place]), 1, None if follows_rule else along))
        table = table[place * block : (place + 1) * block]
    return found


def require_agreed(layout: Layout, shape: Sequence[int], caller: str) -> None:
    """Raise LayoutError if the value is a Shard whose extents the ranks have not agreed on."""
    for axis, label in zip(layout.grid.names, layout.labels, strict=True):
        if type(label) is Shard and label.extent is None:
            from .texts import unagreed  # loaded when it is told

            raise LayoutError(unagreed(caller, layout, shape, axis, label))


def require_fit(layout: Layout, shape: Sequence[int]) -> None:
    """Raise ShapeError if this rank's part does not have the extents on which the ranks have agreed."""
    grid = layout.grid
    lengths: dict[int, int | None] = dict(enumerate(int(n) for n in shape))
    for k, axis in reversed(list(enumerate(grid.names))):  # a part of an outer axis is what an inner axis divides
        label = layout.labels[k]
        if type(label) is not Shard:
            continue
        length, lengths[label.dim] = lengths[label.dim], label.extent
        if label.extent is None or length is None:
            continue
        along = extents_of_parts(label, grid.sizes[k])
        if len(along) != grid.sizes[k] or along[grid.place[k]] != length:
            raise ShapeError(
                f"axis {axis!r}: this rank's part has {length} along dimension {label.dim}, and its label is that of "
                f"parts of extents {', '.join(map(str, along))}, of which this rank has number {grid.place[k]}\n"
                f"  fix: cc.from_local(x, {{{axis!r}: Shard({label.dim})}}), if it is divided otherwise"
            )


def local_shape(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a part. Extents of sharded dimensions are `LocalCount`s, which keep their axes."""
    result: list[Any] = list(shape)
    for name, x in layout.items():
        if isinstance(x, Shard) and x.dim < len(result):
            known = result[x.dim]
            result[x.dim] = LocalCount(known, {name, *rank_axes(known)})
    return tuple(result)


def global_shape(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the whole value. If several axes shard a dimension, the outermost one has the whole extent.

    Raises LayoutError if the value is Varying, or a Shard whose extents the ranks have not agreed on.
    """
    for axis, x in layout.items():
        if x is V:
            raise LayoutError(
                f"global_shape({describe(None, shape, layout)})\n  axis {axis!r}: the ranks hold different values "
                f"(Varying), which have no common shape\n  fix: cc.from_local(x, {{{axis!r}: Shard(0)}}) where it is "
                "made, if the ranks hold parts of one value"
            )
    require_agreed(layout, shape, "global_shape")
    result = [int(n) for n in shape]
    for x in reversed(layout.labels):  # an earlier axis is the outer one, so its extent is the larger
        if isinstance(x, Shard):
            assert x.extent is not None
            result[x.dim] = x.extent
    return tuple(result)
