"""What a transport refuses, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import collectives as cc
from autograd.errors import CommunicationError, DtypeError, MeshError, ShapeError

world = cc.World("mpi").communicator
counts = [2] * world.size
x = np.ones(2)
refused = 0


def refuse(error: type[Exception], call: Callable[..., Any], *args: Any) -> None:
    global refused
    try:
        call(*args)
    except error:
        refused += 1
    else:
        raise AssertionError(f"{call} took {args}")


for make in (False, True):

    def call(name: str, *args: Any) -> Any:
        return world.start(name, *args) if make else getattr(world, name)(*args)  # noqa: B023

    refuse(MeshError, call, "broadcast", x, world.size)
    refuse(MeshError, call, "reduce", x, -1)
    refuse(MeshError, call, "send", x, world.size)
    refuse(MeshError, call, "recv", x, -2)
    refuse(ShapeError, call, "all_reduce", np.ones((2, 2)))
    refuse(ShapeError, call, "all_reduce", np.ones(4)[::2])
    refuse(ShapeError, call, "all_gather", x, [2]) if world.size > 1 else None
    refuse(ShapeError, call, "all_gather", np.ones(3), counts)
    refuse(ShapeError, call, "reduce_scatter", np.ones(2 * world.size + 1), counts)
    refuse(ShapeError, call, "all_to_all", np.ones(2 * world.size + 1), counts, counts)
    refuse(ShapeError, call, "scatter", None, counts, world.rank, x.dtype)
    refuse(DtypeError, call, "scatter", np.ones(2 * world.size), counts, world.rank, np.float32)
    refuse(DtypeError, call, "all_reduce", np.ones(2, ">f8"))
    refuse(DtypeError, call, "all_reduce", np.array(["a"]))
refuse(MeshError, world.subgroup, [], "nobody")
refuse(MeshError, world.subgroup, [world.rank, world.rank], "twice")
refuse(MeshError, world.subgroup, [world.rank, world.size], "beyond")
if world.size > 1:  # a shorter message than the buffer, and a longer one
    for size in (1, 5):
        world.send(np.ones(size), (world.rank + 1) % world.size)
        refuse(CommunicationError, world.recv, np.ones(2), (world.rank - 1) % world.size)
world.barrier()
if world.rank == 0:
    print(f"{refused} refused", flush=True)
