"""A repeated collective calls few Python functions, forward and in a sweep, with its transport; prints the table."""

from __future__ import annotations

import gc
import json

import pytest

import collectives as cc

from .call_counts import Count, counts, table
from .launch import launch

# Before calls were prepared: forward and in a sweep, over MPI with 2 ranks, when calls are compared and when not.
BEFORE = {
    "all_reduce": {"first": (33, 36), "off": (11, 20)},
    "all_reduce to=I": {"first": (33, 7), "off": (11, 7)},
    "all_gather": {"first": (101, 47), "off": (83, 31)},
    "reduce_scatter": {"first": (84, 47), "off": (66, 31)},
    "broadcast": {"first": (103, 45), "off": (72, 27)},
    "broadcast like=": {"first": (68, 45), "off": (50, 27)},
    "reduce": {"first": (71, 47), "off": (51, 29)},
    "cast I->R": {"first": (27, 36), "off": (10, 20)},
}

# `docs/architecture.md` states these.
ALL_REDUCE = {"first": (13, 13), "off": (5, 7)}


def over_mpi(mode: str) -> tuple[dict[str, tuple[Count, Count]], list[tuple[str, str]]]:
    """The counts, and the file and name of each function that an all_reduce calls."""
    outcome = launch("call_counts_program.py", 2, mode, limit_s=100, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    found, path = json.loads(outcome.out)
    return {name: (Count(*f), Count(*b)) for name, (f, b) in found.items()}, path


@pytest.mark.parametrize(("mode", "most"), [("first", 14), ("off", 7)])
def test_over_mpi(mode: str, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    """At most half of what it was before; where a header goes before the data, at most two thirds."""
    found, path = over_mpi(mode)
    files = list(dict.fromkeys(file for file, _ in path))
    with capsys.disabled():
        print("\n" + table(found, f"over MPI, check {mode!r}"))
        print(f"  an all_reduce enters {len(files)} files: {', '.join(files)}")
    forward, step = found["all_reduce"]
    assert (forward.calls, step.calls) == ALL_REDUCE[mode] and forward.files <= 8 and len(files) <= 8
    assert found["all_reduce to=I"][1].calls == 4
    for name, both in found.items():
        for now, before in zip(both, BEFORE[name][mode], strict=True):
            share = 2 / 3 if name == "broadcast" else 1 / 2
            assert now.calls <= max(before * share, most), (name, now, before)


@pytest.mark.parametrize("mode", ["first", "off"])
def test_on_threads(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> dict[str, tuple[Count, Count]]:
        return counts(2)

    gc.collect()
    gc.freeze()  # each count collects garbage first; what earlier tests have left need not be visited again
    cc.check(mode)
    try:
        found = cc.run(program, 2)[0]
    finally:
        cc.check("first")
    with capsys.disabled():
        print("\n" + table(found, f"on threads, check {mode!r}"))
    for name, (forward, step) in found.items():  # which of two threads makes the results of both is chance
        if name != "broadcast":
            assert forward.above <= 8 and step.above <= 9, (name, forward, step)
