"""One process of `benchmarks/train_gpt.py` in JAX: the model of `examples/gpt.py`, with the whole step in one jit."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

from typing import Any

import jax
import jax.numpy as np
from data_parallel_case import BETAS, CASES, EPS, RATE, RotaryGPT, Worker, arguments, batches, serve, use_core, weights

DECAY = 0.1


def norm(x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [rows, tokens, heads, width of a head]."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def cross_entropy(logits: Any, y: Any) -> Any:
    return -np.mean(np.take_along_axis(jax.nn.log_softmax(logits), y.reshape(-1)[:, None], 1))


def logits(p: Any, tokens: Any, case: RotaryGPT) -> Any:
    rates = 10000.0 ** (-np.arange(case.width // case.heads // 2) / (case.width // case.heads // 2))
    angles = (np.arange(case.context)[:, None] * rates)[:, None]
    cos, sin = np.cos(angles), np.sin(angles)
    h = p["0.table.weight"][tokens]
    for i in range(1, case.layers + 1):
        w = {name.partition(".")[2]: p[name] for name in p if name.startswith(f"{i}.")}
        z = norm(h, w["norm1.weight"], w["norm1.bias"]) @ w["qkv.weight"] + w["qkv.bias"]
        q, k, v = (part.reshape(*h.shape[:2], case.heads, -1) for part in np.split(z, 3, -1))
        z = attention(rotated(q, cos, sin), rotated(k, cos, sin), v).reshape(h.shape)
        h = h + z @ w["proj.weight"] + w["proj.bias"]
        z = norm(h, w["norm2.weight"], w["norm2.bias"]) @ w["mlp.up.weight"] + w["mlp.up.bias"]
        h = h + jax.nn.gelu(z, approximate=True) @ w["mlp.down.weight"] + w["mlp.down.bias"]
    last = case.layers + 1
    h = norm(h, p[f"{last}.norm.weight"], p[f"{last}.norm.bias"])
    return (h @ p["0.table.weight"].T).reshape(-1, case.vocabulary)


def adamw(p: Any, g: Any, m: Any, v: Any, count: Any, decay: float) -> tuple[Any, Any, Any]:
    """One step of AdamW on all parameters."""
    tree = jax.tree.map
    m = tree(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, m, g)
    v = tree(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, v, g)
    a, b = 1 - BETAS[0] ** count, 1 - BETAS[1] ** count
    p = tree(lambda p, m, v: p - RATE * (m / a / (np.sqrt(v / b) + EPS) + decay * p), p, m, v)
    return p, m, v


def build(args: Any) -> Worker:
    case = CASES[args.case]
    assert isinstance(case, RotaryGPT)
    use_core(args, 0)

    @jax.jit
    def update(p: Any, m: Any, v: Any, count: Any, x: Any, y: Any) -> Any:
        loss, g = jax.value_and_grad(lambda p: cross_entropy(logits(p, x, case), y))(p)
        return loss, *adamw(p, g, m, v, count, DECAY)

    data = [tuple(map(np.asarray, pair)) for pair in batches(case, 0)]
    p = {name: np.asarray(a) for name, a in weights(case).items()}
    state = [p, *({name: np.zeros_like(a) for name, a in p.items()} for _ in range(2))]

    def step(i: int) -> Any:
        loss, *state[:] = update(*state, np.float32(i + 1), *data[i % len(data)])
        return jax.block_until_ready(loss)

    return Worker(0, 1, f"jax {jax.__version__}, jit", step, float, lambda: None, {})


if __name__ == "__main__":
    given = arguments()
    serve(given, build(given))
