"""Rank 1 forks children, which end in every way and try to communicate; the ranks go on as if there were none.

Usage: forked_children.py [MORE SECONDS], after which the job ends while a child is still alive.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd.errors import ReplicaWarning
from collectives import shared_arrays
from collectives.transports.protocol import Request

FORK = multiprocessing.get_context("fork")


def train(mesh: cc.Mesh) -> None:
    """A step whose sums are known, on every channel that a child could disturb."""
    size = cc.world().size
    for algorithm in ("native", "shared"):
        x = ag.tensor(np.ones(4), {"dp": cc.V}, requires_grad=True)
        with ag.Tape() as tape:
            loss = cc.all_reduce((x * x).sum(), "dp", to=cc.I, algorithm=algorithm)
        tape.backward(loss)
        assert loss.item() == 4 * size and x.grad is not None and x.grad.numpy().tolist() == [2.0] * 4
    handle = cc.all_reduce_async(ag.tensor(np.ones(4)), "dp")
    assert handle.numpy().tolist() == [size] * 4


def calls(mesh: cc.Mesh, pending: Any, memory: Any) -> dict[str, Callable[[], Any]]:
    """What a child tries. Each of these must raise."""
    x = ag.tensor(np.full(4, 1e6))
    return {
        "all_reduce": lambda: cc.all_reduce(x, "dp"),
        "shared": lambda: cc.all_reduce(x, "dp", algorithm="shared"),
        "in place": lambda: shared_arrays.all_reduce_in_place(memory, "dp"),
        "empty": lambda: shared_arrays.empty(4, np.float64, "dp"),
        "async": lambda: cc.all_reduce_async(x, "dp"),
        "send": lambda: cc.send(x, "dp", 0),
        "recv": lambda: cc.recv("dp", 0),
        "irecv": lambda: cc.irecv("dp", 0).wait(),
        "barrier": lambda: cc.world().barrier(),
        "mesh": lambda: cc.Mesh(new=-1),
        "world": lambda: cc.World("mpi"),
        "wait": pending.wait,
        "test": pending.test,
        "subgroup": lambda: cc.world().subgroup(range(cc.world().size), "all"),
    }


def forked(program: Callable[[], object]) -> int:
    """Run a program in a forked child that ends as a script does, and return its exit status."""
    pid = os.fork()
    if pid == 0:
        program()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refused(tries: dict[str, Callable[[], Any]]) -> None:
    for name, call in tries.items():
        try:
            call()
        except cc.CommunicationError as error:
            assert "A forked child is no rank" in str(error) and "spawn" in str(error), (name, error)
        else:
            raise AssertionError(f"{name} was not refused")
    backward_alone()
    cc.World.current().close()
    assert cc.run(lambda: cc.world().size, 2) == [2, 2]  # a world of its own threads


def backward_alone(n: int = 3) -> float:
    """Work that does not communicate, in the mesh of the parent."""
    x = ag.tensor(np.arange(n + 1.0), requires_grad=True)
    with ag.no_grad():
        y = (x * x).sum()
    return float(y.numpy())


def interrupted() -> None:
    raise ValueError("planted in a child")


def ends() -> None:
    """Children that end in every way, and what their parents are told."""
    quiet = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    assert forked(interrupted) == 1
    os.dup2(quiet, 2)
    assert forked(lambda: None) == 0
    assert forked(lambda: sys.exit(3)) == 3
    assert forked(lambda: os._exit(4)) == 4
    assert forked(lambda: os.kill(os.getpid(), signal.SIGKILL)) == -signal.SIGKILL
    assert forked(lambda: os.kill(os.getpid(), signal.SIGTERM)) == -signal.SIGTERM


def workers() -> None:
    """Pools and processes of `multiprocessing`, as a loader of data uses them."""
    with FORK.Pool(2) as pool:
        assert pool.map(backward_alone, [1, 2, 3]) == [1, 5, 14]
    with concurrent.futures.ProcessPoolExecutor(2, FORK) as executor:
        assert list(executor.map(backward_alone, [1, 2])) == [1, 5]
    queue: Any = FORK.Queue()
    loader = FORK.Process(target=lambda: [queue.put(np.full(3, k)) for k in range(5)])
    loader.start()
    for k in range(5):
        assert queue.get(timeout=20)[0] == k
    loader.join()
    assert loader.exitcode == 0


def main(seconds: str = "") -> None:
    world = cc.world()
    with cc.Mesh(dp=-1) as mesh:
        train(mesh)
        memory = shared_arrays.empty(100_000, np.float64, "dp")
        memory[:] = 1
        shared_arrays.all_reduce_in_place(memory, "dp")
        pending = world.start(Request("all_reduce", np.ones(3)))
        if world.rank == 1:
            assert forked(lambda: refused(calls(mesh, pending, memory))) == 0
        train(mesh)
        assert pending.wait().tolist() == [world.size] * 3
        for do in (ends, workers):
            if world.rank == 1:
                do()
            train(mesh)
        memory[:] = 1
        assert shared_arrays.all_reduce_in_place(memory, "dp").tolist() == [world.size] * len(memory)
    if seconds and world.rank == 1 and os.fork() == 0:
        os.close(1)
        os.close(2)
        time.sleep(float(seconds))
        os._exit(0)
    print(f"DONE <{world.rank}>", flush=True)


warnings.simplefilter("ignore", ReplicaWarning)  # the sums are of equal values on purpose
warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 and later: a fork beside threads, as meant here
main(*sys.argv[1:])
