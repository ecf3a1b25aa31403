"""The programs of `written_programs`: each wrong one is told, or is right in another reading; each right one passes."""

from __future__ import annotations

import pytest

from ...tables import each
from .written_programs import PROGRAMS
from .written_programs.harness import Program, difference, outcome

Case = tuple[str, int]
ALL: list[Case] = [(name, n) for name, row in PROGRAMS.items() for n in row.ranks]
# one number of ranks for each program, in turn; of those that come from crossings every fourth one
CROSSED = ("operands", "coincidences")
SOME = {
    (name, row.ranks[i % len(row.ranks)]) for i, (name, row) in enumerate(PROGRAMS.items())
    if i % 4 == 1 or name.split(":")[0] not in CROSSED
}  # fmt: skip


def subject(case: Case) -> str:
    return case[0].split(":")[0]


def prove(row: Program, n: int) -> None:
    """What is told of a program, and that it is right or wrong."""
    if row.is_right:
        told, found = outcome(row, n, "error")
        assert told == []
        assert found is not None and difference(row.serial, n, found) < 1e-9
        return
    told, found = outcome(row, n)
    if found is None:
        _, found = outcome(row, n, "off")
    assert found is None or difference(row.serial, n, found) > 1e-6
    if row.reason(n):
        assert told == [] and found is not None and row.reading is not None
        assert difference(row.reading.serial, n, found) < 1e-9
    else:
        assert told != []


@each([case for case in ALL if case in SOME], subject)
def test_programs(case: Case) -> None:
    prove(PROGRAMS[case[0]], case[1])


@pytest.mark.slow
@each([case for case in ALL if case not in SOME], subject)
def test_all_numbers_of_ranks(case: Case) -> None:
    prove(PROGRAMS[case[0]], case[1])


def test_there_are_as_many_right_ones_as_wrong_ones() -> None:
    written = [row for name, row in PROGRAMS.items() if subject((name, 0)) not in CROSSED]
    assert sum(row.is_right for row in written) >= 100
    assert sum(not row.is_right for row in written) >= 100
