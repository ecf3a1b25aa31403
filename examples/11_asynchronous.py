"""Four ways to train one model on several ranks: synchronous, local, bounded and asynchronous SGD.

    mpiexec -n 4 python examples/11_asynchronous.py --plot asynchronous.png
    python examples/11_asynchronous.py --ranks 4            # on threads

The model classifies handwritten digits. Each rank pauses at random steps, all of them equally often, as hosts do that
others use too. Synchronous ranks wait for whoever pauses. Local ranks wait every few steps; a sweep shows what a longer
interval costs in loss, and saves in exchanges and bytes. With a parameter server ranks wait only at the bound of
staleness, or never.

The loss is that of the whole training set, computed after the run from copies of rank 0's parameters. Between two
synchronisations of local SGD these are rank 0's own, so that the curve rises and falls with the interval.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel
from parallel.approximate.local_sgd import DiLoCo, LocalSGD
from parallel.approximate.parameter_server import ParameterServer

parser = argparse.ArgumentParser(description="Synchronous, local, bounded and asynchronous SGD.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--batch", type=int, default=16, help="examples of each rank in a step")
parser.add_argument("--lr", type=float, default=0.4, help="of synchronous SGD, with the mean over the global batch")
parser.add_argument("--pause-ms", type=float, default=20.0, help="one pause; a quarter of the steps have one")
parser.add_argument("--staleness", type=int, default=4, help="the bound")
parser.add_argument("--every", type=int, nargs="+", default=[2, 8, 32], help="the intervals of local SGD")
parser.add_argument("--quick", dest="steps", action="store_const", const=40, help="40 steps, for a first look")
parser.add_argument("--plot", nargs="?", const="asynchronous.png", metavar="FILE", help="draw a PNG")


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The 8x8 pixels of each image, flat, and its digit: scikit-learn's data, without importing scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit('11_asynchronous.py needs the data of scikit-learn: pip install "ringtape[examples]"')
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return (rows[:, :-1] / 16).astype(np.float32), rows[:, -1].astype(int)


class Run:
    """One rank's part of a run: its model, its batches and pauses, and what is recorded."""

    def __init__(self, options: argparse.Namespace, rank: int, size: int):
        random.seed(0)  # every rank makes the same parameters
        self.model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        self.pixels, self.digits = load_digits()
        self.options, self.size = options, size
        generator = np.random.default_rng((1, rank))
        self.rows = generator.integers(0, len(self.digits), (options.steps, options.batch))
        self.pauses = generator.permutation(np.arange(options.steps) % 4 == 0)
        self.points: list[tuple[float, list[np.ndarray]]] = []  # seconds and copies of the parameters
        self.staleness: list[int] = []
        self.syncs = 0  # the times that the ranks exchanged the parameters or their gradients
        cc.world().barrier()
        self.began = time.perf_counter()

    def loss(self, model: Any, step: int) -> ag.Tensor:
        """The sum of the losses of this rank's rows, divided by the rows of all ranks."""
        x, y = self.pixels[self.rows[step]], self.digits[self.rows[step]]
        return nn.cross_entropy(model(x), y, reduction="sum") / (self.options.batch * self.size)

    def end_step(self, step: int) -> None:
        if step % 5 == 0:
            values = [np.array(p.numpy()) for p in self.model.parameters()]
            self.points.append((time.perf_counter() - self.began, values))

    def work(self, step: int) -> None:
        """The rest of the step's work, and a pause at some steps."""
        time.sleep((1 + self.options.pause_ms * self.pauses[step]) * 1e-3)

    def curve(self) -> list[tuple[float, float]]:
        """The loss of the training set over time."""
        found = []
        for seconds, values in self.points:
            for p, value in zip(self.model.parameters(), values, strict=True):
                p.data = value
            with ag.no_grad():
                x, y = ag.constant(self.pixels), ag.constant(self.digits)
                found.append((seconds, nn.cross_entropy(self.model(x), y).item()))
        return found


def synchronous(run: Run) -> None:
    model = DataParallel(run.model, "dp")
    optimizer = optim.SGD(model.parameters(), lr=run.options.lr)
    for step in range(run.options.steps):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce(run.loss(model, step), "dp", to=cc.I)
        run.work(step)
        tape.backward(loss)
        optimizer.step()
        run.syncs += 1
        run.end_step(step)


def local(run: Run, every: int, kind: type[LocalSGD] = LocalSGD) -> None:
    # The copies are averaged, where gradients are summed: each copy's own step is `size` times as large.
    optimizer = optim.SGD(run.model.parameters(), lr=run.options.lr * run.size)
    with kind(run.model, "dp", optimizer, every=every) as own:
        for step in range(run.options.steps):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.declare_partial(run.loss(run.model, step), "dp")
            run.work(step)
            tape.backward(loss)
            own.step()
            run.syncs += (step + 1) % every == 0 or step + 1 == run.options.steps
            run.end_step(step)


def served(run: Run, staleness: int | None) -> None:
    optimizer = optim.SGD(run.model.parameters(), lr=run.options.lr)
    with ParameterServer(run.model, "dp", optimizer, staleness=staleness) as server:
        for step in range(run.options.steps):
            server.read()
            with ag.Tape() as tape:
                loss = cc.declare_partial(run.loss(run.model, step), "dp")
            run.work(step)
            tape.backward(loss)
            server.push()
            run.syncs += 1
            assert server.last is not None
            run.staleness.append(server.last.staleness)
            run.end_step(step)


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    ways: dict[str, Any] = {"synchronous": synchronous}
    ways |= {f"local, every {n}": lambda run, n=n: local(run, n) for n in options.every}
    ways["DiLoCo, every 8"] = lambda run: local(run, 8, DiLoCo)
    ways[f"bounded, staleness {options.staleness}"] = lambda run: served(run, options.staleness)
    ways["asynchronous"] = lambda run: served(run, None)
    curves, stale = {}, {}
    with cc.Mesh(dp=-1) as mesh:
        axis = mesh.axis("dp")
        synchronous(Run(argparse.Namespace(**{**vars(options), "steps": 2}), int(axis.rank), axis.size))  # a warm-up
        for name, train in ways.items():
            run = Run(options, int(axis.rank), axis.size)
            train(run)
            curves[name] = run.curve()
            found = axis.group.exchange(np.array(run.staleness, np.int64).tobytes())
            stale[name] = np.frombuffer(b"".join(found), np.int64)
            if mesh.ranks.rank == 0:
                mean = f", mean staleness {stale[name].mean():.1f}" if stale[name].size else ""
                # A sum by a ring sends 2 n (p - 1) / p bytes; so do a read and a push of what lies on other ranks.
                size = 2 * sum(p.numpy().nbytes for p in run.model.parameters()) * (axis.size - 1) / axis.size
                print(f"{name:24} {curves[name][-1][0]:6.2f} s  loss {curves[name][-1][1]:.4f}  "
                      f"{run.syncs:4} exchanges, {run.syncs * size / 1e6:6.2f} MB{mean}", flush=True)  # fmt: skip
        if mesh.ranks.rank == 0 and options.plot:
            plot(curves, {name: each for name, each in stale.items() if each.size}, options)


def plot(curves: dict[str, Any], stale: dict[str, np.ndarray], options: argparse.Namespace) -> None:
    """Draw the loss over time, and how stale the pushes were, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(11, 4.5), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
    )
    colours = {name: f"C{i}" for i, name in enumerate(curves)}
    for name, points in curves.items():
        left.semilogy(*zip(*points, strict=True), color=colours[name], linewidth=1.4, label=name)
    left.set(xlabel="seconds", ylabel="cross-entropy of the training set")
    left.set_title(f"{options.steps} steps of each rank, a quarter of them with a pause of {options.pause_ms:g} ms")
    left.legend(frameon=False)
    most = max((int(each.max()) for each in stale.values()), default=0)
    width = 0.8 / max(1, len(stale))
    for i, (name, each) in enumerate(stale.items()):
        counts = np.bincount(each, minlength=most + 1)
        right.bar(np.arange(most + 1) + (i + 0.5) * width - 0.4, counts, width, color=colours[name], label=name)
    # The bound counts the steps between two ranks. From a rank's read to its push, each other one may catch up from as
    # many steps behind, and get as many ahead.
    bound = (cc.world().size - 1) * (2 * options.staleness + 1)
    right.axvline(bound + 0.5, color="0.4", linestyle=":", label=f"staleness {options.staleness}: at most {bound}")
    right.set(xlabel="pushes of others between read and push", ylabel="pushes")
    right.set_title(f"Staleness, ranks: {cc.world().size}")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(which="major", alpha=0.3)
    figure.savefig(options.plot, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
