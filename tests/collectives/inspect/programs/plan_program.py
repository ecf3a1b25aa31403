"""A tape's plan over MPI: the same on every rank, and sound."""

import numpy

import autograd as ag
import collectives as cc

with cc.Mesh(dp=-1) as mesh:
    w = ag.Parameter(numpy.arange(3.0))
    x = ag.tensor(numpy.ones(3) * (mesh.axis("dp").rank + 1), layout={"dp": cc.Shard(0)})
    with ag.Tape() as tape:
        y = cc.cast(w, "dp", to=cc.R) * cc.cast(x, "dp", to=cc.V)
        gathered = cc.all_gather(y, "dp")
        loss = cc.all_reduce(cc.cast(gathered, "dp", to=cc.V).sum(), "dp", to=cc.I)
    plan = tape.plan()
    tape.backward(loss)
told = cc.world().exchange(str(plan).encode())
assert len(set(told)) == 1
if cc.world().rank == 0:
    print(f"PLAN {len(plan.operations)} ranks, {len(plan.problems)} problems")
