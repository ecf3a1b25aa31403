"""A rank of `checkpoint.py`: saves and loads the parameters and the moments of AdamW. Prints a JSON line of seconds."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path = [str(HERE.parent.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]
import numpy as np

import collectives as cc
from autograd import kernels, nn, optim
from autograd.engine.tensor import Tensor
from parallel import DataParallel, checkpoint

FOLDER, MIB, REPEATS, START = Path(sys.argv[1]), *map(int, sys.argv[2:5])
WIDTH, LAYERS = 1024, 8


def main() -> None:
    kernels.keep_freed_memory()  # as programs that train do
    with cc.Mesh(dp=2) as mesh:
        rows = MIB * 2**20 // (3 * 4 * WIDTH * LAYERS)
        layers = [nn.Linear(rows, WIDTH, bias=False) for _ in range(LAYERS)]
        model = DataParallel(nn.Sequential(*layers), "dp", zero=3)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        for p in model.parameters():
            p.grad = Tensor(np.random.default_rng(0).random(p.array.shape, np.float32), p.layout.dual)
        optimizer.step()
        optimizer.zero_grad()
        run = {"model": model, "optimizer": optimizer}
        local = [p.array for p in model.parameters()] + [a for held in optimizer.state_lists() for a in held if
                                                         isinstance(a, np.ndarray)]  # fmt: skip
        rank, group = int(mesh.ranks.rank), mesh.ranks
        background = checkpoint.Checkpoints(FOLDER / "background", keep=1, background=True)
        steps = itertools.count(START)

        def timed(f: Callable[[], Any]) -> float:
            group.barrier()
            begin = time.perf_counter()
            f()
            group.barrier()
            return time.perf_counter() - begin

        def plain() -> None:
            path = FOLDER / f"plain{rank}-{next(steps)}"  # a new file, as a save makes
            for old in FOLDER.glob(f"plain{rank}-*"):
                old.unlink()
            with open(path, "wb", buffering=0) as file:
                for a in local:
                    data = memoryview(a.reshape(-1)).cast("B")
                    while len(data):
                        data = data[file.write(data) :]
                os.fsync(file.fileno())

        def memory() -> float:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        def save() -> None:
            checkpoint.save(FOLDER / "run", run, next(steps), overwrite=True)

        def stopped() -> float:
            begin = time.perf_counter()
            background.save(run, next(steps))
            end = time.perf_counter()
            background.wait()
            return end - begin

        times: dict[str, list[float]] = {name: [] for name in ("plain", "save", "load", "stopped")}
        before = memory()
        save()
        peak = memory() - before
        first_stopped = stopped()
        own = sum(a.nbytes for a in local) / 2**20
        first = timed(lambda: checkpoint.load(FOLDER / "run", run))
        timed(lambda: checkpoint.load(FOLDER / "run", run))  # not counted: the second one still takes new memory
        for _ in range(REPEATS):
            times["plain"].append(timed(plain))
            times["save"].append(timed(save))
            times["stopped"].append(stopped())
            times["load"].append(timed(lambda: checkpoint.load(FOLDER / "run", run)))
            group.barrier()
            if not rank:
                for path in sorted((FOLDER / "run").glob("step-*"))[:-1]:
                    shutil.rmtree(path)
            group.barrier()
        if not rank:
            firsts = {"first load": [first], "first stopped": [first_stopped]}
            print(json.dumps({**times, **firsts, "memory": peak / own}), flush=True)


main()
