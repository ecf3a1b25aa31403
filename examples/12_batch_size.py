"""Train a classifier of handwritten digits with several batch sizes: what a larger batch buys, and where it ends.

    python examples/12_batch_size.py                        one process
    python examples/12_batch_size.py --ranks 2              two threads of one process
    mpiexec -n 2 python examples/12_batch_size.py           two processes

The learning rate follows the linear scaling rule, with a warm-up, up to the largest rate that is stable. For each batch
size B the program counts the steps to a target loss. Theory predicts S (1 + B_noise / B) steps, so S (B + B_noise)
examples: far below the gradient noise scale B_noise, twice the batch needs half the steps; far above it, twice the
batch needs twice the examples, and hardly fewer steps. S and B_noise are fitted to the steps. With two ranks or more,
B_noise is also measured while training, from the norms of the gradients before and after their sum over the ranks; it
grows during the training, because the gradient becomes smaller faster than its noise.

    --plot batch.png     draw the steps and the examples against the batch size
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from autograd.optim import schedules
from parallel import DataParallel
from parallel.approximate.noise_scale import NoiseScale

parser = argparse.ArgumentParser(description="Count the steps to a target loss for several batch sizes.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--batches", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 128, 256], metavar="B")
parser.add_argument("--lr", type=float, default=0.1, help="the learning rate for a batch of 2")
parser.add_argument("--largest-lr", type=float, default=0.8, help="the largest learning rate that is stable")
parser.add_argument("--warmup", type=int, default=10, metavar="STEPS", help="steps from that rate to the full one")
parser.add_argument("--target", type=float, default=0.2, help="the loss of all training examples to reach")
parser.add_argument("--seeds", type=int, default=3, help="the number of runs for each batch size")
parser.add_argument("--quick", dest="seeds", action="store_const", const=1, help="1 seed, for a first look")
parser.add_argument("--plot", nargs="?", const="batch.png", metavar="FILE", help="draw the result as a PNG")

BASE_BATCH = 2
LONGEST = 100_000  # steps


class Run(NamedTuple):
    """The steps to the target, and the averages of the two estimates of the noise scale (NaN on one process)."""

    steps: int
    gradient_sq: float
    variance: float


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The 8x8 pixels of each image, flat, and its digit: scikit-learn's data, without importing scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit('12_batch_size.py needs the data of scikit-learn: pip install "ringtape[examples]"')
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return (rows[:, :-1] / 16).astype("float32"), rows[:, -1].astype(int)


def mean_loss(model: nn.Module, x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
    """The mean loss of the global batch, the same number on all ranks."""
    mine = nn.cross_entropy(model(x), y, reduction="sum") / y.global_shape[0]
    return cc.all_reduce(mine, "dp", to=cc.I)


def train(pixels: np.ndarray, digits: np.ndarray, batch: int, seed: int, options: argparse.Namespace) -> Run:
    """Train until the loss of all examples is at most the target."""
    random.seed(seed)
    noise = NoiseScale(decay=0.999)  # the mean over most of the run
    layers = nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    model = DataParallel(nn.Sequential(*layers), "dp", reduction=noise)
    warmup = options.warmup if batch > BASE_BATCH else 0
    scaled = min(batch, round(BASE_BATCH * options.largest_lr / options.lr))  # from there on the rate stays
    rate = schedules.linear_scaling(options.lr, BASE_BATCH, scaled, warmup)
    optimizer = optim.SGD(model.parameters(), lr=rate)
    whole_x, whole_y = (cc.shard(ag.tensor(each, layout={"dp": cc.R}), "dp") for each in (pixels, digits))
    key = random.Key(seed, "shuffle")
    batches = data.DataLoader(
        data.TensorDataset(pixels, digits), batch, shuffle=True, key=key, axis="dp", drop_last=True
    )
    every = max(1, 64 // batch)  # the target is checked every 64 examples, or every step
    steps = 0
    while steps < LONGEST:
        for x, y in batches:
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = mean_loss(model, x, y)
            tape.backward(loss)
            noise.update(x.shape[0], x.global_shape[0])
            optimizer.step()
            steps += 1
            if steps % every == 0:
                with ag.no_grad():
                    if mean_loss(model, whole_x, whole_y).item() <= options.target:
                        return Run(steps, noise.gradient_sq, noise.variance)
    return Run(steps, math.nan, math.nan)


def fitted_noise_scale(batches: np.ndarray, steps: np.ndarray) -> tuple[float, float]:
    """S and B_noise of ``steps = S (1 + B_noise / batch)``, by least squares of the relative errors."""
    terms = np.stack([1 / steps, 1 / (batches * steps)], axis=1)
    (a, b), *_ = np.linalg.lstsq(terms, np.ones(len(steps)), rcond=None)
    return float(a), float(b / a)


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    pixels, digits = load_digits()
    with cc.Mesh(dp=-1) as mesh:
        runs = {b: [train(pixels, digits, b, seed, options) for seed in range(options.seeds)] for b in options.batches}
        if mesh.ranks.rank != 0:
            return
    batches = np.array(options.batches, float)
    steps = np.array([np.mean([run.steps for run in runs[b]]) for b in options.batches])
    least, fitted = fitted_noise_scale(batches, steps)
    print("  batch    steps  examples  steps predicted  noise scale measured")
    for b, n in zip(options.batches, steps, strict=True):
        signal, variance = (np.mean([getattr(run, name) for run in runs[b]]) for name in ("gradient_sq", "variance"))
        shown = f"{variance / signal:8.0f}" if signal > 0 else "       -"
        print(f"{b:7d} {n:8.0f} {n * b:9.0f} {least * (1 + fitted / b):16.0f}  {shown}")
    print(f"fitted: {least:.0f} steps (1 + {fitted:.0f} / batch)")
    if options.plot:
        plot(batches, steps, least, fitted, options)


def plot(batches: np.ndarray, steps: np.ndarray, least: float, noise: float, options: argparse.Namespace) -> None:
    """Draw the steps and the examples to the target against the batch size, with the prediction."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot, ticker

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    curve = np.geomspace(batches.min(), batches.max(), 100)
    for axes, factor, shown in ((left, np.ones_like(batches), "steps"), (right, batches, "examples")):
        predicted = least * (1 + noise / curve) * (1 if shown == "steps" else curve)
        axes.loglog(batches, steps * factor, "o", color="tab:blue", label="trained")
        axes.loglog(curve, predicted, color="tab:orange", label=f"{least:.0f} steps · (1 + {noise:.0f} / B)")
        axes.axvline(noise, color="gray", linestyle=":", label="fitted noise scale")
        axes.set(xlabel="batch size B", ylabel=f"{shown} to a loss of {options.target:g}")
        axes.set_xticks(batches, [f"{b:g}" for b in batches])
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.suptitle(f"Handwritten digits, ranks: {cc.world().size}, mean of {options.seeds} runs")
    figure.savefig(options.plot, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
