"""Rows of real bugs of distributed gradients, where a pipeline could have them.

A law makes them impossible (W), or the boundary at clipping and optimizer (B), or the comparison of calls (C).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CollectiveMismatch, LayoutError
from parallel.pipeline import Pipeline, layer_state

X = np.random.default_rng(0).normal(size=(11, 4))


def layers() -> list[nn.Module]:
    random.seed(2)
    return [nn.Linear(4, 4, dtype=float), nn.Tanh(), nn.Linear(4, 4, dtype=float)]


def square(y: Any) -> Any:
    return (y * y).sum()


def run(program: Any, ranks: int = 2) -> list[Any]:
    return cc.run(program, ranks)


def test_row_25_accumulation_is_no_moving_average() -> None:
    """torchtitan#1733: the sum was divided by the number of microbatches. The gradient does not depend on it."""

    def program(m: int) -> Any:
        with cc.Mesh(pp=2):
            model = Pipeline(layers(), square, microbatches=m)
            model.step(X, scale=1.0 / len(X))
            return [p.grad.numpy() for p in model.parameters()]

    for m in (3, 11):
        for ours, expected in zip(cc.run(program, 2, m), cc.run(program, 2, 1), strict=True):
            for g, h in zip(ours, expected, strict=True):
                np.testing.assert_allclose(g, h, rtol=1e-12)


def test_row_27_unequal_microbatches_count_by_their_rows() -> None:
    """transformers#34242: the mean of the means of microbatches of 3, 3, 3 and 2 rows is not the mean."""

    def program() -> Any:
        with cc.Mesh(pp=2):
            model = Pipeline(layers(), square, microbatches=4)
            return model.step(X, scale=1.0 / len(X)) / len(X), [p.grad.numpy() for p in model.parameters()]

    whole = nn.Sequential(*layers())
    with ag.Tape() as tape:
        loss = (whole(ag.tensor(X)) ** 2).sum() / len(X)
    tape.backward(loss)
    found = run(program)
    grads = [g for _, of in found for g in of]
    assert found[0][0] == found[1][0] == pytest.approx(float(loss), rel=1e-12)
    for g, p in zip(grads, whole.parameters(), strict=True):
        np.testing.assert_allclose(g, p.grad.numpy(), rtol=1e-11)  # type: ignore[union-attr]


def test_row_28_the_norm_counts_a_tied_parameter_once() -> None:
    """NeMo RL#3788: copies entered the sum of squares on every rank."""

    class Tied(nn.Module):
        def __init__(self, table: ag.Parameter):
            self.table = table

        def forward(self, x: Any) -> Any:
            return x @ self.table

    def make() -> list[nn.Module]:
        table = ag.Parameter(np.random.default_rng(3).normal(size=(4, 4)))
        return [Tied(table), nn.Tanh(), Tied(table), Tied(table)]

    def program() -> Any:
        with cc.Mesh(pp=3):
            model = Pipeline(make(), square, microbatches=2, costs=[1.0, 0.0, 1.0, 1.0])
            model.step(X)
            return optim.clip_grad_norm_(model.parameters(), 1e9), len(model.parameters())

    serial = nn.Sequential(*make())
    with ag.Tape() as tape:
        loss = square(serial(ag.tensor(X)))
    tape.backward(loss)
    expected = optim.clip_grad_norm_(serial.parameters(), 1e9)
    assert [n for _, n in run(program, 3)] == [1, 0, 0]
    assert all(norm == pytest.approx(expected, rel=1e-12) for norm, _ in run(program, 3))


def test_row_34_masks_differ_between_stages_and_microbatches() -> None:
    """transformers#31412: the same dropout mask where the data differ."""
    masks: dict[tuple[int, int], Any] = {}
    for i in range(2):
        for index in range(3):
            with layer_state(0, 0, i, index):
                masks[i, index] = nn.dropout(np.ones(50), 0.5)
    found = list(masks.values())
    assert not any((a == b).all() for k, a in enumerate(found) for b in found[:k])

    class Own(nn.Module):  # a key of the user, which is the same on all stages
        def forward(self, x: Any) -> Any:
            return nn.dropout(x, 0.5, key=random.Key(1, "mask"))

    def program() -> Any:
        with cc.Mesh(pp=2):
            Pipeline([*layers(), Own()], square, microbatches=1).step(X)

    with pytest.raises(LayoutError, match="one key gives them all the same random"):
        run(program)


def test_row_39_different_numbers_of_batches() -> None:
    """horovod#832: ranks that make different numbers of steps."""

    def program() -> Any:
        with cc.Mesh(pp=2) as mesh:
            model = Pipeline(layers(), square, microbatches=2)
            for _ in range(1 + int(mesh.axis("pp").rank)):
                model.step(X)

    with pytest.raises((CollectiveMismatch, cc.DeadlockError)):
        run(program)


def test_row_41_an_unused_parameter_keeps_no_gradient() -> None:
    """pytorch#28883: it is None and not zero, so that momentum does not move it, also of a tied one."""

    class Unused(nn.Module):
        def __init__(self, table: ag.Parameter):
            self.inner, self.table = nn.Linear(4, 4, dtype=float), table

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    def program() -> Any:
        table = ag.Parameter(np.ones(3))
        with cc.Mesh(pp=2):
            model = Pipeline([Unused(table), Unused(table)], square, microbatches=2, schedule="zb-h1")
            model.step(X)
            return [name for name, p in model.named_parameters() if p.grad is None]

    assert run(program) == [["0.table"], []]


def test_row_13_the_objective_is_seeded_once() -> None:
    """jax#3970: a Replicated objective would count once for each rank of its axis."""

    def program() -> Any:
        with cc.Mesh(dp=2, pp=1) as mesh:
            loss = lambda y: cc.all_reduce(square(y), "dp", to=cc.R)
            x = cc.from_local(X * (1 + int(mesh.axis("dp").rank)), {"dp": cc.Shard(0), "pp": cc.V})
            Pipeline(layers(), loss, microbatches=1, data="dp").step(x)

    with pytest.raises(LayoutError, match="the objective is Replicated"):
        run(program)
