"""Train a classifier of handwritten digits with compressed gradients, and compare the losses with the bytes sent.

    python examples/10_compression.py                        one process: nothing is sent, but gradients are compressed
    python examples/10_compression.py --ranks 4              four threads of one process
    mpiexec -n 4 python examples/10_compression.py           four processes

Every method trains the same model on the same batches. A compression is a `reduction` of DataParallel: it replaces the
all-reduce that sums a bucket of gradients, and nothing else in the program changes. What it leaves out of one step it
adds to the next one, so that all gradients arrive in the end.

    --plot compression.png     draw the loss against the steps, and against the bytes that a rank has sent
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import data, nn, optim, random
from parallel import DataParallel
from parallel.approximate.compressed_adam import CompressedAdam
from parallel.approximate.compression import Compression
from parallel.approximate.low_rank import PowerSGD
from parallel.approximate.quantised import Float16, Int8, OneBit
from parallel.approximate.sparse import RandomK, TopK

WARM_UP = 50  # exact steps, before the gradients are small and regular enough to be compressed

METHODS: dict[str, Callable[[], Compression | None]] = {
    "exact": lambda: None,
    "float16": Float16,
    "int8": Int8,
    "random 10 %, momentum correction": lambda: RandomK(0.1, momentum=0.9, start_step=WARM_UP),
    "PowerSGD, rank 2": lambda: PowerSGD(rank=2, start_step=WARM_UP),
    "1 bit of the momentum": lambda: OneBit(momentum=0.9, start_step=WARM_UP),
    "1-bit Adam": lambda: OneBit(momentum=0.9, start_step=WARM_UP),
    "top 1 %": lambda: TopK(0.01, start_step=WARM_UP),
    "top 1 %, momentum correction": lambda: TopK(0.01, momentum=0.9, start_step=WARM_UP),
    "top 0.2 %": lambda: TopK(0.002, smallest=1, start_step=WARM_UP),
}

parser = argparse.ArgumentParser(description="Train with compressed gradients on any number of ranks.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch", type=int, default=32, help="examples in a global batch, over all ranks")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
parser.add_argument("--target", type=float, default=0.02, help="the loss to which steps are counted")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--quick", dest="epochs", action="store_const", const=2, help="2 epochs, for a first look")
parser.add_argument("--plot", nargs="?", const="compression.png", metavar="FILE", help="draw the losses as a PNG")


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The 8x8 pixels of each image, flat, and its digit: scikit-learn's data, without importing scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit('10_compression.py needs the data of scikit-learn: pip install "ringtape[examples]"')
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return (rows[:, :-1] / 16).astype(np.float32), rows[:, -1].astype(int)


def make_optimizer(name: str, parameters: list[Any], method: Any, lr: float) -> optim.Optimizer:
    if name == "1-bit Adam":
        return CompressedAdam(parameters, method, lr=lr / 10)
    # With momentum correction an element's velocity is forgotten when it is sent. So each gradient counts less than the
    # 1 / (1 - 0.9) times of ordinary momentum, and a larger rate makes up for it.
    is_corrected = "correction" in name
    return optim.SGD(parameters, lr=4 * lr if name.startswith("top") and is_corrected else lr,
                     momentum=0.0 if is_corrected else 0.9)  # fmt: skip


def train(name: str, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """The loss of each step, and the bytes that a rank has sent until then."""
    pixels, digits = load_digits()
    random.seed(options.seed)  # the same model for every method, on every rank
    method = METHODS[name]()
    model = DataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), "dp", reduction=method)
    optimizer = make_optimizer(name, model.parameters(), method, options.lr)
    key = random.Key(options.seed, "shuffle")
    batches = data.DataLoader(data.TensorDataset(pixels, digits), options.batch, shuffle=True, key=key, axis="dp")

    names, shapes = zip(*((key, p.shape) for key, p in model.named_parameters()), strict=True)
    ranks = cc.world().size
    exact = 2 * (sum(map(np.prod, shapes)) + len(shapes)) * 4 * (ranks - 1) / ranks  # by a ring, with the flags
    losses: list[float] = []
    sent: list[float] = [0.0]
    for _ in range(options.epochs):
        for x, y in batches:
            is_exact = method is None or method.is_exact([p.name for p in model.parameters()])
            sent.append(sent[-1] + (exact if method is None or is_exact else method.bytes_sent(shapes, ranks)))
            optimizer.zero_grad()
            with ag.Tape() as tape:
                mine = nn.cross_entropy(model(x), y, reduction="sum") / y.global_shape[0]
                loss = cc.all_reduce(mine, "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    return losses, sent[1:]


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    found = {}
    with cc.Mesh(dp=-1) as mesh:
        for name in options.only:
            found[name] = train(name, options)
            losses, sent = found[name]
            if mesh.ranks.rank == 0:
                last = np.mean(losses[-len(losses) // options.epochs :])
                steps = len(losses) // options.epochs
                means = np.convolve(losses, np.ones(steps) / steps, "valid")  # over the last epoch's number of steps
                reached = f"{np.argmax(means < options.target) + steps:5}" if means.min() < options.target else "never"
                print(f"{name:33} loss of the last epoch {last:.4f}  {reached} steps to {options.target:g}  "
                      f"{sent[-1] / 1e6:8.2f} MB sent, {(sent[-1] - sent[-2]) / 1e3:6.2f} kB a step", flush=True)
        if options.plot and mesh.ranks.rank == 0:
            plot(found, options)


def plot(found: dict[str, tuple[list[float], list[float]]], options: argparse.Namespace) -> None:
    """Draw the mean loss of each epoch against the steps, and against the bytes."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained", sharey=True)
    for i, (name, (losses, sent)) in enumerate(found.items()):
        color = "black" if name == "exact" else f"C{i - 1}"
        # others lie on the curve of exact gradients, which is dashed above them
        front: dict[str, Any] = {"zorder": 3, "linestyle": "--"} if name == "exact" else {}
        steps = len(losses) // options.epochs
        means = np.reshape(losses, (options.epochs, steps)).mean(axis=1)
        at = np.arange(1, options.epochs + 1) * steps
        left.semilogy(at, means, color=color, linewidth=1.4, label=name, **front)
        if sent[-1]:
            right.loglog(np.array(sent)[at - 1] / 1e6, means, "o-", color=color, markersize=3, linewidth=1)
    left.set(xlabel="step", ylabel="cross-entropy, mean of each epoch")
    right.set(xlabel="megabytes sent by a rank")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    for axes in (left, right):
        axes.grid(which="major", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Handwritten digits with compressed gradients, ranks: {cc.world().size}")
    figure.savefig(options.plot, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
