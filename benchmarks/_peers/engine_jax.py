"""The training step of `benchmarks/engine.py` in JAX, with the whole step compiled by one jit."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax
import jax.numpy as np
from engine_worker import MOMENTUM, RATE, Work, loss_only, problem, serve


def mlp(sizes: tuple[int, ...], mode: str) -> Work:
    given = problem(sizes)
    x, y, layers = np.asarray(given.x), np.asarray(given.y), len(given.weights)

    def objective(parameters: list[Any]) -> Any:
        h = x
        for i in range(layers):
            h = h if not i else jax.nn.relu(h)
            h = h @ parameters[i] + parameters[layers + i]
        return -np.mean(np.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1))

    @jax.jit
    def update(parameters: list[Any], velocities: list[Any]) -> Any:
        loss, gradients = jax.value_and_grad(objective)(parameters)
        velocities = [MOMENTUM * v + g for v, g in zip(velocities, gradients, strict=True)]
        return loss, [p - RATE * v for p, v in zip(parameters, velocities, strict=True)], velocities

    state = [list(map(np.asarray, [*given.weights, *given.biases]))]
    state.append([np.zeros_like(p) for p in state[0]])

    def step() -> Any:
        loss, state[0], state[1] = update(*state)
        return jax.block_until_ready(loss)

    return Work(step, loss_only)


serve(mlp=mlp)
