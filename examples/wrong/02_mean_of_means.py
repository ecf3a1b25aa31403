"""Every rank computes the mean over its own rows, and the results are averaged over the ranks.

If the ranks have different numbers of rows, the rows of a rank with few rows get a larger weight than those of a rank
with many.
"""

import sys

from gallery import draw, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "a mean of means of uneven parts"
FROM = "transformers#34242"
AXES = {"dp": -1}
CUT = {}
X, Y = draw("x", 23, 5), draw("y", 23)


def start():
    return {"w": draw("w", 5)}


def squares(w, x, y):
    return (np.tanh(x @ w) - y) ** 2


def serial(p):
    return squares(p["w"], X, Y).sum() / len(Y)


def part(mesh):
    """Two rows on every rank except the last, which has all others."""
    rank, size = mesh.axis("dp").rank, mesh.axis("dp").size
    return slice(2 * int(rank), len(Y) if rank == size - 1 else 2 * int(rank) + 2)


def raw(mesh, p):
    mine = part(mesh)
    g = ag.grad(lambda w: squares(w, X[mine], Y[mine]).mean())(p["w"])
    return {"w": summed(mesh.ranks, g) / mesh.ranks.size}  # <- every rank gets the same weight


def ours(mesh, p, reduce):
    w = ag.Parameter(p["w"], name="w")
    x, y = (cc.from_local(a[part(mesh)], {"dp": cc.Shard(0)}) for a in (X, Y))
    with ag.Tape() as tape:
        total = reduce(squares(cc.cast(w, "dp", to=cc.R), x, y))
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda s: cc.mean(s.mean(), "dp", to=cc.I))


def corrected(mesh, p):
    return ours(mesh, p, lambda s: cc.all_reduce(s.sum(), "dp", to=cc.I) / s.global_shape[0])  # the global count


if __name__ == "__main__":
    show(sys.modules[__name__])
