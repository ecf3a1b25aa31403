"""Tokens are gathered, every rank runs its own experts on all tokens, and backward takes this rank's slice.

The slice has the cotangents from this rank's experts only. Those from the other ranks' experts are lost; a
reduce-scatter would add them.
"""

import sys

from gallery import draw, joined, rows, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "a gather whose backward is a slice"
FROM = "NeMo Automodel#1260"
AXES = {"ep": -1}
CUT = {"experts": 0}
X, Y = draw("x", 15, 4), draw("y", 15, 3)
EXPERTS = 12


def start():
    return {"embed": 0.6 * draw("embed", 4, 4), "experts": 0.3 * draw("experts", EXPERTS, 4, 3)}


def serial(p):
    h = np.tanh(X @ p["embed"])
    return sum(((np.tanh(h @ p["experts"][e]) - Y) ** 2).sum() for e in range(EXPERTS)) / (EXPERTS * len(Y))


def experts_loss(h, experts, y):
    return sum(((np.tanh(h @ experts[e]) - y) ** 2).sum() for e in range(len(experts))) / (EXPERTS * len(Y))


def part(mesh):
    return rows(len(X), mesh.axis("ep").rank, mesh.axis("ep").size)


def raw(mesh, p):
    mine = part(mesh)
    h, pullback = ag.vjp(lambda w: np.tanh(X[mine] @ w), p["embed"])
    ct, g = ag.grad(lambda h, e: experts_loss(h, e, Y), (0, 1))(joined(mesh.ranks, h), p["experts"])
    return {"embed": summed(mesh.ranks, pullback(ct[mine])), "experts": g}  # <- a slice, no sum over ranks


def ours(mesh, p, to):
    embed = ag.Parameter(p["embed"], name="embed")
    experts = ag.Parameter(p["experts"], {"ep": cc.V}, name="experts")
    x = ag.tensor(X[part(mesh)], {"ep": cc.Shard(0)}, global_shape=X.shape)
    with ag.Tape() as tape:
        h = cc.all_gather(np.tanh(x @ cc.cast(embed, "ep", to=cc.R)), "ep", to=to)
        total = cc.all_reduce(experts_loss(h, experts, ag.constant(Y)), "ep", to=cc.I)
    tape.backward(total)
    return {"embed": embed.grad.numpy(), "experts": experts.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, cc.I)


def corrected(mesh, p):
    return ours(mesh, p, cc.R)


if __name__ == "__main__":
    show(sys.modules[__name__])
