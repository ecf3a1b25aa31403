"""Worlds over MPI, made and closed one after another: what each test asks for.

    worlds.py one_after_another|misuse|caught ...     in one job, in this order
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from collectives import shared_arrays

WORLDS = 10


def write(line: str) -> None:
    """Write a line at once, so that the lines of several ranks do not mix."""
    os.write(1, f"{line}\n".encode())


def use(world: cc.World) -> np.ndarray[Any, Any]:
    """Everything that a world opens in MPI: groups, lanes, messages that are under way, meshes, shared memory."""
    everyone = world.communicator
    assert cc.world() is everyone and cc.World.current() is world
    rank, size = everyone.rank, everyone.size
    everyone.send(np.full(100_000, float(rank)), (rank + 1) % size)
    with cc.Mesh(dp=size):
        total = cc.all_reduce(ag.tensor(np.ones(3)), "dp")
        assert total.numpy().tolist() == [size] * 3
    lane = everyone.lane("beside")
    lane.send(np.full(2, float(rank)), (rank + 1) % size)
    assert lane.recv(np.empty(2), (rank - 1) % size).tolist() == [(rank - 1) % size] * 2
    with cc.Mesh(dp=size), shared_arrays.along("dp") as memory:
        x = shared_arrays.empty((1000,), np.float64, "dp")
        x[:] = rank
        memory.all_reduce_in_place(x)
        assert x[0] == sum(range(size))
    evens = everyone.subgroup(range(0, size, 2), "even") if rank % 2 == 0 else None
    if evens is not None:
        evens.barrier()
    assert everyone.recv(np.empty(100_000), (rank - 1) % size)[0] == (rank - 1) % size
    return x


def held() -> tuple[int, int, int]:
    """The threads of this process, its open files, and its mappings of memory that processes share."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), sum(" rw-s " in line for line in maps)


def one_after_another() -> None:
    counts, kept = [], []
    for _ in range(WORLDS):
        with cc.World() as world:
            use(world)
            # more than MPI has communicators for, in all worlds together; the world frees them, although they are kept
            kept += [world.communicator.duplicate(str(n)) for n in range(2200 // WORLDS)]
        assert world.is_closed
        counts.append(held())
    assert counts[2:] == counts[2:3] * (WORLDS - 2), counts
    assert counts[1][0] == 1, "a monitor goes on"
    communicator = cc.world()  # and the usual one, made without a word
    assert communicator.all_reduce(np.ones(1))[0] == communicator.size
    cc.World.current().close()


def misuse() -> None:
    world = cc.World("mpi")
    communicator = world.communicator
    for wrong in (lambda: cc.World(), lambda: cc.World("mpi")):
        try:
            wrong()
        except cc.MeshError as error:
            assert "while another one is open" in str(error), error
        else:
            raise AssertionError
    world.close()
    world.close()
    for call in (
        lambda: communicator.all_reduce(np.ones(1)),
        lambda: communicator.send(np.ones(1), 0),
        lambda: communicator.recv(np.ones(1), 0),
        lambda: communicator.subgroup(range(communicator.size), "all"),
    ):
        try:
            call()
        except cc.CommunicationError as error:
            assert "its world is closed" in str(error), error
        else:
            raise AssertionError
    try:
        _ = world.communicator
    except cc.MeshError as error:
        assert "closed" in str(error)


def caught() -> None:
    """An error that all ranks raise and catch leaves a world behind; the next one closes it."""
    for _ in range(3):
        try:
            with cc.World() as world:
                world.communicator.barrier()
                raise KeyError("planted")
        except KeyError:
            pass
    with cc.World() as world:
        x = use(world)
    assert x[0] == sum(range(world.size)), "an array in shared memory outlives its world"


for what in sys.argv[1:]:
    globals()[what]()
    write(f"DONE with {what} on rank {os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))}")
