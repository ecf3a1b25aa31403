"""A plugin of pytest for a copy of the library without its extras: a test that needs one is skipped, and says which.

What a test needs is found when it runs: it is skipped where it fails because a module of an extra is not there, or
because a door to one is shut, in its own process or in a job that it has started. Every other failure stays a failure.
Folders of tests that belong to an extra, as `tests/autograd/compiler` belongs to `autograd.compiler`, are not
collected.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ..collectives.launch import Outcome
from .core import is_extra

_ABSENT = re.compile(
    r"No module named '([\w.]+)'|([\w.]+) is absent: the room|cannot import name '(\w+)' from '([\w.]+)'"
    r"|module '([\w.]+)' has no attribute '(\w+)'"
    r"|No such file or directory: '[^']*?/((?:autograd|collectives|parallel)/[^']+)\.py'"
)


_skipped = set[str]()  # the modules of tests that could not be imported, from which others import


def absent_extra(text: str) -> str | None:
    """The extra, or the module of tests that needs one, that a text of an error says is not there."""
    for module, shut, name, package, parent, attribute, path in _ABSENT.findall(text):
        for found in (module, shut, package and f"{package}.{name}", parent and f"{parent}.{attribute}",
                      path.replace("/", ".")):  # fmt: skip
            if found and (is_extra(found) or package in _skipped):
                return str(found)
    return None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folders of extras out."""
    parts = collection_path.relative_to(config.rootpath).with_suffix("").parts
    return True if len(parts) > 2 and parts[0] == "tests" and is_extra(".".join(parts[1:])) else None


def _told_by_jobs(call: pytest.CallInfo[Any]) -> str:
    """What the jobs have printed that a failed test knows of. The error of an assertion shortens it."""
    frames = [entry.frame.f_locals for entry in call.excinfo.traceback] if call.excinfo else []
    return "\n".join(value.err for names in frames for value in names.values() if isinstance(value, Outcome))


def _skip(report: Any, path: str, told: str = "") -> None:
    if report.failed and (extra := absent_extra(f"{report.longrepr}\n{told}")) is not None:
        report.outcome = "skipped"
        report.longrepr = (path, 0, f"Skipped: {extra} is left out")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a file whose imports need an extra."""
    report = yield
    _skip(report, collector.nodeid)
    if report.skipped:
        _skipped.add(collector.nodeid.removesuffix(".py").replace("/", "."))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Skip a test that has reached an extra."""
    report = yield
    _skip(report, item.nodeid, _told_by_jobs(call))
    return report
