"""The serial reference of the tests: the same microbatches one after another, without `Pipeline`, in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import autograd as ag
from autograd import nn, optim, random
from examples.gpt import Config, Loss, gpt
from parallel.pipeline import layer_state

VOCABULARY, TOKENS = 7, 5


def make_layers(blocks: int = 6, dropout: float = 0.3) -> nn.Sequential:
    """A GPT whose embedding and head are tied: `blocks` + 2 layers."""
    config = Config(VOCABULARY, width=8, heads=2, layers=blocks, dropout=dropout)
    return gpt(config, random.Key(3, "model"), dtype=np.float64)


def batch(rows: int, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 + step)
    return rng.integers(0, VOCABULARY, (rows, TOKENS)), rng.integers(0, VOCABULARY, (rows, TOKENS))


def forward(layers: Any, loss: Any, x: Any, y: Any, step: int, i: int, seed: int = 5) -> Any:
    for index, layer in enumerate(layers):
        with layer_state(seed, step, i, index):
            x = layer(x)
    with layer_state(seed, step, i, len(layers)):
        return loss(x, y)


def gradients(model: Any) -> dict[str, Any]:
    return {name: None if p.grad is None else p.grad.numpy().copy() for name, p in model.named_parameters()}


def train(layers: Any, loss: Any, microbatches: int, rows: int, steps: int, of: Any = batch) -> Any:
    """The losses, the gradients of the first step, and the parameters at the end."""
    optimizer, losses, first = optim.AdamW(layers.parameters(), lr=0.01), [], {}
    for step in range(steps):
        x, y = of(rows, step)
        optimizer.zero_grad()
        total = 0.0
        for i, (a, b) in enumerate(zip(np.array_split(x, microbatches), np.array_split(y, microbatches), strict=True)):
            with ag.Tape() as tape:
                value = forward(layers, loss, ag.tensor(a), ag.tensor(b), step, i)
            tape.backward([value], [1.0 / x.size])
            total += float(value.array)
        losses.append(total)
        first = first or gradients(layers)
        optim.clip_grad_norm_(layers.parameters(), 0.5)
        optimizer.step()
    return losses, first, {name: p.numpy().copy() for name, p in layers.named_parameters()}


@cache
def reference(microbatches: int, rows: int = 8, steps: int = 2, blocks: int = 6, dropout: float = 0.3) -> Any:
    return train(make_layers(blocks, dropout), Loss(), microbatches, rows, steps)


def assert_equal(found: list[Any], expected: Any, tolerance: float = 1e-10) -> None:
    """Compare (losses, gradients, parameters) of all ranks with the serial ones: each parameter is on one rank."""
    losses, gradients, parameters = expected
    names: list[str] = []
    for ours, g, p in found:
        np.testing.assert_allclose(ours, losses, rtol=1e-12)
        names += g
        for name, value in g.items():
            expect = gradients[name]
            if expect is None or value is None:
                assert expect is None and value is None, name
                continue
            error = np.linalg.norm(value - expect)
            assert error <= tolerance * max(np.linalg.norm(expect), 1e-6), (name, error)
        for name, value in p.items():
            assert np.linalg.norm(value - parameters[name]) <= tolerance * np.linalg.norm(parameters[name]), name
    assert sorted(names) == sorted(gradients)
