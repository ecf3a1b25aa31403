"""What goes backwards through a collective: every pair of adjoints, rank by rank, on a handful of numbers.

    python examples/01_adjoints.py                      one process
    python examples/01_adjoints.py --ranks 4            four threads of one process
    mpiexec -n 4 python examples/01_adjoints.py         four processes

A collective F is a linear map from what all ranks hold together to what all ranks hold together. Its backward pass is
the adjoint F*, which is defined by one law and by nothing else: for every x and every y,

    <F x, y> = <x, F* y>

where <a, b> adds up the dot products of all ranks, and counts once what is one value for all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import autograd as ag
import collectives as cc
from autograd.layouts.layout import Label
from collectives import I, P, R, Rooted, Shard

parser = argparse.ArgumentParser(description="Show the collectives and their adjoints, rank by rank.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")


class Pair(NamedTuple):
    """A collective, the layout of its operand, and what its adjoint is called."""

    name: str
    forward: Callable[[ag.Tensor], ag.Tensor]
    operand: Label
    adjoint: str
    why: str


PAIRS = [
    Pair("broadcast", lambda x: cc.broadcast(x, "ranks"), Rooted(0), "reduce",
         "one value was used on every rank, so its cotangent is the sum of theirs"),
    Pair("reduce", lambda x: cc.reduce(x, "ranks"), P, "broadcast",
         "every addend entered the sum with weight one, so every rank gets the cotangent of the sum"),
    Pair("scatter", lambda x: cc.scatter(x, "ranks"), Rooted(0), "gather",
         "each part went to one rank, so its cotangent comes back from there"),
    Pair("gather", lambda x: cc.gather(x, "ranks"), Shard(0), "scatter",
         "each part came from one rank, so its cotangent goes back there"),
    Pair("all_gather", lambda x: cc.all_gather(x, "ranks"), Shard(0), "reduce_scatter",
         "every rank used every part: add up what they say of it, and keep what is said of your own"),
    Pair("reduce_scatter", lambda x: cc.reduce_scatter(x, "ranks"), P, "all_gather",
         "each part of the sum lies on one rank, and every rank has an addend in it"),
    Pair("all_reduce(to=R)", lambda x: cc.all_reduce(x, "ranks", to=R), P, "all_reduce(to=R)",
         "each rank goes on with a copy of its own (Replicated), so the cotangents of the copies are summed"),
    Pair("all_reduce(to=I)", lambda x: cc.all_reduce(x, "ranks", to=I), P, "cast(to=R), free",
         "all ranks repeat one computation (Invariant), so they know its cotangent already"),
    Pair("cast(to=R), free", lambda x: cc.cast(x, "ranks", to=R), I, "all_reduce(to=I)",
         "how a parameter enters data parallelism: nothing moves forwards, gradients are summed backwards"),
]  # fmt: skip


def numbers(start: int, step: int, label: Label) -> ag.Tensor:
    """A value of as many digits as there are ranks, and one more, so that it does not divide evenly.

    Addends (P) are made to differ from rank to rank: their tens digit tells the rank.
    """
    digits = (start + step * np.arange(cc.world().size + 1)) % 10.0
    if isinstance(label, Shard):
        return cc.shard(ag.tensor(digits, layout={"ranks": R}), "ranks")
    return ag.tensor(digits + 10 * cc.world().rank if label is P else digits, layout={"ranks": label})


def is_here(x: ag.Tensor) -> bool:
    """Whether this rank has the value: one that is rooted is on its root only."""
    label = x.layout["ranks"]
    return not isinstance(label, Rooted) or cc.world().rank == label.root


def dot(a: ag.Tensor, b: ag.Tensor) -> float:
    """<a, b>: the sum over the ranks of what each holds; an invariant value is one for all, so rank 0 counts it."""
    counts = cc.world().rank == 0 if a.layout["ranks"] is I else is_here(a)
    return cc.all_reduce(ag.tensor(a.numpy() @ b.numpy() if counts else 0.0), "ranks").item()


def say(text: str) -> None:
    """Print on rank 0."""
    if cc.world().rank == 0:
        print(text, flush=True)


def show(pair: Pair) -> None:
    """One collective forwards and backwards, as a table with a line for every rank."""
    x = numbers(1, 1, pair.operand)
    y, pullback = ag.vjp(pair.forward, x)
    ct = numbers(2, 3, y.layout.dual["ranks"])  # the cotangent of y has the dual layout; any numbers will do
    back = pullback(ct)

    columns = {"x": x, "F x": y, "y": ct, "F* y": back}
    width = 4 * cc.world().size + 8
    say(f"\n{pair.name}, and backwards {pair.adjoint}:\n{pair.why}")
    say(" " * 9 + "".join(f"{name}: {t.layout['ranks']!r}".ljust(width) for name, t in columns.items()).rstrip())
    cells = [" ".join(f"{v:g}" for v in t.numpy()) if is_here(t) else "-" for t in columns.values()]
    cc.in_order("".join(cell.ljust(width) for cell in cells).rstrip())

    left, right = dot(y, ct), dot(x, back)
    say(f"<F x, y> = {left:g}, <x, F* y> = {right:g}: {'equal' if left == right else 'NOT EQUAL'}")


def program() -> None:
    """What every rank runs."""
    with cc.Mesh(ranks=-1):
        say(f"ranks: {cc.world().size}. Layouts: R Replicated, I Invariant, P Partial (addends), Shard(0), Rooted(0).")
        for pair in PAIRS:
            show(pair)


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks)
    else:
        program()
