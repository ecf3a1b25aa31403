"""More meshes than MPI has communicators for: dropped ones are freed, and too many at a time are an error with a name.

    many_meshes.py drop|keep
    many_meshes.py worlds=COUNT shared=COUNT channels=COUNT     the same for worlds, for shared memory, and for channels
                                                                of an axis; any of them, in this order
"""

from __future__ import annotations

import gc
import sys

import numpy as np

import autograd as ag
import collectives as cc
from collectives import shared_arrays

gc.set_threshold(700, 10, 10)  # as in any program: tests otherwise start ranks that collect garbage less often


def held() -> tuple[int, int, int]:
    """The communicators, the channels and the regions of shared memory that this rank holds."""
    groups = world._groups
    regions = sum(len(pool._regions) for pool in groups.pools.values())
    return len(groups._comms), len(groups.waits.activity.channels), regions


def check_held() -> None:
    comms, channels, regions = held()
    # communicators in cycles go when garbage is collected; a closed region's flags have no channel any more
    assert comms < 300 and channels < comms + 30 and regions < 50, held()


def shared(number: int) -> None:
    """A mesh whose sums use shared memory, arrays in it, and cycles that each rank collects at another time."""
    with cc.Mesh(a=world.size, b=1, algorithm="shared") as mesh:
        if (number + world.rank) % 7 == 0:
            mesh.itself = mesh
        if number % 5 == 0:
            x = shared_arrays.empty(3, np.float64, "a")
            x[:] = number
            assert shared_arrays.all_reduce_in_place(x, "a").tolist() == [number * world.size] * 3
            kept.append(x)  # outlives its mesh
            assert cc.all_reduce(ag.tensor(np.ones(3)), "a").numpy()[0] == world.size
            if len(kept) > 8 + world.rank:
                kept.pop(0)
        if number % 3 == 1:
            mesh.axis("a").using("shared").close()


def channels(number: int) -> None:
    """Channels of nonblocking calls, of algorithms, of gradients, and subgroups."""
    with cc.Mesh(a=world.size) as mesh:
        cc.all_reduce_async(ag.tensor(np.ones(3)), "a").wait()
        cc.all_reduce(ag.tensor(np.ones(3)), "a", algorithm="hierarchical")
        group = mesh.axis("a").group
        group.duplicate("gradients").barrier()
        group.subgroup(range(world.size), "all").barrier()
        group.scan(np.ones(2), backwards=True)


kept: list[np.ndarray] = []
counts = dict(argument.split("=") for argument in sys.argv[1:] if "=" in argument)
if "worlds" in counts:
    for _ in range(int(counts["worlds"])):
        with cc.World("mpi"), cc.Mesh(a=-1, algorithm="shared"):
            assert cc.all_reduce(ag.tensor(np.ones(3)), "a").numpy()[0] == cc.world().size
    print(f"WORLDS on rank {cc.world().rank}", flush=True)
world = cc.world()
for loop in (shared, channels):
    if loop.__name__ in counts:
        for n in range(int(counts[loop.__name__])):
            loop(n)
            if n % 50 == 0:
                check_held()
        check_held()
        print(f"{loop.__name__.upper()} on rank {world.rank}", flush=True)
if counts:
    sys.exit()
if sys.argv[1] == "drop":
    inner = 2 if world.size % 2 == 0 else 1
    for n in range(2400):
        kept = mesh = cc.Mesh(a=world.size // inner, b=inner)
        if (n + world.rank) % 100 == 0:  # a cycle: it goes when this rank's garbage is collected, and not before
            mesh.itself = mesh
        if n % 10 == 0:
            with mesh:
                on = mesh.axis(("a", "b"))
                total = cc.all_reduce(np.ones(3), ("a", "b"))
                assert total.numpy().tolist() == [world.size] * 3
                lane = on.group.lane("beside")  # one communicator for MPI, and dropped later than its mesh
                del on
        if n % 500 == world.rank:
            gc.collect()
        if n % 10 == 1 and world.rank < 2:  # the mesh before is gone, its lane is not
            lane.send(np.full(2, float(n)), 1 - world.rank)
            assert lane.recv(np.empty(2), 1 - world.rank).tolist() == [n, n]
    print(f"DROPPED on rank {world.rank}", flush=True)
else:
    meshes = []
    try:
        for _ in range(5000):
            meshes.append(cc.Mesh(a=world.size))
    except cc.CommunicationError as error:
        assert "could not be made on 'world'" in str(error) and "meshes that are made once" in str(error), error
        held = int(str(error).partition("This rank holds ")[2].split()[0])
        assert held == len(meshes) > 500, (held, len(meshes))
        del meshes[100:]
        world.barrier()
        print(f"KEPT {held} on rank {world.rank}", flush=True)
