"""The variance of a gradient: one over the batch, and so one over the number of ranks.

    python examples/27_gradient_variance.py                        four threads of one process
    mpiexec -n 4 python examples/27_gradient_variance.py           four processes
    python examples/27_gradient_variance.py --plot variance.png    draw the variance over the batch

At one place of the parameters, gradients of random batches are compared with that of all rows. A batch of B rows has
the variance ``tr(C) / B``, where C is the covariance of the gradients of single rows. Each rank draws batches of its
own, and their mean over p ranks is the gradient of p B rows. Look for two things:

- The variance times the batch is one number, `tr(C)`, for all batches and for the mean of the ranks alike.
- Where the variance is much smaller than the squared length of the gradient, more rows hardly change a step. The batch
  at which both are equal is the *noise scale* (McCandlish et al. 2018), which 12_batch_size.py puts to use.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc

parser = argparse.ArgumentParser(description="Measure the variance of gradients against the batch.")
parser.add_argument("--ranks", type=int, default=4, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--draws", type=int, default=150, help="batches of each size, on each rank")
parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64, 256])
parser.add_argument("--plot", nargs="?", const="variance.png", metavar="FILE", help="draw the variance as a PNG")

_random = np.random.default_rng(0)
X = _random.normal(size=(4096, 10))
Y = np.tanh(X @ _random.normal(size=10)) + 0.5 * _random.normal(size=4096)
W = 0.1 * _random.normal(size=10)


def gradient(rows: np.ndarray) -> np.ndarray:
    """The gradient of the mean over some rows."""
    return np.asarray(ag.grad(lambda w: ((anp.tanh(X[rows] @ w) - Y[rows]) ** 2).mean())(W))


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    group = cc.world()
    own = np.random.default_rng(1 + int(group.rank))
    whole = gradient(np.arange(len(X)))
    found: dict[str, list[tuple[int, float]]] = {"one rank": [], f"the mean of {group.size} ranks": []}
    for batch in options.batches:
        mine = np.stack([gradient(own.integers(0, len(X), batch)) for _ in range(options.draws)])
        mean = group.all_reduce(mine.ravel()).reshape(mine.shape) / group.size
        for points, each, rows in zip(found.values(), (mine, mean), (batch, batch * group.size), strict=True):
            alone = np.array([((each - whole) ** 2).sum(axis=1).mean()])
            # of one rank, the mean over all ranks' draws, so that it is measured as well
            points.append((rows, float(group.all_reduce(alone)[0]) / group.size))
    if group.rank == 0:
        length = float(whole @ whole)
        for name, points in found.items():
            print(f"{name}\n{'rows':>8}{'variance':>12}{'times rows':>12}")
            for rows, variance in points:
                print(f"{rows:>8}{variance:>12.5f}{variance * rows:>12.2f}")
        trace = float(np.mean([variance * rows for points in found.values() for rows, variance in points]))
        print(f"squared length of the whole gradient {length:.4f}: noise scale {trace / length:.1f} rows")
        if options.plot:
            draw(found, trace, length, options.plot)
            print(f"variance: {options.plot}")


def draw(found: dict[str, list[tuple[int, float]]], trace: float, length: float, path: str) -> None:
    """Draw the variance over the number of rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    rows = np.array(sorted({n for points in found.values() for n, _ in points}))
    axes.loglog(rows, trace / rows, color="0.6", linewidth=1, label="tr(C) / rows")
    for (name, points), marker in zip(found.items(), "os", strict=True):
        axes.loglog(*zip(*points, strict=True), marker, markersize=5, fillstyle="none", label=name)
    axes.axhline(length, color="C3", linestyle=":", linewidth=1, label="squared length of the whole gradient")
    axes.set(xlabel="rows of a gradient", ylabel="variance of the gradient")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        cc.run(program, options.ranks, options)
