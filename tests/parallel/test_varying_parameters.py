"""A parameter of which each rank has its own value (V), beside parts (Shard) of one value.

Either the operation refuses them where it stands, or backward gives each rank the gradient of its own value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import LayoutError
from collectives import R, V

X = numpy.random.default_rng(0).standard_normal((7, 4))
RANKS = 3
USES: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[Any, Any], Any]]] = {
    "a weight": (lambda n: (4, 3), lambda x, w: x @ w),
    "a row": (lambda n: (4,), lambda x, w: x * w),
    "a row with two dimensions": (lambda n: (1, 4), lambda x, w: np.tanh(x + w)),
    "a number": (lambda n: (), lambda x, w: x * w),
    "a number with two dimensions": (lambda n: (1, 1), lambda x, w: x / (2 + w * w)),
    "a value for each row": (lambda n: (n, 1), lambda x, w: x * w),
    "a value for each element": (lambda n: (n, 4), lambda x, w: x - w),
    "weights of the rows": (lambda n: (n,), lambda x, w: w @ x),
    "a choice": (lambda n: (4,), lambda x, w: np.where(x > 0, x, w)),
    "a contraction of the rows": (lambda n: (n, 2), lambda x, w: x.T @ w),
    "an outer product": (lambda n: (2,), lambda x, w: np.einsum("ij,k->ijk", x, w)),
}


@pytest.mark.parametrize("use", USES)
def test_it_is_refused_at_the_operation_or_has_its_own_gradient(use: str) -> None:
    shape, operation = USES[use]

    def rank_main() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            at = numpy.array_split(numpy.arange(7), RANKS)[int(mesh.axis("dp").rank)]
            value = numpy.random.default_rng(int(at[0]) + 1).standard_normal(shape(len(at)))
            w = ag.Parameter(value, {"dp": V}, name="w")
            x = cc.shard(ag.tensor(X, layout={"dp": R}), "dp")
            with ag.Tape() as tape:
                try:
                    y = operation(x, w)
                except LayoutError:
                    return None
                tape.backward(cc.all_reduce((y**2).sum(), "dp", to=cc.I))
            return w.grad.numpy(), at, value

    results = cc.run(rank_main, RANKS)
    assert all(results) or not any(results)
    for gradient, at, value in filter(None, results):
        wanted = ag.grad(lambda w, at=at: (operation(X[at], w) ** 2).sum())(value)
        assert numpy.allclose(gradient, wanted)
