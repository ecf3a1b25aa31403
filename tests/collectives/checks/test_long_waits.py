"""Ranks that stop, sleep or loop are reported while the job goes on; idle and working threads hide no deadlock."""

from __future__ import annotations

import re

import pytest

from ..launch import Outcome, launch

pytestmark = pytest.mark.timeout(110)


def waits(how: str, ranks: int = 3, **environment: str) -> Outcome:
    outcome = launch("long_waits.py", ranks, how, limit_s=100, OPENBLAS_NUM_THREADS="1", **environment)
    assert not outcome.is_late, f"{how}\n{outcome.out}\n{outcome.err}"
    return outcome


def test_a_rank_that_sleeps_is_reported_and_the_job_goes_on() -> None:
    outcome = waits("sleeps", RINGTAPE_REPORT_S="2")
    assert outcome.code == 0 and outcome.out.count("WENT ON") == 3, outcome
    (report,) = re.findall(r"^ringtape: .*\n(?:  .*\n)*", outcome.err, re.MULTILINE)
    assert re.match(r"ringtape: rank [01] has waited for \d+ s; the job goes on", report)
    assert re.search(r"rank 2 computes at long_waits.py:\d+ \(its last call was \d+ s ago\)", report)
    for rank in (0, 1):
        assert re.search(
            rf"rank {rank} waits in barrier #1 on 'world' for rank 2 at long_waits.py:\d+, for \d+ s", report
        )


@pytest.mark.parametrize(("how", "culprit", "limit_s"), [("stops", 2, 6), ("first_stops", 0, 9)])
def test_a_stopped_rank_is_reported_and_the_limit_ends_the_job(how: str, culprit: int, limit_s: int) -> None:
    """Also if it is the rank that collects the states of the others, which another one then does 3 s later."""
    outcome = waits(how, RINGTAPE_REPORT_S="1", RINGTAPE_TIMEOUT_S=str(limit_s))
    assert outcome.code != 0
    assert re.search(r"^ringtape: rank \d has waited for \d+ s; the job goes on", outcome.err, re.MULTILINE), (
        outcome.err
    )
    assert re.search(rf"^ringtape: rank \d has waited for {limit_s} s \(RINGTAPE_TIMEOUT_S\)", outcome.err, re.M)
    assert outcome.err.count(f"rank {culprit} does not reply") >= 2, outcome.err


@pytest.mark.slow
def test_a_rank_that_loops_is_reported() -> None:
    outcome = waits("loops", RINGTAPE_REPORT_S="1")
    assert outcome.code == 0 and outcome.out.count("WENT ON") == 3, outcome
    assert re.search(r"rank 2 computes at long_waits.py:\d+ \(its last call was \d+ s ago\)", outcome.err), outcome.err


def test_an_idle_pool_of_threads_hides_no_deadlock() -> None:
    outcome = waits("idle_pool")
    assert outcome.code != 0
    assert "ringtape: deadlock: no rank can continue" in outcome.err, outcome.err


@pytest.mark.slow
def test_a_working_thread_that_never_communicates_hides_no_deadlock() -> None:
    outcome = waits("working_pool", 2)
    assert outcome.code != 0
    assert "ringtape: deadlock: no rank can continue" in outcome.err, outcome.err


@pytest.mark.parametrize("how", ["pool_that_sends", pytest.param("woken_by_a_thread", marks=pytest.mark.slow)])
def test_threads_that_will_communicate_are_no_deadlock(how: str) -> None:
    outcome = waits(how)
    assert outcome.code == 0 and outcome.out.count("WENT ON") == 3, outcome
