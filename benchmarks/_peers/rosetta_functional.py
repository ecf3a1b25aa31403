"""The collectives of `benchmarks/rosetta.py` as torch's functional collectives over gloo; one rank of three."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as F
from rosetta_cases import CASES, RANKS, ROOT, data, serve


def call(name: str, x: Any) -> Any:
    op = {"sum": "sum", "max": "max", "min": "min", "prod": "product"}.get(name.split()[-1], "sum")
    group = dist.group.WORLD
    if name.startswith("all_reduce"):
        return F.wait_tensor(F.all_reduce(x, op, group))
    if name == "broadcast":
        return F.wait_tensor(F.broadcast(x, ROOT, group))
    if name.startswith("all_gather"):
        return F.wait_tensor(F.all_gather_tensor_autograd(x, 0, group))
    if name.startswith("reduce_scatter"):
        return F.wait_tensor(F.reduce_scatter_tensor_autograd(x, op, 0, group))
    if name == "all_to_all":
        sizes = [x.shape[0] // RANKS] * RANKS
        return F.wait_tensor(F.all_to_all_single_autograd(x, sizes, sizes, group))
    raise NotImplementedError(f"{name}: there is no such functional collective")


def gradients(name: str) -> dict[int, Any]:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    xs, cts = data(name)
    x = torch.from_numpy(xs[rank]).requires_grad_()
    y = call(name, x)
    if rank not in CASES[name].unused:
        y.backward(torch.zeros_like(y) if cts[rank] is None else torch.from_numpy(cts[rank]))
    g = torch.zeros_like(x) if x.grad is None else x.grad
    return {rank: (g.numpy(), None if cts[rank] is None else y.detach().numpy())}


serve(gradients)
