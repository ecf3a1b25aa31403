"""Rank 1 fails in the way that is asked for, while the others wait for it in the call that is asked for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

import collectives as cc
from collectives.job import launcher
from collectives.job.failure import process
from collectives.transports.protocol import Request


def fail(how: str) -> None:
    print(f"FAULT {time.time()}", flush=True)
    if how == "raise":
        raise ValueError("planted")
    if how == "raise escapes":
        raise ValueError("planted \x1b[2J\x07\n\x9b31m")
    if how == "raise in thread":
        thread = threading.Thread(target=fail, args=("raise",), name="helper")
        thread.start()
        thread.join()
    elif how == "interrupt":
        raise KeyboardInterrupt
    elif how.startswith("sys.exit"):
        sys.exit(int(how.split()[1]))
    elif how.startswith("os._exit"):
        os._exit(int(how.split()[1]))
    elif how == "kill late":
        time.sleep(1.0)  # the others have waited long enough to have said so
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "replace the hook":
        sys.excepthook = sys.__excepthook__
        raise ValueError("planted")
    assert how in ("return", "finalize")


def wait(where: str) -> None:
    world = cc.world()
    if where == "all_reduce":
        world.all_reduce(np.ones(5))
    elif where == "start":
        world.start(Request("all_reduce", np.ones(5))).wait()
    elif where == "test":
        pending = world.start(Request("all_reduce", np.ones(5)))
        while not pending.test():
            pass
    elif where == "recv":
        world.recv(np.empty(5), 1)
    elif where == "lend":
        world.lend(np.empty(1_000_000), 1).wait()  # too large to be buffered
    elif where == "barrier":
        world.barrier()
    elif where == "subgroup":
        world.subgroup(range(world.size), "all").barrier()
    print("WENT ON", flush=True)


def main(how: str, where: str, has_world: str) -> None:
    if has_world == "elastic":
        cc.World(policy="raise")
    if has_world != "none":
        cc.world().all_reduce(np.ones(3))
    if launcher.launched_rank() != 1:
        wait(where)
    else:
        if has_world == "none":  # the launcher may kill the rank that starts the supervisor before it has done so
            process.wait_until_watched()
        fail(how)
        if how == "finalize":
            from mpi4py import MPI

            MPI.Finalize()


main(*sys.argv[1:])
