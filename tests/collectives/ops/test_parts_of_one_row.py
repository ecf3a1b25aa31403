"""Ranks with one row of a sharded dimension, or none: their labels and refusals are those of the other ranks.

On a rank whose part has one row, a sharded dimension looks like one that broadcasting repeats, or that was inserted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import ShapeError
from autograd.layouts.layout import Mix, Stated
from autograd.layouts.rank_values import LocalCount
from autograd.ops.shape import _reshape_dims
from collectives import I, R, Shard, V

Array = Any
_rng = numpy.random.default_rng(3)
ROW = _rng.standard_normal(7)  # on 2 x 2 ranks: 2, 2, 2 and 1 elements
TABLE = _rng.standard_normal((4, 7))


def on_four_ranks(body: Callable[[], Any]) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(a=2, b=2):
            return body()

    return cc.run(program, 4)


def parts(x: Array, *axes: str, dim: int = 0) -> Any:
    y: Any = ag.tensor(x, {"a": R, "b": R}, requires_grad=True)
    for axis in axes:
        y = cc.shard(y, axis, dim=dim)
    return y


def gathered(y: Any) -> Array:
    for axis in ("b", "a"):
        if isinstance(y.layout[axis], Shard):
            y = cc.all_gather(y, axis, dim=y.layout[axis].dim)
    return y.numpy()


def test_a_dimension_that_another_axis_shards_is_not_repeated() -> None:
    """Two elements on 2 x 2 ranks: each part has one, and multiplying them would look like broadcasting."""
    two = ROW[:2]

    def body() -> None:
        with pytest.raises(ag.LayoutError, match="spans dimension 0"):
            parts(two, "a") * parts(two, "b")
        with pytest.raises(ag.LayoutError, match="spans dimension 0"):
            parts(two, "a") * parts(two, "a", "b")
        with pytest.raises(ag.LayoutError, match="spans dimension 0"):
            np.matmul(parts(TABLE[:2, None], "a"), parts(TABLE[:2, :, None], "b"))
        x = parts(two, "a", "b")
        for y in (x * x, x * parts(two[:1]), parts(two, "b") * parts(two[:1])):
            assert numpy.allclose(gathered(y)[0], two[0] ** 2)

    on_four_ranks(body)


SAME_LABELS: dict[str, tuple[Callable[[Any], Any], Array]] = {
    "atleast_2d": (np.atleast_2d, ROW),
    "atleast_3d": (np.atleast_3d, ROW),
    "array": (lambda x: np.array(x, ndmin=3), ROW),
    "vstack": (lambda x: np.vstack([x, 2 * x]), ROW),
    "dstack": (lambda x: np.dstack([x, 2 * x]), ROW),
    "meshgrid": (lambda x: np.meshgrid(x, numpy.arange(3), sparse=True)[0], ROW),
    "an outer product": (lambda x: np.einsum("i,j->ij", ag.constant(ROW[:3]), x), ROW),
    "reshape": (lambda x: x.reshape(1, -1), ROW),
    "reshape after -1": (lambda x: x.reshape(-1, 1, x.shape[0]), ROW),
    "choose": (lambda x: np.choose(x > 0, [ag.constant(2.0), ag.constant(3.0)]), TABLE),
    "differences": (lambda x: np.diff(x, axis=0, prepend=ag.constant(1.0)), TABLE.T.copy().T),
}


def test_insertions_of_dimensions_have_the_same_labels_on_all_ranks() -> None:
    def body() -> dict[str, Any]:
        found = {}
        for name, (f, x) in SAME_LABELS.items():
            y = f(parts(x, "a", "b", dim=x.ndim - 1))
            found[name] = repr(y.layout), gathered(y)
        return found

    every = on_four_ranks(body)
    for name, (f, x) in SAME_LABELS.items():
        assert len({found[name][0] for found in every}) == 1, name
        expected = x.reshape(1, 1, 7) if name == "reshape after -1" else f(ag.tensor(x)).numpy()
        for found in every:
            assert found[name][1].shape == expected.shape and numpy.allclose(found[name][1], expected), name


def test_an_index_that_differs_between_ranks_leaves_no_parts_of_one_value() -> None:
    """Each rank takes other rows of its columns: they are no parts of one value, also where they are equally many."""
    index = numpy.array([0, 2, 1, 3])

    def body() -> None:
        x, rank = parts(TABLE, "a", "b", dim=1), cc.current_mesh().axis("b").rank
        i = cc.shard(ag.tensor(index, {"a": R, "b": R}), "b")
        repeated = np.broadcast_to(x[:1], (rank + 1, *x.shape[1:]))
        for y in (x[i], x[rank], x[rank : rank + 2], np.take(x, i, 0), repeated):
            assert y.layout["b"] is V and y.layout["a"] is V
        y = parts(TABLE, "a", dim=1)[i]
        assert y.layout["b"] is V and y.layout["a"] == Shard(1)
        assert x[ag.constant(index)].layout["b"] == Shard(1)

    on_four_ranks(body)


def test_the_gradient_through_such_an_index() -> None:
    rows = numpy.array([0, 2, 1, 3])

    def loss(x: Any, i: Any) -> Any:
        return (x[i] ** 2).sum()

    expected = ag.grad(lambda x: loss(x, rows[:2]) + loss(x, rows[2:]))(TABLE)

    def body() -> Array:
        x = parts(TABLE)
        i = cc.shard(ag.tensor(rows, {"a": R, "b": R}), "b")
        with ag.Tape() as tape:
            own = loss(cc.shard(x, "a", dim=1), i)
            total = cc.all_reduce(cc.all_reduce(own, "b", to=I), "a", to=I)
        tape.backward(total)
        return cc.all_reduce(cc.all_reduce(x.grad, "b"), "a").numpy()

    for found in on_four_ranks(body):
        assert numpy.allclose(found, expected)


def test_minus_one_is_not_inferred_from_a_part() -> None:
    """``x.reshape(3, -1)`` of two rows of three gives (3, 2), and each rank's part alone (3, 1), six rows in all."""
    x = TABLE[:2, :3]

    def body() -> None:
        y = parts(x, "b")
        with pytest.raises(ag.LayoutError, match=r"(?s)reshape mixes along dimension 0.*or: .*y\.shape\[0\]"):
            y.reshape(3, -1)
        fixed = cc.all_gather(y, "b", dim=0).reshape(3, -1)
        assert numpy.allclose(fixed.numpy(), x.reshape(3, -1))
        assert numpy.allclose(gathered(y.reshape(y.shape[0], -1)), x)
        assert numpy.allclose(gathered(y.reshape(-1, 3, 1)), x[..., None])
        even, uneven = parts(TABLE, "b"), parts(TABLE, "b", dim=1)
        assert even.reshape(2, -1).layout["b"].extent == 4  # 2 is the extent of every part
        with pytest.raises((ag.LayoutError, ShapeError)):
            uneven[0].reshape(4, -1)  # of one part only

    on_four_ranks(body)


def test_reshapes_of_parts_agree_on_all_ranks_and_with_one_process() -> None:
    """2,000 shapes drawn with -1 or the part's own extent: all ranks say the same, and it is right or a refusal."""
    rng = numpy.random.default_rng(0)
    kept = 0
    for _ in range(2000):
        ndim, count = rng.integers(1, 4), rng.integers(1, 5)
        dim = int(rng.integers(ndim))
        rows = rng.choice([0, 1, 1, 2, 3], 2)
        whole = [int(n) for n in rng.choice([1, 2, 3, 4], ndim)]
        whole[dim] = int(rows.sum())
        target = [int(n) for n in rng.choice([1, 1, 2, 3, 4], count)]
        free, own = (int(n) for n in rng.integers(-1, count, 2))  # the places of -1 and of the part's extent
        if free == own:
            continue
        x = numpy.arange(math.prod(whole)).reshape(whole)
        pieces = numpy.split(x, [rows[0]], axis=dim)
        calls = [_options(piece.shape, dim, target, free, own) for piece in pieces]
        if not all(calls):
            continue
        first, second = (_reshape_dims([p.shape], o)[0][dim] for p, o in zip(pieces, calls, strict=True))
        if Stated in (type(first), type(second)):  # the extent of one part: refused where the other one differs
            assert (rows[0] == rows[1]) == (first == second)
            continue
        assert first == second, (rows, whole, dim, target, free, own)
        if first is Mix:
            continue
        kept += 1
        place = first[0] if isinstance(first, tuple) else first
        found = [p.reshape([int(n) for n in o[0]]) for p, o in zip(pieces, calls, strict=True)]
        wanted = [-1 if j == free else whole[dim] if j == own else n for j, n in enumerate(target)]
        assert numpy.array_equal(numpy.concatenate(found, place), x.reshape(wanted)), (rows, whole, dim, wanted)
    assert kept > 300


def _options(shape: tuple[int, ...], dim: int, target: list[int], free: int, own: int) -> Any:
    """The options of a reshape of a part, as `reshape` makes them; None where its shape does not fit."""
    given = tuple(LocalCount(n, {"a"}) if i == dim else n for i, n in enumerate(shape))
    wanted = [given[dim] if j == own else n for j, n in enumerate(target)]
    known = int(math.prod(n for j, n in enumerate(wanted) if j != free))
    size = math.prod(shape)
    if (known == 0 or size % known) if free >= 0 else known != size:
        return None
    if free >= 0:
        wanted[free] = size // known
    return tuple(wanted), given, free


def test_a_shape_in_a_tensor_that_differs_between_ranks() -> None:
    """It was read like a plain shape, so that results of different shapes were labelled as copies."""
    def body() -> None:
        rank = int(cc.current_mesh().axis("b").rank)
        shape = ag.tensor(numpy.array([1 + rank, 2]), {"a": R, "b": V})
        for x in (parts(ROW[:2]), ag.constant(ROW[:2])):
            for y in (np.resize(x, shape), np.broadcast_to(x, shape), np.broadcast_to(x, (shape[0], 2))):
                assert y.shape == (1 + rank, 2) and y.layout["b"] is V and y.layout["a"] is not V
        same = ag.tensor(numpy.array([2, 1]), {"a": R, "b": R})
        assert parts(ROW[:2]).reshape(same).layout["b"] is R
        with pytest.raises(ag.LayoutError, match="Invariant"):
            np.resize(ag.tensor(ROW, {"a": I, "b": I}), shape)

    on_four_ranks(body)
