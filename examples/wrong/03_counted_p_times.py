"""Every rank gathers all features, computes the same loss, and starts its backward pass from 1.

The adjoint of the gather sums the cotangents of the ranks. These are equal, so the gradient is p times too large. With
a small learning rate the loss still falls, and even faster, but training changes with the number of ranks.
"""

import sys

from gallery import draw, joined, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "one loss, seeded on every rank"
FROM = "open_clip#616, jax#3970"
LOWER = "a gradient p times too large makes longer steps"
AXES = {"dp": -1}
CUT = {}
X, Y = draw("x", 12, 5), draw("y", 12, 3)


def start():
    return {"w": 0.5 * draw("w", 5, 3)}


def loss(features):
    """A contrastive loss: the features of each row against the targets of all rows."""
    scores = features @ Y.T
    return (np.log(np.exp(scores).sum(axis=1)) - (features * Y).sum(axis=1)).sum() / len(Y)


def serial(p):
    return loss(np.tanh(X @ p["w"]))


def part(mesh):
    return rows(len(X), mesh.axis("dp").rank, mesh.axis("dp").size)


def raw(mesh, p):
    mine = part(mesh)
    local = np.tanh(X[mine] @ p["w"])
    ct = summed(mesh.ranks, ag.grad(loss)(joined(mesh.ranks, local)))[mine]  # <- the reduce-scatter of equal cotangents
    _, pullback = ag.vjp(lambda w: np.tanh(X[mine] @ w), p["w"])
    return {"w": summed(mesh.ranks, pullback(ct))}


def ours(mesh, p, finish):
    w = ag.Parameter(p["w"], name="w")
    x = ag.tensor(X[part(mesh)], {"dp": cc.Shard(0)}, global_shape=X.shape)
    with ag.Tape() as tape:
        features = cc.all_gather(np.tanh(x @ cc.cast(w, "dp", to=cc.R)), "dp", to=cc.R)
        scores = features @ ag.constant(Y.T)
        total = finish((np.log(np.exp(scores).sum(axis=1)) - (features * ag.constant(Y)).sum(axis=1)).sum() / len(Y))
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda loss: loss)


def corrected(mesh, p):
    return ours(mesh, p, lambda loss: cc.cast(loss, "dp", to=cc.I))  # Invariant: one value, counted once


if __name__ == "__main__":
    show(sys.modules[__name__])
