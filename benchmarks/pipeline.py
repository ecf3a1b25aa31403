"""The idle share of each rank of a pipeline: measured, and predicted by the simulator, for every schedule.

    python benchmarks/pipeline.py                       # ranks are threads
    mpiexec -n 4 python benchmarks/pipeline.py          # ranks are processes

The compute of a stage is a sleep, so that ranks do not share cores: `--unit-ms` for each of F, I and W of all stages of
a rank. The prediction is that of the simulator for these times, and messages that take no time. Every schedule runs
`--steps` times after one step that is not counted. The table has the means over the ranks, the rank with the largest
relative difference, and the largest number of live activations, measured and predicted. The ratio of the figures is
predicted / measured idle share. The measured shares are those of the step with the smallest mean, because other
programs on the machine make them larger.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Python puts a script's own folder first on sys.path, where `import collectives` would find `collectives.py`.
sys.path = [str(HERE.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.extend import broadcast, op
from parallel.pipeline import SCHEDULES, Costs, Pipeline, simulate


def _slept(seconds: float, y: Any) -> Any:
    if y.__class__ not in _TENSORS:  # the check of the adjoints runs them on Tensors
        time.sleep(seconds)
    return y


_TENSORS = (ag.Tensor, ag.Parameter)
sleeping = op(
    "sleeping (benchmark)", "a b", lambda x, w, s: _slept(s, x * w),
    (lambda ct, y, x, w, s: _slept(s, ct * w), lambda ct, y, x, w, s: _slept(s, ct * x)), saves="01", dims=broadcast,
)  # fmt: skip


class Sleeping(nn.Module):
    """A layer whose forward pass, input cotangent and weight gradient sleep for a given time each."""

    def __init__(self, seconds: float):
        self.weight = ag.Parameter(np.ones(4))
        self.seconds = seconds

    def forward(self, x: Any) -> Any:
        return sleeping(x, self.weight, options=(self.seconds,))


class Start(nn.Module):
    """A first layer with a parameter, as an embedding."""

    def __init__(self) -> None:
        self.weight = ag.Parameter(np.ones(4))

    def forward(self, x: Any) -> Any:
        return x + self.weight


def measure(name: str, ranks: int, microbatches: int, unit_s: float, steps: int) -> dict[str, Any]:
    """The reports of some steps on this rank: idle shares and live activations of all ranks."""
    stages = ranks * (2 if name in ("interleaved", "zb-v") else 1)
    each = unit_s * ranks / stages
    layers: list[nn.Module] = [Start(), *(Sleeping(each) for _ in range(stages))]
    with cc.Mesh(pp=-1):
        costs = [0.0] + [1.0] * stages
        model = Pipeline(layers, lambda y: y.sum(), schedule=name, microbatches=microbatches, costs=costs)
        x = np.ones((microbatches, 4))
        model.step(x)  # its adjoints are checked, and shapes are sent
        reports = []
        for _ in range(steps):
            model.step(x)
            reports.append(model.report())
        expected = simulate(model.schedule, Costs(each, each, each))
    return {
        "idle": min((r.idle for r in reports), key=statistics.mean),
        "predicted idle": list(expected.idle_share),
        "live": reports[-1].held,
        "predicted live": list(expected.held),
    }


def table(name: str, found: dict[str, Any]) -> str:
    """One line of the table."""
    pairs = list(zip(found["idle"], found["predicted idle"], strict=True))
    worst = max(range(len(pairs)), key=lambda r: abs(pairs[r][0] / pairs[r][1] - 1) if pairs[r][1] else 0.0)
    idle, expected = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    equal = "equal" if found["live"] == found["predicted live"] else f"predicted {found['predicted live']}"
    return (
        f"{name:<12} {idle:>8.1%} {expected:>10.1%} {idle / expected - 1 if expected else 0.0:>+8.1%}   "
        f"rank {worst}: {pairs[worst][0]:.1%}, {pairs[worst][1]:.1%}   live {found['live']}, {equal}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Idle share of a pipeline: measured and predicted.")
    parser.add_argument("--ranks", type=int, default=4, help="threads of this process, without mpiexec")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--unit-ms", type=float, default=40.0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    is_alone = cc.world().size == 1
    ranks = options.ranks if is_alone else int(cc.world().size)
    figures = {}
    if cc.world().index == 0 and not options.json:
        print(f"{ranks} ranks, {options.microbatches} microbatches, F = I = W = {options.unit_ms:g} ms a rank")
        print(f"{'schedule':<12} {'idle':>8} {'predicted':>10} {'':>8}   largest difference: measured, predicted")
    for name in SCHEDULES:
        arguments = name, ranks, options.microbatches, options.unit_ms / 1000, options.steps
        found = cc.run(measure, ranks, *arguments)[0] if is_alone else measure(*arguments)
        ours, peer = (statistics.mean(found[key]) for key in ("idle", "predicted idle"))
        figures[f"idle share, {name}"] = {"ours": ours, "peer": peer, "ratio": peer / ours if ours else 1.0}
        if cc.world().index == 0 and not options.json:
            print(table(name, found), flush=True)
    if cc.world().index == 0 and options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
