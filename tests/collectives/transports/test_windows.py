"""Windows and clocks, on threads and under mpiexec."""

from __future__ import annotations

import sys

import pytest

import collectives as cc

from ..launch import launch
from .windows_cases import conforms


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_threads(ranks: int) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns so often that a missing lock shows
    try:
        cc.run(lambda: conforms(cc.world()), ranks)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_processes(on: str) -> None:
    outcome = launch("windows_program.py", 3, limit_s=60, on=on)
    assert outcome.code == 0, outcome.err


def test_a_wait_for_a_clock_of_a_rank_that_has_finished_is_a_deadlock() -> None:
    def program() -> None:
        clocks = cc.world().clocks()
        if cc.world().rank != 1:
            clocks.set(3)
            clocks.wait(3)

    with pytest.raises(cc.DeadlockError, match="until all clocks are 3, for rank 1"):
        cc.run(program, 3)
