"""Cases of the registry on the ranks of mpiexec, in one world; rank 0 prints the failures and a summary.

The argument: every how manyth case of each pair of layouts runs; 1 without it.
"""

from __future__ import annotations

import socket
import sys
from collections import Counter

import collectives as cc
from collectives.testing.proof import check_everywhere
from collectives.testing.registry_cases import work_and_skips

world = cc.world()
every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
work, skips = work_and_skips(world.size, processes=True)
places: Counter[tuple[str, ...]] = Counter()
chosen = []
for case, setting in work:
    pair = case.name.split()[0], str(case.takes).split("(")[0], str(case.gives).split("(")[0]
    if places[pair] % every == 0:
        chosen.append((case, setting))
    places[pair] += 1
failures = check_everywhere(chosen)
hosts = len(set(world.exchange(socket.gethostname().encode())))
if world.rank == 0:
    for failure in failures[:20]:
        print(" | ".join(failure))
    for skip, times in Counter(skips).items():
        print(f"SKIPPED {times} times: {skip.name}: {skip.reason}")
    print(
        f"REGISTRY {len(chosen)} of {len(work)} cases on {world.size} ranks of {hosts} hosts, {len(failures)} failures",
        flush=True,
    )
sys.exit(bool(failures))
