"""A job in which the last rank is late, or never ends: never_ends.py WHERE. Nothing else is wrong with it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time

import numpy as np

WHERE = sys.argv[1]
IS_LATE = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]) == 2


def stay(where: str) -> None:
    """Sleep at this place of the program, if it is the one that was asked for."""
    if IS_LATE and where == WHERE:
        time.sleep(600)  # HERE


def spin(where: str) -> None:
    while IS_LATE and where == WHERE:
        pass


stay("import")
atexit.register(stay, "first handler")  # it runs after the handler of ringtape
import collectives as cc  # noqa: E402

if IS_LATE and "thread" in WHERE:
    threading.Thread(target=stay, args=(WHERE,)).start()
for where in ("handler", "handler, open world"):
    atexit.register(stay, where)
if IS_LATE and WHERE == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
spin("spins before the world")
stay("before the world")
with cc.World("mpi"):
    with cc.Mesh(dp=-1):
        stay("in the world")
        cc.all_reduce(np.ones(3), "dp")
    stay("before the end of a world")
    spin("spins before the end of a world")
stay("between two worlds")
if WHERE != "one world":
    with cc.World("mpi"), cc.Mesh(dp=-1):
        cc.all_reduce(np.ones(3), "dp")
        stay("in the second world")
if "open world" in WHERE:
    with cc.Mesh(dp=-1):
        cc.all_reduce(np.ones(3), "dp")
if WHERE in ("stopped supervisor", "stopped supervisor, killed rank"):
    supervisor = cc.job.failure.process._supervisor._process
    if supervisor is not None:
        os.kill(supervisor.pid, signal.SIGSTOP)
    cc.world().barrier()
    if IS_LATE and WHERE.endswith("killed rank"):
        os.kill(os.getpid(), signal.SIGKILL)
sys.stdout.write("END\n")
