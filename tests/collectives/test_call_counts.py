"""A repeated collective calls few Python functions, forward and in a sweep, with its transport; prints the table."""

from __future__ import annotations

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


def over_mpi(mode: str) -> dict[str, tuple[Count, Count]]:
    outcome = launch("call_counts_program.py", 2, mode, limit_s=100, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    return {name: (Count(*f), Count(*b)) for name, (f, b) in json.loads(outcome.out).items()}


@pytest.mark.parametrize(("mode", "most"), [("first", 14), ("off", 7)])
def test_over_mpi(mode: str, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    """At most half of what it was before; where a header goes before the data, at most two thirds."""
    found = over_mpi(mode)
    with capsys.disabled():
        print("\n" + table(found, f"over MPI, check {mode!r}"))
    forward, _ = found["all_reduce"]
    assert forward.calls <= most and forward.files <= 8
    for name, both in found.items():
        for now, before in zip(both, BEFORE[name][mode], strict=True):
            share = 2 / 3 if name == "broadcast" else 1 / 2
            assert now.calls <= max(before * share, most), (name, now, before)


@pytest.mark.parametrize("mode", ["first", "off"])
def test_on_threads(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> dict[str, tuple[Count, Count]]:
        return counts(2)

    cc.check(mode)
    try:
        found = cc.run(program, 2)[0]
    finally:
        cc.check("first")
    with capsys.disabled():
        print("\n" + table(found, f"on threads, check {mode!r}"))
    assert found["all_reduce"][0].calls <= 30
