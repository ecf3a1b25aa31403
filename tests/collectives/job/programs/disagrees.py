"""Rank 1 makes another call than the others; every rank prints what it is told."""

from __future__ import annotations

import sys

import collectives as cc
from autograd.errors import CollectiveMismatch

world = cc.world()
for number in range(int(sys.argv[1])):
    world.agree(f"all_reduce #{number}")
try:
    world.agree("broadcast(f32[2])" if world.rank == 1 else "all_reduce(f32[3])")
except CollectiveMismatch as error:
    print(f"RANK {world.rank} TOLD {str(error)!r}", flush=True)
else:
    print(f"RANK {world.rank} UNAWARE", flush=True)
world.barrier()
