"""Tests of tables with hundreds of cases: one test for each group of rows.

pytest takes 1.4 ms for a test, and 3 ms where pytest-xdist runs it, which is longer than most cases of an operation.
The tests that use `each` run 16,000 cases: 48 s of processor time if each were a test, 20 s with the fixture
`subtests`. A table of up to a hundred rows is better a plain ``pytest.mark.parametrize``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import pytest

__all__ = ["each", "some"]

Case = TypeVar("Case")
Test = Callable[..., None]


def some(values: Iterable[Any], number: int) -> list[Any]:
    """The parameters of a test: the first `number` values, and the others with the mark ``slow``.

    A tuple has the values of several parameters. The others repeat what the first ones prove, such as further seeds.
    """
    found = list(values)
    rest = (value if isinstance(value, tuple) else (value,) for value in found[number:])
    return [*found[:number], *(pytest.param(*value, marks=pytest.mark.slow) for value in rest)]


def each(
    cases: Iterable[Case], group: Callable[[Case], Hashable], name: Callable[[Case], str] = str
) -> Callable[[Test], Test]:
    """Give the cases to a test as its first argument. All cases of a group are one test, and all of them run.

    Parameters
    ----------
    cases : iterable
    group : callable
        The group of a case, which names the test.
    name : callable
        The name of a case, which a failure shows.
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(str(group(case)), []).append(case)

    def decorate(test: Test) -> Test:
        first = next(iter(inspect.signature(test).parameters))

        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            failures = []
            of_group = arguments.pop(first)
            for case in of_group:
                try:
                    test(case, **arguments)
                # a skipped case would skip those after it, so it is a failure, too
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as failure:
                    failure.add_note(f"the case: {name(case)}")
                    failures.append(failure)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(of_group)} cases fail", failures)

        run.__dict__["cases_of"] = lambda group: [name(case) for case in groups[group]]  # `tests.mutants` asks
        return pytest.mark.parametrize(first, list(groups.values()), ids=list(groups))(run)

    return decorate
