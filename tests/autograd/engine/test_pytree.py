"""Nested containers: taken apart and put together, and errors that name the place."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autograd as ag
from autograd.engine.pytree import flatten, tree_map

Pair = namedtuple("Pair", "left right")

TREES = st.recursive(
    st.floats(-5, 5) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", max_size=2) | st.integers(0, 3), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda xy: Pair(*xy))
    ),
    max_leaves=8,
)


@given(TREES)
def test_what_is_taken_apart_goes_together_again(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert structure.count == len(leaves) and all(type(x) is float for x in leaves)
    again = structure.rebuild(leaves)
    assert again == tree and type(again) is type(tree)
    assert structure.match(tree, "it") == leaves
    assert structure == flatten(tree_map(lambda x: x + 1, tree))[1]
    assert len(structure.paths("x")) == structure.count


def test_types_of_containers_stay() -> None:
    tree = OrderedDict(b=Pair(1.0, [2.0]), a=(3.0,))
    found = tree_map(lambda x: -x, tree)
    assert type(found) is OrderedDict and list(found) == ["b", "a"] and type(found["b"]) is Pair
    assert found == {"b": Pair(-1.0, [-2.0]), "a": (-3.0,)}
    assert tree_map(lambda x: x, defaultdict(list, a=1.0)) == {"a": 1.0}


def test_mappings_are_matched_by_key_and_not_by_order() -> None:
    _, structure = flatten({"a": 1.0, "b": 2.0})
    assert structure.match({"b": 20.0, "a": 10.0}, "it") == [10.0, 20.0]
    assert structure == flatten({"b": 0.0, "a": 0.0})[1] and structure != flatten({"a": 0.0, "c": 0.0})[1]
    assert structure != flatten([0.0, 0.0])[1]


@pytest.mark.parametrize("tree, other, words", [
    ({"a": [1.0, 2.0]}, {"a": [1.0]}, ["it['a']", "a list of length 1", "length 2"]),
    ({"a": 1.0}, {"b": 1.0}, ["it is", "['b']", "['a']"]),
    ((1.0, {"k": (2.0,)}), (1.0, {"k": 2.0}), ["it[1]['k']", "float", "tuple of length 1"]),
    ([1.0], numpy.ones(1), ["it is", "ndarray of shape (1,)"]),
    ([None], [1.0], ["it[0] is float", "needed: None"]),
])  # fmt: skip
def test_another_nesting_is_refused_where_it_differs(tree: Any, other: Any, words: list[str]) -> None:
    with pytest.raises(ag.ArgumentError) as error:
        flatten(tree)[1].match(other, "it")
    assert isinstance(error.value, TypeError)
    for word in words:
        assert word in str(error.value)


def test_what_stands_for_a_leaf_may_be_anything() -> None:
    assert flatten(1.0)[1].match([1.0, 2.0], "it") == [[1.0, 2.0]]
    assert flatten((1.0, 2.0))[1].match([3.0, 4.0], "it") == [3.0, 4.0]
