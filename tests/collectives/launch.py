"""Starting a program on several ranks from a test, with a limit on its time and nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"


# Open MPI complains on stderr at every window where there is no UCX device; MPICH does not read this.
QUIET = {"OMPI_MCA_osc": "^ucx"}


class Outcome(NamedTuple):
    """How a job ended; `is_late` if it had to be killed."""

    code: int
    out: str
    err: str
    is_late: bool


def find_mpiexec() -> str:
    """The mpiexec beside this interpreter, else the one on PATH; skips the test where there is none."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec beside the interpreter or on PATH")
    return found


def launch(program: str, ranks: int, *args: str, limit_s: float, **environment: str) -> Outcome:
    """Run a program of `programs/` under mpiexec."""
    command = [find_mpiexec(), "-n", str(ranks), sys.executable, str(PROGRAMS / program), *args]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    job = subprocess.Popen(
        command,
        env={**QUIET, **os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = job.communicate(timeout=limit_s)
        return Outcome(job.returncode, out, err, False)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        return Outcome(job.returncode, out, err, True)
