"""The table of ends in docs/jobs.md: status 0 means that ranks which came to the end have finished the work.

The whole table: ``pytest -m slow tests/collectives/job/test_ends.py``, or with a line for each case ``python -m
tests.collectives.job.ends --python-openmpi PATH``.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ... import summary
from ..launch import Outcome, find_mpiexec, launch, open_mpi
from . import ends
from .ends import LAUNCHED, LIMIT_S, UNGUARDED, Case
from .fault_cases import marked

pytestmark = pytest.mark.timeout(600)

CASES = ends.table()
QUICK = {
    ("all raise in a thread", "raise", "here"), ("one calls os._exit(0), the others wait for it", "end", "here"),
    ("all raise in the world", "raise", "ulfm"), ("one raises, the others go on without it", "raise", "ulfm"),
    ("all are killed by SIGKILL", "raise", "ulfm"), ("all raise right after the import", "end", "ulfm"),
    ("all call sys.exit(0) in the world", "end", "threads"),
    ("all raise SystemExit(3) after the world", "end", "alone"),
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {
    "here": {"on": "here"}, "openmpi": {"on": "openmpi"},
    "ulfm": {"on": "openmpi", "options": ["--with-ft", "ulfm"]},
}  # fmt: skip


OTHERS = ["here", *(pytest.param(each, marks=pytest.mark.slow) for each in PLACES if each != "here")]


def check(case: Case) -> None:
    if case.on in ("openmpi", "ulfm"):
        open_mpi()
    elif case.on == "here":
        find_mpiexec()
    outcome, problems = ends.run(case)
    assert not problems, f"{case}: {'; '.join(problems)}\n{outcome.out}\n{outcome.err}"
    summary.count("ends of jobs, as the table promises", ends.NAMES.get(case.on, case.on))


def test_the_table_has_every_end() -> None:
    program = Path(ends.program_path("ends.py")).read_text()
    written = {text for _, text in re.findall(r"^    (['\"])(.+)\1: \[", program, re.M)}
    assert {case.end.removeprefix(LAUNCHED).removeprefix(UNGUARDED) for case in CASES} == written
    assert {(case.end, case.policy, case.on) for case in CASES} >= QUICK


@pytest.mark.parametrize("case", [case for case in CASES if (case.end, case.policy, case.on) in QUICK], ids=str)
def test_an_end(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_end(case: Case) -> None:
    check(case)


# -- what else is promised of ends -------------------------------------------------------------------------------------
def ended(end: str, place: str, policy: str = "end", **environment: str) -> Outcome:
    return launch(
        "ends.py", 3, "mpi", policy, end, limit_s=LIMIT_S, forked=False, **PLACES[place], **environment
    )  # fmt: skip


@pytest.mark.parametrize("place", OTHERS)
def test_two_ranks_that_are_killed_at_once_are_both_named(place: str) -> None:
    outcome = ended("two are killed by SIGKILL", place)
    named = set(re.findall(r"^ringtape: rank (\d) of 3 .* was killed", outcome.err, re.M))
    assert len(named) == 1, outcome
    _, _, beside = outcome.err.partition("ringtape: beside it:\n")
    named |= set(re.findall(r"^  rank (\d) \(pid \d+\), too, was killed", beside, re.M))
    named |= set(re.findall(r"\d", "".join(re.findall(r"^  ranks? ([\d, ]+) ended within", beside, re.M))))
    assert named >= {"0", "2"}, outcome


class Mapped:
    """The files of /dev/shm that processes with a mark in their environment map, looked for all along."""

    def __init__(self) -> None:
        self.mark, self.files = uuid.uuid4().hex, set[Path]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Mapped:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            for pid in marked(self.mark):
                with suppress(OSError):
                    found = re.findall(r" (/dev/shm/\S+)$", Path(f"/proc/{pid}/maps").read_text(), re.M)
                    self.files |= set(map(Path, found))


@pytest.mark.parametrize("place", OTHERS)
@pytest.mark.parametrize(
    "where",
    ["before the first world", *(pytest.param(each, marks=pytest.mark.slow) for each in (
        "in a call", "at the end of the world", "in an exit handler"))],
)  # fmt: skip
def test_a_time_limit_leaves_nothing_in_shared_memory(where: str, place: str) -> None:
    with Mapped() as mapped:
        outcome = ended(f"a time limit {where}", place, RINGTAPE_TIMEOUT_S="6", RINGTAPE_MARK=mapped.mark)
    assert "has waited for" in outcome.err and outcome.code != 0, outcome
    files = mapped.files
    until = time.monotonic() + 20.0
    while any(file.exists() for file in files):  # the supervisor may end a moment after the launcher
        assert time.monotonic() < until, files
        time.sleep(0.05)


WRONG = {
    "RINGTAPE_CHECK": "sometimes", "RINGTAPE_TIMEOUT_S": "nan", "RINGTAPE_IMPORT_S": "1e400",
    "RINGTAPE_START": f"1{'0' * 23}", "RINGTAPE_FAULTS": "kill", "RINGTAPE_RECORD": "/dev/null/record",
}  # fmt: skip


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("RINGTAPE_TIMEOUT_S", "RINGTAPE_START") else pytest.mark.slow)
    for name in WRONG
])  # fmt: skip
def test_a_wrong_variable_ends_the_job_on_every_rank(name: str) -> None:
    outcome = ended("all return", "here", **{name: WRONG[name]})
    assert outcome.code > 0 and not outcome.is_late and "END" not in outcome.out, outcome
    assert re.search(rf"OptionError: .*(\n.*)?{name}", outcome.err), outcome
    assert len(re.findall(r"OptionError: ", outcome.err)) >= 3 or "ranks 0-2" in outcome.err, outcome
