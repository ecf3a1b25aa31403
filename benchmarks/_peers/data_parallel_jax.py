"""One rank of `benchmarks/data_parallel.py` in JAX: shard_map over processes, with sums by gloo, in one jit."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import time
from typing import Any

import jax
import jax.numpy as np
import numpy
from data_parallel_case import CASES, GPT, MLP, Worker, arguments, batches, serve, use_core, weights
from jax.sharding import NamedSharding, PartitionSpec
from train_gpt_jax import adamw, attention, cross_entropy, norm


def mlp(p: Any, x: Any, case: MLP) -> Any:
    layers = len(case.widths) - 1
    for i in range(layers):
        x = x @ p[f"{i}.weight"] + p[f"{i}.bias"]
        x = jax.nn.relu(x) if i < layers - 1 else x
    return x


def gpt(p: Any, tokens: Any, case: GPT) -> Any:
    h = p["tokens"][tokens] + p["positions"]
    for i in range(case.layers):
        w = {name.partition(".")[2]: p[name] for name in p if name.startswith(f"{i}.")}
        z = norm(h, w["ln1.weight"], w["ln1.bias"]) @ w["qkv.weight"] + w["qkv.bias"]
        q, k, v = (part.reshape(*h.shape[:2], case.heads, -1) for part in np.split(z, 3, -1))
        h = h + attention(q, k, v).reshape(h.shape) @ w["out.weight"] + w["out.bias"]
        z = norm(h, w["ln2.weight"], w["ln2.bias"]) @ w["up.weight"] + w["up.bias"]
        h = h + jax.nn.gelu(z, approximate=True) @ w["down.weight"] + w["down.bias"]
    return (norm(h, p["ln.weight"], p["ln.bias"]) @ p["head.weight"]).reshape(-1, case.vocabulary)


def build(args: Any) -> Worker:
    case = CASES[args.case]
    assert isinstance(case, MLP | GPT)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    use_core(args, rank)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, size, rank)
    mesh = jax.make_mesh((size,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = PartitionSpec("dp"), PartitionSpec()
    model: Any = mlp if isinstance(case, MLP) else gpt

    def of_a_rank(p: Any, m: Any, v: Any, count: Any, x: Any, y: Any) -> Any:
        local = jax.lax.pcast(p, "dp", to="varying")
        loss, g = jax.value_and_grad(lambda p: cross_entropy(model(p, x, case), y))(local)
        loss, g = jax.lax.pmean((loss, g), "dp")
        return loss, *adamw(p, g, m, v, count, 0.0)

    update = jax.jit(jax.shard_map(
        of_a_rank, mesh=mesh, in_specs=(whole, whole, whole, whole, rows, rows), out_specs=(whole,) * 4,
    ))  # fmt: skip

    def on(spec: Any, a: Any) -> Any:
        return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), a)

    data = [tuple(on(rows, a) for a in pair) for pair in batches(case, rank)]
    p = {name: on(whole, a) for name, a in weights(case).items()}
    state = [p, *({name: on(whole, numpy.zeros_like(a)) for name, a in weights(case).items()} for _ in range(2))]

    def step(i: int) -> Any:
        loss, *state[:] = update(*state, np.float32(i + 1), *data[i % len(data)])
        return jax.block_until_ready(loss)

    def barrier() -> None:
        jax.experimental.multihost_utils.sync_global_devices("step")

    def profile(count: int) -> Any:
        """All of it is one call of the compiled step."""
        times = []
        for i in range(count):
            begin = time.perf_counter()
            step(i)
            times.append(time.perf_counter() - begin)
        return [0.0, float(numpy.median(times)), 0.0]

    return Worker(rank, size, f"jax {jax.__version__}, shard_map over gloo", step, float, barrier, {"profile": profile})


if __name__ == "__main__":
    given = arguments()
    import jax.experimental.multihost_utils

    serve(given, build(given))
