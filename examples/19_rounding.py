"""The order of a sum: why more ranks give other bits, and a sum that does not.

    python examples/19_rounding.py                    1 to 5 threads of one process
    mpiexec -n 3 python examples/19_rounding.py       three processes

The same 60 numbers are summed by different numbers of ranks, each of which has some of them. Floating-point addition
rounds, so the result depends on the order of the additions, which depends on the number of ranks and on the algorithm.
Each result is right within its rounding error. But two runs that should be equal are not, and a difference of the last
bit grows as training goes on. `cc.reproducible_sum` adds in the order of one binary tree over the numbers themselves,
whoever holds them: the same bits on any number of ranks. Look at the last digits (hexadecimal) and at the signs that
mark what differs from one rank alone.
"""

from __future__ import annotations

import argparse
import math
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import collectives as cc

parser = argparse.ArgumentParser(description="Sum the same numbers on different numbers of ranks.")
parser.add_argument("--numbers", type=int, default=60)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--most", type=int, default=5, metavar="N", help="the largest number of threads")

WAYS = "native", "ring", "reproducible_sum"


def program(options: argparse.Namespace) -> list[np.float32]:
    """The sums by each way, on every rank."""
    numbers = np.random.default_rng(options.seed).standard_normal(options.numbers).astype(np.float32)
    with cc.Mesh(dp=-1) as mesh:
        rank, size = int(mesh.ranks.rank), mesh.ranks.size
        mine = np.array_split(np.arange(options.numbers), size)[rank]
        local = ag.tensor(np.float32(0), {"dp": cc.V})
        for k in mine:
            local = local + numbers[k]
        found = [cc.all_reduce(local, "dp", algorithm=way) for way in WAYS[:-1]]
        found.append(cc.reproducible_sum(numbers[mine], mine.tolist(), "dp"))
        return [each.numpy()[()] for each in found]


def show(results: dict[int, list[np.float32]], options: argparse.Namespace) -> None:
    """Print the sums of each number of ranks."""
    numbers = np.random.default_rng(options.seed).standard_normal(options.numbers).astype(np.float32)
    exact = math.fsum(numbers.tolist())
    first = next(iter(results.values()))
    print(f"{'ranks':8}" + "".join(way.ljust(34) for way in WAYS))
    for ranks, found in results.items():
        cells = [f"{x:.9g} {float(x).hex()}{'' if x == y else ' !'}" for x, y in zip(found, first, strict=True)]
        print(f"{ranks:<8}" + "".join(cell.ljust(34) for cell in cells))
    print(f"exact   {exact:.9g}")


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        found = program(options)
        if cc.world().rank == 0:
            show({cc.world().size: found}, options)
    else:
        show({ranks: cc.run(program, ranks, options)[0] for ranks in range(1, options.most + 1)}, options)
