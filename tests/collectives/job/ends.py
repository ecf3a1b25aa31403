"""The table of ends in docs/jobs.md, as tests: its rows are read, run and compared.

Run all of them with a line of progress each, or those whose names contain a text:

    python -m tests.collectives.job.ends [--python-openmpi PATH] [TEXT]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ..launch import QUIET, ROOT, VARIABLE, Outcome, find_mpiexec, is_open_mpi, launch, open_mpi, program_path

LIMIT_S = 200  # for a job, on a busy machine; a quiet one takes one to six
WAIT_S = 30  # RINGTAPE_TIMEOUT_S and RINGTAPE_IMPORT_S, longer than ranks start apart
COLUMNS = {
    "`end`": ("here openmpi", "end"), "`raise`": ("here openmpi", "raise"),
    "`end`, ulfm": ("ulfm", "end"), "`raise`, ulfm": ("ulfm", "raise"),
    "threads": ("threads", "end"), "one process": ("alone", "end"),
}  # fmt: skip
"""By column of the table: where its jobs run, and their policy."""
NAMES = {"here": "MPICH", "openmpi": "Open MPI", "ulfm": "Open MPI with ulfm"}
LAUNCHED = "under parallel.launch: "
UNGUARDED = "with RINGTAPE_GUARD=0: "


class Case(NamedTuple):
    """One cell of the table: an end, where it happens, and what is promised."""

    end: str
    on: str
    policy: str
    status: str  # 0, or not 0
    says: str

    def __str__(self) -> str:
        return f"{self.end} ({self.policy}, {NAMES.get(self.on, self.on)})"


def table() -> list[Case]:
    """All cases of the table. Columns of both MPI libraries are two cases each."""
    page = (ROOT / "docs" / "jobs.md").read_text()
    (text,) = re.findall(r"^\| the end \|.*\n(?:\|.*\n)+", page, re.M)
    head, _, *rows = (
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.strip().splitlines()
    )
    assert head == ["the end", *COLUMNS, "the report"], head
    cases = []
    for end, *cells, says in rows:
        for (places, policy), status in zip(COLUMNS.values(), cells, strict=True):
            assert status in ("0", "not 0", "-"), (end, status)
            for on in places.split() if status != "-" else ():
                cases.append(Case(end.replace("`", ""), on, policy, status, says.strip("`") if says != "-" else ""))
    return cases


def run(case: Case) -> tuple[Outcome, list[str]]:
    """Run a case, and list what is not as promised."""
    end, environment = case.end, {}
    if end.startswith(UNGUARDED):
        end, environment = end.removeprefix(UNGUARDED), {"RINGTAPE_GUARD": "0"}
    if "time limit" in end:
        environment["RINGTAPE_TIMEOUT_S"] = str(WAIT_S)
    if "before it imports" in end:
        environment["RINGTAPE_IMPORT_S"] = str(WAIT_S)
    if end.startswith(LAUNCHED):
        outcome = _launched(case, end.removeprefix(LAUNCHED), environment)
    elif case.on in ("threads", "alone"):
        outcome = _run([sys.executable, program_path("ends.py"), case.on, case.policy, end], environment)
    else:
        outcome = launch(
            "ends.py", 3, "mpi", case.policy, end, limit_s=LIMIT_S, forked=False,
            on="here" if case.on == "here" else "openmpi", options=_options(case), **environment,
        )  # fmt: skip
    return outcome, judged(case, outcome)


def judged(case: Case, outcome: Outcome) -> list[str]:
    problems = []
    if outcome.is_late:
        problems.append(f"it has not ended within {LIMIT_S} s")
    if (outcome.code == 0) != (case.status == "0"):
        problems.append(f"the status is {outcome.code}; promised: {case.status}")
    if outcome.code < 0 and not outcome.is_late and case.on in NAMES:
        problems.append(f"the launcher was ended by signal {-outcome.code}")
    if case.says and case.on not in ("threads", "alone"):
        pattern = "[^\n]*".join(map(re.escape, case.says.split("...")))
        if not re.search(pattern, outcome.err):
            problems.append(f"the report does not say: {case.says}")
    if not case.says and case.on in NAMES and "ringtape: " in outcome.err:
        problems.append("there is a report")
    if "ringtape monitor" in outcome.err:
        problems.append("an error inside ringtape is shown")
    return problems


def _options(case: Case) -> list[str]:
    return ["--with-ft", "ulfm"] if case.on == "ulfm" else []


def _launched(case: Case, end: str, environment: dict[str, str]) -> Outcome:
    python = sys.executable if case.on == "here" else open_mpi()
    mpiexec = find_mpiexec() if case.on == "here" else str(Path(python).parent / "mpiexec")
    options = ["--oversubscribe", "--bind-to", "none"] if is_open_mpi(mpiexec) else []
    job = [mpiexec, *options, *_options(case), "-n", "3", python, program_path("ends.py"), "mpi", case.policy, end]
    command = [sys.executable, "-m", "parallel.launch", "--restarts", "1", "--wait", "0", "--", *job]
    return _run(command, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **environment})


def _run(command: list[str], environment: dict[str, str]) -> Outcome:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command, env={**QUIET, **os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True,
            errors="replace", timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return Outcome(-1, str(late.stdout), str(late.stderr), True)
    return Outcome(done.returncode, done.stdout, done.stderr, False)


def main(python: str | None, text: str) -> int:
    if python is not None:
        os.environ[VARIABLE] = python
    has_open_mpi = VARIABLE in os.environ
    cases = [case for case in table() if text in str(case)]
    skipped = [case for case in cases if case.on in ("openmpi", "ulfm") and not has_open_mpi]
    wrong, done, begun = [], Counter[str](), time.monotonic()
    for number, case in enumerate(cases, 1):
        if case in skipped:
            continue
        outcome, problems = run(case)
        done[NAMES.get(case.on, case.on)] += 1
        wrong += [case] * bool(problems)
        said = "; ".join(problems) or f"status {outcome.code}"
        print(f"[{number}/{len(cases)}, {time.monotonic() - begun:.0f} s] {case}: {said}", flush=True)
        if problems:
            print("\n".join(f"    {line}" for line in f"{outcome.out}\n{outcome.err}".splitlines()[-40:]), flush=True)
    count = sum(done.values())
    print(f"{count - len(wrong)} of {count} ends as promised: {', '.join(f'{n} {name}' for name, n in done.items())}")
    if skipped:
        print(f"{len(skipped)} skipped: they need --python-openmpi PATH, a Python with Open MPI")
    return int(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the ends of jobs with the table in docs/jobs.md.")
    parser.add_argument("--python-openmpi", metavar="PATH", help="the Python of an environment with Open MPI")
    parser.add_argument("text", nargs="?", default="", help="only cases whose names contain it")
    given = parser.parse_args()
    sys.exit(main(given.python_openmpi, given.text))
