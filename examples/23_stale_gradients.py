"""Stale gradients: the largest learning rate falls with the staleness, and beyond it training diverges.

    python examples/23_stale_gradients.py                    1 to 4 threads of one process
    mpiexec -n 4 python examples/23_stale_gradients.py       four processes: the line of staleness 3
    python examples/23_stale_gradients.py --plot stale.png   draw the losses

Workers of a parameter server read the parameters, compute a gradient, and push it. Until a worker pushes, the others
have pushed too: with p workers in turn a gradient is p - 1 pushes old. Each worker computes the right gradient, of
parameters that are no more. On the loss ``w**2 / 2`` a step is ``w[t + 1] = w[t] - rate * w[t - s]``, which converges
for ``rate < 2 sin(pi / (2 (2 s + 1)))``: 2 for s = 0, 1 for s = 1, about pi / (2 s) for large s. Look for two things:

- Along a row the rate grows, and at some place the loss grows without bound. That place is where the formula says.
- The best rate of one worker diverges with two. So an asynchronous run needs a smaller rate, or a bound on the
  staleness, and the reward is only that nobody waits.
"""

from __future__ import annotations

import argparse
import math
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim
from parallel import ParameterServer

parser = argparse.ArgumentParser(description="Train with stale gradients: where is the rate too large?")
parser.add_argument("--most", type=int, default=4, metavar="N", help="the largest number of threads, without mpiexec")
parser.add_argument("--steps", type=int, default=24, help="pushes of each worker")
parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 1.9, 2.1])
parser.add_argument("--quick", action="store_true", help="three rates")
parser.add_argument("--plot", nargs="?", const="stale.png", metavar="FILE", help="draw the losses as a PNG")


def in_turn(workers: int, steps: int) -> list[int]:
    """The order of reads and pushes: all read, then each pushes and reads again. Gradients are workers - 1 old."""
    each = range(workers)
    return [*each, *[rank for _ in range(steps - 1) for rank in each for _ in range(2)], *each]


def train(workers: int, rate: float, steps: int) -> list[float]:
    """The losses that the first worker has read."""
    with cc.Mesh(dp=workers):
        model = nn.Linear(1, 1, bias=False, dtype=float)
        model.weight.data = [[1.0]]
        optimizer = optim.SGD(model.parameters(), lr=rate)
        losses = []
        with ParameterServer(model, "dp", optimizer, script=in_turn(workers, steps)) as server:
            for _ in range(steps):
                server.read()
                with ag.Tape() as tape:
                    loss = cc.declare_partial((model(np.ones((1, 1))) ** 2).sum() / 2, "dp")
                tape.backward(loss)
                losses.append(float(loss.local))
                server.push()
                optimizer.zero_grad()
        return losses


def limit(staleness: int) -> float:
    """The rate from which on gradients of this staleness diverge."""
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))


def show(results: dict[int, list[list[float]]], rates: list[float], options: argparse.Namespace) -> None:
    """Print the last loss for each staleness and rate."""
    print(f"{'staleness':12}{'limit':8}" + "".join(f"{f'rate {rate:g}':>12}" for rate in rates))
    for workers, curves in results.items():
        ends = [f"{curve[-1]:.1e}{'!' if curve[-1] > curve[0] else ' '}" for curve in curves]
        print(f"{workers - 1:<12}{limit(workers - 1):<8.3f}" + "".join(f"{end:>12}" for end in ends))
    print(f"the loss after {options.steps} steps of each worker, from 0.5; ! it has grown")
    if options.plot:
        draw(results, rates, options.plot)
        print(f"losses: {options.plot}")


def draw(results: dict[int, list[list[float]]], rates: list[float], path: str) -> None:
    """Draw the losses of each staleness beside each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(results), 3.4), layout="constrained")
    plots = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, (workers, curves) in zip(plots, results.items(), strict=True):
        most = limit(workers - 1)
        for k, (rate, curve) in enumerate(zip(rates, curves, strict=True)):
            style = "-" if rate < most else ":"
            axes.semilogy(np.maximum(curve, 1e-12), style, color=f"C{k}", label=f"rate {rate:g}", linewidth=1.4)
        axes.set(title=f"staleness {workers - 1}: below {most:.2f}", xlabel="steps of a worker", ylim=(1e-12, 1e12))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    plots[0].set_ylabel("loss (dotted: the rate is above the limit)")
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    rates = options.rates[::4] if options.quick else options.rates
    size = cc.world().size
    if size > 1:
        results = {size: [train(size, rate, options.steps) for rate in rates]}
    else:
        results = {n: cc.run(lambda n=n: [train(n, rate, options.steps) for rate in rates], n)[0]
                   for n in range(1, options.most + 1)}  # fmt: skip
    if cc.world().rank == 0:
        show(results, rates, options)
