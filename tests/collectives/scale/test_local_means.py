"""A sum over ranks of means of different numbers of Varying rows is named by a `GradientWarning`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.errors import GradientWarning, ReplicaWarning
from collectives import I, R, Shard

X = numpy.random.default_rng(1).normal(size=(12, 2))
Y = numpy.random.default_rng(2).normal(size=12)
START = numpy.array([0.3, -0.7])
UNEVEN = {0: slice(0, 5), 1: slice(5, 9), 2: slice(9, 12)}
EVEN = {0: slice(0, 4), 1: slice(4, 8), 2: slice(8, 12)}
SERIAL = 2 * X.T @ (X @ START - Y) / 12


def summed(x: Any) -> Any:
    return cc.all_reduce(x, "dp", to=I)


def run(loss: Callable[..., Any], parts: dict[int, slice] = UNEVEN, mode: str = "first") -> tuple[list[str], Any]:
    """The warnings of a program ``loss(w, x, y)`` on 3 ranks, which is given plain arrays, and its gradient."""

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            own = parts[int(mesh.axis("dp").rank)]
            w = ag.Parameter(START.copy())
            with ag.Tape() as tape:
                total = loss(cc.cast(w, "dp", to=R), X[own], Y[own])
            tape.backward(total)
            return w.grad.numpy()

    cc.check(mode)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = cc.run(program, ranks=3)
    finally:
        cc.check("first")
    assert not [each for each in caught if each.category is ReplicaWarning]
    return [str(each.message) for each in caught if each.category is GradientWarning], found[0]


def squares(w: Any, x: Any, y: Any) -> Any:
    return (x @ w - y) ** 2


def mean_of_rows(w: Any, x: Any, y: Any) -> Any:
    local = squares(w, x, y).mean()
    return cc.all_reduce(local, "dp", to=I) / 3


MISTAKES: dict[str, Callable[..., Any]] = {
    "mean": mean_of_rows,
    "len": lambda w, x, y: summed(squares(w, x, y).sum() / len(x)) / 3,
    "divided first": lambda w, x, y: summed((squares(w, x, y) / len(x)).sum()) / 3,
    "cc.mean": lambda w, x, y: cc.mean(squares(w, x, y).mean(), "dp", to=I),
    "mse_loss": lambda w, x, y: cc.mean(nn.mse_loss(x @ w, y), "dp", to=I),
    "a penalty": lambda w, x, y: summed(0.5 * squares(w, x, y).mean() + 0.1 * (w * w).sum()) / 3,
    "mask": lambda w, x, y: summed((squares(w, x, y) * (y > 0)).sum() / (y > 0).sum()) / 3,
    "ignored": lambda w, x, y: cc.mean(
        nn.cross_entropy((x @ w)[:, None] * numpy.eye(2)[0], numpy.where(y > 0, 1, -100), ignore_index=-100),
        "dp",
        to=I,
    ),
    "reduce": lambda w, x, y: cc.broadcast(cc.reduce(-squares(w, x, y).mean(), "dp", 0), "dp", 0, to=I),
    "started": lambda w, x, y: cc.all_reduce_async(squares(w, x, y).mean(), "dp", to=I).wait(),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mean_of_means(name: str) -> None:
    texts, found = run(MISTAKES[name])
    (text,) = texts
    assert "each rank has divided its value by a count of its own: rank 0 by " in text
    assert numpy.linalg.norm(found - SERIAL) > 1e-3


@pytest.mark.parametrize("mode", ["first", "always", "ranks"])
def test_the_text(mode: str) -> None:
    texts, _ = run(mean_of_rows, mode=mode)
    (text,) = texts
    assert text.startswith("all_reduce(local: f64[] {dp: V}, axis 'dp'): each rank has divided its value by a count of")
    assert "rank 0 by 5, rank 1 by 4, rank 2 by 3" in text
    assert "rows = cc.from_local(rows, {'dp': Shard(0)})" in text and "rows.global_shape[0]" in text
    assert run(mean_of_rows, mode="off")[0] == []


FIXES: dict[str, Callable[..., Any]] = {
    "labels": lambda w, x, y: (
        summed(squares(w, cc.from_local(x, {"dp": Shard(0)}), cc.from_local(y, {"dp": Shard(0)})).sum())
        / cc.from_local(x, {"dp": Shard(0)}).global_shape[0]
    ),
    "counts": lambda w, x, y: summed(squares(w, x, y).sum()) / summed(float(len(x))),
}


@pytest.mark.parametrize("name", FIXES)
def test_the_fixes(name: str) -> None:
    texts, found = run(FIXES[name])
    assert texts == []
    numpy.testing.assert_allclose(found, SERIAL)


LEGAL: dict[str, Callable[..., Any]] = {
    "the sum": lambda w, x, y: summed(squares(w, x, y).sum() / 12),
    "weighted": lambda w, x, y: summed(squares(w, x, y).mean() * len(x) / 12),
    "weighted by a Tensor": lambda w, x, y: summed(squares(w, x, y).mean() * ag.tensor(len(x) / 12)),
    "a mean of features": lambda w, x, y: summed((squares(w, x, y)[:, None] * numpy.ones(2)).mean(axis=1).sum() / 12),
}


@pytest.mark.parametrize("name", LEGAL)
def test_right_programs(name: str) -> None:
    texts, found = run(LEGAL[name])
    assert texts == []
    numpy.testing.assert_allclose(found, SERIAL)


def test_what_is_not_named() -> None:
    """Means of equal numbers of rows; a stated sum of means; weights of the ranks; a mean on one rank only."""
    for name in ("mean", "len", "cc.mean", "mse_loss"):
        texts, found = run(MISTAKES[name], EVEN)
        assert texts == []
        numpy.testing.assert_allclose(found, SERIAL)
    weighted = run(lambda w, x, y: summed(0.5 ** len(x) * squares(w, x, y).sum()))
    stated = run(lambda w, x, y: summed(cc.declare_partial(squares(w, x, y).mean(), "dp")) / 3)
    on_some = run(lambda w, x, y: summed(squares(w, x, y).mean() if len(x) == 5 else (x[0] @ w) * 0.0))
    assert (weighted[0], stated[0], on_some[0]) == ([], [], [])


@pytest.mark.parametrize("nth", [1, 2, 4, 8])
def test_the_calls_that_are_compared(nth: int) -> None:
    def loss(w: Any, x: Any, y: Any) -> Any:
        total = 0.0
        for n in range(1, 10):
            rows = slice(None) if n == nth else slice(2)
            total = total + summed(np.tanh(squares(w, x[rows], y[rows])).mean())
        return total

    assert len(run(loss)[0]) == 1
