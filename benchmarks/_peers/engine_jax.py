"""The steps of `benchmarks/engine.py` in JAX, each compiled by one jit."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax
import jax.numpy as np
from engine_worker import MOMENTUM, RATE, Work, block, images, loss_only, norm, problem, serve


def mlp(sizes: tuple[int, ...], mode: str) -> Work:
    given = problem(sizes)
    x, y, layers = np.asarray(given.x), np.asarray(given.y), len(given.weights)

    def objective(parameters: list[Any]) -> Any:
        h = x
        for i in range(layers):
            h = h if not i else jax.nn.relu(h)
            h = h @ parameters[i] + parameters[layers + i]
        return -np.mean(np.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1))

    return training(objective, list(map(np.asarray, [*given.weights, *given.biases])))


def training(objective: Any, parameters: Any) -> Work:
    """Steps of SGD with momentum."""

    @jax.jit
    def update(parameters: Any, velocities: Any) -> Any:
        loss, gradients = jax.value_and_grad(objective)(parameters)
        velocities = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocities, gradients)
        return loss, jax.tree.map(lambda p, v: p - RATE * v, parameters, velocities), velocities

    state = [parameters, jax.tree.map(np.zeros_like, parameters)]

    def step() -> Any:
        loss, state[0], state[1] = update(*state)
        return jax.block_until_ready(loss)

    return Work(step, loss_only)


def cnn(sizes: tuple[int, ...], mode: str) -> Work:
    array, labels, arrays = images(sizes)
    x, y = np.asarray(array), np.asarray(labels)

    def layer(h: Any, weight: Any, bias: Any) -> Any:
        h = jax.nn.relu(jax.lax.conv_general_dilated(h, weight, (1, 1), "SAME") + bias[:, None, None])
        return jax.lax.reduce_window(h, -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def objective(p: Any) -> Any:
        h = layer(layer(x, p["0.weight"], p["0.bias"]), p["1.weight"], p["1.bias"])
        logits = h.reshape(len(x), -1) @ p["2.weight"] + p["2.bias"]
        return -np.mean(np.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

    return training(objective, {name: np.asarray(a) for name, a in arrays.items()})


def gpt(sizes: tuple[int, ...], mode: str) -> Work:
    batch, tokens, width, heads = sizes
    x, ct, arrays = block(sizes)

    def normed(h: Any, weight: Any, bias: Any) -> Any:
        mean = h.mean(-1, keepdims=True)
        return (h - mean) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5) * weight + bias

    def layer(x: Any, p: Any) -> Any:
        h = normed(x, p["ln1.weight"], p["ln1.bias"]) @ p["qkv.weight"] + p["qkv.bias"]
        q, k, v = (part.reshape(batch, tokens, heads, -1) for part in np.split(h, 3, -1))
        h = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        y = x + h @ p["out.weight"] + p["out.bias"]
        h = normed(y, p["ln2.weight"], p["ln2.bias"]) @ p["up.weight"] + p["up.bias"]
        return y + jax.nn.gelu(h, approximate=True) @ p["down.weight"] + p["down.bias"]

    @jax.jit
    def both(x: Any, p: Any, ct: Any) -> Any:
        y, pull = jax.vjp(layer, x, p)
        return y, *pull(ct)

    given = tuple(map(np.asarray, (x, ct)))
    parameters = {name: np.asarray(a) for name, a in arrays.items()}

    def step() -> Any:
        return jax.block_until_ready(both(given[0], parameters, given[1]))

    def look(found: Any) -> dict[str, float]:
        y, of_x, of_p = found
        return {"output": norm(y), "x": norm(of_x)} | {name: norm(g) for name, g in of_p.items()}

    return Work(step, look)


serve(mlp=mlp, cnn=cnn, gpt=gpt)
