"""A number that only one rank uses, for its log, is no error; one that differs between the ranks is."""

import autograd as ag
import collectives as cc
from collectives import I

with cc.Mesh(dp=-1) as mesh:
    rank = int(mesh.axis("dp").rank)
    loss = ag.tensor(1.0, {"dp": I})
    for _ in range(3):
        if rank == 0:
            print("logged", float((loss * 100).numpy()), flush=True)
        loss = cc.all_reduce(ag.tensor(1.0), "dp", to=I) / 3
    _ = loss / (rank + 1)
    try:
        cc.all_reduce(ag.tensor(1.0), "dp")
    except cc.ReplicaMismatch as error:
        cc.in_order("told: " + str(error).replace("\n", " | "))
