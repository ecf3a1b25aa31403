"""One-sided memory: read rows of a table that other ranks hold, who do not know of it.

    python examples/21_one_sided.py                    three threads of one process
    mpiexec -n 3 python examples/21_one_sided.py       three processes

A table of rows, such as an embedding of a vocabulary, is divided over the ranks. Each rank needs a few rows, wherever
they are. In the first program every rank gathers the whole table; in the second `cc.get` reads the rows that are needed
from the memory of their owners, who take no part. Look for three things:

- Forward, a rank reads what it likes. Nobody sends, so there is no order of calls that could be wrong.
- Backward, reading becomes *adding*: each cotangent is added to the row's gradient in the memory of its owner. A row
  that several ranks have read gets the sum, and one that nobody has read gets zeros.
- Both programs have the same gradients, and move different numbers of bytes: the whole table, or what is used of it.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc

parser = argparse.ArgumentParser(description="Read rows of a table that other ranks hold, and see the gradients.")
parser.add_argument("--ranks", type=int, default=3, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--rows", type=int, default=4, help="rows of the table on each rank")
parser.add_argument("--wanted", type=int, default=3, help="rows that each rank needs")
parser.add_argument("--seed", type=int, default=1)


def gathered(table: ag.Tensor, wanted: np.ndarray, rows: int) -> Any:
    """The wanted rows of the whole table, which every rank gathers."""
    return cc.all_gather(table, "dp")[wanted]


def one_sided(table: ag.Tensor, wanted: np.ndarray, rows: int) -> Any:
    """The wanted rows, each read from the rank that holds it."""
    return cc.get(table, "dp", wanted // rows, wanted % rows)


def show(title: str, text: str) -> None:
    """Print the lines of all ranks in order."""
    found = cc.world().exchange(text.encode())
    if cc.world().rank == 0:
        print(title)
        for rank, line in enumerate(found):
            print(f"  rank {rank}   {line.decode()}", flush=True)


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    with cc.Mesh(dp=-1) as mesh:
        rank, size, rows = int(mesh.ranks.rank), int(mesh.ranks.size), options.rows
        wanted = np.random.default_rng(options.seed + rank).integers(0, size * rows, options.wanted)
        show("The rows that each rank holds, and those that it wants",
             f"holds {rank * rows} to {(rank + 1) * rows - 1}, wants {', '.join(map(str, wanted))}")  # fmt: skip
        others = int((wanted // rows != rank).sum())
        gradients = []
        for name, read, moved in (("all_gather", gathered, (size - 1) * rows), ("cc.get", one_sided, others)):
            part = np.repeat(np.arange(rank * rows, (rank + 1.0) * rows)[:, None], 64, axis=1)
            table = ag.tensor(part, {"dp": cc.V}, requires_grad=True)
            with ag.Tape() as tape:
                found = read(table, wanted, rows)
                loss = cc.all_reduce((found * (rank + 1.0)).sum(), "dp", to=cc.I)  # the cotangent tells who has read
            tape.backward(loss)
            assert (found.numpy()[:, 0] == wanted).all()
            assert table.grad is not None
            gradients.append(table.grad.numpy()[:, 0])
            show(f"{name}: the gradient of the rows that a rank holds, 1 + the rank for each rank that has read them",
                 f"{'  '.join(f'{g:g}' for g in gradients[-1]):24} {moved * part[0].nbytes:6} bytes from other ranks")
        assert (gradients[0] == gradients[1]).all()


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        cc.run(program, options.ranks, options)
