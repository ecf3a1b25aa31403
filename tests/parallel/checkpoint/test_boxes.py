"""The boxes of two shapes of one value have the same elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel.checkpoint.boxes import boxes_in, cut, elements, meet, refined, shape_of, whole_box, within


@st.composite
def merged_shapes(draw: Any) -> tuple[list[int], list[int]]:
    """A shape, and one that splits its dimensions."""
    finer = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    shape: list[int] = []
    for n in finer:
        if shape and draw(st.booleans()):
            shape[-1] *= n
        else:
            shape.append(n)
    return shape, finer


def a_box(draw: Any, shape: Any) -> Any:
    ends = [sorted((draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1)))) for n in shape]
    return tuple((a, b + 1) for a, b in ends)


@given(st.data(), merged_shapes())
@settings(max_examples=300, deadline=None)
def test_boxes_of_a_finer_shape_have_the_same_elements(data: Any, shapes: Any) -> None:
    shape, finer = shapes
    assert refined(shape, finer) == tuple(finer) == refined(finer, shape)
    box = a_box(data.draw, shape)
    array = np.arange(math.prod(shape))
    wanted = array.reshape(shape)[within(box, whole_box(shape))].ravel().tolist()
    pairs, found = boxes_in(box, shape, finer), []
    for own, other in pairs:
        values = array.reshape(finer)[within(other, whole_box(finer))].ravel().tolist()
        assert values == array.reshape(shape)[within(own, whole_box(shape))].ravel().tolist()  # in the same order
        found += values
    assert sorted(found) == wanted
    assert sum(elements(own) for own, _ in pairs) == elements(box)


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_what_two_boxes_have_in_common(data: Any, shape: Any) -> None:
    a, b = a_box(data.draw, shape), a_box(data.draw, shape)
    array = np.zeros(shape, int)
    array[within(a, whole_box(shape))] += 1
    array[within(b, whole_box(shape))] += 1
    both = meet(a, b)
    assert (array == 2).sum() == (0 if both is None else elements(both))
    if both is not None:
        assert (array[a_slice(both)] == 2).all()
        part = np.arange(elements(a)).reshape(shape_of(a))[within(both, a)]
        assert part.shape == shape_of(both)


def a_slice(box: Any) -> Any:
    return tuple(slice(*each) for each in box)


@given(st.integers(1, 20), st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_shares_of_a_box_divide_its_rows(rows: int, parts: int) -> None:
    found = [cut(((3, 3 + rows), (0, 2)), k / parts, (k + 1) / parts) for k in range(parts)]
    taken = [each[0] for each in found if each is not None]
    assert [x for a, b in taken for x in range(a, b)] == [*range(3, 3 + rows)]


def test_shapes_that_are_no_splits() -> None:
    for a, b in (((4, 8), (8, 4)), ((6,), (5,)), ((2, 3), (3, 2)), ((0, 3), (3, 0))):
        assert refined(a, b) is None
    assert refined((0, 3), (0, 3)) == (0, 3)
