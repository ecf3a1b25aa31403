"""Tests of thousands of cases, run in groups, because pytest takes longer for a test than most of these cases do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")
Test = Callable[..., None]


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
        def run(group_of_cases: str, **fixtures: Any) -> None:
            failures = []
            for case in groups[group_of_cases]:
                try:
                    test(case, **fixtures)
                # a skipped case would skip those after it, so it is a failure, too
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as failure:
                    failure.add_note(f"the case: {name(case)}")
                    failures.append(failure)
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(groups[group_of_cases])} cases fail", failures)

        fixtures = list(inspect.signature(test).parameters.values())[1:]
        group_parameter = inspect.Parameter("group_of_cases", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        run.__signature__ = inspect.Signature([group_parameter, *fixtures])
        return pytest.mark.parametrize("group_of_cases", groups)(run)

    return decorate


def in_groups(by: str | Callable[..., Hashable] = lambda **_: "all") -> Callable[[Test], Test]:
    """Run the cases that a test's ``pytest.mark.parametrize`` gives, which stands below this decorator, as `each` does.

    The lists of cases must be complete already; pytest itself reads them later.

    Parameters
    ----------
    by : str or callable
        The parameter whose value is the group, or a function of all parameters, by name. By default there is one group.
    """

    def group(numbered: tuple[int, dict[str, Any]]) -> Hashable:
        return numbered[1][by] if isinstance(by, str) else by(**numbered[1])

    def name(numbered: tuple[int, dict[str, Any]]) -> str:
        values = (f"{word}={getattr(value, '__name__', value)}" for word, value in numbered[1].items())
        return f"number {numbered[0]}, {', '.join(values)}"

    def decorate(test: Test) -> Test:
        others = [mark for mark in test.pytestmark if mark.name != "parametrize"]
        cases: list[dict[str, Any]] = [{}]
        for words, values in (mark.args for mark in test.pytestmark if mark not in others):
            names = words.replace(" ", "").split(",") if isinstance(words, str) else list(words)
            rows = [dict(zip(names, value if len(names) > 1 else [value], strict=True)) for value in values]
            cases = [case | row for case in cases for row in rows]

        def run(numbered: tuple[int, dict[str, Any]], **fixtures: Any) -> None:
            test(**numbered[1], **fixtures)

        first = next(iter(inspect.signature(run).parameters.values()))
        fixtures = [p for p in inspect.signature(test).parameters.values() if p.name not in cases[0]]
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        run.__signature__ = inspect.Signature([first, *fixtures])
        grouped = each(enumerate(cases), group, name)(run)
        grouped.pytestmark = [*others, *grouped.pytestmark]
        return grouped

    return decorate
