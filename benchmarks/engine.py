"""A training step of small networks, where the engine's own cost shows: ringtape beside PyTorch eager.

    python benchmarks/engine.py --python-torch /path/to/an/environment/with/torch/bin/python

Batch 32, float32, one thread, ReLU, softmax cross-entropy, SGD with momentum 0.9; forward, backward and update. Each
engine runs in a process of its own, from the same weights on the same data, and they take turns, so that what else the
machine does meets all of them. A ratio is PyTorch's time over ours, above 1 ours is faster: the median of the rounds'
ratios, each of times that were taken within the same half second. The bare NumPy loop, with derivatives by hand and no
engine at all, is what an engine on NumPy could reach at best.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "_peers"
sys.path.insert(0, str(PEERS))

from engine_worker import BATCH, CASES, THREADS  # noqa: E402 - beside the workers, which run by themselves

OURS = {"ringtape, mesh dp=1": "mesh", "ringtape, no mesh": "plain"}
BARE = "bare numpy"
TORCH = "torch"


class Worker:
    """One engine on one case, in a process of its own."""

    def __init__(self, name: str, python: str, script: str, case: str, mode: str, steps: int):
        self.name = name
        environment = dict(os.environ, **THREADS)
        if script == "engine_ringtape.py":  # the tree that this file belongs to, installed or not
            paths = [str(PEERS.parent.parent), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        command = [python, str(PEERS / script), "--case", case, "--mode", mode, "--steps", str(steps)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def answer(self) -> str:
        """The worker's next line. Its own errors are on standard error already."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            hint = "\n  fix: --python-torch PATH, an interpreter that has torch" if self.name == TORCH else ""
            raise SystemExit(f"{self.name}: its process ended with status {self.process.wait()}; see above{hint}")
        return line

    def round(self) -> float:
        """The median time of a step in one round, in microseconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        return float(self.answer())

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def measure(case: str, args: argparse.Namespace) -> dict[str, list[float]]:
    """The time of a step in microseconds, by engine and round."""
    workers: list[Worker] = []
    try:
        # One starts after the other: none warms up while another does.
        losses = {}
        plan = [] if args.reference_only else [(n, sys.executable, "engine_ringtape.py", m) for n, m in OURS.items()]
        plan += [(BARE, sys.executable, "engine_numpy.py", ""), (TORCH, args.python_torch, "engine_torch.py", "")]
        for name, python, script, mode in plan:
            workers.append(Worker(name, python, script, case, mode, args.steps))
            losses[name] = json.loads(workers[-1].answer())
        for name, loss in losses.items():
            for when, value in loss.items():
                expected = losses[BARE][when]
                if not math.isclose(value, expected, rel_tol=1e-3):
                    raise SystemExit(f"{case}: not the same step: {when} loss {value} of {name}, {expected} of {BARE}")
        times: dict[str, list[float]] = {w.name: [] for w in workers}
        for _ in range(args.rounds):
            for worker in workers:
                times[worker.name].append(worker.round())
    finally:
        for worker in workers:
            worker.close()
    return times


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", default=sys.executable, metavar="PATH", help="interpreter that has torch")
    parser.add_argument("--rounds", type=int, default=31, help="rounds, each engine once in each (at least 5)")
    parser.add_argument("--steps", type=int, default=100, help="steps of a round")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (us), ratio")
    parser.add_argument("--reference-only", action="store_true", help="bare numpy and torch only")
    args = parser.parse_args()
    if args.rounds < 5:
        parser.error("--rounds: at least 5")
    figures: dict[str, dict[str, float]] = {}
    for case in CASES:
        times = measure(case, args)
        for name, ours in times.items():
            if name != TORCH:
                figures[f"step {BATCH} x {case}, {name}"] = {
                    "ours": statistics.median(ours),
                    "peer": statistics.median(times[TORCH]),
                    "ratio": statistics.median(t / o for t, o in zip(times[TORCH], ours, strict=True)),
                }
    if args.json:
        print(json.dumps(figures))
        return
    width = max(len(name) for name in figures)
    print(f"{'':{width}}  {'us':>8}  {'torch us':>8}  {'ratio':>6}")
    for name, figure in figures.items():
        print(f"{name:{width}}  {figure['ours']:8.1f}  {figure['peer']:8.1f}  {figure['ratio']:6.2f}")


if __name__ == "__main__":
    main()
