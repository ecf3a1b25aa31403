"""`recording_cases` on the ranks of mpiexec: gradients of uneven dependence, then no_grad on one rank only.

The argument: ``all``, or ``some`` of the ranks that leave a result out, in turn.
"""

from __future__ import annotations

import pickle
import sys

import collectives as cc
from tests.collectives.recording_cases import communicates, faults, program, told, used_separately, work

world = cc.world()
everything = work(world.size)
chosen = used_separately(everything)
some = sys.argv[1] == "some"
found = [pickle.loads(data) for data in world.exchange(pickle.dumps(program(chosen, some)))]
wrong = faults(chosen, found, some)
told_of = ["all_reduce", "cast", "all_gather", "reduce_scatter", "shard", "all_to_all", "permute", "reduce", "gather"]
unaware = []
with cc.Mesh(a=world.size) as mesh:
    for name in told_of:
        case, setting, plan = next(w for w in everything if w[0].name.startswith(name + " ") and communicates(w[0]))
        if "not recorded" not in told(case, setting, plan, mesh, 1):
            unaware.append(name)
everyone = [data.decode() for data in world.exchange(",".join(unaware).encode())]
if world.rank == 0:
    print("\n".join(wrong[:10]))
    print(f"OWNERSHIP {len(chosen)} cases, {len(wrong)} wrong; told of {len(told_of)}, unaware: {everyone}", flush=True)
sys.exit(bool(wrong) or any(everyone))
