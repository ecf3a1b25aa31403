"""Every rank uses one weight on its own rows, and the gradients are not summed over the ranks.

Each rank steps with the gradient of its own rows. All losses fall, but the copies of the weight diverge.
"""

import sys

from gallery import draw, rows, show

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "the sum over the ranks was forgotten"
FROM = "Megatron-LM#1446"
AXES = {"dp": -1}
CUT = {}
X, Y = draw("x", 23, 5), draw("y", 23)


def start():
    return {"w": draw("w", 5)}


def loss(w, x, y):
    return ((np.tanh(x @ w) - y) ** 2).sum() / len(Y)


def serial(p):
    return loss(p["w"], X, Y)


def part(mesh):
    return rows(len(Y), mesh.axis("dp").rank, mesh.axis("dp").size)


def raw(mesh, p):
    mine = part(mesh)
    return {"w": ag.grad(loss)(p["w"], X[mine], Y[mine])}  # <- the all-reduce is missing


def ours(mesh, p, enter):
    w = ag.Parameter(p["w"], name="w")
    x, y = (ag.tensor(a[part(mesh)], {"dp": cc.Shard(0)}, global_shape=a.shape) for a in (X, Y))
    with ag.Tape() as tape:
        total = cc.all_reduce(loss(enter(w), x, y), "dp", to=cc.I)
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda w: w)


def corrected(mesh, p):
    return ours(mesh, p, lambda w: cc.cast(w, "dp", to=cc.R))  # its adjoint is the all-reduce


if __name__ == "__main__":
    show(sys.modules[__name__])
