"""A program with a handler for SIGALRM and a timer; rank 1 raises an error while MPI does not return from the abort."""

from __future__ import annotations

import os
import signal
import time

import collectives as cc
from collectives.job import failure

world = cc.world()


def block(code: int) -> None:
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        time.sleep(0.05)


if world.rank == 1:
    signal.signal(
        signal.SIGALRM, lambda *_: os.write(1, f"ALARM EVERY {signal.getitimer(signal.ITIMER_REAL)[1]} s\n".encode())
    )
    failure._abort_mpi = block
    signal.setitimer(signal.ITIMER_REAL, 0.5, 77.0)  # another timer would have another interval
    raise ValueError("planted")
world.barrier()
