"""Train a mixture of experts whose experts the ranks divide, with and without the load-balance loss.

    python examples/06_experts.py                        one process
    python examples/06_experts.py --ranks 4              four threads of one process
    mpiexec -n 4 python examples/06_experts.py           four processes

All three train the same models. The data are points of 8 clusters, of which some are much more frequent than others,
and each cluster has a rule of its own for the class of its points. A linear layer makes tokens of the points, each of 8
experts works on the tokens that a router sends to it, and a linear layer reads the class from the result.

Without the balance loss the router sends most tokens to a few experts. That costs twice:

- Speed. A step takes as long as the rank whose experts have the most tokens. The others wait for it.
- Noise. An expert that few tokens of a batch reach has a gradient that differs much from batch to batch: its variance,
  relative to the square of its mean, grows as the expert's share of the tokens falls.

    --plot experts.png    draw the loads during the training, at its end, and the noise of the gradients
    --device cuda         compute on a GPU, with CuPy
"""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np
from tqdm import tqdm

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from parallel import DataParallel, Experts, MixtureOfExperts, parallelize, side_losses
from parallel.expert import Load

parser = argparse.ArgumentParser(description="Train a mixture of experts on any number of ranks.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch", type=int, default=512, help="points in a global batch, over all ranks")
parser.add_argument("--experts", type=int, default=8)
parser.add_argument("--top-k", type=int, default=1, help="experts of each token")
parser.add_argument("--balance", type=float, default=0.1, help="the factor of the balance loss in the second run")
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--quick", dest="steps", action="store_const", const=100, help="100 steps, for a first look")
parser.add_argument("--device", default="cpu", help="where the ranks compute: cpu, cuda or cuda:0")
parser.add_argument("--plot", nargs="?", const="experts.png", metavar="FILE", help="draw the runs as a PNG")

CLUSTERS, FEATURES, CLASSES, WIDTH, HIDDEN = 8, 16, 4, 24, 32


class Points:
    """Batches of points of clusters, the same on all ranks."""

    def __init__(self, seed: int):
        self.seed = seed
        generator = np.random.default_rng([seed, 0])
        self.centers = 1.2 * generator.normal(size=(CLUSTERS, FEATURES))
        self.rules = generator.normal(size=(CLUSTERS, FEATURES, CLASSES))
        self.shares = 0.65 ** np.arange(CLUSTERS)  # each cluster has 65 % of the points of the one before
        self.shares /= self.shares.sum()

    def batch(self, n: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng([self.seed, 1, step])
        cluster = generator.choice(CLUSTERS, n, p=self.shares)
        away = generator.normal(size=(n, FEATURES))
        classes = np.einsum("nf,nfc->nc", away, self.rules[cluster]).argmax(1)
        return (self.centers[cluster] + away).astype(np.float32), classes


class Model(nn.Module):
    """Tokens of points, a mixture of experts with a residual connection, and logits."""

    def __init__(self, options: argparse.Namespace, balance: float):
        key = random.Key(options.seed, "model")
        self.tokens = nn.Linear(FEATURES, WIDTH, key=key.fold("tokens"))
        self.experts = MixtureOfExperts(
            WIDTH, HIDDEN, options.experts, options.top_k, balance=balance, key=key.fold("experts"))
        self.classes = nn.Linear(WIDTH, CLASSES, key=key.fold("classes"))

    def forward(self, x: Any) -> Any:
        x = self.tokens(x)
        return self.classes(x + self.experts(x))


class Run(NamedTuple):
    """One training: of every step the loss and the load, and the noise of each expert's gradient at the end."""

    balance: float
    losses: list[float]
    loads: list[Load]
    noise: np.ndarray
    shares: np.ndarray

    def busiest(self, of: str) -> list[float]:
        return [load.rank_imbalance if of == "rank" else load.expert_imbalance for load in self.loads]


def share(rows: np.ndarray, device: str) -> ag.Tensor:
    """R -> Shard(0): this rank's part of rows that all ranks have."""
    return cc.shard(ag.tensor(rows, layout={"ep": cc.R}, device=device), "ep")


def backward(model: Any, batch: tuple[np.ndarray, np.ndarray], device: str) -> float:
    """The gradients of the mean loss of a global batch, and that loss."""
    rows, classes = batch
    with ag.Tape() as tape, side_losses() as side:
        loss = nn.cross_entropy(model(share(rows, device)), share(classes, device), reduction="sum")
        mean = cc.all_reduce(loss / len(rows), "ep", to=cc.I)
        total = mean + cc.all_reduce(sum(side) / len(rows), "ep", to=cc.I) if side else mean
    tape.backward(total)
    return float(mean.item())


def train(options: argparse.Namespace, balance: float, points: Points, first: bool) -> Run:
    """Train a model, and measure the noise of the gradients of its experts."""
    layers = parallelize(Model(options, balance).to(options.device), {"experts": Experts("ep")})
    model = DataParallel(layers, "ep")
    optimizer = optim.Adam(model.parameters(), lr=options.lr)
    losses, loads = [], []
    for step in tqdm(range(options.steps), unit="step", disable=not first, desc=f"balance {balance}"):
        optimizer.zero_grad()
        losses.append(backward(model, points.batch(options.batch, step), options.device))
        loads.append(layers.experts.load)
        optimizer.step()

    gradients, counts = [], np.zeros(options.experts)
    for step in range(40):  # new batches of the trained model, which stays as it is
        optimizer.zero_grad()
        backward(model, points.batch(options.batch, options.steps + step), options.device)
        counts += layers.experts.load.experts
        if layers.experts.up.grad is None:
            continue
        gradients.append(cc.all_gather(layers.experts.up.grad, "ep").numpy().reshape(options.experts, -1))
    table = np.array(gradients)
    mean = table.mean(0)
    noise = ((table - mean) ** 2).sum(-1).mean(0) / np.maximum((mean**2).sum(-1), 1e-30)
    return Run(balance, losses, loads, noise, counts / counts.sum())


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    ag.use_device(options.device)
    points = Points(options.seed)
    with cc.Mesh(ep=-1) as mesh:
        first = mesh.ranks.rank == 0
        runs = [train(options, balance, points, first) for balance in (0.0, options.balance)]
    if not first:
        return
    for run in runs:
        last = slice(-max(options.steps // 10, 1), None)
        print(f"\nbalance loss * {run.balance}: loss {np.mean(run.losses[last]):.3f}")
        print(run.loads[-1])
        print(f"  mean of the last steps, busiest / mean: experts {np.mean(run.busiest('expert')[last]):.2f}, ranks "
              f"{np.mean(run.busiest('rank')[last]):.2f}: a step takes as long as the work of the busiest rank")
        print("  expert: share of the tokens, variance / mean**2 of the gradient")
        for e in np.argsort(-run.shares):
            print(f"  {e:>6}: {run.shares[e]:>6.1%} {run.noise[e]:>9.2f}")
    if options.plot:
        plot(runs, options)


def plot(runs: list[Run], options: argparse.Namespace) -> None:
    """Draw the loads during the training, those at its end, and the noise of the gradients."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot

    figure, ((losses, busiest), (loads, noise)) = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    smooth = np.ones(10) / 10
    for i, run in enumerate(runs):
        color, name = f"C{i}", f"balance loss * {run.balance}"
        losses.plot(np.convolve(run.losses, smooth, "valid"), color=color, label=name)
        busiest.plot(np.convolve(run.busiest("expert"), smooth, "valid"), color=color, label=f"experts, {name}")
        if len(run.loads[0].ranks) > 1:
            busiest.plot(np.convolve(run.busiest("rank"), smooth, "valid"), "--", color=color, label=f"ranks, {name}")
        at = np.arange(options.experts) + 0.4 * i - 0.2
        loads.bar(at, run.loads[-1].experts, 0.38, color=color, label=name)
        noise.loglog(run.shares, run.noise, "o", color=color, label=name)
    loads.axhline(options.batch * options.top_k / options.experts, color="0.3", linestyle=":", linewidth=1)
    losses.set(xlabel="step", ylabel="cross-entropy", title="Loss, mean of 10 steps")
    busiest.set(xlabel="step", ylabel="busiest / mean", title="Work of the busiest: by how much the others wait for it")
    loads.set(xlabel="expert", ylabel="tokens", title="Tokens of each expert in the last step")
    noise.set(xlabel="share of the tokens", ylabel="variance / mean²", title="Noise of the gradient of each expert")
    for axes in (losses, busiest, loads, noise):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    figure.suptitle(f"{options.experts} experts on {cc.world().size} ranks")
    figure.savefig(options.plot, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
