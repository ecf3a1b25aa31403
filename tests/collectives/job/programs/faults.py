"""A training program of three ranks. One rank goes wrong: faults.py FAULT PLACE COMPANY RANK FOLDER

The fault happens in the third step of training. Process ids of children that the program leaves alive are written
to files in the folder. The module `fault_cases` draws the arguments and judges what happens.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import optim
from autograd.extend import defvjp, primitive
from collectives import shared_arrays

FAULT, PLACE, COMPANY, RANK, FOLDER = sys.argv[1:]
WORLD = cc.world()
STEPS = 5
now = 0  # the step of training


def fail() -> None:
    print(f"FAULT <{time.time()}>", flush=True)
    if FAULT == "raise":
        raise RuntimeError("planted")
    if FAULT == "exit":
        sys.exit(3)
    if FAULT == "_exit":
        os._exit(3)
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "memory":
        np.ones(1 << 55)
    if FAULT == "limit":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), resource.RLIM_INFINITY))
        kept = []
        while True:
            kept.append(np.ones(1 << 17))
    while FAULT == "loop":
        pass
    raise AssertionError(FAULT)


def here(place: str) -> None:
    """A place in the program; the fault happens here, if it is the chosen one."""
    if place == PLACE and now == 2 and WORLD.rank == int(RANK):
        fail()


@primitive
def marked(x: Any) -> Any:
    """The identity; its adjoint is a place."""
    return x + 0.0


def _marked_vjp(ans: Any, x: Any) -> Any:
    def pull(ct: Any) -> Any:
        here("backward")
        return ct

    return pull


defvjp(marked, _marked_vjp)


class Planted(optim.SGD):
    def step(self) -> None:
        here("optimizer")
        super().step()


runs = 0


def block(h: Any, w: Any) -> Any:
    """A layer that is computed again in backward, with a collective in it."""
    global runs
    runs += 1
    if runs % 2 == 0:
        here("recompute")
    return anp.tanh(cc.all_reduce(h @ w, "dp", to=cc.R) / WORLD.size)


def train() -> None:
    global now
    rng = np.random.default_rng(0)
    w = [ag.Parameter(rng.normal(size=(4, 4)), name=f"w{k}") for k in range(3)]
    optimizer = Planted(w, lr=0.01)
    x = rng.normal(size=(6, 4))[2 * WORLD.rank :][:2]
    bucket = shared_arrays.empty(50_000, np.float64, "dp")
    for step in range(STEPS):
        now = step
        optimizer.zero_grad()
        with ag.Tape() as tape:
            h = anp.tanh(ag.tensor(x) @ cc.cast(w[0], "dp", to=cc.R))
            here("forward")
            handle = cc.all_reduce_async(h, "dp")
            here("nonblocking")
            h = marked(h @ cc.cast(w[1], "dp", to=cc.R)) + handle
            h = ag.checkpoint(block)(h, cc.cast(w[2], "dp", to=cc.R))
            loss = cc.all_reduce(cc.cast((h * h).sum(), "dp", to=cc.V), "dp", to=cc.I)
        tape.backward(loss)
        optimizer.step()
        bucket[:] = WORLD.rank
        here("window")
        shared_arrays.all_reduce_in_place(bucket, "dp")
    print(f"WENT ON <{WORLD.rank}>", flush=True)


def sleep() -> None:
    signal.alarm(60)  # nothing is left if the test itself is killed
    time.sleep(60)


def main() -> None:
    if COMPANY == "child":
        child = multiprocessing.get_context("fork").Process(target=sleep, daemon=True)
        child.start()
        Path(FOLDER, f"{child.pid}.child").touch()
    if COMPANY == "pool":
        pool = ThreadPoolExecutor(2)
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]  # its threads stay, and wait for work
    with cc.Mesh(dp=-1):
        train()


main()
