"""Every rank initializes its weights from a different seed; the gradients are summed over the ranks correctly.

There are p different models, and each is trained with gradients computed on the others. All losses fall.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "copies that were never equal"
FROM = "torchtitan#166"
LOWER = "it starts from other values"
AXES = {"dp": -1}
CUT = {}
X, Y = draw("x", 23, 5), draw("y", 23)


def start():
    return {"w": draw("w", 5)}


def raw_start():
    return {"w": draw(f"w of rank {cc.world().rank}", 5)}  # <- a different seed on each rank


def loss(w, x, y):
    return ((np.tanh(x @ w) - y) ** 2).sum() / len(Y)


def serial(p):
    return loss(p["w"], X, Y)


def part(mesh):
    return rows(len(Y), mesh.axis("dp").rank, mesh.axis("dp").size)


def raw(mesh, p):
    return {"w": summed(mesh.ranks, ag.grad(loss)(p["w"], X[part(mesh)], Y[part(mesh)]))}


def corrected(mesh, p):
    w = ag.Parameter(p["w"], name="w")
    cc.check_replicas([w], mesh)  # the optimizer and DataParallel also check this at their first step
    x, y = (ag.tensor(a[part(mesh)], {"dp": cc.Shard(0)}, global_shape=a.shape) for a in (X, Y))
    with ag.Tape() as tape:
        total = cc.all_reduce(loss(cc.cast(w, "dp", to=cc.R), x, y), "dp", to=cc.I)
    tape.backward(total)
    return {"w": w.grad.numpy()}


refused = corrected  # the program is correct; only its initial weights are wrong


if __name__ == "__main__":
    show(sys.modules[__name__])
