"""Processes that are killed while they save, and the check that nothing was lost.

``python -m tests.parallel.checkpoint.kills FIRST LAST`` forks one process for each seed between. It has 1 to 4 ranks as
threads, saves steps until it is killed (SIGKILL, so nothing is cleaned up), and tells through a pipe which saves have
begun and which have returned. Then the parent loads the newest step.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim
from parallel import DataParallel, checkpoint
from parallel.checkpoint import disk
from parallel.checkpoint.checkpoints import Checkpoints

STEPS = 6


def objects() -> dict[str, Any]:
    model = DataParallel(nn.Sequential(nn.Linear(3, 4, dtype=float), nn.Linear(4, 2, dtype=float)), "dp", zero=1)
    return {"model": model, "optimizer": optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def set_step(run: dict[str, Any], step: int) -> None:
    """Give all values of a run those of a step."""
    for i, p in enumerate(run["model"].parameters()):
        p.array[...] = 100 * step + i


def program(folder: Path, told: int, background: bool, keep: int | None, twice: bool) -> None:
    with cc.Mesh(dp=cc.world().size) as mesh:
        run = objects()
        is_first = int(mesh.ranks.rank) == 0
        checkpoints = Checkpoints(folder, keep=keep, background=background)
        for step in range(1, STEPS):
            set_step(run, step)
            if is_first:
                os.write(told, f"begun {step}\n".encode())
            checkpoints.save({**run, "step": step, "a": np.arange(step)}, step)
            if is_first:  # in the background, the save before this one has returned
                os.write(told, f"saved {step - background}\n".encode())
            if twice:  # the step that is there is replaced
                checkpoints.save({**run, "step": step, "a": np.arange(step)}, step, overwrite=True)
                if is_first:
                    os.write(told, f"saved {step}\n".encode())
        checkpoints.wait()
        if is_first:
            os.write(told, f"saved {STEPS - 1}\n".encode())


def killer(at: int, half: bool) -> Any:
    """A `point` that ends the process when it is called for the `at`-th time, perhaps with a file written in half."""
    count = 0

    def point(name: str, path: str | None = None) -> None:
        nonlocal count
        count += 1
        if count == at:
            if half and path is not None:
                Path(path).write_bytes(os.urandom(57))
            os.kill(os.getpid(), signal.SIGKILL)

    return point


def check(seed: int) -> str:
    """Run the program of a seed, and check what is left."""
    rng = random.Random(seed)
    ranks, background, keep = rng.randint(1, 4), rng.random() < 0.5, rng.choice((None, None, 1, 2))
    at, half = rng.randint(1, 14 * ranks + 30), rng.random() < 0.5
    twice = rng.random() < 0.4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            disk.point = killer(at, half)
            cc.run(lambda: program(folder, write, background, keep, twice), ranks)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            lines = [line.split() for line in pipe]
        _, status = os.waitpid(child, 0)
        saved = max((int(n) for kind, n in lines if kind == "saved"), default=0)
        begun = max((int(n) for kind, n in lines if kind == "begun"), default=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no step that can be seen is damaged
            newest = checkpoint.latest(folder)
            assert (newest or 0) >= saved, (seed, newest, lines)
            if newest is not None:
                assert newest <= begun, (seed, newest, lines)
                for again in range(2):
                    _load(folder, newest, ranks + again)
                # and the next run goes on in the same directory
                cc.run(lambda: _saves(folder, newest + 1), 2)
                assert checkpoint.latest(folder) == newest + 1
                assert not [x for x in os.listdir(folder) if x.startswith((".step", ".old"))]
        killed = os.WIFSIGNALED(status)
        assert killed or saved == STEPS - 1, (seed, status, lines)
        return "killed" if killed else "ended"


def _load(folder: Path, step: int, ranks: int) -> None:
    def load() -> None:
        with cc.Mesh(dp=cc.world().size):
            run = objects()
            found = checkpoint.load(folder, run)
            assert found.step == step and found.values["step"] == step, found
            assert np.array_equal(found.values["a"], np.arange(step))
            for i, p in enumerate(run["model"].parameters()):
                assert (p.array == 100 * step + i).all()

    cc.run(load, ranks)


def _saves(folder: Path, step: int) -> None:
    with cc.Mesh(dp=2):
        run = objects()
        set_step(run, step)
        checkpoint.save(folder, run, step)


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:])
    results = [check(seed) for seed in range(first, last)]
    assert ag
    print(f"{results.count('killed')} killed, {results.count('ended')} ended, 0 lost")
