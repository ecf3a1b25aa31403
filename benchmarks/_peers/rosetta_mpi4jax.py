"""The collectives of `benchmarks/rosetta.py` in mpi4jax; one rank of three, under mpiexec."""

from __future__ import annotations

import os
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from mpi4py import MPI
from rosetta_cases import CASES, RANKS, ROOT, data, serve

jax.config.update("jax_enable_x64", True)
COMM = MPI.COMM_WORLD


def first(result: Any) -> Any:
    """Older versions return a token beside the result."""
    return result[0] if isinstance(result, tuple | list) else result


def call(name: str, x: Any) -> Any:
    rank = COMM.Get_rank()
    op = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}.get(name.split()[-1], MPI.SUM)
    if name.startswith("all_reduce"):
        return first(mpi4jax.allreduce(x, op=op, comm=COMM))
    if name == "broadcast":
        return first(mpi4jax.bcast(x, root=ROOT, comm=COMM))
    if name.startswith("reduce "):
        return first(mpi4jax.reduce(x, op=op, root=ROOT, comm=COMM))
    if name == "all_gather":
        return jnp.concatenate(first(mpi4jax.allgather(x, comm=COMM)))
    if name == "scatter":
        blocks = x.reshape(RANKS, -1, *x.shape[1:])
        return first(mpi4jax.scatter(blocks if rank == ROOT else blocks[0], root=ROOT, comm=COMM))
    if name == "gather":
        return jnp.concatenate(first(mpi4jax.gather(x, root=ROOT, comm=COMM)))
    if name == "all_to_all":
        blocks = x.reshape(RANKS, -1, *x.shape[1:])
        return jnp.concatenate(first(mpi4jax.alltoall(blocks, comm=COMM)))
    if name == "send/recv ring":
        source, target = (rank - 1) % RANKS, (rank + 1) % RANKS
        return first(mpi4jax.sendrecv(x, x, source=source, dest=target, comm=COMM))
    raise NotImplementedError(f"mpi4jax has no {name}")


def gradients(name: str) -> dict[int, Any]:
    rank = COMM.Get_rank()
    xs, cts = data(name)
    x = jnp.asarray(xs[rank])
    if rank in CASES[name].unused:
        y = call(name, x)
        return {rank: (np.zeros_like(xs[rank]), np.asarray(y))}
    y, pull = jax.vjp(lambda x: call(name, x), x)
    ct = jnp.zeros_like(y) if cts[rank] is None else jnp.asarray(cts[rank])
    (g,) = pull(ct)
    return {rank: (np.asarray(g), None if cts[rank] is None else np.asarray(y))}


serve(gradients)
