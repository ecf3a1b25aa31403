"""Every schedule against the same microbatches on one process: loss, gradients, clipping and optimizer, in float64."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

import collectives as cc
from autograd import optim
from examples.gpt import Loss
from parallel.pipeline import SCHEDULES, Pipeline

from .serial import assert_equal, batch, gradients, make_layers, reference

slow = pytest.mark.slow


def train(model: Any, rows: int, steps: int) -> Any:
    optimizer, losses, first = optim.AdamW(model.parameters(), lr=0.01), [], {}
    for step in range(steps):
        x, y = batch(rows, step)
        optimizer.zero_grad()
        losses.append(model.step(x, y, scale=1.0 / x.size))
        first = first or gradients(model)
        optim.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return losses, first, {name: p.numpy().copy() for name, p in model.named_parameters()}


def run(ranks: int, microbatches: int, schedule: Any, rows: int = 8, steps: int = 2) -> Any:
    """Train on some ranks; 0: one process without a mesh."""

    def program() -> Any:
        with cc.Mesh(pp=ranks) if ranks else nullcontext():
            model = Pipeline(make_layers(), Loss(), schedule=schedule, microbatches=microbatches, seed=5)
            return train(model, rows, steps)

    return cc.run(program, max(1, ranks))


CASES = [(2, 3), (3, 4), (4, 2)]
MORE = [(p, m) for p in (0, 1, 2, 3, 4) for m in range(1, 9) if (p, m) not in CASES]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("ranks", "microbatches"), [*CASES, *(pytest.param(*c, marks=slow) for c in MORE)])
def test_equals_one_process(ranks: int, microbatches: int, schedule: str) -> None:
    assert_equal(run(ranks, microbatches, schedule), reference(microbatches))
