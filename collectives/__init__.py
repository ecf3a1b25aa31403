"""Differentiable communication: meshes, the collectives with their adjoints, and the transports under them.

``import collectives as cc``. mpi4py is loaded only in a world of more than one process.
"""

from __future__ import annotations

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
from .checking import set_check as check
from .communicator import Communicator, Pending
from .dry import DryRun, dry
from .mesh import Mesh, current_mesh
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
from .reproducible import reproducible_sum
from .timeline import Timeline, timeline
from .topology import Link, Topology

__all__ = [
    "C", "Call", "Collective", "CollectiveMismatch", "CommunicationError", "Communicator", "DeadlockError", "I",
    "Layout", "LayoutError", "Mesh", "MeshError", "P", "Pending", "R", "RankFailed", "ReplicaMismatch", "Rooted",
    "Shard", "V", "all_gather", "all_reduce", "all_to_all", "broadcast", "cast", "check", "check_replicas",
    "current_mesh", "declare_partial", "gather", "in_order", "mean", "permute", "recv", "reduce", "reduce_scatter",
    "reproducible_sum", "run", "scatter", "send", "shard", "world",
    "DryRun", "Link", "Timeline", "Topology", "dry", "timeline",
]  # fmt: skip

guard()
