"""Every call of the MPI transport against numpy, on 1 to 4 ranks."""

from __future__ import annotations

import re

import pytest

from ..launch import launch


def run_calls(ranks: int, *which: str) -> None:
    outcome = launch("calls.py", ranks, *which, limit_s=100)
    assert not outcome.is_late, outcome.err
    assert (outcome.code, outcome.err) == (0, "")
    match = re.search(r"(\d+) cases on (\d) ranks", outcome.out)
    assert match is not None
    assert int(match[2]) == ranks
    assert int(match[1]) > (2200 if which else 1500) * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_calls(ranks: int) -> None:
    run_calls(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_all_dtypes_in_subgroups(ranks: int) -> None:
    run_calls(ranks, "all")


@pytest.mark.parametrize("ranks", [1, 3])
def test_misuse(ranks: int) -> None:
    outcome = launch("misuse.py", ranks, limit_s=60)
    assert (outcome.code, outcome.err, outcome.is_late) == (0, "", False)
    assert outcome.out.strip().endswith("refused")
