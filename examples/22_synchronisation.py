"""Who sums the gradients: the program by hand, a cast of the parameter, or `DataParallel`. The same numbers by each.

    python examples/22_synchronisation.py                    three threads of one process
    mpiexec -n 3 python examples/22_synchronisation.py       three processes

A linear model is trained on rows that the ranks divide. Each rank's gradient is that of its own rows, so the ranks must
add them before the step. Four programs do that, or forget it:

- by hand: without a mesh, as with mpi4py and any engine. The program computes the gradient and calls all_reduce.
  Nothing notices where it is forgotten, or made twice: the loss falls, and the copies of the parameter drift apart.
- by a cast: ``cc.cast(w, "dp", to=R)`` says that all ranks use the parameter for rows of their own. Its adjoint is the
  sum, so the tape makes it, once, at the right place.
- by DataParallel: the same, in buckets that are sent while backward goes on.
- forgotten, with labels: an error that says which sum is missing, before anything is computed.

Look at the last column: the largest difference between the ranks' copies of w.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn
from parallel import DataParallel

parser = argparse.ArgumentParser(description="Sum gradients by hand, by a cast, and by DataParallel.")
parser.add_argument("--ranks", type=int, default=3, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--steps", type=int, default=20)

_random = np.random.default_rng(0)
X = _random.normal(size=(12, 3))
Y = X @ [[1.0], [-2.0], [0.5]]


def by_hand(w: np.ndarray, x: Any, y: Any, forgets: bool = False) -> Any:
    """The gradient without a mesh; the program itself adds those of all ranks."""
    gradient = np.asarray(ag.grad(lambda w: ((x @ w - y) ** 2).sum() / 12)(w))
    return gradient if forgets else cc.world().all_reduce(gradient.ravel()).reshape(gradient.shape)


def by_cast(w: np.ndarray, x: Any, y: Any, forgets: bool = False) -> Any:
    """The gradient on a mesh; the adjoint of the cast adds."""
    with cc.Mesh(dp=-1):
        p, rows, targets = ag.Parameter(w), *(cc.from_local(a, {"dp": cc.Shard(0)}) for a in (x, y))
        with ag.Tape() as tape:
            use = p if forgets else cc.cast(p, "dp", to=cc.R)
            loss = cc.all_reduce(((rows @ use - targets) ** 2).sum(), "dp", to=cc.I) / 12
        tape.backward(loss)
        return p.grad.numpy()


def by_data_parallel(w: np.ndarray, x: Any, y: Any) -> Any:
    """The gradient on a mesh; the layer adds."""
    with cc.Mesh(dp=-1):
        model = nn.Linear(3, 1, bias=False, dtype=float)
        model.weight.data = w
        model, rows = DataParallel(model, "dp"), cc.from_local(x, {"dp": cc.Shard(0)})
        with ag.Tape() as tape:
            loss = cc.all_reduce(((model(rows) - cc.from_local(y, {"dp": cc.Shard(0)})) ** 2).sum(), "dp", to=cc.I) / 12
        tape.backward(loss)
        return model.module.weight.grad.numpy()


def train(gradient: Callable[..., Any], steps: int, **words: Any) -> str:
    """Train from zeros; the loss of all rows, and how far the ranks' parameters have drifted apart."""
    group = cc.world()
    x, y = (np.array_split(a, group.size)[int(group.rank)] for a in (X, Y))
    w = np.zeros((3, 1))
    for _ in range(steps):
        w = w - 0.2 * gradient(w.copy(), x, y, **words)
    copies = [np.frombuffer(each).reshape(3, 1) for each in group.exchange(w.tobytes())]
    losses = [float(((X @ each - Y) ** 2).mean()) for each in copies]
    drift = max(float(abs(each - copies[0]).max()) for each in copies)
    return f"{losses[0]:10.6f}   {drift:.1e}"


def program(steps: int) -> None:
    """The program of every rank."""
    is_first = cc.world().rank == 0
    ways = {
        "by hand": (by_hand, {}), "by hand, forgotten": (by_hand, {"forgets": True}), "by a cast": (by_cast, {}),
        "by DataParallel": (by_data_parallel, {}),
    }  # fmt: skip
    if is_first:
        print(f"{'the sum of the gradients':26}{'loss':>10}   drift")
    for name, (gradient, words) in ways.items():
        line = train(gradient, steps, **words)
        if is_first:
            print(f"{name:26}{line}", flush=True)
    try:
        train(by_cast, 1, forgets=True)
    except cc.LayoutError as error:
        if is_first:
            print("forgotten, with labels:\n  " + str(error).replace("\n", "\n  "), flush=True)


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options.steps)
    else:
        cc.run(program, options.ranks, options.steps)
