"""The sweep of JAX's `shard_map` on devices of one process: a line of JSON for each case, and one with its results.

    python shard_map_worker.py RANKS
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

RANKS = int(sys.argv[1])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS} --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

STEP, LIMIT_S = 1e-5, 300.0


def like(y: Any, key: int) -> Any:
    """Random numbers in the shape of an array."""
    return np.random.default_rng(key).standard_normal(y.shape)


def by_device(x: Any) -> list[Any]:
    """The array as each device sees it: its own copy of one that is not divided."""
    if getattr(x, "is_fully_replicated", False):
        return [np.asarray(shard.data).tolist() for shard in x.addressable_shards]
    return [np.asarray(x).tolist()] * RANKS


def stages(f: Callable[..., Any], gradients: Callable[..., Any], operands: list[Any]) -> dict[str, Any]:
    """The value of `f`, its gradients, and those of their dot product with vectors, by stage."""
    def second(x: Any, w: Any) -> Any:
        dot = lambda x, w: sum((g * like(g, 1 + i)).sum() for i, g in enumerate(gradients(x, w)))
        return jax.grad(dot, (0, 1))(x, w)

    told: dict[str, Any] = {}
    try:
        value, first, then = jax.jit(lambda x, w: (f(x, w), gradients(x, w), second(x, w)))(*operands)
        told = {"value": [value], "gradient": list(first), "second order": list(then)}
    except Exception as error:
        told = {"refused": f"{type(error).__name__}: {error}".split("\n")[0][:200]}
        for stage, function in (("value", lambda x, w: [f(x, w)]), ("gradient", gradients)):
            try:
                told[stage] = list(jax.jit(function)(*operands))
            except Exception:
                break
    return told


def by_differences(f: Callable[..., Any], gradients: Callable[..., Any], operands: list[Any]) -> dict[str, Any]:
    """Central differences of the serial program: of <ct, y>, and of the dot product of gradients and vectors."""
    weighted = jax.jit(lambda x, w: (f(x, w) * like(f(x, w), 0)).sum())
    dot = jax.jit(lambda x, w: sum((g * like(g, 1 + i)).sum() for i, g in enumerate(gradients(x, w))))

    def table(of: Callable[..., Any]) -> list[Any]:
        tables = []
        for i, x in enumerate(operands):
            slopes = np.zeros(x.shape)
            for place in np.ndindex(x.shape):
                up, down = ([o.copy() for o in operands] for _ in range(2))
                up[i][place] += STEP
                down[i][place] -= STEP
                slopes[place] = (of(*up) - of(*down)) / (2 * STEP)
            tables.append(slopes.tolist())
        return tables

    return {"gradient": table(weighted), "second order": table(dot)}


def answer(case: dict[str, Any], mesh: Any) -> dict[str, Any]:
    """The stages of the case on the devices, and of the stacked parts on one."""
    operands = [np.array(a) for a in case["operands"]]
    scope = {"jax": jax, "jnp": jnp, "lax": lax, "N": RANKS}
    local, stacked = (
        eval(f"lambda x, w: {case['call']}", scope | {n: eval(d[i], dict(scope)) for n, d in case["functions"].items()})
        for i in (0, 1)
    )
    ins = tuple(P() if layout == "R" else P("i") for layout in case["layouts"])
    out = P() if case["one"] else P("i")
    mapped = {"mesh": mesh, "check_vma": case["check_vma"]}
    f = jax.shard_map(local, in_specs=ins, out_specs=out, **mapped)

    def gradients_of(f: Any) -> Any:
        return lambda x, w: jax.grad(lambda x, w: (f(x, w) * like(f(x, w), 0)).sum(), (0, 1))(x, w)

    def inside(x: Any, w: Any) -> Any:
        own = lambda x, w, ct: jax.grad(lambda x, w: (local(x, w) * ct).sum(), (0, 1))(x, w)
        return jax.shard_map(own, in_specs=(*ins, out), out_specs=ins, **mapped)(x, w, like(jax.eval_shape(f, x, w), 0))

    def serial(x: Any, w: Any) -> Any:
        parts = [jnp.broadcast_to(o, (RANKS, *o.shape)) if layout == "R" else o.reshape(RANKS, -1, o.shape[-1])
                 for o, layout in zip((x, w), case["layouts"], strict=True)]  # fmt: skip
        y = stacked(*parts)
        return y[0] if case["one"] else y.reshape(-1, *y.shape[2:])

    try:
        wanted = stages(serial, gradients_of(serial), operands)
    except Exception as error:  # rows that are not divided evenly
        wanted = {"refused": str(error)}
    told = stages(f, inside if case["inside"] else gradients_of(f), operands)
    refused = told.pop("refused", "")
    distributed = {stage: [by_device(x) for x in xs] for stage, xs in told.items()}
    answered: dict[str, Any] = {
        "serial": {stage: [np.asarray(x).tolist() for x in xs] for stage, xs in wanted.items() if stage != "refused"},
        "distributed": [{s: [x[r] for x in xs] for s, xs in distributed.items()} for r in range(RANKS)],
        "refused": refused,
    }
    if case["differences"] and "refused" not in wanted:
        answered["differences"] = by_differences(serial, gradients_of(serial), operands)
    return answered


def run(program: str) -> list[str]:
    """The errors of the processes that run a program."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    own = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"MASTER_PORT": port}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        jobs = [
            subprocess.Popen([sys.executable, file.name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, env=own | {"RANK": str(r)})
            for r in range(RANKS)
        ]  # fmt: skip
        told = []
        for job in jobs:
            try:
                told.append(job.communicate(timeout=LIMIT_S)[1])
            except subprocess.TimeoutExpired:
                job.kill()
                told.append(job.communicate()[1])
    return told


def main() -> None:
    """Answer until the input ends."""
    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((RANKS,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not get between the answers
    print(json.dumps({"version": jax.__version__}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        told = {"ended": run(request["program"])} if "program" in request else answer(request, mesh)
        print(json.dumps(told), file=answers)


if __name__ == "__main__":
    main()
