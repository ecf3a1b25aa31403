"""Replicas that drift apart, over MPI: every rank is told, in modes first and ranks, and the next case runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd import optim
from collectives import I, R

DATA = np.random.default_rng(0).standard_normal((6, 3))
START = np.random.default_rng(1).standard_normal(3)


def sweep(mesh: Any, w: Any) -> None:
    w.zero_grad()
    with ag.Tape() as tape:
        y = ag.tensor(DATA[mesh.ranks.rank :: mesh.ranks.size]) @ cc.cast(w, "dp", to=R)
        loss = cc.all_reduce((y * y).sum(), "dp", to=I)
    tape.backward(loss)


def own_seed(mesh: Any) -> None:
    sweep(mesh, ag.Parameter(np.random.default_rng(int(mesh.ranks.rank)).standard_normal(3), name="w"))


def own_gradient(mesh: Any) -> None:
    w = ag.Parameter(START, name="w")
    sweep(mesh, w)
    w.grad.array[...] *= 1 + int(mesh.ranks.rank)
    optim.SGD([w], lr=0.1).step()


def own_rate(mesh: Any) -> None:
    w = ag.Parameter(START, name="w")
    sweep(mesh, w)
    optim.SGD([w], lr=0.1 * (1 + int(mesh.ranks.rank))).step()


def own_state(mesh: Any) -> None:
    w = ag.Parameter(START, name="w")
    optimizer = optim.SGD([w], lr=0.1, momentum=0.9)
    sweep(mesh, w)
    optimizer.step()
    if mesh.ranks.rank == 1:
        optimizer.velocity[0][...] = 0.0
    optimizer.step()


def another_number_of_steps(mesh: Any) -> None:
    w = ag.Parameter(START, name="w")
    optimizer = optim.SGD([w], lr=0.1)
    sweep(mesh, w)
    for _ in range(2 - (mesh.ranks.rank == 1)):
        optimizer.step()
    sweep(mesh, w)


def later(mesh: Any) -> None:
    """After the calls that mode ``first`` compares."""
    one = ag.tensor([1.0])
    for _ in range(1100):
        cc.all_reduce(one, "dp")
    own_gradient(mesh)


def right(mesh: Any) -> None:
    w = ag.Parameter(START, name="w")
    optimizer = optim.Adam([w], lr=0.1)
    for _ in range(9):
        sweep(mesh, w)
        optimizer.step()


def at_the_end(mesh: Any) -> None:
    ag.constant(np.full(3, float(mesh.ranks.rank)))


CASES: list[Callable[[Any], None]] = [
    right, own_seed, own_gradient, own_rate, own_state, another_number_of_steps, later, at_the_end,
]  # fmt: skip


def main() -> None:
    for mode in ("first", "ranks"):
        cc.check(mode, timeout_s=60)
        for case in CASES:
            text = "nothing"
            try:
                with cc.Mesh(dp=-1) as mesh:
                    case(mesh)
            except cc.CommunicationError as error:
                text = f"{type(error).__name__}: {error}"
            cc.in_order(f"{mode} {case.__name__}: {text!r}")


if __name__ == "__main__":
    main()
