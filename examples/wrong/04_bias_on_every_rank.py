"""A row-parallel layer: every rank multiplies its columns of x by its rows of W, and adds the bias before the sum.

The bias is added once per rank, so the layer computes x @ W + p b: a different model for each number of ranks p.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "a bias added once per rank"
FROM = "torchtitan#2106"
AXES = {"tp": -1}
CUT = {"w": 0}
X, Y = draw("x", 16, 7), draw("y", 16, 2)


def start():
    return {"w": 0.3 * draw("w", 7, 2), "b": np.array([0.4, -0.4])}


def loss(out):
    return ((np.tanh(out) - Y) ** 2).sum() / len(Y)


def serial(p):
    return loss(X @ p["w"] + p["b"])


def columns(mesh):
    return rows(X.shape[1], mesh.axis("tp").rank, mesh.axis("tp").size)


def raw(mesh, p):
    mine = X[:, columns(mesh)]
    out = summed(mesh.ranks, mine @ p["w"] + p["b"])  # <- adds the bias p times
    ct = ag.grad(loss)(out)
    return {"w": mine.T @ ct, "b": ct.sum(axis=0)}


def ours(mesh, p, layer):
    w = ag.Parameter(p["w"], {"tp": cc.Shard(0)}, global_shape=(7, 2), name="w")
    b = ag.Parameter(p["b"], name="b")
    x = ag.tensor(X[:, columns(mesh)], {"tp": cc.Shard(1)}, global_shape=X.shape)
    with ag.Tape() as tape:
        total = ((np.tanh(layer(x @ w, b)) - ag.constant(Y)) ** 2).sum() / len(Y)
    tape.backward(total)
    return {"w": w.grad.numpy(), "b": b.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda product, b: cc.all_reduce(product + cc.cast(b, "tp", to=cc.R), "tp", to=cc.I))


def corrected(mesh, p):
    return ours(mesh, p, lambda product, b: cc.all_reduce(product, "tp", to=cc.I) + b)


if __name__ == "__main__":
    show(sys.modules[__name__])
