"""The cost of elastic runs on training steps: the commit at the end of a step, and a copy of the state in memory.

    python benchmarks/elastic.py
    mpiexec -n 2 python benchmarks/elastic.py --zero 1

For the GPT of ``examples/train_gpt.py`` and for a network of the size of the digits, it measures in one run the bodies
of the steps, and the time between the end of one and the beginning of the next. Every second step is copied to the
partner, where there is one; so half of these times are commits alone. `commit_share` is the median commit over the
median body, and `copy_share` the median copy over the median body: divided by ``copies=`` it is the share of a step
that copies take. Set OPENBLAS_NUM_THREADS=1 where several ranks share a machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent / "examples")  # `collectives.py` here is a benchmark

import numpy as np

import collectives as cc
from autograd import nn, optim, random
from parallel import Trainer, elastic


def digits() -> nn.Sequential:
    """A network for images of 8 by 8 pixels."""
    key = random.Key(0)
    return nn.Sequential(nn.Linear(64, 64, key=key.fold("a")), nn.ReLU(), nn.Linear(64, 10, key=key.fold("b")))


def gpt_of(args: argparse.Namespace) -> nn.Sequential:
    """The GPT of the examples."""
    import gpt

    config = gpt.Config(vocabulary=65, width=args.width, heads=4, layers=args.layers)
    made: nn.Sequential = gpt.gpt(config, random.Key(0), np.float32)
    return made


def measured(model: Callable[[], Any], loss: Any, batch: Any, args: argparse.Namespace) -> dict[str, float]:
    """The figures of one model, in milliseconds and bytes, on this rank."""

    def train(run: elastic.Run) -> dict[str, float]:
        trainer = Trainer(
            model, loss, run.mesh, clip=1.0, zero=args.zero, optimizer=lambda p: optim.AdamW(p, lr=1e-3)
        )
        state: dict[str, Any] = {"trainer": trainer, "losses": [], "random": random}
        run.restore(state)
        bodies: list[float] = []
        between: list[float] = []
        end = 0.0
        for _ in run.steps(2 * args.rounds + 4):
            begin = time.perf_counter()
            between.append(begin - end)
            state["losses"].append(trainer.step(*batch))
            end = time.perf_counter()
            bodies.append(end - begin)
        body, commit = 1e3 * statistics.median(bodies[4:]), 1e3 * statistics.median(between[5::2])
        copy = max(1e3 * statistics.median(between[4::2]) - commit, 0.0) if run.world.size > 1 else 0.0
        count = sum(p.array.size for p in trainer.parameters.values())
        return {
            "parameters": count, "step_ms": body, "commit_ms": commit, "commit_share": commit / body, "copy_ms": copy,
            "copy_share": copy / body,
        }  # fmt: skip

    found = elastic.run(train, mesh={"dp": -1}, copies=2)
    assert found is not None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16, help="rows of the whole batch of the GPT")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a row")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--zero", type=int, default=0, choices=(0, 1, 2, 3))
    parser.add_argument("--rounds", type=int, default=11, help="the steps with a copy, and those without")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> the table's columns")
    args = parser.parse_args(arguments)
    import gpt

    rng = np.random.default_rng(0)
    images = rng.standard_normal((128, 64)).astype(np.float32), rng.integers(0, 10, 128)
    with cc.World(policy="raise") as world:
        found = {
            f"GPT, {world.size} ranks": measured(
                lambda: gpt_of(args), gpt.Loss(), rng.integers(0, 65, (2, args.rows, args.tokens)), args
            ),
            f"digits, {world.size} ranks": measured(digits, nn.CrossEntropyLoss(reduction="sum"), images, args),
        }
        if world.communicator.index:
            return
    if args.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        print(f"{name:16}" + "  ".join(f"{k} {v:.3f}" for k, v in row.items()))


if __name__ == "__main__":
    main()
