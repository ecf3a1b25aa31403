"""Two steps of a pipeline of two stages that does not receive all of its messages, over MPI."""

import sys

import autograd as ag
import collectives as cc
from collectives import V

what = sys.argv[1]
with cc.Mesh(pp=2) as mesh:
    is_first = mesh.axis("pp").rank == 0
    w = ag.Parameter([1.0, 2.0], {"pp": V})
    for _ in range(2):
        with ag.Tape() as tape:
            if is_first:
                cc.send(w * 2.0, "pp", 1)
            elif what != "value":
                y = cc.recv("pp", 0)
        if what == "cotangent" and not is_first:
            tape.backward(y, [1.0, 1.0])
        if what == "wait" and is_first:
            tape.backward()
print("ended")
