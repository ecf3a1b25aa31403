"""One slow rank: the others wait for it, and the report says for whom and why.

    python examples/20_slow_rank.py                        three threads of one process
    mpiexec -n 3 python examples/20_slow_rank.py           three processes
    python examples/20_slow_rank.py --plot slow.png        draw the last step of each rank

The same training runs three times: as it is, with a last rank that has four times as many rows, and with a last rank
that pauses in its forward pass, as one on a hotter or shared processor does. All ranks wait for each other once a step,
in the sum of the gradients, so that each step takes as long as the slowest rank. Look for two things:

- The rank that has the *smallest* time of waiting is the slow one. Those that wait do nothing wrong.
- The last lines of each report name the rank, and the likely cause: more rows, or longer for the same rows.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel
from parallel.report import StepReport

parser = argparse.ArgumentParser(description="Slow one rank down, and read whom the others wait for.")
parser.add_argument("--ranks", type=int, default=3, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--rows", type=int, default=64, help="rows of a rank in each step")
parser.add_argument("--pause-ms", type=float, default=20.0, help="the pause of the slow rank in each step")
parser.add_argument("--quick", action="store_true", help="fewer steps")
parser.add_argument("--plot", nargs="?", const="slow.png", metavar="FILE", help="draw the timeline as a PNG")


def train(rows: int, pause_s: float, steps: int) -> StepReport:
    """Train on the rows of this rank, and return the report of all ranks."""
    random.seed(0)
    rng = np.random.default_rng(int(cc.world().rank))
    model = DataParallel(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1)), "dp")
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    report = StepReport()

    def step() -> None:
        x = cc.from_local(rng.normal(size=(rows, 32)).astype("float32"), {"dp": cc.Shard(0)})
        with report.step(rows):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                time.sleep(pause_s)
                loss = cc.all_reduce((model(x) ** 2).sum(), "dp", to=cc.I) / x.global_shape[0]
            tape.backward(loss)
            optimizer.step()

    step()  # the first step warms up; outside of the block the report measures nothing
    with report:
        for _ in range(steps):
            step()
    return report


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    steps = 6 if options.quick else options.steps
    with cc.Mesh(dp=-1) as mesh:
        rank, last = int(mesh.ranks.rank), int(mesh.ranks.size) - 1
        cases = {
            "all ranks alike": (options.rows, 0.0),
            f"rank {last} has four times the rows": (options.rows * (4 if rank == last else 1), 0.0),
            f"rank {last} pauses": (options.rows, options.pause_ms / 1e3 * (rank == last)),
        }
        for name, (rows, pause_s) in cases.items():
            report = train(rows, pause_s, steps)
            if rank == 0:
                print(f"== {name}\n{report}\n", flush=True)
        if rank == 0 and options.plot:
            report.plot(options.plot)
            print(f"timeline of the last case: {options.plot}")


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        cc.run(program, options.ranks, options)
