"""Print at the end of the run how many cases the registry's tests ran and skipped."""

from __future__ import annotations

from typing import Any

from . import ledger


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for line in ledger.lines():
        terminalreporter.write_line(line)
