"""Rank 1 of a fault-tolerant world ends in some way, and the others go on without it.

    loses_rank.py HOW
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np

import collectives as cc


def write(line: str) -> None:
    """Write a line at once, so that the lines of several ranks do not mix."""
    os.write(1, f"{line}\n".encode())


def fail() -> None:
    raise ValueError("planted")


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


WAYS: dict[str, Callable[[cc.World], object]] = {
    "kill": lambda world: kill(signal.SIGKILL),
    "stop": lambda world: kill(signal.SIGSTOP),
    "raise": lambda world: fail(),
    "exit": lambda world: sys.exit(3),
    "status": lambda world: os._exit(1),
    "tell": lambda world: world.fail("lost its disk"),
    "close": lambda world: None,
}


def main(how: str) -> None:
    with cc.World(policy="raise") as world:
        group = world.communicator
        me = group.index
        group.barrier()
        if me == 1:
            WAYS[how](world)
            if how == "tell":
                time.sleep(1.0)
        else:
            try:
                if me == 2 and how != "status":  # it waits for a rank that lives
                    group.recv(np.empty(1), 0)
                group.all_reduce(np.ones(1))
                write(f"WENT ON {me}")
            except cc.RankFailed as error:
                write(f"TOLD {me} {str(error)!r}")
            group = world.survivors()
            assert group.ranks == (0, 2) and world.epoch == 1 and cc.world() is group, (group.ranks, world.epoch)
            assert list(world.failed) == [1]
            with cc.Mesh(dp=-1):
                assert cc.all_reduce(np.full(2, me + 1.0), "dp").numpy().tolist() == [4.0, 4.0]
            write(f"LEFT {me} {world.failed[1]}")
    if me == 2:
        sys.exit(5)  # the status of the job: a rank that others go on without does not count


main(sys.argv[1])
