"""Every rank takes the mean of its own rows, and the ranks take the mean of that.

Where the ranks hold different numbers of rows, a row of a small part counts for more than a row of a large one.
"""

import sys

from gallery import draw, show, summed

import autograd as ag
import autograd.numpy as np
import collectives as cc

TITLE = "a mean of means of unequal parts"
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
    """Two rows on every rank but the last, which has all the others."""
    rank, size = mesh.axis("dp").rank, mesh.axis("dp").size
    return slice(2 * int(rank), len(Y) if rank == size - 1 else 2 * int(rank) + 2)


def raw(mesh, p):
    mine = part(mesh)
    g = ag.grad(lambda w: squares(w, X[mine], Y[mine]).mean())(p["w"])
    return {"w": summed(mesh.ranks, g) / mesh.ranks.size}  # <- every part counts the same


def ours(mesh, p, reduce):
    w = ag.Parameter(p["w"], name="w")
    x, y = (ag.tensor(a[part(mesh)], {"dp": cc.Shard(0)}) for a in (X, Y))
    with ag.Tape() as tape:
        total = reduce(squares(cc.cast(w, "dp", to=cc.R), x, y))
    tape.backward(total)
    return {"w": w.grad.numpy()}


def refused(mesh, p):
    return ours(mesh, p, lambda s: cc.mean(s.mean(), "dp", to=cc.I))


def mended(mesh, p):
    return ours(mesh, p, lambda s: cc.all_reduce(s.sum(), "dp", to=cc.I) / len(Y))  # the loss carries the global count


if __name__ == "__main__":
    show(sys.modules[__name__])
