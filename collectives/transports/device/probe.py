"""Finds out what works on the GPU of this host, in a process of its own, which may crash or hang.

The process runs `collectives.tools.device_facts`. It prints a line for each finding, so that a crash leaves those
before it. It has a time limit, and an environment without a launcher's variables: MPI does not take it for a rank.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from autograd.arrays import cuda

__all__ = ["MARK", "Facts", "Works", "alone", "ended", "probe", "run"]

Works = dict[str, str]
"""For "ipc", "nccl" and "mpi": "" if it works, or the reason why not."""

LIMIT_S = 60.0
MARK = "RINGTAPE-PROBE "  # marks the lines with findings
PROGRAM = "collectives.tools.device_facts"
_LAUNCHERS = ("PMI", "OMPI_", "ORTE_", "PRTE_", "MPI_LOCAL", "HYDRA_", "HYDI_", "MV2_", "FLUX_", "JSM_", "SLURM_",
              "PALS_", "ALPS_", "RINGTAPE_")  # fmt: skip


class Facts(NamedTuple):
    """The findings of the probe: facts for people (GPU, driver, CuPy, memory, NCCL), and the ways that work."""

    facts: dict[str, str]
    works: Works


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables by which a launcher tells a process that it is a rank.

    Examples
    --------
    >>> alone({"PMI_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PATH": "/bin"})
    {'PATH': '/bin', 'RINGTAPE_LAUNCHER': 'none'}
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(_LAUNCHERS)}
    return {**kept, "RINGTAPE_LAUNCHER": "none"}


@cache  # seconds
def probe(limit_s: float = LIMIT_S) -> Facts:
    """The ways of transport that work on this host. The first call takes seconds."""
    why = cuda.why_not()
    if why:
        return Facts({}, dict.fromkeys(("ipc", "nccl", "mpi"), f"no GPU: {why}"))
    return run([sys.executable, "-P", "-m", PROGRAM], limit_s)  # not from the current folder


def run(command: list[str], limit_s: float) -> Facts:
    """Run a process that prints findings, and collect them. What it did not print does not work."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env={**alone(os.environ), "PYTHONPATH": path}, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            out, err = child.communicate(timeout=limit_s)
            end = "it ended before" if child.returncode == 0 else ended(child.returncode, err)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, _ = child.communicate()
            end = f"the probe did not end within {limit_s:g} s"
    facts: dict[str, str] = {}
    works: Works = {}
    for line in out.splitlines():
        if line.startswith(MARK):
            kind, name, text = json.loads(line[len(MARK) :])
            (works if kind == "works" else facts)[name] = text
    for name in ("ipc", "nccl", "mpi"):
        works.setdefault(name, end)
    return Facts(facts, works)


def ended(status: int, err: str) -> str:
    """The end of a process, by its status and its stderr."""
    lines = [line for line in err.strip().splitlines() if line.strip()]
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"the probe ended with {how}" + (f": {lines[-1]}" if lines else "")
