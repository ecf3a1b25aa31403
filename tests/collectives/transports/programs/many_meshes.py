"""More meshes than MPI has communicators for: dropped ones are freed, and too many at a time are an error with a name.

    many_meshes.py drop|keep
"""

from __future__ import annotations

import gc
import sys

import numpy as np

import collectives as cc

world = cc.world()
if sys.argv[1] == "drop":
    inner = 2 if world.size % 2 == 0 else 1
    for n in range(3000):
        kept = mesh = cc.Mesh(a=world.size // inner, b=inner)
        if (n + world.rank) % 100 == 0:  # a cycle: it goes when this rank's garbage is collected, and not before
            mesh.itself = mesh  # type: ignore[attr-defined]
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
