"""The collectives of `benchmarks/rosetta.py` in ringtape, on three threads; values that differ between ranks are V."""

from __future__ import annotations

from typing import Any

from rosetta_cases import CASES, RANKS, ROOT, data, serve

import autograd as ag
import collectives as cc
from collectives import R


def call(name: str, x: Any) -> Any:
    ring = [(r, (r + 1) % RANKS) for r in range(RANKS)]
    calls: dict[str, Any] = {
        "all_reduce sum": lambda: cc.all_reduce(x, "a", to=R),
        "all_reduce, rank 2 unused": lambda: cc.all_reduce(x, "a", to=R),
        "broadcast": lambda: cc.broadcast(x, "a", root=ROOT, to=R),
        "reduce sum": lambda: cc.reduce(x, "a", root=ROOT),
        "all_gather": lambda: cc.all_gather(x, "a", dim=0, to=R),
        "all_gather uneven": lambda: cc.all_gather(x, "a", dim=0, to=R),
        "reduce_scatter sum": lambda: cc.reduce_scatter(x, "a", dim=0),
        "scatter": lambda: cc.scatter(x, "a", root=ROOT, dim=0),
        "gather": lambda: cc.gather(x, "a", root=ROOT, dim=0),
        "all_to_all": lambda: cc.all_to_all(x, "a", split_dim=0, concat_dim=0),
        "send/recv ring": lambda: cc.permute(x, "a", ring),
    }
    for kind in ("max", "min", "prod"):
        calls[f"all_reduce {kind}"] = lambda kind=kind: getattr(cc, f"all_{kind}")(x, "a")
    if name not in calls:
        raise NotImplementedError(f"{name} is not offered: a sum is taken, or the extremum on all ranks (all_max)")
    return calls[name]()


def gradients(name: str) -> dict[int, Any]:
    xs, cts = data(name)

    def program() -> Any:
        rank = cc.world().rank
        with cc.Mesh(a=RANKS):
            x = ag.tensor(xs[rank], requires_grad=True)
            with ag.Tape() as tape:
                y = call(name, x)
            if y.absent or rank in CASES[name].unused:
                tape.backward(())  # no result here: its communications run all the same
            else:
                label = y.layout.dual["a"]
                tape.backward([y], [ag.tensor(cts[rank], layout={"a": label})])
            g = x.grad
            return (0 * xs[rank] if g is None or g.absent else g.local), (None if y.absent else y.local)

    return dict(enumerate(cc.run(program, ranks=RANKS)))


serve(gradients)
