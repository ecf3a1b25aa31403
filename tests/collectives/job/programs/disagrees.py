"""Rank 1 makes another call than the others, in each case after some equal ones; every rank prints what it is told.

    disagrees.py "MODE EQUAL_CALLS" ...

Mode `first` compares 50 calls here in place of 1,000, so that the program ends soon on ranks that share a core.
"""

from __future__ import annotations

import os
import sys

import collectives as cc
from autograd.errors import CollectiveMismatch
from collectives.checks import modes

world = cc.world()
assert modes._limits["first"] == modes.FIRST_CALLS
modes._limits["first"] = 50.0
for case in sys.argv[1:]:
    mode, before = case.split()
    cc.check(mode)
    group = world.duplicate(case)
    for number in range(int(before)):
        group.agree(f"all_reduce #{number}")
    try:
        group.agree("broadcast(f32[2])" if world.rank == 1 else "all_reduce(f32[3])")
    except CollectiveMismatch as error:
        text = f"TOLD {str(error)!r}"
    else:
        text = "UNAWARE"
    os.write(1, f"{case}: RANK {world.rank} {text}\n".encode())
    world.barrier()
