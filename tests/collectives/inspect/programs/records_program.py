"""Records over MPI: the calls of all ranks meet, and the values are those of the serial program."""

import json

import numpy as np

import autograd as ag
import collectives as cc

world = cc.world()
with cc.Mesh(dp=-1) as mesh, cc.recording_operations() as found:
    w = ag.Parameter(np.arange(3.0) + 1, name="w")
    x = ag.tensor(np.arange(3.0) * (mesh.axis("dp").rank + 2))
    with ag.Tape() as tape:
        loss = cc.all_reduce((cc.cast(w, "dp", to=cc.R) * x).sum(), "dp", to=cc.I)
    tape.backward(loss)
calls = [(c.channel, c.number, c.call, c.ranks) for r in found.records for c in r.calls if not c.is_control]
assert [c[2] for c in calls] == ["all_reduce", "all_reduce"], calls
told = [json.loads(x) for x in world.exchange(json.dumps(calls).encode())]
assert all(x == told[0] for x in told), told
gradient = [r for r in found.records if r.direction == "backward" and r.name == "parameter w"][0].value
n = int(world.size)
total = np.arange(3.0) * sum(range(2, n + 2))
assert gradient.values == tuple(total), gradient
assert found.rank == world.rank and found.coordinates == (int(world.rank),)
if world.rank == 0:
    print(f"RECORDS {n} ranks agree")
