"""A fault of scale is an error on all ranks, or on none: ranks whose numbers differ have agreed before."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.errors import RingtapeError
from collectives import I, R, Shard, V

from .test_programs import scale

_random = numpy.random.default_rng(11)
X, Y, W = _random.normal(size=(40, 3)), _random.normal(size=40), _random.normal(size=3)


class Rows:
    """One rank's rows: uneven parts along dp, plain and as Shards; `c`, a number that is 1 on the first rank alone."""

    def __init__(self, mesh: cc.Mesh):
        dp = mesh.axis("dp")
        self.mesh, self.rank, self.n, self.size = mesh, int(dp.rank), int(dp.size), dp.size
        own = numpy.array_split(numpy.arange(40), self.n)[self.rank]
        self.len, self.c = len(own), 1.0 if self.rank == 0 else 2.0
        w = ag.Parameter(W.copy(), name="w")
        for axis in mesh.names:
            w = cc.cast(w, axis, to=R)
        others = {axis: R for axis in mesh.names if axis != "dp"}
        rows = [cc.from_local(a[own], {"dp": Shard(0), **others}) for a in (X, Y)]
        self.shards = (rows[0] @ w - rows[1]) ** 2
        self.rows = (ag.tensor(X[own], {"dp": V, **others}) @ w - ag.tensor(Y[own], {"dp": V, **others})) ** 2

    def total(self, x: Any, axis: str = "dp", to: Any = I) -> Any:
        return cc.all_reduce(x, axis, to=to)

    def here(self, x: Any) -> Any:
        return cc.cast(x, "tp", to=I)

    def later(self, x: Any) -> Any:
        """A sum along the other axis, which is the last on the tape."""
        return cc.mean(cc.cast(x, "tp", to=V), "tp", to=I)


Loss = Callable[[Rows], Any]
ON_ALL: dict[str, Loss] = {
    "a Partial objective": lambda e: e.here(e.shards.sum() * e.size),
    "a Rooted objective": lambda e: cc.reduce(e.here(e.rows.mean()), "dp", e.n - 1),
    "a Rooted objective of a Shard": lambda e: cc.reduce(e.here(e.shards.sum()), "dp", 0) / e.size,
    "another axis is the last": lambda e: e.later(e.total(e.rows.mean())),
    "uneven counts, and another axis": lambda e: e.later(e.total(e.rows.sum() / e.len)),
    "labels alone, and another axis": lambda e: e.later(e.total(e.shards.mean()) / e.size),
}
ON_NONE: dict[str, Loss] = {
    "a number of one rank": lambda e: e.later(e.total(e.rows.mean() * e.c)),
    "a number of one rank, scattered": lambda e: e.later(
        e.total(cc.reduce_scatter(np.tile(e.rows.mean() * e.c, (12,)), "dp").sum())),
    "a number of one rank, gathered": lambda e: e.later(
        cc.all_gather(np.reshape(e.rows.mean() * e.c, (1,)), "dp", to=I).sum()),
    "a number of one rank, largest": lambda e: e.later(cc.all_max(e.rows.mean() * e.c, "dp", to=I) * e.size),
    "a number of one rank, to the root": lambda e: cc.reduce(e.here(e.rows.mean() * e.c), "dp", 0),
    "a mean of one rank": lambda e: e.later(e.total(e.rows.mean() if e.rank == 0 else e.rows.sum() * 0.3)),
    "many sums": lambda e: e.later(sum(
        e.total(e.rows[i : i + 3].sum() if i != 5 else e.rows.mean() * e.c) for i in range(7))),
}  # fmt: skip


def outcomes(loss: Loss, axes: dict[str, int]) -> set[str]:
    def main() -> str:
        with cc.Mesh(**axes) as mesh:
            try:
                with ag.Tape() as tape:
                    total = loss(Rows(mesh))
                tape.backward(total)
            except RingtapeError as error:
                return type(error).__name__
            return ""

    with scale("error"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return set(cc.run(main, math.prod(axes.values())))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", ON_ALL)
def test_on_all_ranks(name: str, n: int) -> None:
    assert outcomes(ON_ALL[name], {"dp": n, "tp": 2}) == {"ScaleError"}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", ON_NONE)
def test_on_no_rank(name: str, n: int) -> None:
    assert outcomes(ON_NONE[name], {"dp": n, "tp": 2}) == {""}


@pytest.mark.parametrize("loss", [*ON_ALL.values(), *ON_NONE.values()])
def test_the_same_on_all_ranks_of_one_axis(loss: Loss) -> None:
    """With `later` along an axis of one rank, the objective is compared along the other."""
    assert len(outcomes(loss, {"dp": 3, "tp": 1})) == 1
