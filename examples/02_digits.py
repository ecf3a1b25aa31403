"""Classify handwritten digits with data parallelism: every rank has the whole model and its own part of each batch.

    python examples/02_digits.py                        one process
    python examples/02_digits.py --ranks 4              four threads of one process
    mpiexec -n 4 python examples/02_digits.py           four processes

All three train the same model. The batches are global batches, the loss is divided by the *global* number of rows, and
the gradients of the parameters are summed over the ranks. The last line compares them with those of one process.

    --plot digits.png     draw the loss curve
    --verify              print that comparison for every parameter, in float64
    --device cuda         compute on a GPU, with CuPy
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np
from tqdm import tqdm

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import data, nn, optim, random
from parallel import DataParallel
from parallel.verify import verify

parser = argparse.ArgumentParser(description="Train a digit classifier on any number of ranks.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch", type=int, default=32, help="examples in a global batch, over all ranks")
parser.add_argument("--lr", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dtype", choices=["float32", "float64"], help="float32, but float64 with --verify")
parser.add_argument("--verify", action="store_true", help="compare every gradient with one rank's in float64")
parser.add_argument("--plot", nargs="?", const="digits.png", metavar="FILE", help="draw the loss curve as a PNG")
parser.add_argument("--device", default="cpu", help="where the ranks compute: cpu, cuda or cuda:0")
parser.add_argument("--losses", metavar="FILE", help="write the loss of every step as JSON")


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The 8x8 pixels of each image, flat, and its digit: scikit-learn's data, without importing scikit-learn.

    The import takes over a second in each process, longer than a rank needs to start and to read the file.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit('02_digits.py needs the data of scikit-learn: pip install "ringtape[examples]"')
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


def share(rows: np.ndarray, device: str) -> ag.Tensor:
    """R -> Shard(0): this rank's part of rows that all ranks have. Parts may be uneven or empty."""
    return cc.shard(ag.tensor(rows, layout={"dp": cc.R}, device=device), "dp")


def mean_loss(model: nn.Module, x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
    """This rank's addend of the mean loss of the global batch: a Partial scalar, to be summed over the ranks."""
    return nn.cross_entropy(model(x), y, reduction="sum") / y.global_shape[0]


def accuracy(model: nn.Module, x: np.ndarray, y: np.ndarray, device: str) -> float:
    """The fraction of all rows that is classified correctly; every rank counts its own rows."""
    with ag.no_grad():
        right = anp.argmax(model(share(x, device)), axis=1) == share(y, device)
        return cc.all_reduce(right.sum(), "dp").item() / len(y)


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    device = options.device
    ag.use_device(device)
    dtype = np.dtype(options.dtype or ("float64" if options.verify else "float32"))
    pixels, digits = load_digits()
    pixels = (pixels / 16).astype(dtype)
    test, train = np.split(random.permutation(random.Key(options.seed, "split"), len(digits)), [360])

    random.seed(options.seed)  # every rank makes the same parameters
    with cc.Mesh(dp=-1) as mesh:
        layers = nn.Linear(64, 128, dtype=dtype), nn.ReLU(), nn.Linear(128, 10, dtype=dtype)
        model = DataParallel(nn.Sequential(*layers).to(device), "dp")
        optimizer = optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
        first = mesh.ranks.rank == 0
        report = verify(model, mean_loss, share(pixels[train], device), share(digits[train], device))
        if options.verify:
            if first:
                print(report)
            report.require()

        rows = data.Subset(data.TensorDataset(pixels, digits), train)
        key = random.Key(options.seed, "shuffle")
        batches = data.DataLoader(rows, options.batch, shuffle=True, key=key, axis="dp", device=device)
        losses = []
        for _ in tqdm(range(options.epochs), unit="epoch", disable=not first):
            for x, y in batches:
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = cc.all_reduce(mean_loss(model, x, y), "dp", to=cc.I)
                tape.backward(loss)
                optimizer.step()
                losses.append(loss.item())

        mine = share(digits[test], device).shape[0]
        cc.in_order(f"{mine} of {len(test)} test images")
        tested = accuracy(model, pixels[test], digits[test], device)
        if first:
            print(f"test accuracy: {tested:.2%}")
            if report.ranks > 1:
                print(f"{report.ranks} ranks, each with a part of the rows, have the gradient of one process:")
                print(f"the largest relative difference in any parameter was {report.largest:.1e}")
            if options.losses:
                with open(options.losses, "w") as file:
                    json.dump(losses, file)
            if options.plot and losses:
                plot(losses, tested, options)


def plot(losses: list[float], tested: float, options: argparse.Namespace) -> None:
    """Draw the loss of every step and the mean of every epoch as a PNG."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot

    steps = len(losses) // options.epochs
    means = np.array(losses).reshape(options.epochs, steps).mean(axis=1)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.semilogy(np.arange(1, len(losses) + 1), losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="each step")
    middles = (np.arange(options.epochs) + 0.5) * steps
    axes.semilogy(middles, means, "o-", color="tab:blue", markersize=3, label="mean of each epoch")
    axes.set(xlabel="step", ylabel="cross-entropy of the training batch")
    axes.set_title(f"Handwritten digits, ranks: {cc.world().size}, test accuracy: {tested:.2%}")
    axes.grid(which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(options.plot, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
