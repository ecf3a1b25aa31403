"""A loop over `test` of a nonblocking call ends: over MPI, on threads, with every algorithm, and where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import collectives as cc
from collectives.transports.protocol import Request

from ..launch import launch
from .progress_cases import CASES, loop


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_loops_end_on_threads(case: Callable[[cc.Mesh], None], ranks: int) -> None:
    def program() -> None:
        with cc.Mesh(a=-1) as mesh:
            case(mesh)

    cc.run(program, ranks)


@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_loops_end_over_mpi(on: str) -> None:
    outcome = launch("progress_program.py", 3, limit_s=100, on=on)
    assert (outcome.code, outcome.is_late) == (0, False), outcome
    for case in CASES:
        assert all(f"{case.__name__} <{rank}>" in outcome.out for rank in range(3)), outcome


@pytest.mark.parametrize("what", ["all_reduce", "recv", "irecv"])
def test_loop_for_a_rank_that_has_finished(what: str) -> None:
    """On threads; over MPI the monitor sees the loop as a wait."""

    def program() -> Any:
        with cc.Mesh(a=2):
            if cc.world().rank == 1:
                return None
            if what == "irecv":
                return loop(cc.irecv("a", 1))
            return loop(cc.world().start(Request(what, np.ones(2), out=np.ones(2) if what == "recv" else None, peer=1)))

    with pytest.raises(cc.DeadlockError, match=r"rank 0 tests .*, and rank 1 of 2 has finished without it"):
        cc.run(program, 2)


@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=pytest.mark.slow)])
def test_arrays_of_dropped_calls_live_until_the_calls_are_complete(on: str) -> None:
    """MPI used to write the results of dropped calls to freed memory."""
    outcome = launch("drops_started_calls.py", 2, limit_s=100, on=on)
    assert (outcome.code, outcome.is_late) == (0, False), outcome
    assert f"kept {[True] * 6}" in outcome.out, outcome
    assert all(f"freed by rank {rank}" in outcome.out for rank in range(2)), outcome
