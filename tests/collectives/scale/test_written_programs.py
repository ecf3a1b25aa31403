"""The programs of `written_programs`: each wrong one is told, or is right in another reading; each right one passes."""

from __future__ import annotations

from typing import Any

import pytest

from ...tables import each
from .written_programs import PROGRAMS
from .written_programs.harness import Program, difference, outcome
from .written_programs.missed import MISSED

Case = tuple[str, int]
ALL: list[Case] = [(name, n) for name, row in PROGRAMS.items() for n in row.ranks]
KNOWN: list[Case] = [(name, n) for name, n in ALL if n not in MISSED.get(name, ("", ()))[1]]
# one number of ranks for each program, in turn; of those that come from crossings every second one
CROSSED = ("operands", "coincidences")
SOME = {
    (name, row.ranks[i % len(row.ranks)]) for i, (name, row) in enumerate(PROGRAMS.items())
    if i % 2 or name.split(":")[0] not in CROSSED
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


@each([case for case in KNOWN if case in SOME], subject)
def test_programs(case: Case) -> None:
    prove(PROGRAMS[case[0]], case[1])


@pytest.mark.slow
@each([case for case in KNOWN if case not in SOME], subject)
def test_all_numbers_of_ranks(case: Case) -> None:
    prove(PROGRAMS[case[0]], case[1])


def missed(name: str, n: int, why: str) -> Any:
    marks = [pytest.mark.xfail(strict=True, reason=why)] + [pytest.mark.slow] * ((name, n) not in SOME)
    return pytest.param(name, n, marks=marks, id=f"{name}, {n}")


@pytest.mark.parametrize(("name", "n"), [missed(name, n, why) for name, (why, ranks) in MISSED.items() for n in ranks])
def test_what_is_missed(name: str, n: int) -> None:
    prove(PROGRAMS[name], n)


def test_there_are_as_many_right_ones_as_wrong_ones() -> None:
    written = [row for name, row in PROGRAMS.items() if subject((name, 0)) not in CROSSED]
    assert sum(row.is_right for row in written) >= 100
    assert sum(not row.is_right for row in written) >= 100
