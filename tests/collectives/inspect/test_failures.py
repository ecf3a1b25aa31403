"""Failures of jobs over MPI: their replay has the same bits until the failure, and names the operation and the rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from .failures import FAULTS, Verdict, case_of, judged

QUICK = (9, 10, 16, 18, 22)  # each fault once, and both kinds of records


def test_the_cases_differ() -> None:
    cases = [case_of(seed) for seed in range(100)]
    assert [sum(case.fault == fault for case in cases) for fault in FAULTS] == [20] * 5
    assert {case.ranks for case in cases} == {2, 3} and {case.has_data for case in cases} == {True, False}
    assert {case_of(seed).fault for seed in QUICK} == set(FAULTS) and len({case_of(k).has_data for k in QUICK}) == 2


@pytest.mark.parametrize("seed", QUICK)
def test_a_failure_is_replayed_and_named(seed: int, tmp_path: Path) -> None:
    found = judged(case_of(seed), tmp_path)
    assert found.is_bitwise and found.is_named, found.output


def test_a_job_that_does_not_fail_is_not_named(tmp_path: Path) -> None:
    """The planted fault of the test above: the fault is nowhere."""
    found = judged(case_of(4)._replace(place="nowhere"), tmp_path)
    assert found.is_bitwise and not found.is_named


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_95_of_100_are_named(tmp_path: Path) -> None:
    found = [judged(case_of(seed), tmp_path / str(seed)) for seed in range(100)]
    assert all(each.is_bitwise for each in found), _first(found)
    assert sum(each.is_named for each in found) >= 95, _first(found)


def _first(found: list[Verdict]) -> str:
    """The output of the first one that is not right."""
    return next((each.output for each in found if not (each.is_bitwise and each.is_named)), "")
