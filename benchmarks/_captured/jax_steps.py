"""The programs of `benchmarks/captured.py` in JAX: each step, with its update, is compiled by one `jax.jit`.

A recurrence is a `jax.lax.scan`, which JAX compiles once rather than for each step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as np
import numpy

from .problems import GRID, HEADS, MOMENTUM, PROBLEMS, Problem, problem

__all__ = ["step", "version"]

Parameters = dict[str, Any]
version = f"jax {jax.__version__}"


def step(name: str) -> Callable[[int], Any]:
    """The step of a program, from its initial state; ``step(i)`` takes the i-th batch and returns the loss."""
    of = problem(name)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # a second thread would share the work
    jax.config.update("jax_enable_x64", of.dtype == numpy.float64)
    batches = [tuple(map(np.asarray, batch)) for batch in of.batches]
    parameters = {name: np.array(a) for name, a in of.parameters.items()}
    kinds = {"sgd": 0, "momentum": 1, "adam": 2}[of.optimizer]
    moments = tuple(jax.tree.map(np.zeros_like, parameters) for _ in range(kinds))
    key = (jax.random.key(0),) if of.is_random else ()
    held: list[Any] = [(parameters, moments, 0, *key)]
    differentiate = private if name == "private" else jax.value_and_grad(LOSSES[name])

    @partial(jax.jit, donate_argnums=0)
    def update(state: Any, *batch: Any) -> Any:
        parameters, moments, steps, *key = state
        if key:
            key, drawn = jax.random.split(key[0])
            key, batch = (key,), (*batch, drawn)
        loss, gradients = differentiate(parameters, *batch)
        parameters, moments = updated(of, parameters, moments, gradients, steps + 1)
        return (parameters, moments, steps + 1, *key), loss

    def run(i: int) -> Any:
        held[0], loss = update(held[0], *batches[i % len(batches)])
        return jax.block_until_ready(loss)

    return run


def updated(of: Problem, parameters: Any, moments: Any, gradients: Any, steps: Any) -> tuple[Any, Any]:
    """The parameters after a step of the optimizer, and its moments."""
    if of.optimizer == "sgd":
        return jax.tree.map(lambda p, g: p - of.rate * g, parameters, gradients), moments
    if of.optimizer == "momentum":
        velocities = jax.tree.map(lambda v, g: MOMENTUM * v + g, *moments, gradients)
        return jax.tree.map(lambda p, v: p - of.rate * v, parameters, velocities), (velocities,)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
    of_first, of_second = of.rate / (1 - 0.9**steps), 1 / (1 - 0.999**steps)

    def moved(p: Any, m: Any, v: Any) -> Any:
        return (p - of_first * m / (np.sqrt(v * of_second) + 1e-8)).astype(p.dtype)

    return jax.tree.map(moved, parameters, first, second), (first, second)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over the rows."""
    return -np.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


gelu = partial(jax.nn.gelu, approximate=False)


# -- networks ----------------------------------------------------------------------------------------------------------
def mlp(activation: Callable[[Any], Any], p: Parameters, x: Any, y: Any) -> Any:
    h = activation(x @ p["w0"] + p["b0"])
    h = activation(h @ p["w1"] + p["b1"])
    return cross_entropy(h @ p["w2"] + p["b2"], y)


def logistic(p: Parameters, x: Any, y: Any) -> Any:
    return np.log1p(np.exp(-y * (x @ p["w"] + p["b"]))).mean() + 1e-4 * (p["w"] * p["w"]).sum()


def cnn(p: Parameters, x: Any, y: Any) -> Any:
    def layer(h: Any, kernel: Any, bias: Any) -> Any:
        h = jax.nn.relu(jax.lax.conv_general_dilated(h, kernel, (1, 1), "VALID") + bias[:, None, None])
        return jax.lax.reduce_window(h, -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    h = layer(layer(x, p["kernel0"], p["bias0"]), p["kernel1"], p["bias1"])
    return cross_entropy(h.reshape(len(x), -1) @ p["w"] + p["b"], y)


def lstm(p: Parameters, x: Any, y: Any) -> Any:
    n = p["of_h"].shape[0]

    def cell(state: Any, x: Any) -> Any:
        h, c = state
        g = x @ p["of_x"] + h @ p["of_h"] + p["bias"]
        enters, forgets = jax.nn.sigmoid(g[:, :n]), jax.nn.sigmoid(g[:, n : 2 * n])
        leaves, new = jax.nn.sigmoid(g[:, 2 * n : 3 * n]), np.tanh(g[:, 3 * n :])
        c = forgets * c + enters * new
        return (leaves * np.tanh(c), c), None

    zero = np.zeros((len(x), n), x.dtype)
    (h, _), _ = jax.lax.scan(cell, (zero, zero), x.swapaxes(0, 1))
    return cross_entropy(h @ p["w"] + p["b"], y)


def gru(p: Parameters, x: Any, y: Any) -> Any:
    n = p["of_h"].shape[0]

    def cell(h: Any, x: Any) -> Any:
        g = jax.nn.sigmoid(x @ p["of_x"] + h @ p["of_h"] + p["bias"])
        resets, keeps = g[:, :n], g[:, n:]
        new = np.tanh(x @ p["new_of_x"] + (resets * h) @ p["new_of_h"] + p["new_bias"])
        return keeps * h + (1 - keeps) * new, None

    h, _ = jax.lax.scan(cell, np.zeros((len(x), n), x.dtype), x.swapaxes(0, 1))
    return cross_entropy(h @ p["w"] + p["b"], y)


def layer_norm(x: Any, gain: Any, shift: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * gain + shift


def gpt(layers: int, p: Parameters, text: Any, y: Any) -> Any:
    rows, tokens = text.shape
    h = p["tokens"][text] + p["places"]
    for k in range(layers):
        a = layer_norm(h, p[f"{k}.gain0"], p[f"{k}.shift0"]) @ p[f"{k}.qkv"] + p[f"{k}.qkv_bias"]
        q, keys, values = (part.reshape(rows, tokens, HEADS, -1) for part in np.split(a, 3, -1))
        a = jax.nn.dot_product_attention(q, keys, values, is_causal=True).reshape(h.shape)
        h = h + a @ p[f"{k}.out"] + p[f"{k}.out_bias"]
        a = layer_norm(h, p[f"{k}.gain1"], p[f"{k}.shift1"]) @ p[f"{k}.up"] + p[f"{k}.up_bias"]
        h = h + gelu(a) @ p[f"{k}.down"] + p[f"{k}.down_bias"]
    h = layer_norm(h, p["gain"], p["shift"])
    return cross_entropy(h.reshape(rows * tokens, -1) @ p["tokens"].T, y)


def norm_gelu(p: Parameters, x: Any, y: Any) -> Any:
    h = x
    for k in range(3):
        h = h + gelu(layer_norm(h, p[f"gain{k}"], p[f"shift{k}"]) @ p[f"w{k}"] + p[f"b{k}"])
    return cross_entropy(h @ p["w"] + p["b"], y)


def vae(p: Parameters, x: Any, key: Any) -> Any:
    h = jax.nn.relu(x @ p["enter"] + p["enter_bias"])
    mean, spread = h @ p["mean"] + p["mean_bias"], h @ p["spread"] + p["spread_bias"]
    z = mean + np.exp(0.5 * spread) * jax.random.normal(key, mean.shape)
    o = jax.nn.relu(z @ p["leave"] + p["leave_bias"]) @ p["pixels"] + p["pixels_bias"]
    of_pixels = (np.maximum(o, 0) - o * x + np.log1p(np.exp(-np.abs(o)))).sum()
    return (of_pixels - 0.5 * (1 + spread - mean * mean - np.exp(spread)).sum()) / len(x)


def mixture_density(p: Parameters, x: Any, y: Any) -> Any:
    o = np.tanh(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]
    heights, means, spreads = o[:, :5], o[:, 5:10], o[:, 10:]
    of_each = jax.nn.log_softmax(heights) - spreads - 0.5 * ((y - means) * np.exp(-spreads)) ** 2
    return -jax.nn.logsumexp(of_each, axis=1).mean()


def graph(p: Parameters, x: Any, edges: Any, y: Any) -> Any:
    h = jax.nn.relu(edges @ (x @ p["w0"]) + p["b0"])
    return cross_entropy(edges @ (h @ p["w1"]) + p["b1"], y)


def private(p: Parameters, x: Any, y: Any) -> Any:
    def of_one(p: Parameters, x: Any, y: Any) -> Any:
        return -jax.nn.log_softmax(jax.nn.relu(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])[y]

    losses, gradients = jax.vmap(jax.value_and_grad(of_one), (None, 0, 0))(p, x, y)
    squares = sum((g * g).reshape(len(x), -1).sum(1) for g in gradients.values())
    factors = np.minimum(1, 1 / np.sqrt(squares)) / len(x)
    return losses.mean(), {name: np.tensordot(factors, g, 1) for name, g in gradients.items()}


# -- tables of embeddings ----------------------------------------------------------------------------------------------
def factorization(p: Parameters, users: Any, films: Any, ratings: Any) -> Any:
    error = (p["users"][users] * p["films"][films]).sum(1) - ratings
    return (error * error).mean()


def word2vec(p: Parameters, words: Any, contexts: Any, others: Any) -> Any:
    of_words = p["words"][words]
    near = (of_words * p["contexts"][contexts]).sum(1)
    far = (of_words[:, None] * p["contexts"][others]).sum(2)
    return jax.nn.softplus(-near).mean() + jax.nn.softplus(far).sum(1).mean()


# -- differential equations, filters -----------------------------------------------------------------------------------
def pinn(p: Parameters, x: Any) -> Any:
    def u(x: Any) -> Any:
        h = np.tanh(np.tanh(x @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])
        return (h @ p["w2"] + p["b2"]).sum()

    second = jax.grad(lambda x: jax.grad(u)(x).sum())(x)
    return ((second + np.sin(x)) ** 2).mean()


def neural_ode(p: Parameters, start: Any, end: Any) -> Any:
    def slope(y: Any) -> Any:
        return np.tanh(y @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"]

    def move(y: Any, _: Any) -> Any:
        k1 = slope(y)
        k2 = slope(y + GRID / 2 * k1)
        k3 = slope(y + GRID / 2 * k2)
        k4 = slope(y + GRID * k3)
        return y + GRID / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    y, _ = jax.lax.scan(move, start, None, length=10)
    return ((y - end) ** 2).mean()


def lotka(p: Parameters, seen: Any) -> Any:
    def move(state: Any, seen: Any) -> Any:
        prey, hunters, loss = state
        of_prey = p["growth"] * prey - p["eaten"] * prey * hunters
        of_hunters = p["fed"] * prey * hunters - p["death"] * hunters
        prey, hunters = prey + 0.05 * of_prey, hunters + 0.05 * of_hunters
        return (prey, hunters, loss + (prey - seen[0]) ** 2 + (hunters - seen[1]) ** 2), None

    (_, _, loss), _ = jax.lax.scan(move, (np.array([1.0]), np.array([0.5]), np.array([0.0])), seen)
    return loss.sum()


def leapfrog(p: Parameters, place: Any, speed: Any, end: Any) -> Any:
    def move(state: Any, _: Any) -> Any:
        place, speed = state
        speed = speed - GRID / 2 * (place @ p["spring"])
        place = place + GRID * speed
        return (place, speed - GRID / 2 * (place @ p["spring"])), None

    (place, _), _ = jax.lax.scan(move, (place, speed), None, length=20)
    return ((place - end) ** 2).sum()


def wave(p: Parameters, start: Any, end: Any) -> Any:
    def move(state: Any, _: Any) -> Any:
        u, before = state
        curvature = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u
        return (2 * u - before + GRID * (p["speed"] * p["speed"]) * curvature, u), None

    (u, _), _ = jax.lax.scan(move, (start, start), None, length=20)
    return ((u - end) ** 2).sum()


def gaussian_process(p: Parameters, squares: Any, y: Any) -> Any:
    kernel = np.exp(p["height"]) * np.exp(-0.5 * squares * np.exp(p["length"])) + np.exp(p["noise"]) * np.eye(len(y))
    root = np.linalg.cholesky(kernel)
    a = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    return 0.5 * (a * a).sum() + np.log(np.diagonal(root)).sum()


def kalman(p: Parameters, seen: Any) -> Any:
    motion, eye, look = p["motion"], np.eye(2), np.array([[1.0, 0.0]])

    def move(state: Any, seen: Any) -> Any:
        mean, spread, loss = state
        mean = motion @ mean
        spread = motion @ spread @ motion.T + np.exp(p["log_q"]) * eye
        error = seen - look @ mean
        of_error = look @ spread @ look.T + np.exp(p["log_r"])
        gain = spread @ look.T / of_error
        loss = loss + (np.log(of_error) + error * error / of_error).sum()
        return (mean + gain @ error, spread - gain @ look @ spread, loss), None

    (_, _, loss), _ = jax.lax.scan(move, (np.zeros((2, 1)), eye, 0.0), seen)
    return loss


def relu(h: Any) -> Any:
    return np.maximum(h, 0)


LOSSES: dict[str, Callable[..., Any]] = {
    "mlp-linear-sgd": partial(mlp, jax.nn.relu),
    "mlp-linear-adam": partial(mlp, jax.nn.relu),
    "mlp-maximum-sgd": partial(mlp, relu),
    "mlp-maximum-adam": partial(mlp, relu),
    "mlp-tanh-sgd": partial(mlp, np.tanh),
    "mlp-gelu-sgd": partial(mlp, gelu),
    "logistic": logistic,
    "cnn": cnn,
    "lstm": lstm,
    "gru": gru,
    "block": partial(gpt, 1),
    "char-gpt": partial(gpt, 2),
    "norm-gelu": norm_gelu,
    "vae": vae,
    "pinn": pinn,
    "neural-ode": neural_ode,
    "lotka": lotka,
    "leapfrog": leapfrog,
    "factorization": factorization,
    "gaussian-process": gaussian_process,
    "mixture-density": mixture_density,
    "kalman": kalman,
    "word2vec": word2vec,
    "graph": graph,
    "wave": wave,
    "private": private,
}
assert LOSSES.keys() == PROBLEMS.keys()
