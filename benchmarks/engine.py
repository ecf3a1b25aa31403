"""Speed of the engine: ringtape compared with PyTorch eager, HIPS autograd, JAX and NumPy without an engine.

    python benchmarks/engine.py --python-torch /path/to/an/environment/with/torch/bin/python
    python benchmarks/engine.py --only gpt-8x128 adam --python-torch ... --json

All cases run in float32 on one thread:

64-64-64-10, 784-128-10   a training step of a small network: batch 32, ReLU, softmax cross-entropy, SGD with momentum;
                          as it is, and captured (`autograd.capture`), with Numba and without
chain                     1,000 operations on one number, and their derivative
gpt-8x128, gpt-1x1024     a transformer block, batch x tokens: width 256, 4 heads, 4x MLP with tanh GELU, causal;
                          forward, and backward to all parameters and the input; the peer has two forms of attention
cross-entropy             forward and backward for 1,024 rows and 8,192 classes
adam                      the update of 1,000,000 parameters; the peer has two forms

Each engine runs in its own process and starts from the same numbers; their results are compared. The processes take
turns, so that other load on the machine affects all of them. With ``--before`` ringtape is compared with another tree
of ringtape instead:

    python benchmarks/engine.py --before /path/of/another/checkout --python-before PATH

A ratio is the peer's time divided by ours, so above 1 ringtape is faster. It is the median over the rounds of the ratio
within a round, whose times are measured within half a second. NumPy with derivatives by hand is a bound on what an
engine on NumPy can reach.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

PEERS = Path(__file__).resolve().parent / "_peers"
sys.path.insert(0, str(PEERS))

import before
from engine_process import Process
from engine_worker import BATCH, CASES, THREADS
from machine import print_machine


class Engine(NamedTuple):
    """One form of an engine: its name in the table, the package that its interpreter needs, its script and mode."""

    name: str
    python: str
    script: str
    mode: str = ""


MESH = Engine("ringtape, mesh dp=1", "", "engine_ringtape.py", "mesh")
PLAIN = Engine("ringtape, no mesh", "", "engine_ringtape.py", "plain")
CAPTURED = Engine("ringtape, captured", "", "engine_ringtape.py", "captured")
NUMPY_ONLY = Engine("ringtape, captured, NumPy only", "", "engine_ringtape.py", "captured-numpy")
BARE = Engine("bare numpy", "", "engine_numpy.py")
TORCH = Engine("torch", "torch", "engine_torch.py")
HIPS = Engine("HIPS autograd", "hips", "engine_hips.py")
JAX = Engine("jax.jit", "jax", "engine_jax.py")
OURS = Engine("ringtape", "", "engine_ringtape.py")
SDPA = Engine("torch, SDPA", "torch", "engine_torch.py", "sdpa")
MANUAL = Engine("torch, plain attention", "torch", "engine_torch.py", "manual")
DEFAULT = Engine("torch, default", "torch", "engine_torch.py", "default")
FUSED = Engine("torch, fused", "torch", "engine_torch.py", "fused")

# The pairs of engines to compare, by kind of case.
PAIRS = {
    "mlp": [(MESH, TORCH), (PLAIN, TORCH), (BARE, TORCH), (PLAIN, BARE), (PLAIN, HIPS), (PLAIN, JAX),
            (NUMPY_ONLY, BARE), (NUMPY_ONLY, JAX), (CAPTURED, BARE), (CAPTURED, JAX)],
    "chain": [(OURS, TORCH)],
    "gpt": [(OURS, SDPA), (OURS, MANUAL)],
    "cross_entropy": [(OURS, TORCH)],
    "cnn": [(OURS, TORCH)],
    "adam": [(OURS, DEFAULT), (OURS, FUSED)],
}
TITLES = {
    "chain": "chain of 1,000 scalar operations",
    "gpt-8x128": "GPT block, 8 x 128 tokens",
    "gpt-1x1024": "GPT block, 1 x 1,024 tokens",
    "cross-entropy": "cross-entropy, 1,024 x 8,192",
    "cnn": "CNN, 256 x 8 x 8",
    "adam": "Adam, 1,000,000 parameters",
}


class Worker(Process):
    """One engine on one case, in its own process."""

    def __init__(self, engine: Engine, python: str, case: str, steps: int, tree: str = str(PEERS.parent.parent)):
        self.engine = engine
        environment = dict(os.environ, **THREADS)
        if engine.script == "engine_ringtape.py":  # by default the tree that this file belongs to, installed or not
            paths = [tree, os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
            if engine is NUMPY_ONLY:
                environment["RINGTAPE_COMPILED"] = "0"
        else:  # HIPS autograd has the same package name, so ringtape must not be on the path of a peer
            environment.pop("PYTHONPATH", None)
        command = [python, str(PEERS / engine.script), "--case", case, "--mode", engine.mode, "--steps", str(steps)]
        super().__init__(engine.name, engine.python, command, environment)


def chosen(case: str, args: argparse.Namespace) -> list[tuple[Engine, Engine]]:
    """The pairs of a case that can be measured with the given interpreters."""
    pairs = PAIRS[CASES[case].kind]
    if args.reference_only:
        pairs = [pair for pair in pairs if pair[0] is BARE]
    if case != "64-64-64-10":
        pairs = [(ours, peer) for ours, peer in pairs if peer not in (HIPS, JAX) or ours in (CAPTURED, NUMPY_ONLY)]
    return [pair for pair in pairs if not pair[1].python or getattr(args, f"python_{pair[1].python}")]


def measure(case: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The figures of one case."""
    pairs = chosen(case, args)
    engines = list(dict.fromkeys([ours for ours, _ in pairs] + [peer for _, peer in pairs]))
    workers: list[Worker] = []
    try:
        # Workers start one after the other, so that their warm-ups do not overlap.
        found = {}
        for engine in engines:
            python = getattr(args, f"python_{engine.python}") if engine.python else sys.executable
            workers.append(Worker(engine, python, case, args.steps))
            found[engine] = json.loads(workers[-1].answer())
        for engine, values in found.items():
            for what, value in values.items():
                expected = found[engines[-1]][what]
                if not math.isclose(value, expected, rel_tol=1e-3):
                    raise SystemExit(f"{case}: not the same step: {what} is {value} of {engine.name}, "
                                     f"{expected} of {engines[-1].name}")  # fmt: skip
        times: dict[Engine, list[float]] = {engine: [] for engine in engines}
        for _ in range(args.rounds):
            for worker in workers:
                times[worker.engine].append(worker.round())
    finally:
        for worker in workers:
            worker.close()
    title = TITLES.get(case, f"step {BATCH} x {case}")
    figures = {}
    for ours, peer in pairs:
        # the first figures keep the names that they have in earlier reports
        name = f"{title}, {ours.name}" if peer is TORCH and ours is not OURS else (
            f"{title}, against {peer.name}" if ours not in (CAPTURED, NUMPY_ONLY) else
            f"{title}, {ours.name.removeprefix('ringtape, ')}, against {peer.name}")
        figures[name] = {
            "ours": statistics.median(times[ours]),
            "peer": statistics.median(times[peer]),
            "ratio": statistics.median(t / o for t, o in zip(times[peer], times[ours], strict=True)),
        }
    return figures


def compare(case: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The figures of one case in this tree and in the one before."""
    figures = {}
    for engine in (MESH, PLAIN) if CASES[case].kind == "mlp" else (OURS,):
        now: list[list[float]] = []
        then: list[list[float]] = []
        for _ in range(args.starts):
            workers: list[Worker] = []
            try:
                workers.append(Worker(engine, sys.executable, case, args.steps))
                found = json.loads(workers[0].answer())
                workers.append(Worker(engine, args.python_before, case, args.steps, args.before))
                expected = json.loads(workers[1].answer())
                for what, value in found.items():
                    if not math.isclose(value, expected[what], rel_tol=1e-3):
                        raise SystemExit(f"{case}: not the same step: {what} is {value}, was {expected[what]} before")
                for times in (now, then):
                    times.append([])
                for turn in range(args.rounds):
                    pairs = list(zip(workers, (now[-1], then[-1]), strict=True))
                    for worker, times_of_start in pairs[:: -1 if turn % 2 else 1]:  # neither always comes first
                        times_of_start.append(worker.round())
            finally:
                for worker in workers:
                    worker.close()
        title = TITLES.get(case, f"step {BATCH} x {case}")
        figures[title if engine is OURS else f"{title}, {engine.name}"] = before.figure(now, then)
    return figures


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", default=sys.executable, metavar="PATH", help="interpreter that has torch")
    parser.add_argument("--python-hips", metavar="PATH", help="interpreter that has HIPS autograd; without, left out")
    parser.add_argument("--python-jax", metavar="PATH", help="interpreter that has jax; without, left out")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=31, help="rounds; each engine runs once in each (at least 5)")
    parser.add_argument("--steps", type=int, default=0, help="steps per round; the default depends on the case")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (us), ratio")
    parser.add_argument("--reference-only", action="store_true", help="bare numpy and torch only")
    before.add_options(parser)
    args = parser.parse_args()
    if args.rounds < 5:
        parser.error("--rounds: at least 5")
    print_machine()
    figures: dict[str, dict[str, float]] = {}
    for case in args.only:
        if args.before:
            print(f"engine.py: {case}", file=sys.stderr)
            figures |= compare(case, args)
        elif chosen(case, args):
            figures |= measure(case, args)
    if args.json:
        print(json.dumps(figures))
        return
    if args.before:
        print(before.table(figures))
        return
    width = max((len(name) for name in figures), default=0)
    print(f"{'':{width}}  {'us':>9}  {'peer us':>9}  {'ratio':>6}")
    for name, figure in figures.items():
        print(f"{name:{width}}  {figure['ours']:9.1f}  {figure['peer']:9.1f}  {figure['ratio']:6.2f}")


if __name__ == "__main__":
    main()
