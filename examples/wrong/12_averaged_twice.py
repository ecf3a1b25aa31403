"""The loss is divided by the number of rows of all ranks, and its gradients are averaged over the ranks as well.

The gradient is as many times too small as there are ranks.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "averaged twice"
FROM = "torchtune#2172"
AXES = {"dp": -1}
CUT = {}
X, Y = draw("x", 23, 5), draw("y", 23)


def start():
    return {"w": draw("w", 5)}


def squares(w, x, y):
    return (np.tanh(x @ w) - y) ** 2


def serial(p):
    return squares(p["w"], X, Y).sum() / len(Y)


def raw(mesh, p):
    mine = rows(len(Y), mesh.axis("dp").rank, mesh.axis("dp").size)
    g = ag.grad(lambda w: squares(w, X[mine], Y[mine]).sum() / len(Y))(p["w"])
    return {"w": summed(mesh.ranks, g) / mesh.ranks.size}  # <- the loss is already divided by all rows


def ours(mesh, p, divide):
    w = ag.Parameter(p["w"], name="w")
    mine = rows(len(Y), mesh.axis("dp").rank, mesh.axis("dp").size)
    x, y = (cc.from_local(a[mine], {"dp": cc.Shard(0)}) for a in (X, Y))
    with ag.Tape() as tape:
        losses = squares(cc.cast(w, "dp", to=cc.R), x, y)
        total = divide(cc.all_reduce(losses.sum(), "dp", to=cc.I) / losses.global_shape[0])
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda loss: loss / mesh.axis("dp").size)


def corrected(mesh, p):
    return ours(mesh, p, lambda loss: loss)


if __name__ == "__main__":
    show(sys.modules[__name__])
