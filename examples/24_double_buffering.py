"""Double buffering: send the gradients of one step while the next one computes, and use them one step late.

    python examples/24_double_buffering.py                        two threads of one process
    mpiexec -n 2 python examples/24_double_buffering.py           two processes
    python examples/24_double_buffering.py --plot double.png      draw the losses over the steps and over time

Ordinary training waits for the sum of the gradients before it steps. With double buffering there are two buffers: while
the sum of one travels, the next gradient is computed into the other. So a step takes the longer of computation and
communication, not their sum, at most half of the time. The price: each gradient belongs to the parameters of one step
before. It is stale by one, so that the largest learning rate is half as large (see 23). All ranks still take the same
step, so the copies stay equal. Look for two things:

- The time of a step, on a link of a stated speed.
- The loss after the same number of *steps*: equal at a small rate. At a large one, ordinary training still converges,
  and double buffering diverges.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from collectives.testing import slow_link

parser = argparse.ArgumentParser(description="Train with gradients that are one step late, and see time and loss.")
parser.add_argument("--ranks", type=int, default=2, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.06, 0.12])
parser.add_argument("--link", type=float, default=0.3, metavar="GBIT/S", help="the speed of a rank's link; 0: as it is")
parser.add_argument("--quick", action="store_true", help="fewer steps")
parser.add_argument("--plot", nargs="?", const="double.png", metavar="FILE", help="draw the losses as a PNG")

ROWS, INPUTS, HIDDEN = 512, 64, 512


def gradients(w: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[list[Any], float]:
    """The gradients of this rank's rows as addends of those of all rows, and this rank's part of the loss."""
    leaves = [ag.tensor(a, {"dp": cc.V}, requires_grad=True) for a in w]
    with ag.Tape() as tape:
        loss = ((anp.tanh(x @ leaves[0]) @ leaves[1] - y) ** 2).sum() / (ROWS * cc.world().size)
        objective = cc.declare_partial(loss, "dp")
    tape.backward(objective)
    return [ag.tensor(leaf.grad.local, {"dp": cc.P}) for leaf in leaves], float(loss.local)


def train(rate: float, steps: int, is_double: bool) -> list[tuple[float, float]]:
    """The seconds and the loss of all rows at each step."""
    rank = int(cc.world().rank)
    rng, own = np.random.default_rng(0), np.random.default_rng(1 + rank)
    x = own.normal(size=(ROWS, INPUTS))
    y = np.tanh(x @ rng.normal(size=(INPUTS, 1)) / INPUTS**0.5)
    w = [rng.normal(size=(INPUTS, HIDDEN)) / INPUTS**0.5, rng.normal(size=(HIDDEN, 1)) / HIDDEN**0.5]
    on_the_way: list[Any] = []
    points, start = [], time.perf_counter()
    for _ in range(steps):
        parts, loss = gradients(w, x, y)
        sums = [cc.all_reduce_async(g, "dp", to=cc.I) for g in parts]
        on_the_way.append(sums)
        if len(on_the_way) > is_double:  # with double buffering the sums of the step before are used
            w = [a - rate * g.wait().numpy() for a, g in zip(w, on_the_way.pop(0), strict=True)]
        points.append((time.perf_counter() - start, loss))
    for sums in on_the_way:
        for each in sums:
            each.wait()
    everyone = cc.world().exchange(np.array([loss for _, loss in points]).tobytes())
    totals = np.sum([np.frombuffer(each) for each in everyone], axis=0)
    return [(t, float(loss)) for (t, _), loss in zip(points, totals, strict=True)]


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    steps = 15 if options.quick else options.steps
    curves = {}
    with cc.Mesh(dp=-1), slow_link(options.link) if options.link else contextlib.nullcontext():
        train(0.0, 2, False)  # warms up
        for rate in options.rates:
            for name, is_double in (("ordinary", False), ("double buffering", True)):
                curves[rate, name] = points = train(rate, steps, is_double)
                if cc.world().rank == 0:
                    step_ms = float(np.median(np.diff([t for t, _ in points]))) * 1e3
                    end = points[-1][1]
                    print(f"rate {rate:<5g} {name:17} {step_ms:6.1f} ms a step, loss {points[0][1]:.3f} to {end:.3g}"
                          f"{', diverging' if not end < points[0][1] else ''}", flush=True)  # fmt: skip
    if cc.world().rank == 0 and options.plot:
        draw(curves, options.plot)
        print(f"losses: {options.plot}")


def draw(curves: dict[tuple[float, str], list[tuple[float, float]]], path: str) -> None:
    """Draw the losses over the steps, and over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rates = sorted({rate for rate, _ in curves})
    for (rate, name), points in curves.items():
        how = {"color": f"C{rates.index(rate)}", "linestyle": "-" if name == "ordinary" else "--"}
        left.semilogy([loss for _, loss in points], label=f"rate {rate:g}, {name}", **how)
        right.semilogy(*zip(*points, strict=True), **how)
    top = max(points[0][1] for points in curves.values())
    left.set(xlabel="steps", ylabel="loss of all rows", ylim=(None, 30 * top), title="the same number of steps")
    right.set(xlabel="seconds", title="the same time")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        cc.run(program, options.ranks, options)
