"""All cases of the registry on the ranks of mpiexec, in one world; rank 0 prints the failures and a summary."""

from __future__ import annotations

import sys
from collections import Counter

import collectives as cc
from collectives.registry_cases import work_and_skips
from collectives.testing import check_everywhere

world = cc.world()
work, skips = work_and_skips(world.size, processes=True)
failures = check_everywhere(work)
if world.rank == 0:
    for failure in failures[:20]:
        print(" | ".join(failure))
    for skip, times in Counter(skips).items():
        print(f"SKIPPED {times} times: {skip.name}: {skip.reason}")
    print(f"REGISTRY {len(work)} cases on {world.size} ranks, {len(failures)} failures", flush=True)
sys.exit(bool(failures))
