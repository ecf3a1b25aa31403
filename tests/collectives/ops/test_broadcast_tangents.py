"""Recorded forward mode where a smaller Replicated operand meets a sharded one, against serial second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.testing import check_grads
from collectives import I, R

rng = numpy.random.default_rng(3)
X, W, B = rng.normal(size=(5, 3)), rng.normal(size=(3, 2)), rng.normal(size=2)
DW, DB = rng.normal(size=(3, 2)), rng.normal(size=2)
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda h, b: np.tanh(h + b),
    "multiply": lambda h, b: np.sin(h * b),
    "divide": lambda h, b: h / (b * b + 1.0),
    "a number": lambda h, b: np.sin(h * b[0]),
    "where": lambda h, b: np.where(h > 0, h * h, h * b),
    "maximum": lambda h, b: np.maximum(h, b) ** 2,
    "power": lambda h, b: (h * h + 1.0) ** b,
    "hypot": lambda h, b: np.hypot(h, b + 3.0),
    "layer_norm": lambda h, b: nn.layer_norm(h, h.shape[-1:], b, b * b),
}


def derivatives(loss: Callable[[Any, Any], Any], w: Any, b: Any, dw: Any, db: Any) -> list[Any]:
    """Of the second order, in three ways that record forward mode."""

    def along(w: Any, b: Any) -> Any:
        return ag.jvp(loss, (w, b), (dw, db))[1]

    found = [*ag.grad(along, argnum=(0, 1))(w, b), ag.jvp(along, (w, b), (dw, db))[1]]
    hessian = ag.hessian(loss, argnum=1, mode="forward-over-forward")(w, b)
    return [x.numpy() if hasattr(x, "layout") else numpy.asarray(x) for x in (*found, hessian)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("ranks", [1, 3])  # with 3 ranks the last one has one row
def test_second_derivatives(name: str, ranks: int) -> None:
    f = FUNCTIONS[name]

    def program() -> list[Any]:
        with cc.Mesh(dp=-1):
            x = cc.shard(ag.tensor(X, {"dp": R}), "dp")

            def loss(w: Any, b: Any) -> Any:
                h = f(x @ cc.cast(w, "dp", to=R), cc.cast(b, "dp", to=R))
                return cc.all_reduce((h * h).sum(), "dp", to=I)

            given = [ag.tensor(d, {"dp": I}) for d in (DW, DB)]
            return derivatives(loss, ag.Parameter(W), ag.Parameter(B), *given)

    serial = derivatives(lambda w, b: (f(X @ w, b) ** 2).sum(), W, B, DW, DB)
    for found in cc.run(program, ranks):
        for have, want in zip(found, serial, strict=True):
            numpy.testing.assert_allclose(have, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_check_grads_of_a_layer_with_a_bias(ranks: int) -> None:
    def program() -> None:
        with cc.Mesh(dp=-1):
            x = cc.shard(ag.tensor(X, {"dp": R}), "dp")

            def loss(w: Any, b: Any) -> Any:
                h = np.tanh(x @ cc.cast(w, "dp", to=R) + cc.cast(b, "dp", to=R))
                return cc.all_reduce((h * h).sum(), "dp", to=I)

            check_grads(loss, ag.Parameter(W), ag.Parameter(B))

    cc.run(program, ranks)
