"""Speed of captured steps: 26 training steps that people run, in ringtape, JAX, PyTorch eager and NumPy by hand.

    python benchmarks/captured.py --python-torch PATH --python-jax PATH
    python benchmarks/captured.py --only lstm gru --python-jax PATH --json

mlp-...                    32 rows through 64-64-64-10: of modules `Linear` and `ReLU`; by hand with maximum, tanh, GELU
cnn, block, char-gpt       convolutions on 28 x 28; a transformer block on 64 tokens; two of them, 4 x 64 tokens
lstm, gru                  recurrent networks by hand, 20 steps of 16 rows, hidden 32
norm-gelu, vae, graph,     residual layers with layer norm; a variational autoencoder; a graph convolution network;
mixture-density, logistic  a mixture of normal densities; logistic regression
factorization, word2vec    tables of embeddings
pinn, neural-ode, lotka,   in float64: second derivatives in a loss; Runge and Kutta along a network; two equations;
leapfrog, wave, kalman,    coupled springs; a field on a grid; a Kalman filter;
gaussian-process           a Cholesky root
private                    gradients clipped for each example

Each program is written for each engine as its users write it (`benchmarks/_captured`): in JAX with one `jax.jit` of the
whole step, and `lax.scan` for recurrences. All but those are float32, on one thread. Each engine runs in a process of
its own and starts from the same numbers. The losses of the first two steps and of the twelfth are compared; a relative
difference above 2e-5 in float32, or 1e-10 in float64, ends the run (3e-2 for `vae`, of which each engine has its own
noise). The processes take turns. Times are processor time, which does not count waiting for other programs. A ratio is
the other time divided by that of the captured step, the median over the rounds of the ratio within a round: above 1 the
captured step is faster. With ``--before`` the captured step, and the step as it is, are compared with those of another
tree of ringtape.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "_peers"))
sys.path.append(str(ROOT / "benchmarks"))

import before
from _captured.numpy_steps import STEPS as BY_HAND
from _captured.problems import PROBLEMS, problem
from engine_process import Process
from engine_worker import THREADS
from machine import print_machine

Figures = dict[str, dict[str, float]]


class Engine(NamedTuple):
    """An engine: its name in the table, that of the worker, the mode, and the package that its interpreter needs."""

    name: str
    worker: str
    mode: str = ""
    python: str = ""


CAPTURED = Engine("captured", "ringtape", "captured")
STEP = Engine("step", "ringtape", "step")
NUMPY = Engine("NumPy", "numpy")
JAX = Engine("jax.jit", "jax", python="jax")
TORCH = Engine("torch", "torch", python="torch")
PEERS = (STEP, JAX, TORCH, NUMPY)


class Worker(Process):
    """One engine on one program, in its own process."""

    def __init__(self, engine: Engine, python: str, program: str, tree: Path | str = ROOT):
        self.engine = engine
        environment = {**os.environ, **THREADS}
        if engine.worker == "ringtape":
            environment["PYTHONPATH"] = str(tree)
        else:
            environment.pop("PYTHONPATH", None)
        if engine is JAX:
            environment["JAX_PLATFORMS"] = "cpu"
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        command = [python, str(ROOT / "benchmarks" / "_captured" / "worker.py"), "--engine", engine.worker,
                   "--program", program, "--mode", engine.mode]  # fmt: skip
        super().__init__(engine.name, engine.python, command, environment)
        try:
            self.found: dict[str, Any] = json.loads(self.answer())
        except BaseException:
            self.close()
            raise


def require_same(program: str, workers: list[Worker]) -> None:
    """End the run if the losses of an engine are not those of the first, but for rounding."""
    tolerance = problem(program).tolerance
    first, *others = workers
    for other in others:
        for step, loss in first.found["losses"].items():
            found = other.found["losses"][step]
            if not math.isclose(found, loss, rel_tol=tolerance):
                raise SystemExit(f"{program}: not the same step: the loss of step {step} is {found} of "
                                 f"{other.engine.name}, {loss} of {first.engine.name}")  # fmt: skip


def measure(program: str, args: argparse.Namespace, versions: dict[str, None]) -> Figures:
    """The figures of one program."""
    workers: list[Worker] = []
    try:
        # Workers start one after the other, so that their warm-ups do not overlap.
        for engine in (CAPTURED, *PEERS):
            if engine is NUMPY and program not in BY_HAND:
                continue
            python = getattr(args, f"python_{engine.python}") if engine.python else sys.executable
            if python:
                workers.append(Worker(engine, python, program))
                versions[workers[-1].found["version"]] = None
        require_same(program, workers)
        times: dict[Engine, list[float]] = {worker.engine: [] for worker in workers}
        for turn in range(args.rounds):
            for worker in workers[:: -1 if turn % 2 else 1]:
                times[worker.engine].append(worker.round())
    finally:
        for worker in workers:
            worker.close()
    ours = times.pop(CAPTURED)
    return {
        f"{program}, against {engine.name}": {
            "ours": statistics.median(ours),
            "peer": statistics.median(theirs),
            "ratio": statistics.median(t / o for t, o in zip(theirs, ours, strict=True)),
        }
        for engine, theirs in times.items()
    }


def compare(program: str, args: argparse.Namespace) -> Figures:
    """The figures of one program in this tree and in the one before."""
    figures = {}
    for engine in (CAPTURED, STEP):
        now: list[list[float]] = []
        then: list[list[float]] = []
        for _ in range(args.starts):
            workers: list[Worker] = []
            try:
                workers.append(Worker(engine, sys.executable, program))
                workers.append(Worker(engine, args.python_before, program, args.before))
                require_same(program, workers)
                now.append([])
                then.append([])
                for turn in range(args.rounds):
                    pairs = list(zip(workers, (now[-1], then[-1]), strict=True))
                    for worker, times in pairs[:: -1 if turn % 2 else 1]:  # neither always comes first
                        times.append(worker.round())
            finally:
                for worker in workers:
                    worker.close()
        figures[f"{program}, {engine.name}"] = before.figure(now, then)
    return figures


def means(figures: Figures) -> dict[str, tuple[float, int]]:
    """The geometric mean of the ratios against each engine, and the number of programs in it."""
    found = {}
    for engine in PEERS:
        ratios = [row["ratio"] for name, row in figures.items() if name.endswith(f", against {engine.name}")]
        if ratios:
            found[engine.name] = statistics.geometric_mean(ratios), len(ratios)
    return found


def table(figures: Figures) -> str:
    """The figures as text: a row for each program."""
    mean = means(figures)
    heads = [f"{name}/captured" for name in mean]
    lines = [f"{'':18}{'captured us':>12}" + "".join(f"{head:>18}" for head in heads)]
    for program in dict.fromkeys(name.split(", against ")[0] for name in figures):
        rows = {name: figures.get(f"{program}, against {name}") for name in mean}
        ours = next(row["ours"] for row in rows.values() if row is not None)
        ratios = [f"{row['ratio']:.2f}" if row else "" for row in rows.values()]
        lines.append(f"{program:18}{ours:12.1f}" + "".join(f"{ratio:>18}" for ratio in ratios))
    lines.append(f"{'geometric mean':30}" + "".join(f"{f'{ratio:.2f} (of {n})':>18}" for ratio, n in mean.values()))
    return "\n".join(lines)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", metavar="PATH", help="interpreter that has torch; without, left out")
    parser.add_argument("--python-jax", metavar="PATH", help="interpreter that has jax; without, left out")
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=15, help="rounds; each engine runs once in each (at least 3)")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (us), ratio")
    before.add_options(parser)
    args = parser.parse_args()
    if args.rounds < 3:
        parser.error("--rounds: at least 3")
    print_machine()
    figures: Figures = {}
    versions: dict[str, None] = {}
    for program in args.only:
        print(f"captured.py: {program}", file=sys.stderr)
        figures |= compare(program, args) if args.before else measure(program, args, versions)
    if args.before:
        print(json.dumps(figures) if args.json else before.table(figures))
        return
    load = f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors"
    print(f"one thread each; {', '.join(versions)}; {load}", file=sys.stderr)
    if args.json:
        mean = {f"geometric mean, against {name}": {"ratio": ratio} for name, (ratio, _) in means(figures).items()}
        print(json.dumps(figures | mean))
        return
    print(table(figures))


if __name__ == "__main__":
    main()
