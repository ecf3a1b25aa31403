"""The cases of `test_registry` on real processes: one mpiexec run for each world size, every call checked.

By default these worlds run every so many cases of each pair of layouts only, as ranks that share a core are slow, and
`test_registry` runs all cases on threads; ``pytest -m slow`` runs all of them. See `launch` for the launchers.
"""

from __future__ import annotations

import re

import pytest

from ... import summary
from ..launch import can_make_hosts, find_mpiexec, launch

NAMES = {"here": "mpiexec", "openmpi": "Open MPI", "hosts": "two hosts"}
SLOW = pytest.mark.slow


def run_world(on: str, ranks: int, every: int, limit_s: float) -> None:
    outcome = launch(
        "registry_program.py", ranks, str(every), limit_s=limit_s, on=on, RINGTAPE_CHECK="always",
        OPENBLAS_NUM_THREADS="1",
    )  # fmt: skip
    shown = f"{outcome.out}\n{outcome.err}"
    assert not outcome.is_late, f"killed after {limit_s} s\n{shown}"
    found = re.search(r"REGISTRY (\d+) of (\d+) cases on (\d) ranks of (\d) hosts, 0 failures", outcome.out)
    assert found is not None and int(found[3]) == ranks and int(found[4]) == (2 if on == "hosts" else 1), shown
    assert outcome.code == 0, shown
    summary.count(f"registry under {NAMES[on]}, cases", f"(of {found[2]}) on {ranks} ranks", int(found[1]))


@pytest.mark.parametrize(("ranks", "every"), [(1, 1), (3, 10)])
def test_world(ranks: int, every: int) -> None:
    run_world("here", ranks, every, 110)


@pytest.mark.parametrize(("ranks", "every"), [(2, 100), (3, 100)])
def test_world_on_open_mpi(ranks: int, every: int) -> None:
    run_world("openmpi", ranks, every, 110)


@SLOW
def test_world_of_two_axes() -> None:
    """4 ranks on two hosts, or here if this machine cannot make hosts."""
    find_mpiexec()
    run_world("here" if can_make_hosts() else "hosts", 4, 400, 110)


@SLOW
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("on", "ranks"), [("here", 2), ("here", 3), ("here", 4), ("here", 6), ("openmpi", 2), ("openmpi", 3), ("hosts", 4)]
)
def test_whole_world(on: str, ranks: int) -> None:
    run_world(on, ranks, 1, 600)
