"""Counts the Python functions that a repeated collective calls, and the files that they are in."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
import collectives as cc
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import Tensor
from collectives.declaration.collective import Collective

SIZE = 512


class Count(NamedTuple):
    """Calls of Python functions, the files that were entered, and the calls above the transport."""

    calls: int
    files: int
    above: int


def entered(f: Callable[[], Any], warm: int = 4) -> list[tuple[str, str]]:
    """The file and the name of every Python function that ``f()`` calls, once it is warm.

    The addends of the 1st, 2nd, 4th, 8th, ... sum are compared, so the call that is counted is the 5th.
    """
    for _ in range(warm):
        f()
    seen: list[tuple[str, str]] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.append((frame.f_code.co_filename, frame.f_code.co_qualname))

    gc.collect()
    gc.disable()  # a collection in the middle would add the finalizers of what earlier tests have left
    sys.setprofile(profile)
    try:
        f()
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen[1:]  # without `f` itself


def count(f: Callable[[], Any]) -> Count:
    """How much ``f()`` calls."""
    seen = entered(f)
    below = ("/collectives/transports/", "/collectives/checks/", "/collectives/job/", "/threading.py", "/numpy/")
    above = [name for file, name in seen if not any(part in file for part in below)]
    return Count(len(seen), len({file for file, _ in seen}), len(above))


def programs(ranks: int) -> dict[str, Callable[[], Tensor]]:
    """Uses of collectives by name, each of which gives the same result whenever it is called."""
    x = ag.tensor(np.ones(SIZE), requires_grad=True)
    part = ag.tensor(np.ones(SIZE), layout={"dp": cc.Shard(0)}, global_shape=(SIZE * ranks,), requires_grad=True)
    copies = ag.tensor(np.ones(SIZE), layout={"dp": cc.I}, requires_grad=True)
    addends = ag.tensor(np.ones(SIZE * ranks), layout={"dp": cc.P}, requires_grad=True)
    return {
        "all_reduce": lambda: cc.all_reduce(x, "dp"),
        "all_reduce to=I": lambda: cc.all_reduce(x, "dp", to=cc.I),
        "all_gather": lambda: cc.all_gather(part, "dp"),
        "reduce_scatter": lambda: cc.reduce_scatter(addends, "dp"),
        "broadcast": lambda: cc.broadcast(x, "dp"),
        "broadcast like=": lambda: cc.broadcast(x, "dp", like=x),
        "reduce": lambda: cc.reduce(x, "dp"),
        "cast I->R": lambda: cc.cast(copies, "dp"),
    }


def counts(ranks: int) -> dict[str, tuple[Count, Count]]:
    """For every program its forward call, and the step of a sweep. All ranks call it."""
    found = {}
    with cc.Mesh(dp=ranks):
        for name, program in programs(ranks).items():
            with ag.Tape() as tape:
                forward = count(program)
                y = program()
            node = next(n for n in reversed(tape.recording.nodes) if n is not None and isinstance(n[0], Collective))
            assert y.layout is not None
            ct = y.array if y.absent else np.ones(y.array.shape)
            sweep = Sweep(tape.recording, 0, len(tape.recording.nodes), None, False)
            step = lambda node=node, ct=ct, sweep=sweep: node[0].pull(node, ct, sweep)
            found[name] = forward, count(step)
    return found


def table(found: dict[str, tuple[Count, Count]], title: str) -> str:
    """The counts as text."""
    lines = [f"{title:<24}{'forward: calls':>15}{'files':>7}{'in a sweep: calls':>20}{'files':>7}"]
    lines += [f"  {name:<22}{f.calls:>15}{f.files:>7}{b.calls:>20}{b.files:>7}" for name, (f, b) in found.items()]
    return "\n".join(lines)
