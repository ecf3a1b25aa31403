"""The verdicts about scale over MPI are those of the tables on threads, and an error is raised on all ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ..launch import launch_command
from .mpi_programs import NAMES


def over_mpi(n: int) -> list[Any]:
    found = launch_command(["-m", "tests.collectives.scale.mpi_programs"], n, limit_s=100)
    assert found.code == 0 and not found.is_late, found.out + found.err
    lines = sorted(line for line in found.out.splitlines() if line.startswith("rank "))
    assert len(lines) == n, found.out
    return [json.loads(line.split(" ", 2)[2]) for line in lines]


@pytest.mark.parametrize("n", [2, 3])
def test_the_same_verdicts(n: int) -> None:
    ranks = over_mpi(n)
    for name in NAMES:
        errors = {rank[name][0] for rank in ranks}
        assert errors == ({"ScaleError"} if name.startswith("wrong") else {""}), f"{name}: {errors}"
        told = {rank[name][1] for rank in ranks}
        assert name.startswith("wrong") or told == {""}, f"{name}: {told}"
        assert name.startswith("right") or any("Scale" in text for text in told), f"{name}: {told}"
