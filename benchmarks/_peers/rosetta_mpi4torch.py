"""The collectives of `benchmarks/rosetta.py` in mpi4torch; one rank of three, under mpiexec."""

from __future__ import annotations

from typing import Any

import mpi4torch
import torch
from rosetta_cases import CASES, RANKS, ROOT, data, serve

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


def gradients(name: str) -> dict[int, Any]:
    rank = COMM.rank
    xs, cts = data(name)
    x = torch.from_numpy(xs[rank]).requires_grad_()
    y = call(name, x)
    if rank not in CASES[name].unused:
        y.backward(torch.zeros_like(y) if cts[rank] is None else torch.from_numpy(cts[rank]))
    g = torch.zeros_like(x) if x.grad is None else x.grad
    return {rank: (g.numpy(), None if cts[rank] is None else y.detach().numpy())}


serve(gradients)
