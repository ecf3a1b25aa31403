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
from autograd.layouts.layout import C, I, Layout, P, R, Rooted, Shard, V

from .call import Call
from .checks.modes import set_check as check
from .collective import Collective
from .from_local import from_local
from .job.failure import process
from .mesh import Mesh, current_mesh
from .ops.barrier import barrier
from .ops.basic import (
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
from .ops.custom import apply, call
from .ops.extrema import all_max, all_min, all_prod
from .ops.halo import halo_exchange
from .ops.one_sided import get
from .ops.scans import exscan, scan
from .replicas import check_replicas
from .transports.protocol import Communicator, Pending
from .world import World, in_order, run, world

if TYPE_CHECKING:
    from .inspect.dry_run import DryRun, dry
    from .inspect.timeline import Timeline, timeline
    from .inspect.topology import Link, Topology
    from .ops.mpi4py_wrapper import wrap
    from .ops.nonblocking import (
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
    from .ops.reproducible import reproducible_sum
    from .testing.check import CheckFailed, Report, check_collective

__all__ = [
    "C", "Call", "CheckFailed", "Collective", "CollectiveMismatch", "CommunicationError", "Communicator",
    "DeadlockError", "DryRun", "I", "Layout", "LayoutError", "Link", "Mesh", "MeshError", "P", "Pending", "R",
    "RankFailed", "ReplicaMismatch", "Report", "Rooted", "Shard", "Timeline", "Topology", "V", "World", "all_gather",
    "all_gather_async", "all_max", "all_min", "all_prod", "all_reduce", "all_reduce_async", "all_to_all",
    "all_to_all_async", "apply", "barrier", "broadcast", "broadcast_async", "call", "cast", "check",
    "check_collective", "check_replicas", "current_mesh", "declare_partial", "dry", "exscan", "from_local", "gather",
    "get", "halo_exchange", "in_order", "irecv", "isend", "mean", "permute", "permute_async", "recv", "reduce",
    "reduce_async", "reduce_scatter", "reduce_scatter_async", "reproducible_sum", "run", "scan", "scatter", "send",
    "shard", "timeline", "world", "wrap",
]  # fmt: skip


_LATER = {
    **dict.fromkeys(("CheckFailed", "Report", "check_collective"), "testing.check"),
    **dict.fromkeys(("DryRun", "dry"), "inspect.dry_run"),
    **dict.fromkeys(("Timeline", "timeline"), "inspect.timeline"),
    **dict.fromkeys(("Link", "Topology"), "inspect.topology"),
    **dict.fromkeys(("all_gather_async", "all_reduce_async", "all_to_all_async", "broadcast_async", "irecv", "isend",
                     "permute_async", "reduce_async", "reduce_scatter_async"), "ops.nonblocking"),
    "reproducible_sum": "ops.reproducible",
    "wrap": "ops.mpi4py_wrapper",
}  # fmt: skip
"""Names that are loaded when they are first asked for, and the module that holds each."""


def __getattr__(name: str) -> Any:
    import importlib

    if name == "testing":  # loaded by those who test
        return importlib.import_module("collectives.testing")
    if name not in _LATER:
        raise AttributeError(f"module 'collectives' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"collectives.{_LATER[name]}"), name)
    return found


process.guard(lambda: World("mpi"))
del process
