"""Differentiable communication: meshes, the collectives with their adjoints, and the transports under them.

``import collectives as cc``. mpi4py is loaded only in a world of more than one process. In a process that a launcher
started as one of several ranks, importing replaces the exception hooks, sets an environment variable, and starts a
child process on each host, so that a failed rank ends the job and is named. `collectives.job.failure` lists this;
``RINGTAPE_GUARD=0`` turns it off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autograd.engine.tape import scope
from autograd.errors import (
    CollectiveMismatch,
    CommunicationError,
    DeadlockError,
    LayoutError,
    MeshError,
    RankFailed,
    ReplicaMismatch,
    missing_attribute,
)
from autograd.layouts.layout import C, D, I, Layout, P, R, Rooted, Shard, V

from .checks.modes import set_check as check
from .declaration.call import Call
from .declaration.collective import Collective
from .job.failure import process
from .mesh import Mesh, check_replicas, current_mesh
from .ops.barrier import *
from .ops.casts import *
from .ops.custom import *
from .ops.extrema import *
from .ops.halo import *
from .ops.local_values import *
from .ops.messages import *
from .ops.one_sided import *
from .ops.parts import *
from .ops.rooted import *
from .ops.scans import *
from .ops.sums import *
from .transports.protocol import Communicator, Pending
from .world import World, in_order, run, world

if TYPE_CHECKING:  # the names in `_LATER`; none of these modules imports this one
    from .inspect.dry_run import DryRun, dry
    from .inspect.recorder import recording_operations
    from .inspect.recording import record
    from .inspect.timeline import Timeline, timeline
    from .inspect.topology import Link, Topology
    from .ops.mpi4py_wrapper import *
    from .ops.nonblocking import *
    from .ops.reproducible import *
    from .page.show import Show, show
    from .testing.check import CheckFailed, Report, check_collective

    __version__: str

__all__ = [
    "C", "Call", "CheckFailed", "Collective", "CollectiveMismatch", "CommunicationError", "Communicator",
    "D", "DeadlockError", "DryRun", "I", "Layout", "LayoutError", "Link", "Mesh", "MeshError", "P", "Pending", "R",
    "RankFailed", "ReplicaMismatch", "Report", "Rooted", "Shard", "Show", "Timeline", "Topology", "V", "World",
    "all_gather", "all_gather_async", "all_max", "all_min", "all_prod", "all_reduce", "all_reduce_async", "all_to_all",
    "all_to_all_async", "apply", "barrier", "broadcast", "broadcast_async", "call", "cast", "check",
    "check_collective", "check_replicas", "current_mesh", "declare_partial", "dry", "exscan", "from_local", "gather",
    "get", "halo_exchange", "in_order", "irecv", "isend", "mean", "permute", "permute_async",
    "record", "recording_operations", "recv", "reduce", "reduce_async", "reduce_scatter", "reduce_scatter_async",
    "reproducible_sum", "run", "scan", "scatter", "scope", "send", "shard", "show", "timeline", "to_local", "world",
    "wrap",
]  # fmt: skip


# Names from modules that few programs use. Each module is loaded at the first access to one of its names, which
# halves the time to import the package.
_LATER = {
    **dict.fromkeys(("CheckFailed", "Report", "check_collective"), "testing.check"),
    **dict.fromkeys(("DryRun", "dry"), "inspect.dry_run"),
    "record": "inspect.recording",
    "recording_operations": "inspect.recorder",
    **dict.fromkeys(("Show", "show"), "page.show"),
    **dict.fromkeys(("Timeline", "timeline"), "inspect.timeline"),
    **dict.fromkeys(("Link", "Topology"), "inspect.topology"),
    **dict.fromkeys(("all_gather_async", "all_reduce_async", "all_to_all_async", "broadcast_async", "irecv", "isend",
                     "permute_async", "reduce_async", "reduce_scatter_async"), "ops.nonblocking"),
    "reproducible_sum": "ops.reproducible",
    "wrap": "ops.mpi4py_wrapper",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("audit", "inspect", "testing"):  # loaded at the first access; few programs need them
        return importlib.import_module(f"collectives.{name}")
    if name == "__version__":
        return importlib.import_module("autograd").__version__
    if name not in _LATER:
        raise missing_attribute(__name__, name)
    found = globals()[name] = getattr(importlib.import_module(f"collectives.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    """The names of the package, with those that are loaded at first use, for completion."""
    return sorted({*globals(), *__all__, "audit", "inspect", "testing"})


def _ask_mpi() -> tuple[int, int]:
    from .transports.mpi.library import MPI  # loads mpi4py

    return MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


process.guard(lambda: World("mpi"), _ask_mpi)
del process
