"""Collects facts about the MPI library and the ranks for `doctor`, in a process that may hang or die.

Run as a program, it prints its findings as one line of JSON, on rank 0: ``mpiexec -n 2 python -m
collectives.tools.mpi_facts``. mpi4py is imported when `facts` is called.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..job.launcher import why_no_library

__all__ = ["MARK", "PROBLEM", "facts", "is_gpu_aware", "probed"]

MARK = "RINGTAPE-FACTS "  # marks the line, because launchers print lines, too
PROBLEM = "problem"  # the only entry where there is no MPI library: the reason and its fix
_ROUNDS = 20  # of a ping; the fastest counts
_TAG = 7
LEVELS = ("single", "funneled", "serialized", "multiple")


def probed(probes: dict[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
    """Run each probe, and return ``{"ok": True, "value": ...}`` or ``{"ok": False, "reason": ...}`` for it.

    Examples
    --------
    >>> probed({"half": lambda: 1 / 2, "none": lambda: 1 / 0})
    {'half': {'ok': True, 'value': 0.5}, 'none': {'ok': False, 'reason': 'ZeroDivisionError: division by zero'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for name, probe in probes.items():
        try:
            found[name] = {"ok": True, "value": probe()}
        except Exception as error:
            kind = "" if type(error) is LookupError else f"{type(error).__name__}: "
            found[name] = {"ok": False, "reason": f"{kind}{error}".strip()}
    return found


def facts() -> dict[str, dict[str, Any]]:
    """Collect all facts. Collective over ``COMM_WORLD``: the probes run in the same order on all ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    near = world.Split_type(MPI.COMM_TYPE_SHARED)
    names = world.allgather(MPI.Get_processor_name())
    roots = world.allgather(near.Get_rank() == 0)
    sizes = world.allgather(near.Get_size())

    def hosts() -> dict[str, int]:
        found: Counter[str] = Counter()
        for name, is_root, size in zip(names, roots, sizes, strict=True):
            if is_root:
                found[name] += size
        return dict(found)

    def gpu_aware() -> bool:
        return is_gpu_aware(MPI)

    def window() -> str:
        return _shared_window(MPI, near)

    return probed({
        "library": lambda: MPI.Get_library_version().replace("\0", "").strip().splitlines(),
        "vendor": lambda: f"{MPI.get_vendor()[0]} {'.'.join(map(str, MPI.get_vendor()[1]))}",
        "standard": lambda: ".".join(map(str, MPI.Get_version())),
        "thread level": lambda: LEVELS[(MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED,
                                        MPI.THREAD_MULTIPLE).index(MPI.Query_thread())],
        "ranks": world.Get_size,
        "hosts": hosts,
        "ping": lambda: _ping(MPI),
        "all_reduce": lambda: _sum(MPI),
        "shared windows": window,
        "GPU-aware": gpu_aware,
    })  # fmt: skip


def _ping(MPI: Any) -> dict[str, Any]:
    """Exchange 8 bytes between rank 0 and each other rank, and measure half of the time there and back."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    word, times = np.zeros(1), {}
    for other in range(1, size):
        world.Barrier()
        best = float("inf")
        for k in range(_ROUNDS if rank in (0, other) else 0):
            start = time.perf_counter()
            if rank == 0:
                word[0] = k
                world.Send(word, other, _TAG)
            world.Recv(word, 0 if rank else other, _TAG)
            if rank:
                world.Send(word, 0, _TAG)
            elif word[0] != k:
                raise RuntimeError(f"rank {other} sent {word[0]:g} back, not {k}")
            best = min(best, (time.perf_counter() - start) / 2)
        times[other] = best
    world.Barrier()
    slowest = max(times, key=times.__getitem__, default=0)
    return {"slowest": slowest, "slowest_s": times.get(slowest, 0.0), "fastest_s": min(times.values(), default=0.0)}


def _sum(MPI: Any) -> dict[str, float]:
    """Sum 1 MiB over the ranks, and measure the time."""
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    mine, total, best = np.full(1 << 17, rank + 1.0), np.empty(1 << 17), float("inf")
    for _ in range(3):
        world.Barrier()
        start = time.perf_counter()
        world.Allreduce(mine, total)
        best = min(best, time.perf_counter() - start)
    wrong = world.allreduce(int(not np.array_equal(total, np.full(1 << 17, size * (size + 1) / 2))))
    if wrong:
        raise RuntimeError(f"all_reduce gave a wrong sum on {wrong} of {size} ranks")
    return {"1 MiB_s": best}


def _shared_window(MPI: Any, near: Any) -> str:
    """Test a shared window: every rank of a host writes to it, and its neighbour reads the value."""
    rank, size = near.Get_rank(), near.Get_size()
    window = MPI.Win.Allocate_shared(8, 8, comm=near)
    try:
        mine = np.ndarray(1, np.int64, buffer=window.Shared_query(rank)[0])
        other = np.ndarray(1, np.int64, buffer=window.Shared_query((rank + 1) % size)[0])
        window.Lock_all()
        mine[0] = rank + 100
        window.Sync()
        near.Barrier()
        window.Sync()
        right = int(other[0]) == (rank + 1) % size + 100
        near.Barrier()
        window.Unlock_all()
        del mine, other
    finally:
        window.Free()
    wrong = MPI.COMM_WORLD.allreduce(int(not right))
    if wrong:
        raise RuntimeError(f"{wrong} ranks did not read what their neighbour wrote")
    most = MPI.COMM_WORLD.allreduce(size, MPI.MAX)
    return "work" if most > 1 else "can be made; not tested, because no host has two ranks"


def is_gpu_aware(MPI: Any) -> bool:
    """Whether the library reports that it accepts GPU memory."""
    import ctypes

    library = ctypes.CDLL(None)
    candidates = [library]
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        path = line.split()[-1]
        if "libmpi" in path and path.startswith("/") and all(path != each._name for each in candidates):
            candidates.append(ctypes.CDLL(path))
    for each in candidates:
        for name in ("MPIX_Query_cuda_support", "MPIX_Query_hip_support", "MPIX_Query_rocm_support"):
            if hasattr(each, name) and getattr(each, name)() == 1:
                return True
    if not any(hasattr(each, "MPIX_Query_cuda_support") for each in candidates):
        raise LookupError(f"{MPI.get_vendor()[0]} has no function that reports it")
    return False


def _main() -> None:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        print(MARK + json.dumps({PROBLEM: why_no_library(error)}), flush=True)
        return
    found = facts()
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    _main()
