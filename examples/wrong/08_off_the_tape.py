"""The classes are sharded over the ranks, and the denominator of the softmax is summed by a raw all-reduce.

The value of the sum is correct, but the tape does not record it and sees a constant. The gradient is that of the
label's logit alone, so the logits of the other classes are never lowered.
"""

import sys

from gallery import draw, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "a sum that the tape does not record"
FROM = "ms-swift#9947"
LOWER = "the error makes the steps longer here"
AXES = {"tp": -1}
CUT = {"w": 1}
CLASSES = 8
X = draw("x", 20, 5)
LABELS = np.arange(20) * 3 % CLASSES
HOT = np.eye(CLASSES)[LABELS]


def start():
    return {"w": 0.2 * draw("w", 5, CLASSES)}


def serial(p):
    logits = X @ p["w"]
    return (np.log(np.exp(logits).sum(axis=1)) - (logits * HOT).sum(axis=1)).sum() / len(X)


def columns(mesh):
    return rows(CLASSES, mesh.axis("tp").rank, mesh.axis("tp").size)


def raw(mesh, p):
    mine = columns(mesh)
    denominator = summed(mesh.ranks, np.exp(X @ p["w"]).sum(axis=1))  # <- a plain array, so a constant

    def loss(w):
        return (np.log(denominator) - ((X @ w) * HOT[:, mine]).sum(axis=1)).sum() / len(X)

    return {"w": ag.grad(loss)(p["w"])}


def ours(mesh, p, total_over_ranks):
    mine = columns(mesh)
    w = ag.Parameter(p["w"], {"tp": cc.Shard(1)}, global_shape=(5, CLASSES), name="w")
    hot = ag.tensor(HOT[:, mine], {"tp": cc.Shard(1)}, global_shape=HOT.shape)
    with ag.Tape() as tape:
        logits = ag.constant(X) @ w
        denominator = total_over_ranks(np.exp(logits).sum(axis=1))
        label = cc.all_reduce((logits * hot).sum(axis=1), "tp", to=cc.I)
        total = (np.log(denominator) - label).sum() / len(X)
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda s: summed(mesh.ranks, s.numpy()))


def corrected(mesh, p):
    return ours(mesh, p, lambda s: cc.all_reduce(s, "tp", to=cc.I))


if __name__ == "__main__":
    show(sys.modules[__name__])
