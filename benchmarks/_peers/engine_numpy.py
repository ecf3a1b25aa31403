"""The training step of `benchmarks/engine.py` in NumPy with derivatives by hand: a bound for engines on NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from engine_worker import BATCH, MOMENTUM, RATE, Work, loss_only, problem, serve


def mlp(sizes: tuple[int, ...], mode: str) -> Work:
    given = problem(sizes)
    x, y, weights, biases = given.x, given.y, given.weights, given.biases
    parameters = weights + biases
    velocities = [np.zeros_like(p) for p in parameters]
    rows = np.arange(BATCH)
    rate, scale = np.float32(RATE), np.float32(1 / BATCH)

    def step() -> Any:
        inputs, h = [], x
        for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
            if i:
                h = np.maximum(h, 0, out=h)
            inputs.append(h)
            h = h @ w
            h += b
        h -= h.max(axis=1, keepdims=True)
        picked = h[rows, y]
        exp = np.exp(h, out=h)
        total = exp.sum(axis=1, keepdims=True)
        loss = (np.log(total).sum() - picked.sum()) * scale
        exp /= total
        exp[rows, y] -= 1
        exp *= scale
        ct = exp
        weight_gradients, bias_gradients = [], []
        for i in range(len(weights) - 1, -1, -1):
            weight_gradients.append(inputs[i].T @ ct)
            bias_gradients.append(ct.sum(axis=0))
            if i:
                ct = ct @ weights[i].T
                ct *= inputs[i] > 0
        gradients = weight_gradients[::-1] + bias_gradients[::-1]
        for p, v, g in zip(parameters, velocities, gradients, strict=True):
            v *= MOMENTUM
            v += g
            p -= rate * v
        return loss

    return Work(step, loss_only)


serve(mlp=mlp)
