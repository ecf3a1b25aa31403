"""A sum over the ranks whose backward hands the cotangent on as it is, and after it every rank goes its own way.

The identity is right where all ranks repeat one computation. Here each multiplies by columns of its own, so each
holds a share of the cotangent only, and the shares are never added.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "the identity behind a sum"
FROM = "flash-attention#1244"
AXES = {"tp": -1}
CUT = {"w": 0, "v": 1}
X, Y = draw("x", 16, 6), draw("y", 16, 6)


def start():
    return {"w": 0.4 * draw("w", 6, 4), "v": 0.4 * draw("v", 4, 6)}


def serial(p):
    return ((np.tanh(X @ p["w"]) @ p["v"] - Y) ** 2).sum() / len(Y)


def columns(mesh):
    return rows(6, mesh.axis("tp").rank, mesh.axis("tp").size)


def raw(mesh, p):
    mine = columns(mesh)
    h = summed(mesh.ranks, X[:, mine] @ p["w"])
    ct_h, g_v = ag.grad(lambda h, v: ((np.tanh(h) @ v - Y[:, mine]) ** 2).sum() / len(Y), (0, 1))(h, p["v"])
    return {"w": X[:, mine].T @ ct_h, "v": g_v}  # <- ct_h covers this rank's columns of the result only


def ours(mesh, p, to):
    mine = columns(mesh)
    w = ag.Parameter(p["w"], {"tp": cc.Shard(0)}, global_shape=(6, 4), name="w")
    v = ag.Parameter(p["v"], {"tp": cc.Shard(1)}, global_shape=(4, 6), name="v")
    x, y = (ag.tensor(a[:, mine], {"tp": cc.Shard(1)}, global_shape=a.shape) for a in (X, Y))
    with ag.Tape() as tape:
        h = cc.all_reduce(x @ w, "tp", to=to)
        total = cc.all_reduce(((np.tanh(h) @ v - y) ** 2).sum(), "tp", to=cc.I) / len(Y)
    tape.backward(total)
    return {"w": w.grad.numpy(), "v": v.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, cc.I)


def mended(mesh, p):
    return ours(mesh, p, cc.R)  # each rank goes on separately: backward, the cotangents are summed


if __name__ == "__main__":
    show(sys.modules[__name__])
