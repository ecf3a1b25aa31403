"""An error that several ranks raise is printed once, with the ranks; different errors are all printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collectives.job import failure

from ..launch import Outcome, launch

RANKS = 3


def raises(how: str, *args: str, **more: str) -> Outcome:
    outcome = launch("raises.py", RANKS, how, *args, limit_s=60, **more)
    assert not outcome.is_late and outcome.code != 0
    return outcome


def heads(outcome: Outcome) -> list[str]:
    return re.findall(r"^ringtape: (ranks? .*) raised", outcome.err, re.MULTILINE)


@pytest.mark.parametrize("how", ["equal", "before the world"])
def test_equal_errors_are_printed_once(how: str, tmp_path: Path) -> None:
    outcome = raises(how, str(tmp_path))
    assert heads(outcome) == ["ranks 0-2 of 3"], outcome.err
    assert outcome.err.count("Traceback") == 1
    assert "ringtape: ranks 0-2 of 3 raised ValueError: planted; the job ends" in outcome.err
    assert "[ranks 0-2] ValueError: planted" in outcome.err


def test_different_errors_are_all_printed() -> None:
    outcome = raises("different")
    assert sorted(heads(outcome)) == ["rank 1 of 3", "ranks 0, 2 of 3"], outcome.err
    assert "[rank 1] ValueError: planted 1" in outcome.err and "[ranks 0, 2] ValueError: planted 0" in outcome.err


@pytest.mark.parametrize("how", ["one", "late", "one, late before the world"])
def test_one_rank_does_not_wait_for_the_others(how: str) -> None:
    outcome = raises(how)
    assert heads(outcome) == (["rank 1 of 3"] if how.startswith("one") else ["ranks 0, 2 of 3"]), outcome.err


def test_calls_that_differ_are_printed_once() -> None:
    """The error has the same text on all ranks, which raise it at different lines."""
    outcome = raises("mismatch", RINGTAPE_CHECK="always")
    assert heads(outcome) == ["ranks 0-2 of 3"], outcome.err
    assert len(re.findall(r"^\[ranks 0-2\] +needed: the same call", outcome.err, re.MULTILINE)) == 1
    assert len(re.findall(r"^\[rank \d\] Traceback", outcome.err, re.MULTILINE)) == 1


def test_an_error_of_labels_is_the_same_for_parts_of_other_extents() -> None:
    outcome = raises("layout")
    assert heads(outcome) == ["ranks 0-2 of 3"], outcome.err
    assert not re.search(r"/(autograd|collectives)/(?!job/programs)", outcome.err)  # its own frames are left out
    assert re.search(r"\[ranks 0-2\] +rows @", outcome.err)


def test_no_error_is_lost_if_the_rank_that_prints_it_stops() -> None:
    outcome = raises("the first dies")
    assert heads(outcome) in (["rank 0 of 3"], ["rank 2 of 3"], ["rank 0 of 3", "rank 2 of 3"],
                              ["rank 2 of 3", "rank 0 of 3"]), outcome.err  # fmt: skip


def test_a_rank_that_the_first_one_does_not_end_prints_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an MPI library that does not fit the launcher has made each rank a job of its own."""
    rank = failure.RankProcess()
    replies: list[Any] = [(False, []), (True, [0, 1]), (True, None)]
    rank._supervisor = cast(Any, SimpleNamespace(report_error=lambda digest: replies.pop(0)))
    said: list[str] = []
    monkeypatch.setattr(failure, "_ABORT_S", 0.0)
    monkeypatch.setattr(rank, "_end", lambda text, code, is_first: said.append(text))
    for _ in range(3):
        rank._end_after_error(lambda ranks: f"ranks {ranks} raised\ntraceback", "key")
        rank._ending.release()
    assert said == ["ranks [0] raised", "ranks [0, 1] raised\ntraceback", "ranks [0] raised\ntraceback"]
