"""Ranks that disagree about shared memory are told so: making, filling and freeing it are collective calls."""

from __future__ import annotations

import re

import pytest

import autograd as ag
import collectives as cc
from collectives import shared_arrays

from ..launch import launch

CASES = ("empty", "empty later", "along", "algorithm", "algorithm later", "using", "close", "trim", "dtype", "order")


@pytest.mark.parametrize("mode", ["first", pytest.param("ranks", marks=pytest.mark.slow)])
def test_every_rank_is_told(mode: str) -> None:
    outcome = launch("shared_disagrees.py", 3, limit_s=100, RINGTAPE_CHECK=mode)
    assert (outcome.code, outcome.is_late) == (0, False), outcome
    assert re.findall(r"WENT ON.*", outcome.out) == []
    for name in CASES:
        assert outcome.out.count(f"TOLD <{name}>") == 3, (name, outcome.out)


@pytest.mark.parametrize(
    ("mode", "case"),
    [
        ("off", "empty"),
        ("off", "close"),
        *[
            pytest.param(mode, case, marks=pytest.mark.slow)
            for mode in ("off",)
            for case in CASES
            if case not in ("dtype", "trim") and (mode, case) not in (("off", "empty"), ("off", "close"))
        ],
    ],
)
def test_without_comparison_the_deadlock_is_found(mode: str, case: str) -> None:
    """The monitors see every wait, or different calls in the ranks' histories.

    `dtype` and `trim` are no deadlock, because the same calls of MPI meet there.
    """
    outcome = launch("shared_disagrees.py", 3, case, limit_s=60, RINGTAPE_CHECK=mode)
    assert not outcome.is_late and outcome.code != 0, outcome
    assert "WENT ON" not in outcome.out
    found = r"deadlock: no rank can continue|CollectiveMismatch: rank 1 did not make the call of the other ranks"
    assert re.search(found, outcome.err), outcome.err
    assert re.search(r"rank 1(: | waits in ).*\s+at .*shared_disagrees.py:\d+", outcome.err), outcome.err


@pytest.mark.parametrize("odd", ["empty", "trim", "close", "using"])
def test_on_threads(odd: str) -> None:
    """Threads have no windows, and compare the calls all the same."""

    def program() -> None:
        with cc.Mesh(dp=3) as mesh:
            memory = mesh.axis("dp").using("shared") if odd in ("trim", "close") else None
            if cc.world().rank == 1:
                if odd == "empty":
                    shared_arrays.empty(4, "float64", "dp")
                elif odd == "using":
                    mesh.axis("dp").using("shared")
                else:
                    getattr(memory, odd)()
            else:
                cc.all_reduce(ag.tensor([1.0]), "dp")

    with pytest.raises(cc.CollectiveMismatch, match="rank 1 did not make the call of the other ranks"):
        cc.run(program, 3)
