"""Each declared layout of the cotangent, on real processes: the gradient of one process, and a wrong one refused."""

from __future__ import annotations

import collectives as cc
from tests.collectives.test_to_local import DECLARED, difference, refusal, wrong

world = cc.world()
with cc.Mesh(dp=-1) as mesh:
    worst = max(difference(name, mesh) for name in DECLARED)
    assert worst < 1e-12, worst
    assert all(refusal(name, mesh) for name in wrong(world.size))
world.barrier()
if world.rank == 0:
    counts = f"{len(DECLARED)} declarations and {len(wrong(world.size))} wrong ones"
    print(f"TO_LOCAL {counts} on {world.size} ranks", flush=True)
