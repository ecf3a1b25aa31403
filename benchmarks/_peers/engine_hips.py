"""The training step of `benchmarks/engine.py` in HIPS autograd, as a loss function of the parameters."""

from __future__ import annotations

from typing import Any

import numpy
from engine_worker import BATCH, MOMENTUM, RATE, Work, loss_only, problem, serve

import autograd
import autograd.numpy as np

assert "grad" in vars(autograd) and not hasattr(autograd, "Tape"), "this must be HIPS autograd"


def mlp(sizes: tuple[int, ...], mode: str) -> Work:
    given = problem(sizes)
    x, y, layers = given.x, given.y, len(given.weights)
    parameters = [*given.weights, *given.biases]
    velocities = [numpy.zeros_like(p) for p in parameters]
    rows = numpy.arange(BATCH)

    def objective(parameters: list[Any]) -> Any:
        h = x
        for i in range(layers):
            h = h if not i else np.maximum(h, 0)
            h = np.dot(h, parameters[i]) + parameters[layers + i]
        h = h - np.max(h, axis=1, keepdims=True)
        return np.sum(np.log(np.sum(np.exp(h), axis=1)) - h[rows, y]) / BATCH

    both = autograd.value_and_grad(objective)
    rate = numpy.float32(RATE)

    def step() -> Any:
        loss, gradients = both(parameters)
        for p, v, g in zip(parameters, velocities, gradients, strict=True):
            v *= MOMENTUM
            v += g
            p -= rate * v
        return loss

    return Work(step, loss_only)


serve(mlp=mlp)
