"""Differentiable communication: meshes, the collectives with their adjoints, and the transports under them.

``import collectives as cc``. mpi4py is loaded only in a world of more than one process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autograd.errors import (
    CollectiveMismatch,
    CommunicationError,
    DeadlockError,
    LayoutError,
    MeshError,
    RankFailed,
    ReplicaMismatch,
)
from autograd.layout import C, I, Layout, P, R, Rooted, Shard, V

from .backends.failure import guard
from .barrier import barrier
from .checking import set_check as check
from .communicator import Communicator, Pending
from .extremes import all_max, all_min, all_prod
from .halo import halo_exchange
from .mesh import Mesh, current_mesh
from .onesided import get
from .ops import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    cast,
    declare_partial,
    gather,
    mean,
    permute,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    send,
    shard,
)
from .primitive import Call, Collective
from .ranks import in_order, run, world
from .replicas import check_replicas
from .scan import exscan, scan

if TYPE_CHECKING:
    from .custom import CheckFailed, Report, apply, call, check_collective
    from .dry_world import DryRun, dry
    from .local_part import from_local
    from .nonblocking import (
        all_gather_async,
        all_reduce_async,
        all_to_all_async,
        broadcast_async,
        irecv,
        isend,
        permute_async,
        reduce_async,
        reduce_scatter_async,
    )
    from .reproducible import reproducible_sum
    from .topology import Link, Topology
    from .tracing import Timeline, timeline
    from .wrapped import wrap

__all__ = [
    "C", "Call", "CheckFailed", "Collective", "CollectiveMismatch", "CommunicationError", "Communicator",
    "DeadlockError", "DryRun", "I", "Layout", "LayoutError", "Link", "Mesh", "MeshError", "P", "Pending", "R",
    "RankFailed", "ReplicaMismatch", "Report", "Rooted", "Shard", "Timeline", "Topology", "V", "all_gather",
    "all_gather_async", "all_max", "all_min", "all_prod", "all_reduce", "all_reduce_async", "all_to_all",
    "all_to_all_async", "apply", "barrier", "broadcast", "broadcast_async", "call", "cast", "check",
    "check_collective", "check_replicas", "current_mesh", "declare_partial", "dry", "exscan", "from_local", "gather",
    "get", "halo_exchange", "in_order", "irecv", "isend", "mean", "permute", "permute_async", "recv", "reduce",
    "reduce_async", "reduce_scatter", "reduce_scatter_async", "reproducible_sum", "run", "scan", "scatter", "send",
    "shard", "timeline", "world", "wrap",
]  # fmt: skip


_LATER = {
    **dict.fromkeys(("CheckFailed", "Report", "apply", "call", "check_collective",), "custom"),
    **dict.fromkeys(("DryRun", "dry",), "dry_world"),
    **dict.fromkeys(("from_local",), "local_part"),
    **dict.fromkeys(("all_gather_async", "all_reduce_async", "all_to_all_async", "broadcast_async",
                    "irecv", "isend", "permute_async", "reduce_async", "reduce_scatter_async"), "nonblocking"),
    **dict.fromkeys(("reproducible_sum",), "reproducible"),
    **dict.fromkeys(("Timeline", "timeline",), "tracing"),
    **dict.fromkeys(("Link", "Topology",), "topology"),
    **dict.fromkeys(("wrap",), "wrapped"),
}  # fmt: skip
"""What is loaded when it is first asked for, and the module that holds it."""


def __getattr__(name: str) -> Any:
    import importlib

    if name == "testing":  # loaded by those who test
        return importlib.import_module("collectives.testing")
    if name not in _LATER:
        raise AttributeError(f"module 'collectives' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"collectives.{_LATER[name]}"), name)
    return found


guard()
