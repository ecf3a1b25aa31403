"""The collectives of `benchmarks/rosetta.py` as redistributions of torch's DTensor over gloo; one rank of three."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from rosetta_cases import CASES, RANKS, ROOT, data, serve
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def call(name: str, x: Any, mesh: Any) -> Any:
    op = {"sum": "sum", "max": "max", "min": "min", "prod": "product"}.get(name.split()[-1], "sum")
    if name.startswith("all_reduce"):
        return DTensor.from_local(x, mesh, [Partial(op)]).redistribute(mesh, [Replicate()]).to_local()
    if name.startswith("all_gather"):
        return DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local()
    if name.startswith("reduce_scatter"):
        return DTensor.from_local(x, mesh, [Partial(op)]).redistribute(mesh, [Shard(0)]).to_local()
    if name == "broadcast" and ROOT == 0:
        return distribute_tensor(x, mesh, [Replicate()]).to_local()
    raise NotImplementedError(f"{name}: no redistribution does this")


def gradients(name: str) -> dict[int, Any]:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    mesh = init_device_mesh("cpu", (RANKS,))
    xs, cts = data(name)
    x = torch.from_numpy(xs[rank]).requires_grad_()
    y = call(name, x, mesh)
    if rank not in CASES[name].unused:
        y.backward(torch.zeros_like(y) if cts[rank] is None else torch.from_numpy(cts[rank]))
    g = torch.zeros_like(x) if x.grad is None else x.grad
    return {rank: (g.numpy(), None if cts[rank] is None else y.detach().numpy())}


serve(gradients)
