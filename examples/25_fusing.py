"""Fusing small tensors: one sum of many numbers instead of many sums of a few.

    mpiexec -n 2 python examples/25_fusing.py            two processes
    python examples/25_fusing.py --link 1                threads, each with a link of 1 Gbit/s

A sum over the ranks takes ``latency + bytes / speed``. The gradients of a small layer are so few bytes that the latency
is all of it. So tensors are copied to one buffer (a *bucket*), summed at once, and copied back. Look for two things:

- Small tensors win: many of them share one latency. Large ones win nothing, and lose the time of the copies.
- The size from which nothing is won is about ``latency * speed``: more on a network than in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import collectives as cc
from collectives.testing import slow_link

parser = argparse.ArgumentParser(description="Sum many small tensors one by one, and as one.")
parser.add_argument("--ranks", type=int, default=2, metavar="N", help="threads of this process, without mpiexec")
parser.add_argument("--tensors", type=int, default=32)
parser.add_argument("--kib", type=float, nargs="+", default=[0.25, 1, 4, 16, 64, 256], help="sizes of a tensor")
parser.add_argument("--link", type=float, default=0.0, metavar="GBIT/S", help="the speed of a rank's link; 0: as it is")
parser.add_argument("--rounds", type=int, default=30)


def median_s(work: Callable[[], None], rounds: int) -> float:
    """The median time of `work`, which all ranks begin together."""
    times = []
    for _ in range(rounds):
        cc.world().barrier()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times[rounds // 5 :]))


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    group = cc.world()
    if group.rank == 0:
        print(f"{options.tensors} tensors on {group.size} ranks")
        print(f"{'KiB each':>10}{'one by one':>14}{'fused':>12}   ratio")
    with slow_link(options.link) if options.link else contextlib.nullcontext():
        for kib in options.kib:
            tensors = [np.full(int(kib * 256), 1.0 + int(group.rank), np.float32) for _ in range(options.tensors)]

            def one_by_one(tensors: list[np.ndarray] = tensors) -> None:
                for x in tensors:
                    group.all_reduce(x)

            def fused(tensors: list[np.ndarray] = tensors) -> None:
                total = group.all_reduce(np.concatenate(tensors))
                for x, part in zip(tensors, np.split(total, len(tensors)), strict=True):
                    np.copyto(x, part)

            apart, together = (median_s(work, options.rounds) for work in (one_by_one, fused))
            if group.rank == 0:
                print(f"{kib:>10g}{apart * 1e6:>11.0f} us{together * 1e6:>9.0f} us{apart / together:8.2f}", flush=True)


if __name__ == "__main__":
    options = parser.parse_args()
    if cc.world().size > 1:
        program(options)
    else:
        cc.run(program, options.ranks, options)
