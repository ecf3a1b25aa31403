"""Probes of this host for `doctor`: cores, NUMA nodes, memory, links and GPUs, mostly from Linux's /sys."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autograd.machine import processor, products, products_by_mkl

__all__ = ["PROBES", "cores_of_ranks"]


def _text(path: Path) -> str | None:
    """A small file's text; None if it cannot be read, such as the speed of a link that is down."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> dict[str, Any]:
    """The cores that this process uses and may use, and all. A container may be limited to less time.

    A launcher may have bound the process to some of the cores (`of this rank`) that it may use (`unbound`).
    """
    there = os.cpu_count() or 1
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(there))
    limit, _, period = (_text(quota) or "max").partition(" ")
    most = max(int(limit) // int(period), 1) if limit.isdecimal() and period.isdecimal() else there
    return {"usable": min(len(mine), most), "of this rank": mine, "unbound": min(_unbound(), most), "limit": most,
            "all": there}  # fmt: skip


def _unbound() -> int:
    """The number of cores to which this process may be bound: those that a thread gets if it asks for all."""
    found = os.cpu_count() or 1
    if not hasattr(os, "sched_setaffinity"):
        return found

    def ask() -> None:
        nonlocal found
        try:
            os.sched_setaffinity(0, range(max(1024, found)))
        except OSError:
            pass  # it stays as it is
        found = len(os.sched_getaffinity(0))

    thread = threading.Thread(target=ask)  # the binding of a thread is its own, and ends with it
    thread.start()
    thread.join()
    return found


def cores_of_ranks(of_ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cores of a host, from those of its ranks, which a launcher may have bound to different cores."""
    together = {core for each in of_ranks for core in each["of this rank"]}
    return {**of_ranks[0], "usable": min(len(together), of_ranks[0]["limit"])}


def numa(root: Path = Path("/sys/devices/system/node")) -> list[dict[str, Any]]:
    """The NUMA nodes: their cores, memory and distances."""
    nodes = sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    if not nodes:
        raise LookupError(f"{root} lists no nodes")
    found = []
    for node in nodes:
        lines = (_text(node / "meminfo") or "").splitlines()
        total = next((line.split()[3] for line in lines if "MemTotal" in line), "0")
        distances = [int(word) for word in (_text(node / "distance") or "").split()]
        found.append({"node": node.name, "cores": _text(node / "cpulist"), "memory_bytes": int(total) * 1024,
                      "distances": distances})  # fmt: skip
    return found


def links(root: Path = Path("/sys/class/net")) -> list[dict[str, Any]]:
    """Network interfaces except for the loopback: state, speed if the driver reports one, largest packet."""
    found = []
    for link in sorted(root.iterdir()):
        if link.name == "lo":
            continue
        speed = _text(link / "speed")
        found.append({"link": link.name, "state": _text(link / "operstate"), "mtu_bytes": int(_text(link / "mtu") or 0),
                      "speed_mbit_per_s": int(speed) if speed and int(speed) > 0 else None,
                      "is_virtual": not (link / "device").exists()})  # fmt: skip
    if not found:
        raise LookupError(f"{root} lists no interface but the loopback")
    return found


def fabrics(root: Path = Path("/sys/class/infiniband")) -> list[dict[str, Any]]:
    """Ports of InfiniBand, RoCE and the like."""
    ports = sorted(root.glob("*/ports/*"))
    if not ports:
        raise LookupError(f"none: {root} lists no device")
    return [{"port": f"{port.parent.parent.name}/{port.name}", "state": _text(port / "state"),
             "rate": _text(port / "rate"), "layer": _text(port / "link_layer")} for port in ports]  # fmt: skip


def shared_memory(path: str = "/dev/shm") -> dict[str, int]:
    """The size of /dev/shm, where MPI libraries allocate the memory that the ranks of a host share."""
    size = os.statvfs(path)
    return {"total_bytes": size.f_blocks * size.f_frsize, "free_bytes": size.f_bavail * size.f_frsize}


def gpus() -> list[str]:
    """The NVIDIA GPUs that the driver's tool lists."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise LookupError("none: nvidia-smi is not on PATH")
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise LookupError(f"nvidia-smi: {(done.stderr or done.stdout).strip()[:200]}")
    return done.stdout.strip().splitlines()


PROBES: dict[str, Callable[[], Any]] = {
    "processor": processor, "products": products, "products by MKL": products_by_mkl,
    "cores": cores, "NUMA": numa, "links": links, "fabrics": fabrics, "/dev/shm": shared_memory, "GPUs": gpus,
}  # fmt: skip
