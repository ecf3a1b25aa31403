"""The collectives of `benchmarks/rosetta.py` in JAX on three host devices, by the pullback of a shard_map.

With ``ROSETTA_INSIDE=1`` each device computes the gradient of its own term inside shard_map, as data-parallel programs
do. With ``ROSETTA_VMAP=1`` the ranks are the rows of a vmap with an axis name.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rosetta_cases import RANKS, ROOT, data, serve

jax.config.update("jax_enable_x64", True)
INSIDE, VMAP = os.environ.get("ROSETTA_INSIDE"), os.environ.get("ROSETTA_VMAP")


def call(name: str, x: Any) -> Any:
    ring = [(r, (r + 1) % RANKS) for r in range(RANKS)]
    calls = {
        "all_reduce sum": lambda: lax.psum(x, "i"),
        "all_reduce max": lambda: lax.pmax(x, "i"),
        "all_reduce min": lambda: lax.pmin(x, "i"),
        "broadcast": lambda: lax.psum(jnp.where(lax.axis_index("i") == ROOT, x, 0), "i"),
        "all_gather": lambda: lax.all_gather(x, "i", tiled=True),
        "reduce_scatter sum": lambda: lax.psum_scatter(x, "i", scatter_dimension=0, tiled=True),
        "all_to_all": lambda: lax.all_to_all(x, "i", 0, 0, tiled=True),
        "send/recv ring": lambda: lax.ppermute(x, "i", ring),
        "all_reduce, rank 2 unused": lambda: lax.psum(x, "i"),
    }
    if name not in calls:
        raise NotImplementedError(f"jax.lax has no {name} along an axis")
    return calls[name]()


def gradients(name: str) -> dict[int, Any]:
    xs, cts = data(name)
    if len({x.shape for x in xs}) > 1 or any(c is None for c in cts):
        raise NotImplementedError(f"{name}: parts of one shard_map are of one shape, and no rank is without one")
    x, ct = jnp.stack(xs), jnp.stack(cts)

    def one(x: Any) -> Any:
        return call(name, x)

    if VMAP:
        whole = jax.vmap(one, axis_name="i")
        y, pull = jax.vjp(whole, x)
        (g,) = pull(ct)
        return {r: (np.asarray(g[r]), np.asarray(y[r])) for r in range(RANKS)}
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    P = jax.sharding.PartitionSpec

    def with_row(x: Any) -> Any:
        y = one(x[0])
        if "i" not in getattr(jax.typeof(y), "vma", frozenset("i")):
            y = lax.pcast(y, "i", to="varying")
        return y[None]

    def own_gradient(x: Any, ct: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(one(x) * ct[0]))(x[0])[None]

    y, pull = jax.vjp(jax.shard_map(with_row, mesh=mesh, in_specs=P("i"), out_specs=P("i")), x)
    if INSIDE:
        g = jax.shard_map(own_gradient, mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P("i"))(x, ct)
    else:
        (g,) = pull(ct)
    return {r: (np.asarray(g[r]), np.asarray(y[r])) for r in range(RANKS)}


serve(gradients)
