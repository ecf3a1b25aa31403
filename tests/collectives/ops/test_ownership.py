"""A collective that moves data owns its result, and a cast is a view of its operand, on any number of ranks."""

from __future__ import annotations

import pytest

import collectives as cc
from collectives.declaration.collective import collectives
from collectives.declaration.prepared import copied, itself

from ..launch import launch_command
from .ownership_cases import check_all


@pytest.mark.filterwarnings("ignore::autograd.errors.ReplicaWarning")
@pytest.mark.parametrize(("ranks", "every"), [(1, 1), (2, 8), (3, 6), *(
    pytest.param(n, 1, marks=pytest.mark.slow) for n in (2, 3, 4))])  # fmt: skip
def test_threads(ranks: int, every: int) -> None:
    cc.run(lambda: check_all(every), ranks)


@pytest.mark.parametrize(("on", "ranks", "every"), [("here", 1, 4), ("here", 3, 12), *(
    pytest.param(on, n, 1, marks=pytest.mark.slow) for on in ("here", "openmpi") for n in (2, 3))])  # fmt: skip
def test_mpi(on: str, ranks: int, every: int) -> None:
    found = launch_command(["-m", "tests.collectives.ops.ownership_cases", str(every)], ranks, limit_s=200, on=on)
    assert found.code == 0, found.out + found.err
    assert found.out.count("owned") == ranks


def test_a_planted_shortcut_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank, the operand in the place of a copy of it."""
    for collective in collectives.values():
        if collective.alone is copied:
            monkeypatch.setattr(collective, "alone", itself)
    with pytest.raises(AssertionError, match=r"all_reduce V->R .*: the result shares memory with x"):
        cc.run(check_all, 1)
