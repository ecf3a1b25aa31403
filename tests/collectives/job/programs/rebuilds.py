"""Ranks begin one epoch after the other, without a failure, and use memory and communicators in each.

    rebuilds.py EPOCHS

It prints the descriptors and the memory of rank 0 in some of them.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import collectives as cc
from collectives.transports.shared_memory.communicator import SharedMemory


def main(epochs: int) -> None:
    with cc.World(policy="raise") as world:
        for number in range(1, epochs + 1):
            group = world.survivors()
            assert world.epoch == number and group.name == f"survivors {number}" and not world.failed
            assert group.ranks == tuple(range(group.size))
            memory = SharedMemory(group)
            inside = memory.empty((300_000,))
            inside[...] = 1.0
            memory.all_reduce_in_place(inside)
            assert (inside == group.size).all()
            window = group.window(np.zeros(1000))
            window.add(np.ones(1000), 0)
            pair = group.subgroup([0, group.size - 1], "pair") if group.index in (0, group.size - 1) else None
            assert pair is None or pair.all_reduce(np.ones(1))[0] == pair.size
            with cc.Mesh(group, dp=-1):
                cc.all_reduce(np.ones(3), "dp")
            time.sleep(0.3)  # an epoch is freed when it has been over for a second
            if group.index == 0:
                with open("/proc/self/statm") as file:
                    pages = int(file.read().split()[1])
                print(f"EPOCH {number} {len(os.listdir('/proc/self/fd'))} {pages * os.sysconf('SC_PAGE_SIZE') >> 20}")


main(int(sys.argv[1]))
