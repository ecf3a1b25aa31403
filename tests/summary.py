"""Counts and lines that tests report, printed at the end of the run.

With pytest-xdist the tests run in several processes, whose output is not shown. Each sends what its tests reported to
the controlling process when it ends, and that one adds the counts, joins the lines, and prints them. `conftest.py` has
the hooks.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_counts: dict[str, Counter[str]] = {}
_distinct: dict[str, set[str]] = {}
_lines: dict[str, list[str]] = {}


def count(section: str, key: str, number: int = 1) -> None:
    """Add to a count of a section, which is printed in one line: ``section: 3 key, 5 other key``."""
    _counts.setdefault(section, Counter())[key] += number


def distinct(section: str, name: str) -> None:
    """Note a name; the section's line tells how many different ones there were."""
    _distinct.setdefault(section, set()).add(name)


def line(section: str, text: str) -> None:
    """Add a text, of one line or several, to a section. Sections with lines are shown in full with ``pytest -v``."""
    _lines.setdefault(section, []).append(text)


def as_data() -> dict[str, Any]:
    """All that was reported in this process, of types that can be sent to another one."""
    return {"counts": {section: dict(counts) for section, counts in _counts.items()},
            "distinct": {section: sorted(names) for section, names in _distinct.items()},
            "lines": _lines}  # fmt: skip


def add(data: dict[str, Any]) -> None:
    """Add what another process reported."""
    for section, counts in data["counts"].items():
        for key, number in counts.items():
            count(section, key, number)
    for section, names in data["distinct"].items():
        for name in names:
            distinct(section, name)
    for section, texts in data["lines"].items():
        for text in texts:
            line(section, text)


def text(is_verbose: bool) -> Iterator[str]:
    """The lines to print. Their order does not depend on the order of the tests."""
    for section in sorted({*_counts, *_distinct, *_lines}, key=_natural):
        if section in _distinct:
            yield f"{section}: {len(_distinct[section])}"
        if section in _counts:
            counts = _counts[section]
            yield f"{section}: " + ", ".join(f"{counts[key]} {key}" for key in sorted(counts, key=_natural))
        lines = _lines.get(section, [])
        if is_verbose:
            yield from (f"{section}: {text}" for text in sorted(lines, key=_natural))
        elif lines:
            yield f"{section}: {len(lines)} lines (shown with -v)"


def skips(reasons: Iterable[str]) -> Iterator[str]:
    """How many tests were skipped for each reason."""
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    for reason, number in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
        yield f"{number} skipped: {reason}"


def processor_time() -> str:
    """The processor time of all processes so far, beside that of a fixed loop: machines differ by two, and vary."""
    if resource is None:
        return "processor time: not known on this system"
    loops = [_loop() for _ in range(5)]
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"processor time: {used:.0f} s, {used / min(loops):.0f} times a loop of a million additions"


def _loop() -> float:
    start, total = time.process_time(), 0
    for n in range(1_000_000):
        total += n
    return time.process_time() - start


def _natural(key: str) -> list[tuple[int, str]]:
    """Sort "2 ranks" before "10 ranks"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", key) if part]
