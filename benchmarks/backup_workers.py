"""Backup workers beside `DataParallel` in the same run, where one rank is slow and where none is.

    mpiexec -n 3 python benchmarks/backup_workers.py
    python benchmarks/backup_workers.py --ranks 3           # on threads

Each rank computes a small model, and then sleeps for the rest of a step of `--step-ms`, so that ranks that share a core
are no slower. The slow rank sleeps `--factor` steps. `DataParallel` waits for it; with all but one rank needed, backup
workers do not. The bytes of the model are those of its parameters, all of which a late rank reads.

Runs are interleaved; figures are medians over the rounds of the time of a block divided by its steps, on the rank that
took longest. The peer of every figure is ringtape's own `DataParallel`. Ratios above 1 are better.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Python puts a script's own folder first on sys.path, where `import collectives` would find `collectives.py`.
sys.path = [str(HERE.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

# NumPy reads the number of threads when it is imported, so it must be imported after these assignments
import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import BackupWorkers, DataParallel

parser = argparse.ArgumentParser(description="Time of a step with backup workers, and with DataParallel.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--step-ms", type=float, default=20.0, help="the time that a rank computes in a step")
parser.add_argument("--factor", type=float, default=4.0, help="how many times as long the slow rank computes")
parser.add_argument("--width", type=int, default=128, help="of the hidden layer")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--json", action="store_true", help="print one JSON object")

ROWS = 16


def make_model(width: int) -> nn.Module:
    random.seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def loss_of(model: Any, rank: int, step: int, ranks: int) -> Any:
    generator = np.random.default_rng((rank, step))
    x, y = generator.normal(size=(ROWS, 64)).astype(np.float32), generator.integers(0, 10, ROWS)
    return nn.cross_entropy(model(x), y, reduction="sum") / (ROWS * ranks)


def seconds(options: argparse.Namespace, backups: int | None, is_slow: bool) -> float:
    """The seconds of a step; `backups` is None for `DataParallel`."""
    with cc.Mesh(dp=-1) as mesh:
        axis = mesh.axis("dp")
        rank, size = int(axis.rank), int(axis.size)
        lasts_s = options.step_ms * 1e-3 * (options.factor if is_slow and rank == size - 1 else 1.0)
        model: Any = make_model(options.width)
        optimizer = optim.Adam(model.parameters(), lr=0.001)

        def computed(began: float) -> None:
            time.sleep(max(0.0, began + lasts_s - time.perf_counter()))

        axis.group.barrier()
        start = time.perf_counter()
        if backups is None:
            parallel = DataParallel(model, "dp")
            for step in range(options.steps):
                began = time.perf_counter()
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce(loss_of(parallel, rank, step, size), "dp", to=cc.I)
                computed(began)
                tape.backward(loss)
                optimizer.step()
        else:
            with BackupWorkers(model, "dp", optimizer, needed=size - backups, steps=options.steps) as backup:
                for step in backup:
                    began = time.perf_counter()
                    with ag.Tape() as tape:
                        loss = cc.declare_partial(loss_of(model, rank, step, size), "dp")
                    tape.backward(loss)
                    computed(began)
                    backup.step(rows=ROWS, of=ROWS * size)
        mine = (time.perf_counter() - start) / options.steps
    return max(np.frombuffer(b"".join(cc.world().exchange(np.float64(mine).tobytes())), np.float64).tolist())


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    figures = {
        "a slow rank, one backup worker": (1, True), "no slow rank, one backup worker": (1, False),
        "no slow rank, all ranks needed": (0, False),
    }  # fmt: skip
    found: dict[str, tuple[list[float], list[float]]] = {figure: ([], []) for figure in figures}
    for _ in range(options.rounds):
        for figure, (backups, is_slow) in figures.items():
            found[figure][0].append(seconds(options, backups, is_slow))
            found[figure][1].append(seconds(options, None, is_slow))
    if cc.world().rank != 0:
        return
    medians = {figure: tuple(map(statistics.median, each)) for figure, each in found.items()}
    if options.json:
        print(json.dumps({k: {"ours": a, "peer": b, "ratio": b / a} for k, (a, b) in medians.items()}))
        return
    print(f"{'seconds of a step':40}{'ours':>12}{'DataParallel':>14}{'ratio':>8}")
    for figure, (ours, peer) in medians.items():
        print(f"{figure:40}{ours:12.5f}{peer:14.5f}{peer / ours:8.2f}")


if __name__ == "__main__":
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the slow rank is told that nothing is learnt from its rows
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
