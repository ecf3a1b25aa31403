"""A GPT whose MLPs are mixtures of experts, trained on a mesh and on one process: gradients and the loss curve."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.whole import whole_of
from collectives import Shard
from examples.gpt import Block, Config, Embed, Head, Loss
from parallel import DataParallel, Experts, MixtureOfExperts, parallelize, side_losses

CONFIG = Config(vocabulary=11, width=8, heads=2, layers=2, dropout=0.2)
ROWS, LENGTH, STEPS = 12, 5, 4
TEXT = np.random.default_rng(0).integers(0, 11, (STEPS, ROWS, LENGTH + 1))


def model(capacity: float | None) -> nn.Sequential:
    key = random.Key(0, "gpt")
    embed = Embed(CONFIG, key.fold("embed"), float)
    blocks = []
    for i in range(CONFIG.layers):
        mlp = MixtureOfExperts(8, 16, 5, capacity=capacity, balance=0.1, dtype=float, key=key.fold(f"experts {i}"))
        blocks.append(Block(CONFIG, key.fold(f"block {i}"), float, mlp=mlp))
    return nn.Sequential(embed, *blocks, Head(CONFIG, embed.table, float))


def train(layers: nn.Sequential, run: Any, shared: Any, axes: Any = (), parts: int = 1) -> Any:
    """The losses, and the first gradients."""
    optimizer, losses, first = optim.AdamW(layers.parameters(), lr=0.01), [], {}
    tokens = ROWS * LENGTH
    for step, text in enumerate(TEXT):
        random.seed(step)
        optimizer.zero_grad()
        loss = 0.0
        with run.accumulate() if parts > 1 and axes else nullcontext():
            for rows in np.split(text, parts):
                with ag.Tape() as tape, side_losses() as side:
                    logits = run(shared(rows[:, :-1]))
                    total = (Loss()(logits, shared(rows[:, 1:])) + sum(side)) / tokens
                    total = cc.all_reduce(total, axes, to=cc.I) if axes else total
                tape.backward(total)
                loss += total.item()
        losses.append(loss)
        if not first:
            first = {n: whole_of(p.grad.array, p.layout, "", n) for n, p in layers.named_parameters()}
        optim.clip_grad_norm_(layers.parameters(), 0.5)
        optimizer.step()
    return losses, first


@cache
def serially(capacity: float | None, parts: int) -> Any:
    layers = model(capacity)
    return train(layers, layers, lambda a: a, parts=parts)


@pytest.mark.parametrize("capacity, parts, sizes, options", [
    (None, 1, {"dp": 2, "ep": 2}, {}),
    (0.8, 2, {"dp": 2, "ep": 3}, {}),
    (0.8, 1, {"ep": 2}, {"zero": 2}),
    pytest.param(0.8, 1, {"ep": 2, "dp": 2}, {"zero": 3}, marks=pytest.mark.slow),
    pytest.param(None, 3, {"dp": 2, "ep": 2}, {"bucket_bytes": 500}, marks=pytest.mark.slow),
])  # fmt: skip
def test_training_equals_one_process(capacity: Any, parts: int, sizes: dict[str, int], options: dict[str, Any]) -> None:
    def program() -> Any:
        with cc.Mesh(**sizes) as mesh:
            layers = parallelize(model(capacity), {"*.mlp": Experts("ep")})
            on, labels = mesh.axis(mesh.names), dict.fromkeys(mesh.names, Shard(0))

            def shared(a: Any) -> Any:
                return cc.from_local(np.array_split(a, on.size)[int(on.rank)], labels)

            return train(layers, DataParallel(layers, mesh.names, **options), shared, mesh.names, parts)

    losses, gradients = serially(capacity, parts)
    assert losses[-1] < losses[0]
    for ours, theirs in cc.run(program, int(np.prod(list(sizes.values())))):
        np.testing.assert_allclose(ours, losses, rtol=1e-9)
        for name, g in gradients.items():
            assert np.linalg.norm(theirs[name] - g) <= 1e-10 * max(np.linalg.norm(g), 1e-6), name
