"""Save a run on one mesh and go on with it on another; damage its newest checkpoint and go on from the one before.

    python examples/13_checkpoints.py                       one process
    python examples/13_checkpoints.py --ranks 4             four threads of one process
    mpiexec -n 4 python examples/13_checkpoints.py          four processes

A classifier is trained by data parallelism, with its optimizer divided over the ranks (ZeRO stage 1), and saved every
two steps. Then the "job" ends. A second one goes on from the newest step with tensor parallelism: each rank reads the
ranges of bytes of its columns and rows. Then some bytes of its newest checkpoint are overwritten. A third job finds
that by their checksum, and goes on from the step before. The losses are compared with those of a run without
interruption.

    --directory DIR      keep the checkpoints there; python -m parallel.checkpoint ls DIR lists them
    --plot saved.png     draw the loss over the steps of the three jobs
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CheckpointWarning
from parallel import Column, Row, Trainer, checkpoint
from parallel.checkpoint.commands import main as command

parser = argparse.ArgumentParser(description="Save a run, resume it on another mesh, and survive a damaged file.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--directory", metavar="DIR", help="keep the checkpoints in this new directory")
parser.add_argument("--plot", nargs="?", const="saved.png", metavar="FILE", help="draw the losses as a PNG")

ROWS = np.random.default_rng(0).standard_normal((48, 16))
CLASSES = (ROWS[:, :4].argmax(axis=1) + (ROWS[:, 4] > 0)) % 4
EVERY = 2  # steps between two checkpoints


def model() -> nn.Sequential:
    """The model of one process. Its parameters follow from names, so they are the same on any mesh."""
    key = random.Key(0, "classifier")
    return nn.Sequential(
        nn.Linear(16, 32, dtype=float, key=key.fold("first")), nn.Tanh(),
        nn.Linear(32, 4, dtype=float, key=key.fold("second")),
    )  # fmt: skip


def job(directory: str | None, steps: int, axis: str) -> tuple[int, list[float]]:
    """Train up to a step, from the newest checkpoint if there is one: the step to begin with, and the losses."""
    plan: Any = {"0": Column("tp"), "2": Row("tp")} if axis == "tp" else None
    trainer = Trainer(
        model, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh(**{axis: -1}), plan, zero=1 if axis == "dp" else 0,
        optimizer=lambda parameters: optim.AdamW(parameters, lr=0.02),
    )  # fmt: skip
    run = {"trainer": trainer, "random": random}
    if directory is not None:
        checkpoint.resume(directory, run)
    begin, losses = trainer.steps, []
    while trainer.steps < steps:
        losses.append(trainer.step(ROWS, CLASSES))
        if directory is not None and trainer.steps % EVERY == 0:
            checkpoint.save(directory, run, trainer.steps)
    return begin, losses


def shared_directory(options: argparse.Namespace, world: cc.Mesh) -> str:
    """The directory of the checkpoints, which the first rank makes."""
    name = np.zeros(1024, np.uint8)
    if int(world.ranks.index) == 0:
        text = (options.directory or tempfile.mkdtemp()).encode()
        name[: len(text)] = list(text)
    with world:
        return bytes(cc.broadcast(ag.tensor(name), "ranks", 0).numpy()).rstrip(b"\0").decode()


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    warnings.simplefilter("ignore", CheckpointWarning)  # `verify` prints what it says
    world = cc.Mesh(ranks=-1)
    ranks, first = int(world.ranks.size), int(world.ranks.index) == 0
    directory = shared_directory(options, world)
    _, whole = job(None, 12, "dp")
    jobs = [("dp", *job(directory, 6, "dp")), ("tp", *job(directory, 10, "tp"))]
    if first:
        print(f"1. A job with dp={ranks} ends after step 6, and a second one with tp={ranks} after step 10.")
        command(["ls", directory])
        damage(Path(directory) / "step-000000010" / "rank-00000.safetensors")
        print("\n2. Eight bytes of the newest checkpoint are overwritten.")
        command(["verify", directory, "10"])
    jobs.append(("dp", *job(directory, 12, "dp")))
    if not first:
        return
    if options.directory is None:
        shutil.rmtree(directory)
    print(f"\n3. A third job with dp={ranks} goes on from step {jobs[2][1]}.")
    print("job   mesh    steps     loss       largest difference from a run without interruption")
    for k, (axis, begin, losses) in enumerate(jobs, 1):
        apart = max(abs(a - b) for a, b in zip(losses, whole[begin:], strict=False))
        shown = "below 1e-12" if apart < 1e-12 else f"{apart:.1e}"
        print(f"{k:3}   {axis}={ranks:<4} {begin + 1:3} to {begin + len(losses):2}   {losses[-1]:.6f}   {shown}")
    if options.plot:
        plot(jobs, whole, options.plot)


def damage(path: Path) -> None:
    """Overwrite the last bytes of a file."""
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff" * 8)


def plot(jobs: list[tuple[str, int, list[float]]], whole: list[float], file: str) -> None:
    """Draw the loss over the steps of the jobs, and of the run without interruption."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(range(1, len(whole) + 1), whole, color="#c9c9c9", linewidth=6, label="without interruption")
    for k, ((axis, begin, losses), color) in enumerate(zip(jobs, ("#3b6ea5", "#e08a3c", "#6aa84f"), strict=True), 1):
        steps = range(begin + 1, begin + len(losses) + 1)
        axes.plot(steps, losses, ".-", color=color, label=f"job {k}, {axis}")
    axes.axvline(10, color="k", linestyle=":", label="the checkpoint that is damaged")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    print(f"wrote {file}")


if __name__ == "__main__":
    given = parser.parse_args()
    if given.ranks is None:
        program(given)
    else:
        cc.run(lambda: program(given), given.ranks)
