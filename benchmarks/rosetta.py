"""Compare the backward pass of every collective, in ringtape and in other packages, with a serial gradient.

    python benchmarks/rosetta.py --python-torch PATH --python-jax PATH --python-mpi4jax PATH --python-mpi4torch PATH

Operands and cotangents differ on each of three ranks. Each case of each system runs in its own processes, with a time
limit. The table has these entries:

    right           the gradient of the sum over the ranks of <ct_r, y_r>
    right as I      the gradient if the result counts as one value for all ranks (identity backward)
    wrong x f       f times the gradient, on every rank
    wrong           none of these; the relative error follows
    wrong value     the forward result is wrong
    refuses         an error in forward or backward; its text is listed below the table
    hangs           no answer within the time limit

A peer is left out, with the reason, if no interpreter is given or if the interpreter cannot import it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PEERS = Path(__file__).resolve().parent / "_peers"
sys.path.insert(0, str(PEERS))

from rosetta_cases import CASES, RANKS, data

TOLERANCE = 1e-9
_GRACE_S = 3.0


class System(NamedTuple):
    """A column: the worker's script, the option with its interpreter, its module, the processes, and how they start."""

    script: str
    option: str
    module: str
    processes: int
    mpiexec: bool = False
    environment: dict[str, str] = {}


SYSTEMS = {
    "ringtape": System("rosetta_ringtape.py", "", "numpy", 1),
    "torch.distributed.nn": System("rosetta_torch.py", "torch", "torch", RANKS),
    "torch functional": System("rosetta_functional.py", "torch", "torch", RANKS),
    "torch DTensor": System("rosetta_dtensor.py", "torch", "torch", RANKS),
    "jax shard_map": System("rosetta_jax.py", "jax", "jax", 1),
    "jax, grad inside": System("rosetta_jax.py", "jax", "jax", 1, False, {"ROSETTA_INSIDE": "1"}),
    "jax vmap": System("rosetta_jax.py", "jax", "jax", 1, False, {"ROSETTA_VMAP": "1"}),
    "mpi4jax": System("rosetta_mpi4jax.py", "mpi4jax", "mpi4jax", RANKS, True),
    "mpi4torch": System("rosetta_mpi4torch.py", "mpi4torch", "mpi4torch", RANKS, True),
}


def answers(system: System, python: str, case: str, limit_s: float) -> tuple[list[dict[str, Any]], bool]:
    """The answers of the ranks for one case, and whether the time limit was reached."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **system.environment)
    root = str(PEERS.parent.parent)
    environment["PYTHONPATH"] = root if not system.option else ""
    commands = [[python, str(PEERS / system.script), "--case", case]] * (1 if system.mpiexec else system.processes)
    if system.mpiexec:
        mpiexec = Path(python).parent / "mpiexec"
        commands = [[str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", str(system.processes), *commands[0]]]
    port = 20000 + (os.getpid() * 7 + int(time.monotonic() * 1000)) % 20000
    outputs, jobs = [], []
    for rank, command in enumerate(commands):
        outputs.append(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - read when the jobs have ended
        jobs.append(subprocess.Popen(
            command, stdout=outputs[-1], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True,
            env=environment | {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                               "MASTER_PORT": str(port)},
        ))  # fmt: skip
    end = time.monotonic() + limit_s
    while any(job.poll() is None for job in jobs) and time.monotonic() < end:
        if any(job.poll() not in (None, 0) for job in jobs):
            end = min(end, time.monotonic() + _GRACE_S)  # a process has failed; the others may wait for it forever
        time.sleep(0.02)
    late = any(job.poll() is None for job in jobs)
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, 9)
        job.wait()
    lines = []
    for output in outputs:
        output.seek(0)
        lines += [json.loads(line[7:]) for line in output if line.startswith("ANSWER ")]
        output.close()
    return lines, late


def verdict(case: str, said: list[dict[str, Any]], late: bool) -> tuple[str, str]:
    """The entry of the table, and the detail to list below the table."""
    refused = [a["refused"] for a in said if "refused" in a]
    if refused:
        return "refuses", refused[0]
    if late:
        return "hangs", f"{len(said)} of {RANKS} ranks answered"
    if len(said) != RANKS:
        return "refuses", f"{len(said)} of {RANKS} ranks answered; the others ended without an answer"
    said.sort(key=lambda a: a["rank"])
    xs, cts = data(case)
    spec = CASES[case]
    for a, y in zip(said, spec.forward(xs), strict=True):
        if y is not None and a["result"] is not None and not close(np.array(a["result"]), y):
            return "wrong value", f"rank {a['rank']}"
    got = [np.array(a["gradient"]) for a in said]
    expected = spec.gradient(cts, xs)
    flat, wanted = np.concatenate([g.ravel() for g in got]), np.concatenate([g.ravel() for g in expected])
    if flat.shape != wanted.shape:
        return "wrong", "wrong shape"
    if close(flat, wanted):
        return "right", ""
    if spec.invariant is not None:
        if close(flat, np.concatenate([g.ravel() for g in spec.invariant(cts, xs)])):
            return "right as I", ""
    factor = float(flat @ wanted / (wanted @ wanted))
    if factor and close(flat, factor * wanted):
        return f"wrong x {factor:.4g}", ""
    return "wrong", f"relative error {np.linalg.norm(flat - wanted) / np.linalg.norm(wanted):.2g}"


def close(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and np.linalg.norm(a - b) <= TOLERANCE * max(np.linalg.norm(b), 1e-300))


def missing(system: System, python: str | None) -> str:
    """Why a system cannot run; "" if it can."""
    if python is None:
        return f"no interpreter was given (--python-{system.option} PATH)"
    found = subprocess.run([python, "-c", f"import {system.module}"], check=False, capture_output=True, text=True)
    return "" if found.returncode == 0 else f"{python} cannot import {system.module}: {found.stderr.strip()[-200:]}"


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for peer in ("torch", "jax", "mpi4jax", "mpi4torch"):
        parser.add_argument(f"--python-{peer}", metavar="PATH", help=f"an interpreter with {peer}")
    parser.add_argument("--limit-s", type=float, default=30.0, help="time limit of a case")
    parser.add_argument("--case", action="append", choices=CASES, help="only this one (may be repeated)")
    parser.add_argument("--json", action="store_true", help="print one object: case -> system -> [verdict, detail]")
    args = parser.parse_args()
    table: dict[str, dict[str, tuple[str, str]]] = {}
    absent: dict[str, str] = {}
    for name, system in SYSTEMS.items():
        python = getattr(args, f"python_{system.option}") if system.option else sys.executable
        reason = missing(system, python)
        if reason:
            absent[name] = reason
    for case in args.case or CASES:
        table[case] = {}
        for name, system in SYSTEMS.items():
            if name not in absent:
                python = getattr(args, f"python_{system.option}") if system.option else sys.executable
                table[case][name] = verdict(case, *answers(system, python, case, args.limit_s))
                print(f"\r{case}: {name}: {table[case][name][0]}".ljust(79), end="", file=sys.stderr, flush=True)
    print("\r" + " " * 79 + "\r", end="", file=sys.stderr)
    if args.json:
        print(json.dumps({"cases": table, "left out": absent}))
        return
    columns = [name for name in SYSTEMS if name not in absent]
    wide = max(map(len, table))
    print(" " * wide, *(f"{c:>20}" for c in columns))
    for case, cells in table.items():
        print(f"{case:{wide}}", *(f"{cells[c][0]:>20}" for c in columns))
    for case, cells in table.items():
        for name, (said, detail) in cells.items():
            if detail:
                print(f"  {case}, {name}: {said}: {detail}")
    for name, reason in absent.items():
        print(f"  {name} is left out: {reason}")


if __name__ == "__main__":
    main()
