"""The collectives of `benchmarks/rosetta.py` in torch.distributed.nn.functional over gloo; one rank of three."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
from rosetta_cases import RANKS, ROOT
from rosetta_gloo import serve_gloo


def call(name: str, x: Any) -> Any:
    op = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN,
          "prod": dist.ReduceOp.PRODUCT}.get(name.split()[-1], dist.ReduceOp.SUM)  # fmt: skip
    rank = dist.get_rank()
    if name.startswith("all_reduce"):
        return F.all_reduce(x, op=op)
    if name == "broadcast":
        return F.broadcast(x.clone(), ROOT)
    if name.startswith("reduce "):
        return F.reduce(x.clone(), ROOT, op=op)
    if name.startswith("all_gather"):
        return torch.cat(F.all_gather(x))
    if name.startswith("reduce_scatter"):
        blocks = list(x.chunk(RANKS))
        return F.reduce_scatter(torch.empty_like(blocks[0]), blocks, op=op)
    if name == "scatter":
        return F.scatter(list(x.chunk(RANKS)), ROOT)
    if name == "gather":
        return torch.cat(list(F.gather(x, ROOT)))
    if name == "all_to_all":
        blocks = list(x.chunk(RANKS))
        return torch.cat(list(F.all_to_all([torch.empty_like(b) for b in blocks], blocks)))
    raise NotImplementedError(f"{name}: no differentiable call for rank {rank}")


serve_gloo(call)
