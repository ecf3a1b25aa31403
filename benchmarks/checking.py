"""The cost of mismatch checking: a recorded all_reduce of 4 KiB in every mode, compared with the bare transport.

    python benchmarks/checking.py

It runs on two ranks, as threads of one process and as processes under mpiexec (if it is installed), with float32 and
one thread per rank. The modes take turns in one process, so that other load on the machine affects all of them. Times
are medians over the rounds. The peer of each mode is the transport's own call on the same array, without tape, layouts
or fingerprint. One more line is measured with the check removed from the code: ``off`` must not be measurably slower.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "_peers"
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
BARE, UNCHECKED = "bare transport", "without the check"
WORLDS = {"local": "2 threads", "mpi": "2 processes"}


def worker(world: str, rounds: int, calls: int) -> dict[str, list[float]] | None:
    """Run one world: microseconds by name and round, or None if mpiexec is not installed."""
    command = [sys.executable, str(PEERS / "checking_worker.py"), world, str(rounds), str(calls)]
    if world == "mpi":
        beside = Path(sys.executable).parent / "mpiexec"
        mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
        if mpiexec is None:
            return None
        command = [mpiexec, "-n", "2", *command]
    paths = [str(PEERS.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **THREADS, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    names = [name for name in found if name != "rounds"]
    return {name: [each[k] for each in found["rounds"]] for k, name in enumerate(names)}


def ratio(peer: list[float], ours: list[float]) -> float:
    """The median over the rounds of the ratio within a round, whose times were measured shortly after each other."""
    return statistics.median(p / o for p, o in zip(peer, ours, strict=True))


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41, help="rounds; every mode runs once in each (at least 5)")
    parser.add_argument("--calls", type=int, default=200, help="calls of each mode per round")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (us), ratio")
    args = parser.parse_args()
    if args.rounds < 5:
        parser.error("--rounds: at least 5")
    figures: dict[str, dict[str, float]] = {}
    for world, shown in WORLDS.items():
        times = worker(world, args.rounds, args.calls)
        if times is None:
            print(f"{shown}: skipped, no mpiexec beside the interpreter or on PATH", file=sys.stderr)
            continue
        middle = {name: statistics.median(values) for name, values in times.items()}
        pairs = [(name, BARE) for name in times if name != BARE] + [("off", UNCHECKED)]
        for name, peer in pairs:
            beside = "" if peer == BARE else f" beside {peer}"
            figures[f"all_reduce 4 KiB, {shown}, {name}{beside}"] = {
                "ours": middle[name], "peer": middle[peer], "ratio": ratio(times[peer], times[name]),
            }  # fmt: skip
    if args.json:
        print(json.dumps(figures))
        return
    width = max(map(len, figures))
    print(f"{'':{width}}  {'us':>8}  {'peer us':>8}  {'ratio':>6}")
    for name, figure in figures.items():
        print(f"{name:{width}}  {figure['ours']:8.1f}  {figure['peer']:8.1f}  {figure['ratio']:6.2f}")


if __name__ == "__main__":
    main()
