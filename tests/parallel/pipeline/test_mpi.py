"""Pipelines of processes under mpiexec, with small messages and with such that MPI sends by rendezvous."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import nn, random
from examples.gpt import Loss
from parallel.pipeline import SCHEDULES, Pipeline

from ...collectives.launch import launch_command
from .serial import assert_equal, make_layers, reference
from .test_exact import train

LARGE = 40_000  # rows of 8 numbers: 2.5 MB, far above the size up to which MPI sends eagerly


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_over_mpi(ranks: int) -> None:
    """All schedules in one job."""
    schedules = ",".join(SCHEDULES)
    found = launch_command(["-m", __name__, "equal", schedules], ranks, limit_s=100)
    assert found.code == 0, found.out + found.err
    assert found.out.count("equal") == ranks


@pytest.mark.parametrize("where", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_a_rank_that_raises_ends_the_job(where: str) -> None:
    found = launch_command(["-m", __name__, "fail", where], 3, limit_s=60)
    assert found.code != 0 and not found.is_late
    assert "on purpose" in found.err + found.out


def large() -> Any:
    random.seed(1)
    return [layer for _ in range(4) for layer in (nn.Linear(8, 8, dtype=float), nn.Tanh())]


def gradients_of_large(schedule: str) -> dict[str, Any]:
    model = Pipeline(large(), lambda y: (y * y).sum(), microbatches=3, schedule=schedule, costs=[1.0] * 8)
    x = np.random.default_rng(0).standard_normal((LARGE * 3, 8))
    for _ in range(2):
        model.zero_grad()
        loss = model.step(x, scale=1e-4)
    return {"loss": loss, **{name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}}


def equal(names: list[str]) -> None:
    expected, serial = gradients_of_large("1f1b"), {m: reference(m) for m in (1, 4)}
    with cc.Mesh(pp=-1) as mesh:
        for microbatches, (losses, first, last) in serial.items():
            for name in names:
                model = Pipeline(make_layers(), Loss(), schedule=name, microbatches=microbatches, seed=5)
                found = [train(model, 8, 2)]
                assert_equal(found, (losses, {k: first[k] for k in found[0][1]}, {k: last[k] for k in found[0][2]}))
        for name in names:
            ours = gradients_of_large(name)
            for key, g in ours.items():
                np.testing.assert_allclose(g, expected[key], rtol=1e-9, atol=1e-12, err_msg=key)
    print("equal", mesh.ranks.index)


def fail(where: str) -> None:
    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            if where == "forward" and cc.world().index == 1:
                raise ValueError("on purpose")
            return x * 1.0

    def loss(y: Any) -> Any:
        if where == "backward":
            raise ValueError("on purpose")
        return y.sum()

    with cc.Mesh(pp=-1):
        layers = [nn.Linear(8, 8, dtype=float), Failing(), nn.Linear(8, 8, dtype=float)]
        Pipeline(layers, loss, microbatches=4, costs=[1.0] * 3).step(np.ones((8, 8)))


if __name__ == "__main__":
    equal(sys.argv[2].split(",")) if sys.argv[1] == "equal" else fail(sys.argv[2])
