"""The backward of an all-reduce is the identity, although every rank uses the result for a different computation.

The identity is correct if all ranks repeat the same computation. Here each rank multiplies by its own columns, so it
has only an addend of the cotangent, and the addends are never summed.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "identity as backward of a sum"
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
    return {"w": X[:, mine].T @ ct_h, "v": g_v}  # <- ct_h is this rank's addend, not the sum


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


def corrected(mesh, p):
    return ours(mesh, p, cc.R)  # ranks use the sum separately, so backward sums the cotangents


if __name__ == "__main__":
    show(sys.modules[__name__])
