"""Rows of one rank that meet each other, in the statistics of a batch or as negatives, are told with the fix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.errors import GradientWarning
from collectives import I, R, Shard, V

RNG = numpy.random.default_rng(5)
X = RNG.normal(size=(60, 4))
START = RNG.normal(size=(4, 3))


def run(loss: Callable[[Any, Any, Any], Any], n: int) -> tuple[list[str], Any]:
    def program() -> Any:
        with cc.Mesh(dp=n) as mesh:
            rank = int(mesh.axis("dp").rank)
            rows = slice(rank * 60 // n, (rank + 1) * 60 // n)
            w = ag.Parameter(START.copy())
            with ag.Tape() as tape:
                total = loss(X[rows], cc.cast(w, "dp", to=R), rank)
            tape.backward(total)
            return w.grad.numpy()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cc.run(program, n)
    return [str(each.message) for each in caught if issubclass(each.category, GradientWarning)], found[0]


def serial(loss: Callable[[Any], Any]) -> Any:
    w = ag.Parameter(START.copy())
    with ag.Tape() as tape:
        total = loss(w)
    tape.backward(total)
    return w.grad.numpy()


def norm() -> nn.Module:
    made = nn.BatchNorm1d(3, dtype=float)
    made.weight = made.bias = None
    return made


def cubes(y: Any) -> Any:
    return ((y + 0.5) ** 3).sum() / 60


@pytest.mark.parametrize("n", [2, 3, 5])
def test_statistics_of_a_batch(n: int) -> None:
    expected = serial(lambda w: cubes(norm()(X @ w)))
    (text,), found = run(lambda x, w, rank: cc.all_reduce(cubes(norm()(x @ w)), "dp", to=I), n)
    assert text.startswith("BatchNorm1d at test_rows_that_meet.py:") and "cc.all_gather(x, 'dp')" in text
    assert numpy.linalg.norm(found - expected) > 1e-3

    def mended(x: Any, w: Any, rank: int) -> Any:
        return cc.all_reduce(cubes(cc.shard(norm()(cc.all_gather(x @ w, "dp")), "dp")), "dp", to=I)

    texts, found = run(mended, n)
    assert texts == []
    numpy.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_negatives(n: int) -> None:
    def whole(w: Any) -> Any:
        z = X @ w
        return nn.cross_entropy(z @ z.T, numpy.arange(60))

    expected = serial(whole)

    def local(x: Any, w: Any, rank: int) -> Any:
        z = x @ w
        return cc.mean(nn.cross_entropy(z @ z.T, numpy.arange(len(x))), "dp", to=I)

    (text,), found = run(local, n)
    assert "compared with the rows of its own rank alone" in text and "cc.all_gather(z, 'dp').T" in text
    assert numpy.linalg.norm(found - expected) > 1e-3

    def mended(x: Any, w: Any, rank: int) -> Any:
        z = cc.from_local(x, {"dp": Shard(0)}) @ w
        logits = cc.cast(z, "dp", to=V) @ cc.all_gather(z, "dp").T
        labels = rank * len(x) + numpy.arange(len(x))
        return cc.all_reduce(nn.cross_entropy(logits, labels, reduction="sum") / 60, "dp", to=I)

    texts, found = run(mended, n)
    assert texts == []
    numpy.testing.assert_allclose(found, expected)


def test_classes_are_no_rows() -> None:
    """As many rows as classes, with other labels; and attention within a sequence."""
    labels = RNG.integers(0, 3, 3)
    texts, _ = run(lambda x, w, rank: cc.mean(nn.cross_entropy(x[:3] @ w, labels), "dp", to=I), 2)
    assert texts == []
