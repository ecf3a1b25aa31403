"""Tables of cases: none is left out, and each that fails is named."""

from __future__ import annotations

from typing import Any

import pytest

from ..tables import each


def run_of(test: Any, group: str) -> None:
    (mark,) = test.pytestmark
    test(n=mark.args[1][mark.kwargs["ids"].index(group)])


def test_all_cases_run_and_each_failure_is_named() -> None:
    ran = []

    @each(range(6), lambda n: n % 2, lambda n: f"number {n}")
    def check(n: int) -> None:
        ran.append(n)
        if n == 5:
            pytest.skip("for the test")
        assert n not in (1, 2)

    with pytest.raises(AssertionError) as one:
        run_of(check, "0")
    assert one.value.__notes__ == ["the case: number 2"] and ran == [0, 2, 4]
    with pytest.raises(BaseExceptionGroup, match="2 of 3 cases fail") as several:
        run_of(check, "1")
    assert [error.__notes__ for error in several.value.exceptions] == [["the case: number 1"], ["the case: number 5"]]
    assert ran == [0, 2, 4, 1, 3, 5]
