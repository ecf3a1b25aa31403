"""Differences that begin after 2,000 calls are told within seconds; lines that depend on the rank are not.

The kinds are the functions of ``programs/late_differences.py``: numbers, the order of equal calls, and other calls.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

import collectives as cc
from collectives.checks import modes
from collectives.checks.sampling import BLOCK, LENGTH, Sampling
from collectives.transports.threads import rendezvous

from ... import summary
from ..launch import launch
from .programs import late_differences as program

pytestmark = [pytest.mark.timeout(110), pytest.mark.filterwarnings("ignore::autograd.errors.ReplicaWarning")]

COMPARING = ("first", "always", "ranks")
LEGAL = [step.__name__ for step in program.LEGAL]
CALLS = [step.__name__ for step in program.CALLS]
LEFT_OUT = {
    "first/native/2": ("on_a_tape", "casts", "while_training"),  # a loss needs labels on one axis only
    "first/ring": ("started", "other_start", "started_by_branch"),  # only the native algorithm can be started
    "first/shared": ("started", "other_start", "started_by_branch"),
}
OTHER_ORDER = "make two equal calls in different order"
OTHER_CALLS = "did not make the call|different calls|needed: the same call"
OTHERS = "plain numbers|constants|copies|objectives"
FOUND = {
    **{step.__name__: ("ReplicaMismatch", f"the ({OTHERS}) of rank") for step in program.NUMBERS},
    **{step.__name__: ("CollectiveMismatch", f"{OTHER_ORDER}|the same call at the line") for step in program.ORDER},
    **{step.__name__: ("CollectiveMismatch", OTHER_CALLS) for step in program.CALLS},
}
MOST_S = 10.0


@pytest.fixture(autouse=True)
def mode_as_before() -> Iterator[None]:
    mode = modes.check_mode()
    yield
    cc.check(mode)


def on_threads(kind: str, mode: str, ranks: int = 3) -> None:
    cc.check(mode, sites=mode != "ranks" or kind in program.WRONG)
    if kind in LEGAL:
        assert cc.run(lambda: program.main(kind), ranks) == ["NOT TOLD"] * ranks
        return
    error, text = FOUND[kind]
    with pytest.raises(getattr(cc, error), match=text):
        cc.run(lambda: program.main(kind), ranks)


def over_mpi(kind: str, how: str, ranks: int, on: str) -> float:
    """Run a wrong kind, and return after how many seconds it was told."""
    outcome = launch("late_differences.py", ranks, how, kind, limit_s=100, on=on, OPENBLAS_NUM_THREADS="1")
    end, shown = time.time(), f"{kind} {how}\n{outcome.out}\n{outcome.err}"
    error, text = FOUND[kind]
    if how == "off" and kind not in CALLS:  # it is reported, and the program goes on to its end
        assert (outcome.code, outcome.out.count("NOT TOLD")) == (0, ranks), shown
        assert outcome.err.count("ringtape: ") == 1 and re.search(text, outcome.err), shown
        assert "late_differences.py" in outcome.err, shown
        (reported,) = map(float, re.findall(r"REPORTED (\d+\.\d+)", outcome.out))
        seconds = reported - max(map(float, re.findall(r"AT (\d+\.\d+)", outcome.out)))
        assert seconds < MOST_S, shown
        return seconds
    assert not outcome.is_late and outcome.code != 0 and "NOT TOLD" not in outcome.out, shown
    # Messages and shared memory compare calls, too, and may be faster; of very fast calls the places are not kept.
    has_own = how in ("first/ring", "first/shared") and kind in CALLS
    is_own = has_own and re.search("elements arrived; needed|needed: the same call", outcome.err)
    assert is_own or (error in outcome.err and re.search(text, outcome.err)), shown
    assert "late_differences.py" in outcome.err or "no longer kept" in outcome.err, shown
    assert "was killed" not in outcome.err, shown
    seconds = end - max(map(float, re.findall(r"AT (\d+\.\d+)", outcome.out)))
    assert seconds < MOST_S, shown
    return seconds


@pytest.mark.parametrize("kind", ["factor", "two_sums", "one_helper", "started", *LEGAL[:6]])
def test_on_threads(kind: str) -> None:
    on_threads(kind, "first")


def reports_on_threads(kind: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a kind in mode ``off``, which stops no program, to its end. Return the reports."""
    reports: list[str] = []
    monkeypatch.setattr(rendezvous, "print_report", reports.append)
    cc.check("off")
    assert cc.run(lambda: program.main(kind, steps=2000), 3) == ["NOT TOLD"] * 3
    return reports


@pytest.mark.parametrize("kind", ["factor", "two_sums", "casts", "in_turn"])
def test_mode_off_reports_once_and_goes_on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = reports_on_threads(kind, monkeypatch)
    assert [bool(re.search(FOUND[kind][1], text)) for text in reports] == [True] * (kind in FOUND)
    assert all("fix: " in text and "late_differences.py" in text for text in reports)


@pytest.mark.parametrize(("kind", "how"), [("factor", "first/native"), ("two_sums", "first/ring"), ("index", "off")])
def test_over_mpi(kind: str, how: str) -> None:
    seconds = over_mpi(kind, how, 3, "here")
    summary.line("late differences", f"{kind} in mode {how!r}: told after {seconds:.1f} s")


def test_the_windows_meet_every_part_of_a_step() -> None:
    """Whatever the number of calls in a step: each of them is in a window within 150 blocks."""
    for calls in (1, 2, 7, 8, 64, 100, 500, 1000, 1024):
        sampling, seen, windows = Sampling(), set(), 0
        while sampling.calls < 150 * BLOCK:
            sampling.calls += 1
            if sampling.calls > sampling.opens:
                seen.add(sampling.calls % calls)
                windows += sampling.note("a call", []) is not None
        assert seen == set(range(calls)), calls
        assert windows == pytest.approx(151, abs=1)
    assert LENGTH * 60 < BLOCK


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_kind_on_threads_in_mode_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the calls of a rendezvous differ, threads raise an error in every mode."""
    for kind in program.KINDS:
        if kind in CALLS and kind != "extremum":
            with pytest.raises(cc.CollectiveMismatch, match="is not the same on all ranks"):
                reports_on_threads(kind, monkeypatch)
        else:
            assert len(reports_on_threads(kind, monkeypatch)) == (kind in FOUND), kind


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", COMPARING)
def test_every_kind_on_threads(mode: str) -> None:
    """20 wrong and 20 legal kinds: ``pytest -m slow tests/collectives/checks/test_late_calls.py``."""
    for kind in program.KINDS:
        on_threads(kind, mode, 3 if kind in program.WRONG else 2)
    summary.line("late differences", f"threads, {mode!r}: {len(FOUND)} told, {len(LEGAL)} legal ones silent")


_HOW = ("off", *COMPARING, "first/ring", "first/shared", "first/native/2")


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("on", ["here", "openmpi"])
@pytest.mark.parametrize("how", _HOW)
def test_every_kind_over_mpi(how: str, on: str) -> None:
    ranks = 4 if how.endswith("/2") else 3
    kinds = [kind for kind in FOUND if kind not in LEFT_OUT.get(how, ())]
    slowest = max(over_mpi(kind, how, ranks, on) for kind in kinds)
    summary.line("late differences", f"{how!r} ({on}): {len(kinds)} told, at most {slowest:.1f} s late")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("on", ["here", "openmpi"])
@pytest.mark.parametrize("how", _HOW)
def test_legal_programs_over_mpi(how: str, on: str) -> None:
    ranks = 4 if how.endswith("/2") else 3
    kinds = [kind for kind in LEGAL if kind not in LEFT_OUT.get(how, ())]
    outcome = launch("late_differences.py", ranks, how, *kinds, limit_s=300, on=on, OPENBLAS_NUM_THREADS="1")
    assert (outcome.code, outcome.out.count("NOT TOLD")) == (0, ranks * len(kinds)), outcome
    assert "ringtape" not in outcome.err, outcome.err
