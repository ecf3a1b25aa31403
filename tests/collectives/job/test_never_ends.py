"""A rank that is late or never ends: reported, and ended at the limit, wherever it is from its import to its exit."""

from __future__ import annotations

import re
import time

import pytest

from ... import summary
from ..launch import launch

pytestmark = pytest.mark.timeout(100)

LIMIT_S, REPORT_S, MOST_S = 3, 1, 20.0
PROCESS = r"its process \(pid \d+\)"
AT = r"it is at never_ends.py:\d+"
LATE = {
    "import": ("make a world", "rank 2 has not imported collectives"),
    "before the world": ("make a world", f"rank 2 has not come so far: {PROCESS} sleeps .* import collectives"),
    "spins before the world": ("make a world", f"{PROCESS} (runs|sleeps)"),
    "stopped": ("make a world", f"{PROCESS} is stopped"),
    "before the end of a world": ("close their world", AT),
    "spins before the end of a world": ("close their world", AT),
    "in the second world": ("close their world", AT),
    "between two worlds": ("make a world", rf"{PROCESS} sleeps .* its last step: close their world, at never_ends"),
    "handler": ("end their programs", f"{PROCESS} sleeps .* its last step: close their world"),
    "handler, open world": ("end their programs", AT),
    "thread": ("end their programs", f"{PROCESS} sleeps"),
    "thread, open world": ("end their programs", r"waits for thread '.*' at never_ends.py:\d+"),
    "first handler": ("end their programs", f"rank 2 has left its world: {PROCESS} sleeps"),
}
"""The places where the last rank stays: what the others wait to do, and what is said of that rank."""
MONITORED = ("in the world",)
"""Places where the monitors see it."""


def check_late(where: str, on: str = "here", forked: bool = True) -> None:
    limits = {"RINGTAPE_TIMEOUT_S": str(LIMIT_S), "RINGTAPE_REPORT_S": str(REPORT_S)}
    start = time.monotonic()
    outcome = launch("never_ends.py", 3, where, limit_s=60, on=on, forked=forked, **limits)
    shown = f"{where}\n{outcome.out}\n{outcome.err}"
    assert not outcome.is_late and outcome.code != 0 and time.monotonic() - start < MOST_S, shown
    assert "the job goes on (RINGTAPE_TIMEOUT_S limits waits)" in outcome.err, shown
    if where in MONITORED:
        assert f"has waited for {LIMIT_S} s (RINGTAPE_TIMEOUT_S)" in outcome.err, shown
        assert "rank 2 computes at never_ends.py:" in outcome.err, shown
        return
    what, text = LATE[where]
    ended = f"has waited for {LIMIT_S} s (RINGTAPE_TIMEOUT_S) for the other ranks to {what}; the job ends"
    assert ended in outcome.err, shown
    assert re.search(text, outcome.err.rpartition(ended)[2]), shown
    assert "was killed" not in outcome.err, shown


@pytest.mark.parametrize("where", ["before the world", "thread, open world"])
def test_a_rank_that_is_late(where: str) -> None:
    check_late(where)


def test_a_stopped_supervisor_keeps_nobody() -> None:
    """A job that ends well does, and a rank that is killed is still named, whoever has stopped the supervisor."""
    for where, says in (("stopped supervisor", ""), ("stopped supervisor, killed rank", "rank 2 of 3 .* was killed")):
        outcome = launch("never_ends.py", 3, where, limit_s=30)
        assert not outcome.is_late and (outcome.code == 0) == (not says), outcome
        assert re.search(says, outcome.err) if says else not outcome.err, outcome


def test_a_job_that_ends_in_time_is_not_reported() -> None:
    outcome = launch("never_ends.py", 3, "one world", limit_s=60, RINGTAPE_REPORT_S="30", RINGTAPE_TIMEOUT_S="30")
    assert (outcome.code, outcome.err, outcome.out.count("END")) == (0, "", 3), outcome


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_every_place(on: str) -> None:
    """14 jobs: ``pytest -m slow tests/collectives/job/test_never_ends.py``."""
    for where in (*LATE, *MONITORED):
        check_late(where, on, forked=False)
    summary.line("jobs that never end", f"{len(LATE) + len(MONITORED)} jobs ({on}): reported, and ended at the limit")
