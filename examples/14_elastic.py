"""Train on while ranks die: two deaths, and the loss of the run beside that of a serial one.

    python examples/14_elastic.py                                   four threads, of which two die
    mpiexec -n 3 python examples/14_elastic.py                      three processes; nobody dies
    mpiexec --with-ft ulfm -n 4 python examples/14_elastic.py       Open MPI: two of them are killed by SIGKILL

The optimizer's state is divided over the ranks (ZeRO stage 1), so that each death takes a part of it along. Every few
steps the ranks send copies of their parts to each other. After a death the others agree on who is left, put the newest
step together from these copies, and go on with the same batches on a smaller mesh.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from collectives.testing import faults
from parallel import DataParallel, elastic

parser = argparse.ArgumentParser(description="Train on while ranks die.")
parser.add_argument("--ranks", type=int, default=4, metavar="N", help="threads, where mpiexec has started none")
parser.add_argument("--quick", action="store_true", help="fewer steps")
parser.add_argument("--plot", nargs="?", const="elastic.png", metavar="FILE", help="draw the losses as a PNG")

ROWS = np.random.default_rng(0).standard_normal((480, 8))
CLASSES = (ROWS[:, :3].argmax(axis=1) + (ROWS[:, 3] > 0)) % 3
BATCH, COPIES = 240, 4  # rows of the global batch; steps between two copies


def train(run: elastic.Run, steps: int, starts: list[Any]) -> Any:
    """The program: the losses of each of its starts on this rank, and the report of the run."""
    key, dp = random.Key(0, "classifier"), run.mesh.axis("dp")
    net = nn.Sequential(
        nn.Linear(8, 24, dtype=float, key=key.fold("first")), nn.Tanh(),
        nn.Linear(24, 3, dtype=float, key=key.fold("second")),
    )  # fmt: skip
    model = DataParallel(net, "dp", zero=1)
    adam = optim.AdamW(net.parameters(), lr=0.03)
    run.restore({"net": net, "adam": adam})
    starts.append([])
    for step in run.steps(steps):
        rows = np.random.default_rng(step).choice(len(ROWS), BATCH, replace=False)  # the same on any mesh
        mine = np.array_split(rows, dp.size)[dp.group.index]
        x, y = (cc.from_local(a[mine], {"dp": cc.Shard(0)}) for a in (ROWS, CLASSES))
        adam.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum"), "dp", to=cc.I) / BATCH
        tape.backward(loss)
        adam.step()
        starts[-1].append(loss.item())
    return starts, run.report, cc.world().index == 0


def program(steps: int) -> Any:
    """The program of every rank."""
    starts: list[Any] = []
    return elastic.run(lambda run: train(run, steps, starts), mesh={"dp": -1}, copies=COPIES)


def show(starts: Any, report: elastic.ElasticReport, ranks: int, serial: list[float], plot: str | None) -> None:
    """Print what happened to each rank, compare the losses with the serial ones, and draw them."""
    died = {rank: f"died in step {each.reached + 1}" for each in report.recoveries for rank in each.died}
    for rank in range(ranks):
        print(f"rank {rank}: {died.get(rank, f'at the end after {len(serial)} steps')}")
    begins = [0, *(each.step for each in report.recoveries)][-len(starts) :]
    apart = max(abs(a - b) for begin, start in zip(begins, starts, strict=True)
                for a, b in zip(start, serial[begin:], strict=False))  # fmt: skip
    print(f"largest difference from the serial losses: {'below 1e-10' if apart < 1e-10 else f'{apart:.1e}'}")
    if plot is None:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(range(1, len(serial) + 1), serial, color="#c9c9c9", linewidth=6, label="serial")
    for k, (begin, start) in enumerate(zip(begins, starts, strict=True), 1):
        axes.plot(range(begin + 1, begin + len(start) + 1), start, "." * (k % 2) + "-", label=f"start {k}")
    for each in report.recoveries:
        axes.axvspan(each.step + 0.5, each.reached + 1, color="#e08a3c", alpha=0.25, linewidth=0)
        text = f"rank {', '.join(map(str, each.died))} dies in step {each.reached + 1},\non from step {each.step}"
        axes.annotate(text, (each.reached + 1.5, serial[each.reached] + 0.04), va="bottom", fontsize=9)
    axes.set(xlabel="step", ylabel="loss", title="Shaded: steps that were done again")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(plot, dpi=150)
    print(f"wrote {plot}")


def main(options: argparse.Namespace) -> None:
    steps = 16 if options.quick else 60
    plan = [faults.Kill(2, steps // 3, of="elastic.step"), faults.Kill(0, 2 * steps // 3 + 2, of="elastic.step")]
    with cc.World("threads", 1, policy="raise") as world:
        serial = world.run(program, steps)[0][0][0]
    with cc.World(policy="raise") as world:
        ranks, is_fault_tolerant = world.size, getattr(world, "is_fault_tolerant", False)
        if ranks > 1:  # processes
            with faults.injected(*plan if is_fault_tolerant and ranks > 2 else []):
                found = [program(steps)]
    if ranks == 1:
        ranks = options.ranks
        with faults.injected(*plan if ranks > 2 else []), cc.World("threads", ranks, policy="raise") as world:
            found = world.run(program, steps)
    for starts, report, is_first in filter(None, found):
        if is_first:
            show(starts, report, ranks, serial, options.plot)


if __name__ == "__main__":
    main(parser.parse_args())
