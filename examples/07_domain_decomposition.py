"""Find the initial state of a wave from a few sensors: a grid divided over ranks in two dimensions, and its gradient.

    python examples/07_domain_decomposition.py                     one process
    python examples/07_domain_decomposition.py --ranks 4           four threads of one process
    mpiexec -n 4 python examples/07_domain_decomposition.py        four processes

A membrane with a fixed border is let go and swings. Sensors record its height at each time step. How high was each cell
at the start? The program guesses, simulates, compares with the records, and follows the gradient, which flows back
through all time steps (as in photoacoustic imaging and seismology). The result does not depend on the number of ranks.

The ranks form a mesh, "rows" x "columns", and each has one block of the grid. A time step reads the neighbours of each
cell, so each block needs *ghost cells*: copies of the edges of the neighbouring blocks, which `halo_exchange` fetches.
The adjoint sends cotangents the other way. A cell at the edge of a block is used by its owner, and, as a ghost cell, by
a neighbour. Both uses contribute to the derivative with respect to that cell: the neighbour sends the cotangent of its
copy back, and the owner **adds** it to its own. Without the neighbour's, the sweep back
through all time steps would be that of another simulation than the one that ran; the loss would soon grow.

    --plot waves.png      draw the true, the first and the recovered state, and the loss
    --checkpoint 20       keep only the state at every 20th time step, and compute the rest again in backward
"""

from __future__ import annotations

import argparse
import hashlib
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np
from tqdm import tqdm

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import optim

parser = argparse.ArgumentParser(description="Recover the initial state of a wave on any number of ranks.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--mesh", type=int, nargs=2, metavar=("ROWS", "COLUMNS"), help="as square as possible without it")
parser.add_argument("--grid", type=int, nargs=2, default=[47, 61], metavar=("HEIGHT", "WIDTH"), help="any two numbers")
parser.add_argument("--steps", type=int, default=80, help="time steps of the simulation")
parser.add_argument("--iterations", type=int, default=50, help="steps of the optimizer")
parser.add_argument("--lr", type=float, default=0.05, help="learning rate per cell; smaller if the loss grows")
parser.add_argument("--checkpoint", type=int, default=0, metavar="STEPS", help="time steps in a checkpointed segment")
parser.add_argument("--quick", dest="iterations", action="store_const", const=12, help="fewer iterations")
parser.add_argument("--plot", nargs="?", const="waves.png", metavar="FILE", help="draw a PNG")

AXES = ("rows", "columns")  # the mesh axis along which each dimension of the grid is divided
COURANT = 0.4  # (speed * time step / cell size) ** 2; below 0.5 the simulation is stable

State = tuple[ag.Tensor, ag.Tensor]  # the heights one time step ago, and now


def block(whole: np.ndarray) -> ag.Tensor:
    """R -> Shard(0) on "rows", Shard(1) on "columns": this rank's block. Blocks may be uneven."""
    rows = cc.shard(ag.tensor(whole, dict.fromkeys(AXES, cc.R)), "rows", dim=0)
    return cc.shard(rows, "columns", dim=1)


def whole(part: ag.Tensor) -> np.ndarray:
    """All blocks put together, on every rank."""
    return cc.all_gather(cc.all_gather(part, "columns", dim=1), "rows", dim=0).numpy()


def laplacian(u: ag.Tensor) -> ag.Tensor:
    """The sum of the four neighbours of each cell, minus four times the cell; zero beyond the border of the grid."""
    wide = cc.halo_exchange(u, AXES, 1, dim=(0, 1))  # one ghost cell on each side
    return wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * u


def swing(before: ag.Tensor, now: ag.Tensor, steps: int, here: tuple[np.ndarray, ...]) -> tuple[State, ag.Tensor]:
    """Make some time steps; returns the last state, and the heights at this rank's sensors after each step."""
    records = []
    for _ in range(steps):
        before, now = now, 2 * now - before + COURANT * laplacian(now)
        records.append(cc.cast(now, AXES, to=cc.V)[here])
    return (before, now), anp.stack(records)


def simulate(start: ag.Tensor, here: tuple[np.ndarray, ...], options: argparse.Namespace) -> list[ag.Tensor]:
    """Let the membrane go, at rest, and return the records of this rank's sensors, a part for each segment."""
    segment = options.checkpoint or options.steps
    run = ag.checkpoint(swing) if options.checkpoint else swing
    state, records = (start - COURANT / 2 * laplacian(start), start), []
    for done in range(0, options.steps, segment):
        state, found = run(*state, min(segment, options.steps - done), here)
        records.append(found)
    return records


def true_start(height: int, width: int) -> np.ndarray:
    """A ring, a bump and a hollow."""
    y, x = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    far = [np.hypot(y - cy, (x - cx) * width / height) for cy, cx in ((0.45, 0.35), (0.7, 0.68), (0.3, 0.7))]
    return np.exp(-(((far[0] - 0.17) / 0.05) ** 2)) + np.exp(-((far[1] / 0.09) ** 2)) - np.exp(-((far[2] / 0.12) ** 2))


def sensors(height: int, width: int) -> np.ndarray:
    """True at the cells with a sensor: every fourth one of a frame."""
    found = np.zeros((height, width), bool)
    for line in (found[4, 4:-4], found[-5, 4:-4], found[4:-4, 4], found[4:-4, -5]):
        line[::4] = True
    return found


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    size = cc.world().size
    rows = next(n for n in range(int(size**0.5), 0, -1) if size % n == 0)
    rows, columns = options.mesh or (rows, size // rows)
    truth, places = true_start(*options.grid), sensors(*options.grid)
    with cc.Mesh(rows=rows, columns=columns) as mesh:
        first = mesh.ranks.rank == 0
        here = np.nonzero(block(places).numpy())  # this rank's sensors, as indices into its block
        with ag.no_grad():
            records = simulate(block(truth), here, options)

        start = ag.Parameter(block(np.zeros_like(truth)))
        # The loss is a mean, so each of n cells has about 1/n of its curvature: steps in proportion to n suit any grid.
        # Gradient descent leaves flat what no sensor notices. Adam, with a scale for each cell, would add noise there.
        optimizer = optim.SGD([start], lr=options.lr * truth.size, momentum=0.9)
        losses = []
        for _ in tqdm(range(options.iterations), unit="iteration", disable=not first):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                found = simulate(start, here, options)
                squares = sum(((a - b) ** 2).sum() for a, b in zip(found, records, strict=True))
                loss = cc.all_reduce(squares / (options.steps * int(places.sum())), AXES, to=cc.I)
            tape.backward(loss)
            optimizer.step()
            losses.append(loss.item())

        cc.in_order(f"block of {start.shape[0]} x {start.shape[1]} cells with {len(here[0])} sensors")
        recovered = whole(start)
        if first:
            error = np.linalg.norm(recovered - truth) / np.linalg.norm(truth)
            # six digits, and no -0.0: ranks add in other orders, so that the last digits differ
            digest = hashlib.sha256((np.round(recovered, 6) + 0.0).tobytes()).hexdigest()[:12]
            print(f"loss {losses[0]:.6g} at first, {losses[-1]:.6g} at last")
            print(f"recovered with a relative error of {error:.6f}, digest {digest}")
            if options.plot:
                plot(truth, places, recovered, losses, (rows, columns), options.plot)


def plot(
    truth: np.ndarray, places: np.ndarray, recovered: np.ndarray, losses: list[float], mesh: tuple[int, int], file: str
) -> None:
    """Draw the true state with the sensors, the recovered state with the blocks, their difference, and the loss."""
    import matplotlib

    matplotlib.use("Agg")  # draw without a screen
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    states = {"true initial state, and the sensors": truth, "10 x (recovered - true)": 10 * (recovered - truth),
              f"recovered on {mesh[0]} x {mesh[1]} ranks, from 0": recovered}  # fmt: skip
    for each, (title, state) in zip(axes.flat, states.items(), strict=False):
        image = each.imshow(state, cmap="RdBu_r", vmin=-1, vmax=1)
        each.set_title(title)
        each.set(xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[:, 0], location="left", shrink=0.6, label="height")
    axes[0, 0].plot(*np.nonzero(places)[::-1], ".", color="black", markersize=4)
    for draw, parts, extent in zip((axes[1, 0].axhline, axes[1, 0].axvline), mesh, truth.shape, strict=True):
        for end in np.cumsum([len(part) for part in np.array_split(np.arange(extent), parts)])[:-1]:
            draw(end - 0.5, color="black", linewidth=0.8, linestyle="--")
    axes[1, 1].semilogy(np.arange(1, len(losses) + 1), losses, color="tab:blue")
    axes[1, 1].set(xlabel="iteration", ylabel="mean square error of the records")
    axes[1, 1].grid(which="major", alpha=0.3)
    axes[1, 1].spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    options = parser.parse_args()
    if min(options.grid) < 12 or min(options.steps, options.iterations) < 1 or options.checkpoint < 0:
        parser.error("needed: a grid of at least 12 x 12 cells for the sensors, and positive numbers of steps")
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
