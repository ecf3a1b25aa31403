"""Three steps of training. As arguments: nothing to keep the page, or its path and what goes wrong on rank 1."""

import sys

import numpy

import autograd as ag
import collectives as cc
from autograd import optim
from collectives import I, R

rows = numpy.arange(24.0).reshape(8, 3) / 12


def train(what: str) -> None:
    with cc.Mesh(dp=-1) as mesh:
        x = cc.shard(ag.tensor(rows, layout={"dp": R}), "dp")
        w = ag.Parameter([0.5, -1.0, 0.25], name="w")
        optimizer = optim.SGD([w], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce((x @ cc.cast(w, "dp", to=R)).sum(), "dp", to=I) / 8
            tape.backward(loss)
            optimizer.step()
        rank = int(mesh.axis("dp").rank)
        cc.world().barrier()  # no rank fails before the others have made their last step
        if what == "fail" and rank == 1:
            raise ValueError("stop")
        if what == "deadlock":
            cc.recv(src=(rank + 1) % 3, axis="dp", like=w)
        if rank == 0:
            print("arguments:", sys.argv[1:])


if len(sys.argv) == 3 and sys.argv[1].endswith(".html"):
    with cc.show(sys.argv[1]):
        train(sys.argv[2])
else:
    train(sys.argv[1] if len(sys.argv) > 1 else "")
