"""Communicators are freed once all their ranks have dropped them, whenever each of them did; MPICH allows 2,048."""

from __future__ import annotations

import pytest

from ..launch import find_mpiexec, is_open_mpi, launch


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_dropped_meshes_are_freed(ranks: int) -> None:
    """2,400 meshes of two axes; some go late, on each rank at another time, and lanes outlive their meshes."""
    outcome = launch("many_meshes.py", ranks, "drop", limit_s=100, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    assert all(f"DROPPED on rank {rank}" in outcome.out for rank in range(ranks)), outcome


@pytest.mark.parametrize(
    "counts",
    [
        {"worlds": 8, "shared": 100, "channels": 20},
        pytest.param({"shared": 10_000}, marks=pytest.mark.slow),
        pytest.param({"channels": 2_500}, marks=pytest.mark.slow),
        pytest.param({"worlds": 2_500}, marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
@pytest.mark.timeout(600)
def test_loops_leave_nothing_behind(counts: dict[str, int]) -> None:
    """Worlds, shared memory and channels that a loop makes and drops: what a rank holds stays bounded."""
    loops = [f"{what}={count}" for what, count in counts.items()]
    outcome = launch("many_meshes.py", 2, *loops, limit_s=500, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    assert all(f"{what.upper()} on rank {rank}" in outcome.out for rank in range(2) for what in counts), outcome


def test_too_many_at_a_time_is_an_error_with_a_name() -> None:
    if is_open_mpi(find_mpiexec()):
        pytest.skip("Open MPI has room for more communicators than a test should make")
    outcome = launch("many_meshes.py", 2, "keep", limit_s=100, OPENBLAS_NUM_THREADS="1")
    assert outcome.code == 0 and not outcome.is_late, outcome
    assert all(f"on rank {rank}" in outcome.out for rank in range(2)), outcome
