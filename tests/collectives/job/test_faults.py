"""Seeded faults in a training program: the job ends in time, the report names the rank, and no process is left.

Nine run by default, with every fault, place and company among them. All 150, on MPICH and Open MPI, with a line of
progress each:

    python -m pytest -m slow tests/collectives/job/test_faults.py      or
    python -m tests.collectives.job.fault_cases
"""

from __future__ import annotations

import pytest

from ... import summary
from .fault_cases import COMPANY, COUNT, FAULTS, PLACES, Fault, drawn, run, some

pytestmark = pytest.mark.timeout(120)


def check(fault: Fault) -> None:
    outcome, problems = run(fault)
    assert problems == [], f"{fault}\n{outcome.out}\n{outcome.err}"
    summary.line("seeded faults", str(fault))


def test_every_fault_and_place_is_drawn() -> None:
    faults = drawn()
    assert len(faults) == COUNT == len(set(faults))
    assert [{f[k] for f in some(9)} for k in (1, 2, 3)] == [set(FAULTS), set(PLACES), set(COMPANY)]
    for fault in FAULTS:
        assert {f.place for f in faults if f.fault == fault} == set(PLACES)
        assert {f.company for f in faults if f.fault == fault} == set(COMPANY)
        assert {f.on for f in faults if f.fault == fault} == {"here", "openmpi"}


@pytest.mark.parametrize("fault", some(9), ids=str)
def test_fault(fault: Fault) -> None:
    check(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", drawn(), ids=str)
def test_all_faults(fault: Fault) -> None:
    check(fault)
