"""Nothing fails: rank 0 works on alone for 3 s after the others have ended, then all of its messages are in order."""

from __future__ import annotations

import time

import numpy as np

import collectives as cc

world = cc.world()
group = world.duplicate("other")
if world.rank == 1:
    world.send(np.arange(300_000.0), 0)  # too large to be buffered: it is received after this rank's script has ended
group.all_reduce(np.ones(3))
if world.rank == 0:
    time.sleep(3.0)
    assert world.recv(np.empty(300_000), 1)[-1] == 299_999.0
print(f"rank {world.rank} ends", flush=True)
