"""Numbers that differ between ranks: where the dependence is kept, and where it is refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.layouts.rank_values import (
    LocalCount,
    LocalOffset,
    RankBool,
    RankFloat,
    RankInt,
    has_local_count,
    rank_axes,
)
from collectives import I, P, R, Shard, V


@pytest.fixture
def mesh() -> Iterator[cc.Mesh]:
    with cc.Mesh(dp=1) as mesh:
        yield mesh


def sharded() -> Any:
    return ag.tensor(numpy.ones((3, 4)), {"dp": Shard(0)})


EXPRESSIONS = [
    "x.size", "np.size(x)", "numpy.size(x)", "np.size(x,0)", "np.shape(x)[0]", "numpy.shape(x)[0]", "x.shape[0]",
    "x.nbytes", "divmod(rank,2)[1]", "divmod(7,n)[0]", "round(rank/2)", "round(n/2,1)", "math.floor(n/2)",
    "math.ceil(rank/2)", "math.trunc(n/2)", "math.prod(x.shape)", "np.sqrt(n)", "numpy.sqrt(rank)", "np.log(rank+1)",
    "np.prod(x.shape)", "np.sum(x.shape)", "np.mean(x.shape)", "np.maximum(rank,3)", "np.minimum(n,2)",
    "np.clip(n,0,2)", "np.add(n,1)", "np.where(rank==0,1,2)", "np.interp(rank,[0,1],[1,2])", "rank==0", "n>2",
    "1.0/n", "0.1*n", "1/n", "n/2", "rank/2", "rank*0.1", "numpy.float64(.1)*n", "numpy.float32(.1)*rank",
    "numpy.int64(2)*n", "n//2", "-n", "n%2", "n**2", "2**n", "n-1", "3-n", "n+n", "n+rank", "(rank==0)*2",
    "(rank+1)*0.1", "sum(x.shape)", "abs(rank-1)", "mesh.place[0]", "mesh.ranks.rank", "cc.world().rank",
    'mesh.axis("dp").group.rank', 'mesh.axis("dp").rank', "math.floor(n/2)*1.0", "np.array(n)", "np.array(n,float)",
    "np.asarray(rank)", "np.copy(n)", "np.array(rank==0)",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_number_that_differs_between_ranks_stays_one(mesh: cc.Mesh, expression: str) -> None:
    x = sharded()
    words = {"x": x, "n": x.shape[0], "rank": mesh.axis("dp").rank, "mesh": mesh, "np": np, "numpy": numpy}
    value = eval(expression, {**words, "math": math, "cc": cc})
    assert rank_axes(value), f"{expression} is the plain {type(value).__name__} {value}"
    r, i = ag.tensor(numpy.ones(2), {"dp": R}), ag.tensor(numpy.ones(2), {"dp": I})
    with pytest.raises(ag.LayoutError, match="axis 'dp'"):
        i * value
    if has_local_count(value):
        for use in (lambda: r * value, lambda: value * r, lambda: numpy.multiply(value, r), lambda: r / value):
            with pytest.raises(ag.LayoutError, match=r"local extent.*r? is R"):
                use()
        return
    assert (r * value).layout == (value * r).layout == {"dp": V}
    assert numpy.multiply(value, r).layout == {"dp": V}
    with pytest.raises(ag.LayoutError, match="same on every rank"):
        ag.tensor(1.0, {"dp": P}) / value


@pytest.mark.parametrize("expression", [
    "np.array([n, n])", "np.array([n], float)", "np.asarray([[1, n]])", "np.stack([n, n])", "np.atleast_1d(n)",
    "np.repeat(n, 2)", "np.tile(n, 2)", "np.concatenate([[n], [n]])", "np.hstack([n, 1])", "np.vstack([n, n])",
    "np.append(n, 1)", "np.broadcast_to(n, (2,))", "np.ravel(n)", "np.reshape(n, (1, 1))", "np.cumsum([n, n])",
    "np.full(2, n)", "np.array(x.shape)",
])  # fmt: skip
def test_an_array_of_such_numbers_is_varying_on_their_axes(expression: str) -> None:
    """A plain array would be too, but its elements are plain numbers."""
    with cc.Mesh(dp=1, tp=1):
        x = ag.tensor(numpy.ones((3, 4)), {"dp": Shard(0)})
        made = eval(expression, {"np": np, "x": x, "n": x.shape[0]})
        assert dict(made.layout) == {"dp": V, "tp": ag.layouts.layout.C}, made
        with pytest.raises(ag.LayoutError, match="Partial .* does not mix with Varying"):
            ag.tensor(numpy.ones(()), {"dp": P, "tp": R}) / made.ravel()[0]


def test_arrays_that_are_computed_from_arrays_stay_plain(mesh: cc.Mesh) -> None:
    n, rows = sharded().shape[0], numpy.arange(6.0)
    for made in (np.reshape(rows, (n, 2)), np.repeat(rows, n), np.take(rows, [0, n])):
        assert type(made) is numpy.ndarray
    assert type(np.array([1, 2])) is numpy.ndarray


def test_the_way_out_is_explicit(mesh: cc.Mesh) -> None:
    rank, n = mesh.axis("dp").rank, sharded().shape[0]
    for value in (int(rank), float(rank), rank.item(), int(n), float(n), n.item(), (n / 2).item(), (rank == 0).item()):
        assert type(value) in (int, float, bool)


def test_rank_numbers_serve_as_python_numbers(mesh: cc.Mesh) -> None:
    rank, n = mesh.axis("dp").rank, sharded().shape[0]
    assert f"{rank} {rank:03d} {n} {n:>4} {rank == 0} {n / 2:.2f}" == "0 000 3    3 True 1.50" and format(n, "d") == "3"
    assert ["a", "b"][rank] == "a" and [1, 2, 3, 4][n] == 4 and list(range(n)) == [0, 1, 2] and "abc"[:n] == "abc"
    assert {0: "zero"}[rank] == "zero" and {3: "three"}[n] == "three" and {rank: 1}[0] == 1 and rank in (0, 1)
    assert rank == 0 and not rank != 0  # noqa: SIM202 - both operators are asked
    assert "ab" * n == "ababab" and [0] * n == [0, 0, 0]
    assert numpy.zeros((n, 2)).shape == (3, 2) and numpy.arange(5)[:n].tolist() == [0, 1, 2]
    assert numpy.random.default_rng(rank).random() == numpy.random.default_rng(0).random()
    assert isinstance(rank, int) and sharded().shape == (3, 4) and (n, 4) == (3, 4)
    for value in (rank, n, rank == 0, n / 2):
        again = pickle.loads(pickle.dumps(value))
        assert again == value and type(again) is type(value) and rank_axes(again) == {"dp"}


def test_each_kind_has_its_class(mesh: cc.Mesh) -> None:
    rank, n = mesh.axis("dp").rank, sharded().shape[0]
    assert type(rank + 1) is RankInt and type(rank == 0) is RankBool and type(rank / 2) is RankFloat
    assert type(n * 2) is LocalCount and type(n + rank) is type(rank * n) is LocalOffset and type(1.0 / n) is RankFloat


def test_the_rank_in_a_world_differs_on_every_axis() -> None:
    rank = cc.world().rank
    with cc.Mesh(dp=1, tp=1) as mesh:
        x = ag.tensor(numpy.ones(2), {"dp": R, "tp": R})
        assert (x * rank).layout == {"dp": V, "tp": V}
        assert (x * mesh.axis("tp").group.rank).layout == {"dp": R, "tp": V}
        assert (x * mesh.place[0]).layout == {"dp": V, "tp": R}
        assert x[rank:].layout == {"dp": V, "tp": V}


def test_the_length_of_a_sharded_tensor_is_refused(mesh: cc.Mesh) -> None:
    """len() gives a plain int, and on even parts no comparison between ranks could see a division by it."""
    x = sharded()
    with pytest.raises(ag.LayoutError, match=r"x.global_shape\[0\]"):
        len(x)
    with pytest.raises(ag.LayoutError, match="getitem"):  # a loop over its rows is refused, too
        next(iter(x))
    assert len(ag.tensor(numpy.ones((3, 4)), {"dp": Shard(1)})) == 3 == len(ag.tensor(numpy.ones(3), {"dp": V}))


FUNCTIONS = [
    "np.roll(q,k)", "np.roll(q,k,axis=0)", "np.repeat(q,k)", "np.tile(q,k)", "np.pad(q,k)", "np.take(q,k,axis=0)",
    "np.diff(q,n=k)", "np.trace(q,k)", "np.rot90(q,k)", "np.nan_to_num(q,nan=k)", "np.std(q,ddof=k-1)",
    "np.var(q,ddof=k-1)", "np.quantile(q,k)", "np.triu(q,k)", "np.clip(q,0,k)", "np.maximum(q,k)",
    "np.where(q>0,q,k)", "np.linalg.norm(q,k)", "np.linalg.matrix_power(q,k)", "np.full_like(q,k)",
    "np.stack([q[0,0],k])", "np.append(q,k)", "np.concatenate([q[0],[k]])", "np.array([q[0,0],k])",
    "np.outer(k,q[0])", "q[k:]", "q[:k]", "q**k", "np.full(2,k)", "np.arange(k)", "np.linspace(0,k,3)", "np.zeros(k)",
    "np.eye(3,k=k)", "np.ldexp(q,k)", "np.hypot(q,k)", "q.reshape(1,-1)[:,:k]",
]  # fmt: skip


@pytest.mark.parametrize("call", FUNCTIONS)
def test_a_function_with_such_an_argument_gives_a_varying_result_or_is_refused(mesh: cc.Mesh, call: str) -> None:
    values = numpy.ones((3, 3))
    for k in (mesh.axis("dp").rank + 1, ag.tensor(values[:1], {"dp": Shard(0)}).shape[0]):
        names = {"np": np, "k": k}
        if ":k]" in call and type(k) is LocalCount:  # see test_local_counts.py
            with pytest.raises(ag.LayoutError, match="would take the first elements"):
                eval(call, names, {"q": ag.tensor(values, {"dp": R})})
            continue
        assert eval(call, names, {"q": ag.tensor(values, {"dp": R})}).layout == {"dp": V}
        if "(q" in call or call.startswith("q"):
            with pytest.raises(ag.LayoutError):
                y = eval(call, names, {"q": ag.tensor(values, {"dp": I})})
                assert "full_like" in call and y.layout == {"dp": V}
                raise ag.LayoutError("a constant made in the shape of q only")


def test_hyperparameters_that_differ_between_ranks_are_refused(mesh: cc.Mesh) -> None:
    rank, w = mesh.axis("dp").rank, ag.Parameter(numpy.ones(2))
    with pytest.raises(ag.LayoutError, match="axis 'dp': lr differs between the ranks"):
        ag.optim.SGD([w], lr=(rank + 1) * 0.1)
    optimizer = ag.optim.Adam([w], lr=0.1, eps=(rank + 1) / 2)
    w.grad = ag.tensor(numpy.ones(2), {"dp": I})
    with pytest.raises(ag.LayoutError, match="eps differs between the ranks"):
        optimizer.step()
    x, key = ag.tensor(numpy.ones(4), {"dp": R}), ag.random.Key(0)
    for wrong in (
        lambda: ag.nn.dropout(x, (rank + 1) * 0.1),
        lambda: ag.random.Key(rank),
        lambda: ag.random.uniform(key, 3, high=rank + 1),
        lambda: ag.random.normal(key, 3, std=rank + 1),
        lambda: ag.random.bernoulli(key, 3, (rank + 1) / 2),
        lambda: ag.random.integers(key, 3, 0, rank + 2),
        lambda: cc.broadcast(x, "dp", root=rank),
        lambda: cc.reduce(ag.tensor(numpy.ones(4)), "dp", root=cc.world().rank),
    ):
        with pytest.raises(ag.LayoutError, match="differs between the ranks|depends on the rank"):
            wrong()


def test_draws_with_exchanged_arguments_raise_typed_errors() -> None:
    with pytest.raises(ag.errors.DtypeError, match=r"\(key, shape, p\): p must be one real number, got \(2, 3\)"):
        ag.random.bernoulli(ag.random.Key(0), 0.5, (2, 3))
    with pytest.raises(ag.errors.DtypeError, match="normal: key must be a Key, got 0.0"):
        ag.random.normal(0.0, 1.0)
    with pytest.raises(ag.errors.DtypeError, match="permutation: key must be a Key"):
        ag.random.permutation(5, 5)
