"""The collectives of `benchmarks/rosetta.py` as torch's functional collectives over gloo; one rank of three."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as F
from rosetta_cases import RANKS, ROOT
from rosetta_gloo import serve_gloo


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


serve_gloo(call)
