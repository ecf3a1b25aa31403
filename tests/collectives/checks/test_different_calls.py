"""Ranks that make different calls after 2,000 equal ones: the job ends in every check mode and names both places."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from ... import summary
from ..launch import launch, program_path

pytestmark = pytest.mark.timeout(110)

SOURCE = Path(program_path("different_calls.py")).read_text().splitlines()
KINDS = [line[4:-3] for line in SOURCE if line.startswith("def ")]
MODES = ("off", "first", "always", "ranks")
MOST_S = 10.0


def lines(kind: str) -> tuple[int, int]:
    """The lines of the two calls of a kind: that of the last rank, and that of the others."""
    start = SOURCE.index(f"def {kind}():")
    body = [n for n in range(start, start + 8) if re.match(r" +return ", SOURCE[n])][:2]
    return body[0] + 1, body[1] + 1


def check(kind: str, mode: str, ranks: int, on: str) -> float:
    outcome = launch("different_calls.py", ranks, kind, mode, limit_s=100, on=on, OPENBLAS_NUM_THREADS="1")
    end = time.time()
    shown = f"{kind} {mode}\n{outcome.out}\n{outcome.err}"
    assert not outcome.is_late, shown
    assert outcome.code != 0, shown
    assert "CollectiveMismatch" in outcome.err, shown
    for line in lines(kind):
        assert f"at different_calls.py:{line}" in outcome.err, shown
    assert "was killed" not in outcome.err, shown
    seconds = end - max(map(float, re.findall(r"AT (\d+\.\d+)", outcome.out)))
    assert seconds < MOST_S, shown
    return seconds


@pytest.mark.parametrize(("kind", "mode"), [("broadcast", "first"), ("dtype", "off"), ("length", "first")])
def test_different_calls_end_the_job(kind: str, mode: str) -> None:
    seconds = check(kind, mode, 2, "here")
    summary.line("different calls", f"{kind} in mode {mode!r}: ended after {seconds:.1f} s")


def test_equal_calls_with_operands_of_different_shapes() -> None:
    outcome = launch("equal_calls.py", 3, "first", "off", limit_s=100, OPENBLAS_NUM_THREADS="1")
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert all(outcome.out.count(f"done in mode {mode}") == 3 for mode in ("first", "off")), outcome


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("on", ["here", "openmpi"])
@pytest.mark.parametrize("mode", MODES)
def test_every_kind_in_every_mode(mode: str, on: str) -> None:
    """17 kinds in 4 modes: ``pytest -m slow tests/collectives/checks/test_different_calls.py``."""
    assert len(KINDS) == 17
    slowest = max(check(kind, mode, 3 if i % 3 == 0 else 2, on) for i, kind in enumerate(KINDS))
    summary.line("different calls", f"{len(KINDS)} kinds in mode {mode!r} ({on}): ended within {slowest:.1f} s")
