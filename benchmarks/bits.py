"""The cost of ``Trainer(bits="same")`` on training steps of a GPT.

    python benchmarks/bits.py
    mpiexec -n 2 python benchmarks/bits.py --rows 32 --microbatches 4 8 16 32

For each number of microbatches of the whole batch it measures three trainers in turn: with ``bits="same"``; without it,
with the same rows in each microbatch of a rank; and without it, with the whole part of a rank as one microbatch. The
two ratios are the time of a step with ``bits="same"`` over theirs, the median over the rounds: the cost of the order of
sums, and that of small microbatches with it. All three begin with the same weights and have the same batches. Set
OPENBLAS_NUM_THREADS=1 where several ranks share a machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent / "examples")  # `collectives.py` here is a benchmark

import numpy as np

import collectives as cc
from autograd import nn, optim, random
from parallel import Trainer


def trainer_of(args: argparse.Namespace, microbatches: int, bits: str | None) -> Trainer:
    """A trainer of the GPT on all ranks, each with a part of the rows."""
    import gpt

    config = gpt.Config(vocabulary=256, width=args.width, heads=8, layers=args.layers)

    def model() -> nn.Sequential:
        made: nn.Sequential = gpt.gpt(config, random.Key(0), np.float32)
        return made

    return Trainer(
        model, gpt.Loss(), cc.Mesh.fit(dp=int(cc.world().size)), microbatches=microbatches, clip=1.0, bits=bits,
        zero=args.zero, optimizer=lambda parameters: optim.AdamW(parameters, lr=1e-3),
    )  # fmt: skip


def seconds(trainers: Sequence[Trainer], batch: Any, rounds: int) -> list[list[float]]:
    """The times of a step of each trainer, on this rank: after two steps, in turn."""
    for trainer in trainers:
        for _ in range(2):
            trainer.step(*batch)
    times: list[list[float]] = [[] for _ in trainers]
    for _ in range(rounds):
        for trainer, found in zip(trainers, times, strict=True):
            begin = time.perf_counter()
            trainer.step(*batch)
            found.append(time.perf_counter() - begin)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16, help="rows of the whole batch")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a row")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--zero", type=int, default=0, choices=(0, 1, 2, 3))
    parser.add_argument("--microbatches", type=int, nargs="+", default=[2, 4, 8, 16], help="of the whole batch")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true", help="print one object: figure -> the table's columns")
    args = parser.parse_args(arguments)
    ranks = int(cc.world().size)
    if wrong := [m for m in args.microbatches if m % ranks or args.rows % m]:
        parser.error(f"--microbatches {wrong[0]}: a multiple of the {ranks} ranks, and a divisor of --rows, is needed")
    batch = np.random.default_rng(0).integers(0, 256, (2, args.rows, args.tokens))
    found = {}
    for m in args.microbatches:
        trainers = [trainer_of(args, *each) for each in ((m, "same"), (m // ranks, None), (1, None))]
        same, parts, whole = seconds(trainers, batch, args.rounds)
        found[f"{m} microbatches of {args.rows // m} rows, {ranks} ranks"] = {
            "same_ms": 1e3 * statistics.median(same),
            "beside_microbatches": statistics.median(a / b for a, b in zip(same, parts, strict=True)),
            "beside_whole_batch": statistics.median(a / b for a, b in zip(same, whole, strict=True)),
        }
    if int(cc.world().rank):
        return
    if args.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        print(f"{name:36}" + "  ".join(f"{k} {v:.3f}" for k, v in row.items()))


if __name__ == "__main__":
    main()
