"""Every rank computes the mean over its own rows, and the gradients are summed over the ranks, not averaged.

The gradient is as many times too large as there are ranks. It acts like a larger learning rate, which depends on the
number of ranks.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "a sum of means"
FROM = "sparseml#135"
LOWER = "a gradient n times too large makes longer steps"
AXES = {"dp": -1}
CUT = {}
X, Y = draw("x", 24, 5), draw("y", 24)


def start():
    return {"w": draw("w", 5)}


def squares(w, x, y):
    return (np.tanh(x @ w) - y) ** 2


def serial(p):
    return squares(p["w"], X, Y).sum() / len(Y)


def raw(mesh, p):
    mine = rows(len(Y), mesh.axis("dp").rank, mesh.axis("dp").size)
    g = ag.grad(lambda w: squares(w, X[mine], Y[mine]).mean())(p["w"])
    return {"w": summed(mesh.ranks, g)}  # <- should divide by the number of ranks


def ours(mesh, p, reduce):
    w = ag.Parameter(p["w"], name="w")
    mine = rows(len(Y), mesh.axis("dp").rank, mesh.axis("dp").size)
    x, y = (cc.from_local(a[mine], {"dp": cc.Shard(0)}) for a in (X, Y))
    with ag.Tape() as tape:
        total = cc.all_reduce(reduce(squares(cc.cast(w, "dp", to=cc.R), x, y)), "dp", to=cc.I)
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda s: cc.cast(s, "dp", to=cc.V).mean())  # the mean over this rank's rows


def corrected(mesh, p):
    return ours(mesh, p, lambda s: s.mean())  # the mean of a Shard divides by the rows of all ranks


if __name__ == "__main__":
    show(sys.modules[__name__])
