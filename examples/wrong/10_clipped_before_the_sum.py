"""Every rank clips its own gradient, and then the clipped gradients are summed.

Each rank's gradient is only an addend. The sum of clipped addends is not the clipped sum: its norm can be p times the
limit, and its direction differs.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "clipped before the sum"
FROM = "horovod#1346"
LOWER = "the sum is longer than the limit, and so the steps"
AXES = {"dp": -1}
CUT = {}
X, Y = draw("x", 23, 5), 2.0 * draw("y", 23)
LIMIT = 0.2


def start():
    return {"w": draw("w", 5)}


def loss(w, x, y):
    return ((np.tanh(x @ w) - y) ** 2).sum() / len(Y)


def serial(p):
    return loss(p["w"], X, Y)


def clipped(g):
    norm = np.sqrt((g * g).sum())
    return g * (LIMIT / (norm + LIMIT))  # a smooth clip: the norm stays below the limit


def expected(gradients):
    """The gradient that a step should use: the whole gradient, clipped."""
    return {"w": clipped(gradients["w"])}


def part(mesh):
    return rows(len(Y), mesh.axis("dp").rank, mesh.axis("dp").size)


def raw(mesh, p):
    g = ag.grad(loss)(p["w"], X[part(mesh)], Y[part(mesh)])
    return {"w": summed(mesh.ranks, clipped(g))}  # <- clips each addend separately


def gradient(mesh, p, label):
    w = ag.Parameter(p["w"], label, name="w")
    x, y = (ag.tensor(a[part(mesh)], {"dp": cc.Shard(0)}, global_shape=a.shape) for a in (X, Y))
    with ag.Tape() as tape:
        entered = w if label else cc.cast(w, "dp", to=cc.R)
        total = cc.all_reduce(loss(entered, x, y), "dp", to=cc.I)
    tape.backward(total)
    return w.grad


def refused(mesh, p):
    return clipped(gradient(mesh, p, {"dp": cc.R}))  # the gradient is Partial: addends


def corrected(mesh, p):
    return {"w": clipped(gradient(mesh, p, None)).numpy()}


if __name__ == "__main__":
    show(sys.modules[__name__])
