"""Local SGD's bytes, and the waiting time of bounded staleness, each beside synchronous training in the same run.

    mpiexec -n 2 python benchmarks/asynchronous.py
    python benchmarks/asynchronous.py --ranks 2           # on threads

The bytes are the payload of the messages of a ring (`Traffic`), from the start of the block of `LocalSGD` to its end.

The waiting time is that for slower ranks (`ParameterServer.waited_s`); the time in reads and pushes also has their
transfers and locks. Each rank pauses at seeded random steps, the same number
of steps on every rank, so that the ranks are equally fast on average. Synchronous is ``staleness=0``. A pause takes no
processor time. Runs are interleaved; figures are medians over the rounds of the mean over the ranks.

The peer of every figure is ringtape's own synchronous training. Ratios above 1 are better.
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

# NumPy reads the number of threads when it is imported, so it must be imported after these assignments
import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel
from parallel.approximate.local_sgd import LocalSGD
from parallel.approximate.parameter_server import ParameterServer

parser = argparse.ArgumentParser(description="Bytes of local SGD, and waiting time of bounded staleness.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--every", type=int, default=8, help="local steps between two synchronisations")
parser.add_argument("--staleness", type=int, default=4, help="the bound")
parser.add_argument("--steps", type=int, default=64)
parser.add_argument("--pause-ms", type=float, default=8.0, help="one pause")
parser.add_argument("--share", type=float, default=0.25, help="the share of the steps with a pause")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--json", action="store_true", help="print one JSON object")


def make_model() -> nn.Module:
    random.seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def rows(rank: int, step: int) -> tuple[Any, Any]:
    generator = np.random.default_rng((rank, step))
    return generator.normal(size=(16, 64)).astype(np.float32), generator.integers(0, 10, 16)


def bytes_of(options: argparse.Namespace, every: int) -> float:
    """The bytes that this rank sends in a step; `every` = 0 is `DataParallel`."""
    with cc.Mesh(dp=-1, algorithm="ring") as mesh:
        axis = mesh.axis("dp")
        rank, traffic = int(axis.rank), axis.group.traffic
        model: Any = make_model()
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        traffic.clear()
        if not every:
            model = DataParallel(model, "dp")
            for step in range(options.steps):
                x, y = rows(rank, step)
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum"), "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
            return traffic.bytes / options.steps
        with LocalSGD(model, "dp", optimizer, every=every) as local:
            for step in range(options.steps):
                x, y = rows(rank, step)
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.declare_partial(nn.cross_entropy(model(x), y), "dp")
                tape.backward(loss)
                local.step()
        return traffic.bytes / options.steps


def waiting(options: argparse.Namespace, staleness: int, nth: int) -> tuple[float, float, float]:
    """The seconds that this rank has waited for slower ones, those in reads and pushes, and those of the run."""
    with cc.Mesh(dp=-1) as mesh:
        axis = mesh.axis("dp")
        rank = int(axis.rank)
        pauses = np.zeros(options.steps, bool)
        pauses[: round(options.share * options.steps)] = True
        np.random.default_rng((options.seed, nth, rank)).shuffle(pauses)
        model = make_model()
        optimizer = optim.SGD(model.parameters(), lr=0.001)
        axis.group.barrier()
        inside, began = 0.0, time.perf_counter()
        with ParameterServer(model, "dp", optimizer, staleness=staleness) as server:
            for step, pause in enumerate(pauses):
                start = time.perf_counter()
                server.read()
                inside += time.perf_counter() - start
                x, y = rows(rank, step)
                with ag.Tape() as tape:
                    loss = cc.declare_partial(nn.cross_entropy(model(x), y), "dp")
                tape.backward(loss)
                time.sleep((1.0 + options.pause_ms * pause) * 1e-3)  # every step takes at least a millisecond
                start = time.perf_counter()
                server.push()
                inside += time.perf_counter() - start
        return server.waited_s, inside, time.perf_counter() - began


def mean_of_ranks(mine: float) -> float:
    return float(np.mean(np.frombuffer(b"".join(cc.world().exchange(np.float64(mine).tobytes())), np.float64)))


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    synchronous, local = mean_of_ranks(bytes_of(options, 0)), mean_of_ranks(bytes_of(options, options.every))
    seconds: dict[int, list[list[float]]] = {0: [], options.staleness: []}
    for nth in range(options.rounds):
        for staleness, found in seconds.items():
            found.append([mean_of_ranks(mine) for mine in waiting(options, staleness, nth)])
    if cc.world().rank != 0:
        return
    figures = {f"bytes a step, local SGD with {options.every} local steps": (local, synchronous)}
    bounded, blocking = (list(map(statistics.median, zip(*seconds[s], strict=True))) for s in (options.staleness, 0))
    for what, ours, peer in zip(("waited", "in reads and pushes", "of the run"), bounded, blocking, strict=True):
        figures[f"seconds {what}, staleness {options.staleness}"] = ours, peer
    if options.json:
        print(json.dumps({k: {"ours": a, "peer": b, "ratio": b / a} for k, (a, b) in figures.items()}))
        return
    print(f"{'':52}{'ours':>12}{'synchronous':>14}{'ratio':>8}")
    for figure, (ours, peer) in figures.items():
        print(f"{figure:52}{ours:12.5g}{peer:14.5g}{peer / ours:8.2f}")


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
