"""Buckets and overlap: when each rank computes, communicates and waits, and how much communication backward hides.

    python examples/08_overlap.py                        two threads of one process
    mpiexec -n 4 python examples/08_overlap.py           four processes, on their own network

A step report shows the time of each phase, and how much of the communication was hidden: measured, predicted from the
times at which the gradients were ready, and at best. The slowest rank is named.

Threads communicate through memory, where little is left to hide. So each of them gets a link of its own, of `--link`
Gbit/s: about three quarters of the communication is hidden. With ``--buckets 1000`` all gradients are summed at once,
after backward, and nothing is hidden; ``--link 0`` measures the memory. Processes of one host add their gradients in
memory that they share, after backward, which is faster than to hide it; processes of several hosts use the network.

    --plot overlap.png     draw the last step of each rank as a timeline
"""

from __future__ import annotations

import argparse
import contextlib
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from collectives.testing import slow_link
from parallel import DataParallel
from parallel.report import StepReport

parser = argparse.ArgumentParser(description="Measure how much communication backward hides.")
parser.add_argument("--ranks", type=int, default=2, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--batch", type=int, default=256, help="rows in a global batch, over all ranks")
parser.add_argument("--link", type=float, default=4.0, metavar="GBIT/S", help="the speed of a rank's link; 0: as it is")
parser.add_argument("--buckets", type=float, default=0.5, metavar="MB", help="gradients that are summed at a time")
parser.add_argument("--plot", nargs="?", const="overlap.png", metavar="FILE", help="draw the timeline as a PNG")


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    random.seed(0)
    rng = np.random.default_rng(0)
    rows = options.batch * options.steps
    x = rng.normal(size=(rows, 64)).astype("float32")
    dataset = data.TensorDataset(x, rng.integers(0, 10, rows))
    with cc.Mesh(dp=-1) as mesh:
        layers: list[nn.Module] = [nn.Linear(64, options.width), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(options.width, options.width), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(options.width, 10))
        size = int(options.buckets * 1e6)
        model = DataParallel(network, "dp", bucket_bytes=size, first_bucket_bytes=size)
        optimizer = optim.SGD(model.parameters(), lr=0.01)
        report = StepReport()

        def train(batches: data.DataLoader) -> None:
            for xb, yb in report.steps(batches):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = nn.cross_entropy(model(xb), yb, reduction="sum") / yb.global_shape[0]
                    loss = cc.all_reduce(loss, "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()

        loader = data.DataLoader(dataset, options.batch, axis="dp")
        train(loader)  # the first epoch warms up; outside of the report's block `steps` measures nothing
        is_emulated = options.link and cc.world().library is None  # the ranks are threads
        with slow_link(options.link) if is_emulated else contextlib.nullcontext(), report:
            train(loader)
        if mesh.ranks.rank == 0:
            print(report)
            if options.plot:
                report.plot(options.plot)
                print(f"timeline: {options.plot}")


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        cc.run(lambda: program(options), options.ranks)
