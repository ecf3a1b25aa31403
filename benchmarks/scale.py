"""The cost of examining the scale of a loss, on training steps of an MLP and of a small GPT on 1 and 2 ranks.

    python benchmarks/scale.py

The ranks are threads of one process, with one thread each. Two figures for each model and number of ranks:

- an examined step, beside one that is not examined. They take turns; times are medians. Of 1,000 steps 14 are examined,
  the first 8, the 16th, 32nd, ...; on one rank none is, as there is nothing to compare.
- all steps from the first on, on a new mesh, beside the same steps with ``cc.check(scale="off")``. The two take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    sys.path[0] = str(Path(__file__).resolve().parent.parent / "examples")  # `collectives.py` here is a benchmark

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from collectives import I
from parallel import DataParallel

ROWS, TOKENS = 32, 32


def mlp() -> tuple[nn.Module, Any, Any, Callable[..., Any]]:
    """The model, one rank's rows and targets, and its loss."""
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, rng.normal(size=(ROWS, 64)).astype(np.float32), rng.integers(0, 10, ROWS), nn.cross_entropy


def small_gpt() -> tuple[nn.Module, Any, Any, Callable[..., Any]]:
    """The GPT of the examples, with 2 layers of width 64."""
    import gpt

    rng = np.random.default_rng(0)
    model = gpt.gpt(gpt.Config(vocabulary=64, width=64, heads=4, layers=2), random.Key(0), np.float32)
    tokens = rng.integers(0, 64, (2, 4, TOKENS))
    return model, tokens[0], tokens[1], lambda logits, y: nn.cross_entropy(logits.reshape(-1, 64), y.reshape(-1))


MODELS: dict[str, Callable[[], tuple[nn.Module, Any, Any, Callable[..., Any]]]] = {"MLP": mlp, "small GPT": small_gpt}


def stepper(mesh: cc.Mesh, make: Callable[[], Any]) -> Callable[[], None]:
    """A function that makes one training step."""
    made, x, y, loss_of = make()
    model = DataParallel(made, "dp")
    optimizer = optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        with ag.Tape() as tape:
            loss = cc.mean(loss_of(model(x), y), "dp", to=I)
        tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step


def single_steps(make: Callable[[], Any], rounds: int) -> tuple[list[float], list[float]]:
    """The milliseconds of examined steps and of others, by turns."""
    times: tuple[list[float], list[float]] = [], []
    with cc.Mesh(dp=-1) as mesh:
        step = stepper(mesh, make)
        for _ in range(5):
            step()
        for _ in range(rounds):
            for found, before in zip(times, (0, 8), strict=True):  # the next tape is the 1st, or the 9th
                mesh.recordings = before
                mesh.ranks.barrier()
                begin = time.perf_counter()
                step()
                found.append(1e3 * (time.perf_counter() - begin))
    return times


def many_steps(make: Callable[[], Any], steps: int) -> float:
    """The milliseconds of the first steps on a mesh."""
    with cc.Mesh(dp=-1) as mesh:
        step = stepper(mesh, make)
        mesh.ranks.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        return 1e3 * (time.perf_counter() - begin)


def in_turn(make: Callable[[], Any], ranks: int, steps: int, rounds: int) -> tuple[list[float], list[float]]:
    """The milliseconds of the steps as they are, and with ``scale="off"``."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for found, scale in zip(times, ("warn", "off"), strict=True):
            cc.check(scale=scale)
            try:
                found.append(cc.run(many_steps, ranks, make, steps)[0])
            finally:
                cc.check(scale="warn")
    return times


def figure(ours: list[float], peer: list[float]) -> dict[str, float]:
    """The medians, and the median of the ratios within a round."""
    ratio = statistics.median(p / o for o, p in zip(ours, peer, strict=True))
    return {"ours": statistics.median(ours), "peer": statistics.median(peer), "ratio": ratio}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101, help="examined steps, and others")
    parser.add_argument("--steps", type=int, default=1000, help="steps from the first on")
    parser.add_argument("--repeats", type=int, default=2, help="how often these steps run, with each setting")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (ms), ratio")
    args = parser.parse_args(arguments)
    if min(args.rounds, args.steps, args.repeats) < 1:
        parser.error("--rounds, --steps, --repeats: at least 1")
    figures = {}
    for name, make in MODELS.items():
        for n in (1, 2):
            where = f"{name}, {n} rank{'s' * (n > 1)}"
            figures[f"an examined step, {where}"] = figure(*cc.run(single_steps, n, make, args.rounds)[0])
            figures[f"{args.steps} steps, {where}"] = figure(*in_turn(make, n, args.steps, args.repeats))
    if args.json:
        print(json.dumps(figures))
        return
    width = max(map(len, figures))
    print(f"{'':{width}}  {'ms':>9}  {'peer ms':>9}  {'ratio':>6}")
    for name, each in figures.items():
        print(f"{name:{width}}  {each['ours']:9.3f}  {each['peer']:9.3f}  {each['ratio']:6.3f}")


if __name__ == "__main__":
    main()
