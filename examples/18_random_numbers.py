"""Random numbers of ranks: one mask, whoever draws it.

    python examples/18_random_numbers.py              the same mask by 1, 2 and 4 threads
    mpiexec -n 3 python examples/18_random_numbers.py       and by processes

Each rank of a data-parallel program has some rows, and drops some of their values. A generator for each rank, with a
seed of its own, gives another mask for each number of ranks: no run on more ranks can be compared with one on fewer, or
resumed on them. In ringtape a random number depends on a key and on the place of the element in the whole array, not on
the rank that draws it. So ranks draw the parts of one mask. Where all ranks hold the same value, as behind a layer that
is divided over them, they draw the same one; and ranks with different values under one key are refused.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, random

parser = argparse.ArgumentParser(description="Print the masks of dropout on different numbers of ranks.")
parser.add_argument("--rows", type=int, default=4)
parser.add_argument("--columns", type=int, default=24)
parser.add_argument("--seed", type=int, default=0)


def drawn(mask: np.ndarray) -> list[str]:
    """A mask as text, a line for each row: a dot for an element that was dropped."""
    return ["".join("#" if kept else "." for kept in row) for row in mask]


def show(name: str, mask: np.ndarray) -> None:
    """Print the rows of all ranks in order, with the ranks that drew them."""
    group = cc.world()
    found = [each.decode() for each in group.exchange("\n".join(drawn(mask)).encode())]
    if group.rank == 0:
        print(f"  {name}")
        for rank, text in enumerate(found):
            print("\n".join(f"    rank {rank}   {line}" for line in text.splitlines()), flush=True)


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    with cc.Mesh(dp=-1) as mesh:
        rank, size = int(mesh.ranks.rank), mesh.ranks.size
        if rank == 0:
            print(f"{size} rank{'s' * (size > 1)}")
        mine = np.array_split(np.arange(options.rows), size)[rank]
        own = np.random.default_rng(options.seed + rank).random((len(mine), options.columns)) >= 0.5
        show("a generator for each rank: another mask", own)
        key = random.Key(options.seed, "dropout")
        x = cc.from_local(np.ones((len(mine), options.columns)), {"dp": cc.Shard(0)})
        show("parts of one array, one key: parts of one mask", nn.dropout(x, 0.5, key=key).local != 0)
        same = ag.tensor(np.ones((1, options.columns)), {"dp": cc.R})
        show("one value on all ranks, one key: one mask", nn.dropout(same, 0.5, key=key).local != 0)
        try:
            nn.dropout(ag.tensor(np.ones((1, options.columns)), {"dp": cc.V}), 0.5, key=key)
        except cc.LayoutError as error:
            if rank == 0:
                print("  different values, one key: refused\n    " + str(error).replace("\n", "\n    ") + "\n")


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        for ranks in (1, 2, 4):
            cc.run(program, ranks, options)
