"""Ranks that wait for one that does not come, or with other threads alive: what is reported, and what ends the job.

    long_waits.py HOW
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import collectives as cc

world = cc.world()
last = world.size - 1
HOW = sys.argv[1]


def stops() -> None:
    if world.rank == last:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def first_stops() -> None:
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def sleeps() -> None:
    if world.rank == last:
        time.sleep(5)
    world.barrier()


def loops() -> None:
    if world.rank == last:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            pass
    world.barrier()


def idle_pool() -> None:
    pool = ThreadPoolExecutor(2)
    pool.submit(world.send, np.ones(1), (world.rank + 1) % world.size).result()  # this thread has communicated
    world.recv(np.empty(1), world.rank - 1 if world.rank else last)
    world.recv(np.empty(1), world.rank - 1 if world.rank else last)


def working_pool() -> None:
    def work() -> None:
        while True:
            time.sleep(0.01)

    pool = ThreadPoolExecutor(1)
    pool.submit(work)
    world.recv(np.empty(1), world.rank - 1 if world.rank else last)


def pool_that_sends() -> None:
    """The thread that has communicated before sends what the others wait for, long after."""

    def send() -> None:
        time.sleep(4)
        world.send(np.ones(1), (world.rank + 1) % world.size)

    pool = ThreadPoolExecutor(1)
    pool.submit(world.send, np.ones(1), (world.rank + 1) % world.size).result()
    world.recv(np.empty(1), world.rank - 1 if world.rank else last)
    sending = pool.submit(send)
    world.recv(np.empty(1), world.rank - 1 if world.rank else last)
    sending.result()
    pool.shutdown()


def woken_by_a_thread() -> None:
    """The main thread waits for a thread that computes, and then makes the call that another thread's wait needs."""
    if world.rank == last:
        waits = threading.Thread(target=world.recv, args=(np.empty(1), 0))
        waits.start()
        computes = threading.Thread(target=time.sleep, args=(14,))
        computes.start()
        computes.join()
        world.send(np.ones(1), 0)
        waits.join()
    elif world.rank == 0:
        world.recv(np.empty(1), last)
        world.send(np.ones(1), last)


globals()[HOW]()
print("WENT ON", flush=True)
