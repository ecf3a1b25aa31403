"""Equal parts of a Shard, and equal values beside parts, are named by a `ReplicaWarning`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, R, Shard, V

from ..scale.test_equal_addends import SERIAL, X, gradient, run, summed

PART = {"dp": Shard(0)}
EQUAL: dict[str, Callable[[], Any]] = {
    "from_local": lambda: cc.from_local(X, PART),
    "from_local, stated": lambda: cc.from_local(X[:2], PART, global_shape=X.shape),
    "tensor": lambda: ag.tensor(X, PART),
    "tensor, stated": lambda: ag.tensor(X[:2], PART, global_shape=X.shape),
    "one seed": lambda: cc.from_local(numpy.random.default_rng(0).normal(size=(2, 2)), PART),
}


@pytest.mark.parametrize("mode", ["first", "ranks"])
@pytest.mark.parametrize("rows", EQUAL.values(), ids=list(EQUAL))
def test_equal_parts(rows: Callable[[], Any], mode: str) -> None:
    text, *more = run(lambda mesh: gradient(rows, summed), mode)[0]
    assert "the 3 ranks of axis 'dp' pass equal data. By its label Shard(0) each rank holds another part" in text
    assert "counts these data 3 times" in text and "  fix: cc.shard(ag.tensor(" in text
    assert all("the 3 ranks add equal values" in each and "By its label P they are addends" in each for each in more)


def test_the_fixes_have_the_serial_gradient() -> None:
    def shard() -> Any:
        return cc.shard(ag.tensor(X, layout={"dp": R}), "dp")

    def own_rows() -> Any:
        rank = cc.current_mesh().axis("dp").rank
        return cc.from_local(X[2 * rank : 2 * rank + 2], PART)

    for rows in (shard, own_rows):
        texts, found = run(lambda mesh, rows=rows: gradient(rows, summed))
        assert texts == []
        numpy.testing.assert_allclose(found[1], SERIAL)


def test_the_fix_names_the_array_and_the_dimension() -> None:
    def body(mesh: Any) -> None:
        columns = X.T / 2
        cc.from_local(columns, {"dp": Shard(1)})

    (text,) = run(body)[0]
    assert "fix: cc.shard(ag.tensor(columns, layout={'dp': R}), 'dp', dim=1)   (this rank's part of it)" in text


def test_parts_that_are_not_named() -> None:
    """Different, constant and empty parts, few whole numbers, copies, parameters, and everything in the mode off."""

    def body(mesh: Any) -> None:
        rank = mesh.axis("dp").rank
        for rows in (X + rank, X * 0, X * 0 + 0.5, X[:0], numpy.arange(9) % 2, X > 0, X if rank else X + 1):
            for _ in range(3):
                cc.from_local(rows, PART)
                ag.tensor(rows, PART)
            cc.from_local(rows if rank == 2 else rows + rank, {"dp": V})
        ag.tensor(X, {"dp": R})
        cc.all_reduce(ag.tensor(1.0), "dp")

    assert run(body)[0] == []
    assert run(lambda mesh: gradient(EQUAL["tensor"], summed), "off")[0] == []


def test_the_parts_that_are_compared_and_a_rank_with_one_part_more() -> None:
    def body(mesh: Any) -> None:
        rank = mesh.axis("dp").rank
        for step in range(8):
            cc.from_local(X + (0 if step in (3, 5) else rank), PART)  # the 4th and the 6th are equal
        if rank == 1:
            ag.tensor(X, PART)
        for _ in range(4):
            cc.all_reduce(ag.tensor(float(rank)), "dp")

    assert len(run(body)[0]) == 1


def test_two_axes() -> None:
    """The rows are divided along dp, and the ranks of tp hold the same part."""

    def program(is_divided: bool) -> None:
        with cc.Mesh(dp=2, tp=2) as mesh:
            rank = mesh.axis("dp").rank if is_divided else 0
            cc.from_local(X + rank, {"dp": Shard(0), "tp": R})
            x = ag.tensor(X + rank, {"dp": Shard(0), "tp": R})
            cc.all_reduce(x.sum(), "dp")

    with pytest.warns(ag.errors.ReplicaWarning, match="of axis .dp. pass equal data|addends of one value"):
        cc.run(partial(program, False), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ag.errors.ReplicaWarning)
        cc.run(partial(program, True), 4)


# -- equal values beside parts ----------------------------------------------------------------------------------------
SEQUENCE, TABLE = (numpy.random.default_rng(i).standard_normal(shape) for i, shape in enumerate([(2, 9, 4), (9, 4)]))
POSITIONS: dict[str, Callable[[Any], Any]] = {
    "np.arange": lambda n: np.arange(n),
    "numpy.arange": lambda n: numpy.arange(n),
    "a Varying tensor": lambda n: ag.tensor(numpy.arange(int(n)), {"dp": V}),
}


def of_positions(make: Callable[[Any], Any], learned: bool) -> Any:
    """The gradient of a program whose sequences are divided, and to which positions are added."""

    def body(mesh: Any) -> Any:
        x, table = cc.shard(ag.tensor(SEQUENCE, {"dp": R}), "dp", dim=1), ag.Parameter(TABLE)
        with ag.Tape() as tape:
            positions = make(x)
            w = cc.cast(table, "dp", to=R)
            h = x + ag.nn.embedding(positions, w) if learned else (x * (positions + 1.0)[:, None]) @ w.T
            loss = cc.all_reduce((h**3).sum(), "dp", to=I)
        tape.backward(loss)
        return table.grad.numpy()

    return body


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("make", POSITIONS.values(), ids=list(POSITIONS))
def test_positions_that_count_from_zero_on_every_rank(make: Callable[[Any], Any], learned: bool) -> None:
    (text,) = run(of_positions(lambda x: make(x.shape[1]), learned))[0]
    assert "combine equal values with different parts, Shard(1)" in text and "{dp: V}" in text
    fix = "make the whole, for all 9, and divide it, as positions by cc.shard(ag.constant(numpy.arange(9)), 'dp')"
    assert f"  fix: {fix}\n" in text


@pytest.mark.parametrize("learned", [True, False])
def test_positions_of_the_fix_have_the_serial_gradient(learned: bool) -> None:
    texts, found = run(of_positions(lambda x: cc.shard(ag.constant(numpy.arange(9)), "dp"), learned))
    assert texts == []
    at = numpy.arange(9)

    def serial(w: Any) -> Any:
        h = SEQUENCE + w[at] if learned else (SEQUENCE * (at + 1.0)[:, None]) @ w.T
        return (h**3).sum()

    numpy.testing.assert_allclose(found[1], ag.grad(serial)(TABLE))


def test_own_values_few_choices_and_constants_beside_parts_are_legal() -> None:
    def body(mesh: Any) -> None:
        x = cc.shard(ag.tensor(SEQUENCE, {"dp": R}), "dp", dim=1)
        own = numpy.random.default_rng(int(mesh.axis("dp").rank)).random((3, 4))
        for values in (own, numpy.ones((3, 4)), numpy.array([[1.0], [0], [1]])):
            cc.all_reduce((x * values).sum(), "dp", to=R)

    assert run(body)[0] == []
