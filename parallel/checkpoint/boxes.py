"""Boxes: parts of a value, one interval for each dimension; how they meet, and where their elements lie in a file.

A value is stored as pieces, each a box of it in C order. A rank that needs a box of the value reads from each piece the
box in which the two meet. `refined` and `boxes_in` do the same for two shapes of one value, of which one splits a
dimension of the other: a fused projection is [inputs, 3 width] in one process, and [inputs, 3, width] where its columns
are divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat

__all__ = ["Box", "boxes_in", "cut", "elements", "meet", "refined", "shape_of", "whole_box", "within", "without"]

Box = tuple[tuple[int, int], ...]
"""The beginning and the end of the interval of each dimension."""


def whole_box(shape: Sequence[int]) -> Box:
    """The box of a whole value.

    Examples
    --------
    >>> whole_box((4, 3))
    ((0, 4), (0, 3))
    """
    return tuple(zip(repeat(0), map(int, shape)))


def shape_of(box: Box) -> tuple[int, ...]:
    """The extents of a box."""
    return tuple([end - begin for begin, end in box])


def elements(box: Box) -> int:
    """The number of elements of a box."""
    found = 1
    for begin, end in box:
        found *= end - begin
    return found


def meet(a: Box, b: Box) -> Box | None:
    """The box that two boxes of one value have in common, or None if it is empty.

    Examples
    --------
    >>> meet(((0, 4), (0, 3)), ((2, 6), (1, 2)))
    ((2, 4), (1, 2))
    >>> meet(((0, 2),), ((2, 4),))
    """
    found = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return found if all(begin < end for begin, end in found) else None


def without(box: Box, other: Box) -> list[Box]:
    """The rest of a box without what it has in common with another one, as boxes.

    Examples
    --------
    >>> without(((0, 4), (0, 3)), ((1, 2), (0, 2)))
    [((0, 1), (0, 3)), ((2, 4), (0, 3)), ((1, 2), (2, 3))]
    """
    common = meet(box, other)
    if common is None:
        return [box]
    found: list[Box] = []
    for k, ((begin, end), (a, b)) in enumerate(zip(box, common, strict=True)):
        for part in ((begin, a), (b, end)):
            if part[0] < part[1]:
                found.append((*common[:k], part, *box[k + 1 :]))
    return found


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """The index of a box in the array of a box around it.

    Examples
    --------
    >>> within(((2, 4), (1, 2)), ((2, 6), (0, 3)))
    (slice(0, 2, None), slice(1, 2, None))
    """
    return tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True))


def refined(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The shape with all dimensions of two shapes of one value, if one of them splits dimensions of the other.

    Examples
    --------
    >>> refined((8, 12), (8, 3, 4)), refined((4, 8), (8, 4))
    ((8, 3, 4), None)
    """
    if math.prod(a) != math.prod(b) or not math.prod(a):
        return tuple(a) if tuple(a) == tuple(b) else None
    longer, shorter = (tuple(a), tuple(b)) if len(a) >= len(b) else (tuple(b), tuple(a))
    ends, at = [], 1
    for n in longer:
        at *= n
        ends.append(at)
    at = 1
    for n in shorter:
        at *= n
        if at not in ends and at != 1:
            return None
    return longer


def boxes_in(box: Box, shape: Sequence[int], finer: Sequence[int]) -> list[tuple[Box, Box]]:
    """Divide a box into those that are boxes for a shape, too, that splits dimensions of `shape`: each for both shapes.

    The array of such a part has the same elements in the same order for both shapes.

    Examples
    --------
    >>> boxes_in(((2, 7),), (12,), (3, 4))  # 2 and 3 of the first row, 0 to 2 of the second
    [(((2, 4),), ((0, 1), (2, 4))), (((4, 7),), ((1, 2), (0, 3)))]
    """
    found: list[tuple[Box, Box]] = [((), ())]
    rest = list(finer)
    for k, ((begin, end), n) in enumerate(zip(box, shape, strict=True)):
        group: list[int] = []
        while rest and (math.prod(group) != n or k == len(shape) - 1 or not group):
            group.append(rest.pop(0))
        pieces = list(_split(begin, end, group))
        found = [((*a, (x, y)), (*b, *more)) for a, b in found for x, y, more in pieces]
    return found


def _split(begin: int, end: int, extents: Sequence[int]) -> Iterator[tuple[int, int, Box]]:
    """The boxes of some dimensions that have the elements from `begin` to `end` of all of them together, and these."""
    if len(extents) == 1:
        yield begin, end, ((begin, end),)
        return
    row = math.prod(extents[1:])
    first, last = begin // row, end // row
    if begin > first * row or first == last:
        stop = min(end, (first + 1) * row)
        for a, b, box in _split(begin - first * row, stop - first * row, extents[1:]):
            yield first * row + a, first * row + b, ((first, first + 1), *box)
        first += 1
    if first < last:
        yield first * row, last * row, ((first, last), *whole_box(extents[1:]))
    if first <= last and end > last * row:
        for a, b, box in _split(0, end - last * row, extents[1:]):
            yield last * row + a, last * row + b, ((last, last + 1), *box)


def cut(box: Box, begin: float, end: float) -> Box | None:
    """The rows of a box between two shares of it, from 0 to 1, rounded to whole rows; None if there are none.

    Examples
    --------
    >>> cut(((4, 10), (0, 3)), 0.0, 0.5), cut(((4, 10), (0, 3)), 0.5, 1.0)
    (((4, 7), (0, 3)), ((7, 10), (0, 3)))
    """
    start, stop = box[0]
    n = stop - start
    a, b = round(begin * n), round(end * n)
    return ((start + a, start + b), *box[1:]) if a < b else None
