"""Random SPMD programs in which one rank makes a mistake, and the same programs without the mistake.

A program is a list of collectives, then a loop of one, then a last sum. `draw(seed)` gives it, together with the kind
of its mistake, the rank that makes it and the position. `perform` runs it on one rank, on threads and under mpiexec
alike. Every collective stands on a line of its own here, as in a user's program.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
import collectives as cc
from collectives import I, R, V

KINDS = ("order", "missing", "shape", "dtype", "root", "axis", "loop", "recorded", "layout", "copies")
ROOTED = ("broadcast", "reduce", "scatter", "gather")
COPIES = ("cast", "shard")  # their operands are equal on all ranks
STEPS = ("all_reduce", "another all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", *ROOTED, *COPIES)
SEEDS = range(100)


class Program(NamedTuple):
    """The calls of all ranks, and the mistake (`kind`) of rank `odd` at `position`; `kind` "" is the right program."""

    seed: int
    kind: str
    steps: tuple[str, ...]
    position: int
    odd: int
    turns: int

    @property
    def name(self) -> str:
        return f"{self.seed}: {self.kind} at {self.position} ({self.steps[self.position]}), rank {self.odd}"


class Outcome(NamedTuple):
    """The error of a rank, its text, and the times (`time.monotonic`) of its last call and of the error."""

    error: str
    text: str
    arrived_s: float
    told_s: float


def draw(seed: int, ranks: int) -> Program:
    """The program of a seed; ten kinds, in turn."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    steps = [str(step) for step in rng.permutation(STEPS)[:5]]
    position = int(rng.integers(0, 4))  # calls in another order need a step behind this one
    fitting = {"root": ROOTED, "copies": COPIES}.get(kind)
    if fitting is not None:
        steps = [step for step in steps if step not in fitting]
        steps.insert(position, str(rng.choice(fitting)))
    return Program(seed, kind, tuple(steps), position, int(rng.integers(ranks)), int(rng.integers(1, 4)))


def perform(program: Program, mesh: Any, other_axis: Any) -> Outcome:
    """Run it on this rank. `other_axis` is what a wrong axis is: a group of ranks that is not that of "a"."""
    is_odd = mesh.ranks.rank == program.odd
    kind = program.kind if is_odd else ""
    rng = np.random.default_rng(program.seed)
    steps, at = list(program.steps), program.position
    if kind == "order":
        steps[at], steps[at + 1] = steps[at + 1], steps[at]
    arrived = [time.monotonic()]
    try:
        with ag.Tape():
            for nth, step in enumerate(steps):
                mistake = kind if nth == at else ""
                data = rng.standard_normal((8, 6))  # drawn before the mistake, so that it is the same on all ranks
                if mistake != "missing":
                    arrived.append(time.monotonic())
                    call(step, data, program.kind, mistake, other_axis)
            for _ in range(program.turns + (kind == "loop")):
                arrived.append(time.monotonic())
                cc.all_reduce(ag.tensor(np.ones(2), {"b": R}), "a")
            arrived.append(time.monotonic())
            cc.all_reduce(ag.tensor(np.ones(2)), ("a", "b"), to=I)
    except cc.CommunicationError as error:
        return Outcome(type(error).__name__, str(error), arrived[-1], time.monotonic())
    return Outcome("", "", arrived[-1], time.monotonic())


def call(step: str, data: Any, kind: str, mistake: str, other_axis: Any) -> None:
    """One collective, with this rank's mistake in it. Labels on axis b are such that they do not see a wrong axis."""
    axis = other_axis if mistake == "axis" else "a"
    root = 1 if mistake == "root" else 0
    if mistake == "shape":
        data = np.stack([data, data], axis=2)  # extents of the other dimensions may differ in some of them
    if mistake == "dtype":
        data = data.astype(np.float32)
    if mistake == "copies":
        data = data * (1 + 2**-50)
    label = I if step in COPIES else V
    x = ag.tensor(data, {"a": label, "b": label if step in COPIES or kind == "axis" else R})
    if mistake == "layout":
        x = ag.tensor(data, {"a": label, "b": V})
    with ag.no_grad() if mistake == "recorded" else nullcontext():
        if step == "all_reduce":
            cc.all_reduce(x, axis)
        elif step == "another all_reduce":
            cc.all_reduce(x, axis, to=R)
        elif step == "all_gather":
            cc.all_gather(x, axis)
        elif step == "reduce_scatter":
            cc.reduce_scatter(x, axis)
        elif step == "all_to_all":
            cc.all_to_all(x, axis)
        elif step == "permute":
            cc.permute(x, axis, [(0, 1), (1, 0)])
        elif step == "broadcast":
            cc.broadcast(x, axis, root, like=x)
        elif step == "reduce":
            cc.reduce(x, axis, root)
        elif step == "scatter":
            cc.scatter(x, axis, root, like=x)
        elif step == "gather":
            cc.gather(x, axis, root)
        elif step == "cast":
            cc.cast(x, axis, to=R)
        else:
            assert step == "shard"
            cc.shard(x, axis)


def faults(program: Program, outcomes: list[Outcome]) -> list[str]:
    """Errors in the report of a wrong program; `outcomes` by rank of one group of "a"."""
    wrong = []
    sites = 2 if program.kind in ("order", "missing", "axis", "loop") else 1
    for rank, outcome in enumerate(outcomes):
        expected = "ReplicaMismatch" if program.kind == "copies" else "DeadlockError CollectiveMismatch"
        if outcome.error not in expected.split():
            wrong.append(f"{program.name}: rank {rank} was told {outcome.error or 'nothing'} {outcome.text}")
        elif "rank" not in outcome.text or outcome.text.count("mismatch_programs.py:") < sites:
            wrong.append(f"{program.name}: rank {rank} was not told who and where: {outcome.text}")
    if not any(f"rank {program.odd}" in o.text or f", {program.odd}" in o.text for o in outcomes):
        wrong.append(f"{program.name}: rank {program.odd} is not named in {outcomes[0].text}")
    return wrong


def seconds_to_tell(outcomes: list[Outcome]) -> float:
    """Seconds from the last rank's arrival at its last call to the last rank's error."""
    return max(o.told_s for o in outcomes) - max(o.arrived_s for o in outcomes)


def tally(counts: dict[str, int]) -> str:
    """The number of programs of each kind, as text."""
    return f"{sum(counts.values())} (" + ", ".join(f"{kind} {n}" for kind, n in counts.items()) + ")"
