"""The mesh has two axes, and the gradient is summed over only one of them.

Data parallelism sums over "dp". But the ranks along "tp" use the same weight on their own data too, so the copies along
"tp" get different gradients.
"""

import sys

from gallery import draw, rows, show

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "summed over one axis of two"
FROM = "torchtitan#2532"
AXES = {"dp": -1, "tp": 2}
CUT = {}
X, Y = draw("x", 22, 5), draw("y", 22)


def start():
    return {"w": draw("w", 5)}


def loss(w, x, y):
    return ((np.tanh(x @ w) - y) ** 2).sum() / len(Y)


def serial(p):
    return loss(p["w"], X, Y)


def part(mesh):
    return rows(len(Y), mesh.ranks.rank, mesh.ranks.size)


def raw(mesh, p):
    g = ag.grad(loss)(p["w"], X[part(mesh)], Y[part(mesh)])
    return {"w": mesh.axis("dp").group.all_reduce(g)}  # <- no sum over "tp"


def ours(mesh, p, axes):
    w = ag.Parameter(p["w"], name="w")
    both = {"dp": cc.V, "tp": cc.V}
    x, y = ag.tensor(X[part(mesh)], both), ag.tensor(Y[part(mesh)], both)
    with ag.Tape() as tape:
        total = cc.all_reduce(loss(cc.cast(w, axes, to=cc.R), x, y), ("dp", "tp"), to=cc.I)
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, "dp")


def corrected(mesh, p):
    return ours(mesh, p, ("dp", "tp"))


if __name__ == "__main__":
    show(sys.modules[__name__])
