"""Under the policy ``raise`` rank 1 fails, and the others go on without it.

    goes_on.py HOW WHERE
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import collectives as cc
from collectives.transports.protocol import Request


def write(line: str) -> None:
    """Write a line at once, so that the lines of several ranks do not mix."""
    os.write(1, f"{line}\n".encode())


def fail(how: str, world: cc.World) -> None:
    if how == "raise":
        raise ValueError("planted")
    if how == "raise late":
        time.sleep(1.5)
        raise ValueError("planted")
    if how == "tell":
        world.fail("lost its disk")
        time.sleep(1.0)  # goes on by itself
    if how.startswith("sys.exit"):
        sys.exit(int(how.split()[1]))


def wait(where: str, group: cc.Communicator) -> None:
    if where == "all_reduce":
        group.all_reduce(np.ones(5))
    elif where == "recv":
        group.recv(np.empty(5), 1)
    elif where == "send":
        while True:
            group.send(np.ones(5), 1)
            time.sleep(0.05)
    elif where == "lend":
        group.lend(np.ones(1_000_000), 1).wait()
    elif where == "test":
        pending = group.start(Request("barrier"))
        while not pending.test():
            pass
    elif where == "subgroup":
        group.subgroup(range(group.size), "all").barrier()


def main(how: str, where: str) -> None:
    with cc.World(policy="raise") as world:
        group = world.communicator
        pair = group.subgroup([0, 2], "pair") if group.rank != 1 else None
        group.all_reduce(np.ones(3))
        if group.rank == 1:
            fail(how, world)
        else:
            assert pair is not None
            try:
                wait(where, group)
                write("WENT ON")
            except cc.RankFailed as error:
                write(f"RANK {group.rank} TOLD {str(error)!r}")
            assert list(world.failed) == ([] if how == "close" else [1]), world.failed
            try:
                group.barrier()  # every later call that needs rank 1 raises as well
                write("WENT ON")
            except cc.RankFailed:
                pass
            assert pair.all_reduce(np.ones(1))[0] == 2
            if world.failed:
                survivors = world.survivors()
                with cc.Mesh(survivors, dp=-1):
                    assert cc.all_reduce(np.full(2, 3.0), "dp").numpy().tolist() == [6.0, 6.0]
            write(f"RANK {group.rank} did its work")
    if group.rank != 1 and world.failed:
        try:
            cc.World()
        except cc.MeshError as error:
            assert "after a rank failed" in str(error), error
        else:
            raise AssertionError


main(*sys.argv[1:])
