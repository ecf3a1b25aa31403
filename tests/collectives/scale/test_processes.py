"""The tables of scale over MPI, where each rank decides by what it has received."""

from __future__ import annotations

import re

import pytest

from ..launch import launch


@pytest.mark.parametrize(("on", "ranks"), [("here", 2), ("here", 3), ("openmpi", 3)])
def test_the_tables_over_mpi(on: str, ranks: int) -> None:
    done = launch("scale_program.py", ranks, limit_s=120, on=on)
    found = re.search(r"SCALE (\d+) right, (\d+) wrong", done.out)
    assert done.code == 0 and found is not None, done.out + done.err
    assert int(found[1]) > 60 and int(found[2]) > 50
