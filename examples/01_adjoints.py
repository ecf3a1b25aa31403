"""Collectives and their adjoints: print the values of every rank, forward and backward, on small arrays.

    python examples/01_adjoints.py                      one process
    python examples/01_adjoints.py --ranks 4            four threads of one process
    mpiexec -n 4 python examples/01_adjoints.py         four processes

A collective F is a linear map from the values of all ranks to the values of all ranks. Its backward pass is the adjoint
F*, which is defined by one equation: for every x and every y,

    <F x, y> = <x, F* y>

where <a, b> is the sum of the dot products on all ranks. An Invariant value is one value for all ranks and is counted
once.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import autograd as ag
import collectives as cc
from autograd.layouts.layout import Label
from collectives import I, P, R, Rooted, Shard

parser = argparse.ArgumentParser(description="Print collectives and their adjoints, rank by rank.")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")


class Pair(NamedTuple):
    """A collective, the layout of its operand, the name of its adjoint, and why this is the adjoint."""

    name: str
    forward: Callable[[ag.Tensor], ag.Tensor]
    operand: Label
    adjoint: str
    why: str


PAIRS = [
    Pair("broadcast", lambda x: cc.broadcast(x, "ranks"), Rooted(0), "reduce",
         "one value was used on every rank, so its cotangent is the sum of the ranks' cotangents"),
    Pair("reduce", lambda x: cc.reduce(x, "ranks"), P, "broadcast",
         "every addend has weight 1 in the sum, so its cotangent is the cotangent of the sum"),
    Pair("scatter", lambda x: cc.scatter(x, "ranks"), Rooted(0), "gather",
         "each part went to one rank, so its cotangent comes from this rank"),
    Pair("gather", lambda x: cc.gather(x, "ranks"), Shard(0), "scatter",
         "each part came from one rank, so its cotangent goes to this rank"),
    Pair("all_gather", lambda x: cc.all_gather(x, "ranks"), Shard(0), "reduce_scatter",
         "every rank used every part, so the cotangents are summed, and each rank keeps those of its own part"),
    Pair("reduce_scatter", lambda x: cc.reduce_scatter(x, "ranks"), P, "all_gather",
         "every rank has an addend in every part of the sum, so it needs the cotangents of all parts"),
    Pair("all_reduce(to=R)", lambda x: cc.all_reduce(x, "ranks", to=R), P, "all_reduce(to=R)",
         "each rank uses its copy of the sum separately (Replicated), so the cotangents of the copies are summed"),
    Pair("all_reduce(to=I)", lambda x: cc.all_reduce(x, "ranks", to=I), P, "cast(to=R), free",
         "all ranks repeat one computation (Invariant), so they have the cotangent of the sum already"),
    Pair("cast(to=R), free", lambda x: cc.cast(x, "ranks", to=R), I, "all_reduce(to=I)",
         "how a parameter enters data parallelism: no communication forward, the sum of gradients backward"),
]  # fmt: skip


def numbers(start: int, step: int, label: Label) -> ag.Tensor:
    """An array with one element more than there are ranks, so that it cannot be split evenly.

    The addends of a Partial value differ between ranks: the tens digit is the rank.
    """
    digits = (start + step * np.arange(cc.world().size + 1)) % 10.0
    if isinstance(label, Shard):
        return cc.shard(ag.tensor(digits, layout={"ranks": R}), "ranks")
    return ag.tensor(digits + 10 * cc.world().rank if label is P else digits, layout={"ranks": label})


def is_here(x: ag.Tensor) -> bool:
    """Whether this rank has the value. A Rooted value is on its root only."""
    label = x.layout["ranks"]
    return not isinstance(label, Rooted) or cc.world().rank == label.root


def dot(a: ag.Tensor, b: ag.Tensor) -> float:
    """<a, b>: the sum of the ranks' dot products. An Invariant value is counted once, by rank 0."""
    counts = cc.world().rank == 0 if a.layout["ranks"] is I else is_here(a)
    return cc.all_reduce(ag.tensor(a.local @ b.local if counts else 0.0), "ranks").item()


def say(text: str) -> None:
    """Print on rank 0."""
    if cc.world().rank == 0:
        print(text, flush=True)


def show(pair: Pair) -> None:
    """Print one collective forward and backward, as a table with a line for every rank."""
    x = numbers(1, 1, pair.operand)
    y, pullback = ag.vjp(pair.forward, x)
    ct = numbers(2, 3, y.layout.dual["ranks"])  # any numbers; the cotangent of y has the dual of its layout
    back = pullback(ct)

    columns = {"x": x, "F x": y, "y": ct, "F* y": back}
    titles = [f"{name}: {t.layout['ranks']!r}" for name, t in columns.items()]
    width = max(4 * cc.world().size + 8, *(len(title) + 2 for title in titles))
    say(f"\n{pair.name}, and backward {pair.adjoint}:\n{pair.why}")
    say(" " * 9 + "".join(title.ljust(width) for title in titles).rstrip())
    cells = [" ".join(f"{v:g}" for v in t.local) if is_here(t) else "-" for t in columns.values()]
    cc.in_order("".join(cell.ljust(width) for cell in cells).rstrip())

    left, right = dot(y, ct), dot(x, back)
    say(f"<F x, y> = {left:g}, <x, F* y> = {right:g}: {'equal' if left == right else 'NOT EQUAL'}")


def program() -> None:
    """The program of every rank."""
    with cc.Mesh(ranks=-1):
        say(f"ranks: {cc.world().size}. Layouts: R Replicated, I Invariant, P Partial (addends), Shard(0), Rooted(0).")
        if cc.world().size == 1:
            say("On one rank F and F* copy their operands: F x = x, and F* y = y. --ranks 4 shows what they do.")
        for pair in PAIRS:
            show(pair)


if __name__ == "__main__":
    options = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program without a traceback
    if options.ranks:
        cc.run(program, options.ranks)
    else:
        program()
