"""The mean of a Partial value is refused: it is one value, the sum. The offered sum leads to the serial gradient."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import LayoutError
from collectives import I, P, R, Shard, V

X = numpy.random.default_rng(0).standard_normal((7, 3))
SERIAL = ag.grad(lambda w: np.sum((X @ w) ** 2) / 7)(numpy.ones(3))


def gradient(objective: Any) -> Any:
    """The gradient on every rank, with the rows of X sharded over three ranks."""

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            rows = numpy.array_split(X, 3)[int(mesh.axis("dp").rank)]
            x = ag.tensor(rows, layout={"dp": Shard(0)}, global_shape=X.shape)
            w = ag.Parameter(numpy.ones(3))
            with ag.Tape() as tape:
                loss = objective(((x @ cc.cast(w, "dp", to=R)) ** 2).sum())
            tape.backward(loss)
            assert w.grad is not None
            return w.grad.numpy()

    return cc.run(program, ranks=3)


@pytest.mark.parametrize("to", [R, I])
def test_the_mean_of_a_partial_value_is_refused_and_the_offered_sum_is_the_serial_one(to: Any) -> None:
    text = r"Partial, one value that is the sum[^\n]*divides by 3\n  fix: all_reduce\(total, 'dp'\)"
    with pytest.raises(LayoutError, match=text):
        gradient(lambda total: cc.mean(total, "dp", to=to) / 7)
    for found in gradient(lambda total: cc.all_reduce(total, "dp", to=I) / 7):
        numpy.testing.assert_allclose(found, SERIAL, rtol=1e-12)


def test_on_two_axes_the_partial_one_is_named() -> None:
    def program() -> None:
        with cc.Mesh(dp=1, tp=1):
            x = ag.tensor([1.0], layout={"dp": V, "tp": P})
            assert cc.mean(x, "dp").layout == cc.all_reduce(x, "dp").layout  # linear: P stays along the other axis
            with pytest.raises(LayoutError, match="axis 'tp': x is Partial"):
                cc.mean(x, ("dp", "tp"))

    cc.run(program, ranks=1)


@pytest.mark.parametrize("label", [R, I, P])
@pytest.mark.parametrize("function", [cc.mean, cc.all_max, cc.all_min, cc.all_prod, cc.scan, cc.exscan])
def test_what_counts_the_ranks_takes_no_value_that_is_one_for_all(function: Any, label: Any) -> None:
    """Also on one rank, where the factor would be 1."""
    with cc.Mesh(dp=1), pytest.raises(LayoutError, match=label.word):
        function(ag.tensor([1.0], layout={"dp": label}), "dp")


@pytest.mark.parametrize("function", [cc.all_reduce, cc.reduce_scatter, cc.reduce])
@pytest.mark.parametrize("label", [R, I])
def test_a_sum_over_the_ranks_takes_no_copies(function: Any, label: Any) -> None:
    with cc.Mesh(dp=1), pytest.raises(LayoutError, match=label.word):
        function(ag.tensor([1.0], layout={"dp": label}), "dp")
