"""Out to numpy and back on real processes: right with every axis named, refused without, copies compared."""

from __future__ import annotations

import numpy as np

import autograd as ag
import collectives as cc
from autograd.errors import LayoutError, ReplicaMismatch
from collectives import I, R, V

world = cc.world()
with cc.Mesh(dp=-1, tp=1) as mesh:
    x = ag.tensor([world.rank + 1.0], requires_grad=True, layout={"dp": V, "tp": V})
    with ag.Tape() as tape:
        y = cc.all_reduce(x * x, "dp")
        with ag.no_grad():
            scale = cc.from_local(np.sqrt(y.local), dict(y.layout))
        loss = cc.all_reduce((x * scale).sum(), ("dp", "tp"), to=I)
    tape.backward(loss)
    assert x.grad is not None
    assert abs(x.grad.item() - sum((r + 1.0) ** 2 for r in range(world.size)) ** 0.5) < 1e-12
    refused = 0
    for layout in ({"dp": R}, {"dp": R, "tp": V}):
        try:
            cc.from_local(np.array([float(world.rank)]), layout)
        except (LayoutError, ReplicaMismatch):
            refused += 1
    assert refused == 2
world.barrier()
if world.rank == 0:
    print(f"LOCAL ok on {world.size} ranks", flush=True)
