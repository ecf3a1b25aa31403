"""A hundred programs in which one rank goes wrong: all ranks are told who, what and where, and nothing hangs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import collectives as cc
from collectives.checks import modes

from ... import summary
from ..launch import launch
from . import mismatch_programs as programs

pytestmark = pytest.mark.timeout(110)


@pytest.fixture(autouse=True)
def ranks_mode() -> Iterator[None]:
    mode = modes.check_mode()
    cc.check("ranks", timeout_s=60.0)
    yield
    cc.check(mode)


def on_threads(program: programs.Program, sizes: dict[str, int], other_axis: Any) -> list[programs.Outcome]:
    def body() -> programs.Outcome:
        with cc.Mesh(**sizes) as mesh:
            return programs.perform(program, mesh, other_axis)

    return cc.run(body, sizes["a"] * sizes["b"])


@pytest.mark.parametrize("kind", programs.KINDS)
def test_every_rank_is_told_on_threads(kind: str) -> None:
    """Each seed on 3 ranks, where the wrong axis is another channel of the same ranks."""
    told, slowest = 0, 0.0
    for seed in programs.SEEDS:
        program = programs.draw(seed, 3)
        if program.kind == kind:
            assert not any(o.error for o in on_threads(program._replace(kind=""), {"a": 3, "b": 1}, ("a", "b")))
            outcomes = on_threads(program, {"a": 3, "b": 1}, ("a", "b"))
            assert programs.faults(program, outcomes) == []
            told, slowest = told + 1, max(slowest, programs.seconds_to_tell(outcomes))
    assert told == len(programs.SEEDS) // len(programs.KINDS)
    summary.line("mismatches on threads", f"{kind} {told}, told {slowest:.3f} s after the last arrival")


@pytest.mark.parametrize("seed", [seed for seed in programs.SEEDS if programs.KINDS[seed % 10] == "axis"])
def test_a_wrong_axis_of_a_2_x_2_mesh(seed: int) -> None:
    program = programs.draw(seed, 4)
    outcomes = on_threads(program, {"a": 2, "b": 2}, "b")
    assert all(o.error in ("DeadlockError", "CollectiveMismatch") for o in outcomes), outcomes
    assert any(f"rank {program.odd}" in o.text for o in outcomes)


def check_job(seeds: list[int], limit_s: float) -> str:
    outcome = launch("mismatches.py", 3, *map(str, seeds), limit_s=limit_s, OPENBLAS_NUM_THREADS="1")
    shown = f"{outcome.out}\n{outcome.err}"
    assert not outcome.is_late, f"killed after {limit_s} s\n{shown}"
    assert "FAULT" not in outcome.out, shown
    found = re.search(r"^REPORTED (\d+) .*", outcome.out, re.MULTILINE)
    assert found is not None and int(found[1]) == len(seeds), shown
    assert outcome.code == 0, shown
    return found[0]


def test_every_rank_is_told_over_mpi() -> None:
    """One seed of every kind, in one job."""
    text = check_job(list(range(10)), 100.0)
    summary.line("mismatches under mpiexec", text)


@pytest.mark.slow
def test_all_hundred_over_mpi() -> None:
    text = check_job(list(programs.SEEDS), 110.0)
    summary.line("mismatches under mpiexec", text)
