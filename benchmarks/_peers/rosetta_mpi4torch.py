"""The collectives of `benchmarks/rosetta.py` in mpi4torch; one rank of three, under mpiexec."""

from __future__ import annotations

from typing import Any

import mpi4torch
import torch
from rosetta_cases import RANKS, ROOT, serve
from rosetta_gloo import torch_gradients

COMM = mpi4torch.COMM_WORLD


def call(name: str, x: Any) -> Any:
    op = {"sum": mpi4torch.MPI_SUM, "max": mpi4torch.MPI_MAX, "min": mpi4torch.MPI_MIN,
          "prod": mpi4torch.MPI_PROD}.get(name.split()[-1], mpi4torch.MPI_SUM)  # fmt: skip
    if name.startswith("all_reduce"):
        return COMM.Allreduce(x, op)
    if name == "broadcast":
        return COMM.Bcast_(x.clone(), ROOT)
    if name.startswith("reduce "):
        return COMM.Reduce_(x.clone(), op, ROOT)
    if name.startswith("all_gather"):
        return COMM.Allgather(x, 0)
    if name == "scatter":
        return COMM.Scatter(x, 0, x.shape[0] // RANKS, ROOT)
    if name == "gather":
        return COMM.Gather(x, 0, ROOT)
    if name == "all_to_all":
        return COMM.Alltoall(x, 0, 0, x.shape[0] // RANKS)
    if name == "send/recv ring":
        handle = COMM.Isend(x, (COMM.rank + 1) % RANKS, 0)
        received = COMM.Recv(mpi4torch.JoinDummies(torch.empty_like(x), [handle.dummy]), (COMM.rank - 1) % RANKS, 0)
        return mpi4torch.JoinDummies(received, [COMM.Wait(mpi4torch.JoinDummiesHandle(handle, [received]))])
    raise NotImplementedError(f"mpi4torch has no {name}")


serve(lambda name: torch_gradients(name, COMM.rank, call))
