"""The collectives of `benchmarks/rosetta.py` as redistributions of torch's DTensor over gloo; one rank of three."""

from __future__ import annotations

from typing import Any

from rosetta_cases import RANKS, ROOT
from rosetta_gloo import serve_gloo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor


def call(name: str, x: Any) -> Any:
    mesh = init_device_mesh("cpu", (RANKS,))
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


serve_gloo(call)
