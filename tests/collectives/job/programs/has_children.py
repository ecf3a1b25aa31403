"""Rank 1 fails while it, and the other ranks, have child processes that would live on for a minute.

has_children.py HOW CHILD [supervisor]
    HOW     kill | os._exit | raise | return
    CHILD   fork, by multiprocessing | bare fork, without Python's hooks | program, by subprocess | none
    With `supervisor`, the supervisor is killed first.
Prints ``PID n`` for every process of the job, and ``FAULT`` with the time.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np

import collectives as cc
from collectives.job.failure import process


def write(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def nap() -> None:
    time.sleep(60.0)


def start(child: str) -> None:
    if child == "fork":
        worker = multiprocessing.get_context("fork").Process(target=nap, daemon=True)
        worker.start()
        write(f"PID {worker.pid}")
    elif child == "bare fork":
        found = ctypes.CDLL(None).fork()
        if found == 0:
            nap()
        write(f"PID {found}")
    elif child == "program":
        write(f"PID {subprocess.Popen(['sleep', '60']).pid}")


def main(how: str, child: str, before: str = "") -> None:
    world = cc.world()
    write(f"PID {os.getpid()}")
    assert process._supervisor is not None
    supervisor = process._supervisor._process
    if supervisor is not None:
        write(f"PID {supervisor.pid}")
        if before == "supervisor":
            supervisor.kill()
    start(child)
    world.all_reduce(np.ones(3))
    time.sleep(1.0)  # the monitors have noticed that the supervisor is gone
    if world.rank == 1:
        write(f"FAULT {time.time()}")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "os._exit":
            os._exit(3)
        elif how == "raise":
            raise ValueError("planted")
        assert how == "return"
        return
    world.barrier()
    write("WENT ON")


main(*sys.argv[1:])
