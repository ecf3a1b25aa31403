"""Faults of processes under mpiexec: the job ends on all ranks within seconds, and the report names the rank.

Five short jobs run by default. Each kind of fault at each kind of operation, on MPICH, and some on Open MPI:

    python -m pytest -m slow tests/collectives/faults/test_faults_mpi.py
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from collectives.testing import faults

from ...forks import run_program
from ..job.endings import SIGKILL, ended_by
from ..launch import Outcome, launch, program_path

pytestmark = pytest.mark.timeout(150)

LIMIT_S = 90.0
END_S = 30.0  # from the start of the program to the end of the job, on a busy machine
STOPPED_S = 4  # RINGTAPE_TIMEOUT_S
SECOND_STEP = {
    "all_reduce": 5, "wait": 2, "send": 2, "recv": 2, "barrier": 2, "window.add": 2, "window.get": 2, "step.begin": 2,
    "exchange": 2,
}  # fmt: skip
"""Operations in the second step of the program, by name and number."""
SAYS = {
    "kill": rf"^ringtape: rank 1 of 3 .*{ended_by(SIGKILL)}",
    "stop": "rank 1 does not reply",
    "drop": r"rank 1 waits in recv \(its {of} was dropped by an injected fault \({fault}\)\)",
    "send": "rank 2 waits in recv .*from rank 1 at injected_faults.py:",
    "corrupt": "the gradients of rank 1 differ from those of ranks 0, 2",
}


def run(fault: faults.Fault, on: str = "here") -> Outcome:
    limit = {"RINGTAPE_TIMEOUT_S": str(STOPPED_S)} if fault.kind == "stop" else {}
    return launch("injected_faults.py", 3, limit_s=LIMIT_S, on=on, RINGTAPE_FAULTS=repr(fault), **limit)


def check(fault: faults.Fault, on: str = "here") -> None:
    """The job ends in time, with the report of the fault and of its effect."""
    outcome = run(fault, on)
    lasted = time.time() - float(re.findall(r"BEGAN <([\d.]+)>", outcome.out)[0])
    case = f"{fault} on {on}\n{outcome.out}\n{outcome.err}"
    assert not outcome.is_late and lasted < END_S, case
    assert outcome.code != 0 and "WENT ON" not in outcome.out, case
    assert re.search(rf"ringtape: injected fault on rank 1: {fault}, at {fault.of}", outcome.err), case
    says = SAYS["send" if fault.kind == "drop" and fault.of == "send" else fault.kind]
    assert re.search(says.replace("{of}", fault.of).replace("{fault}", repr(fault)), outcome.err, re.MULTILINE), case


DEFAULT = [faults.Kill(1, 5, of="all_reduce"), faults.Drop(1, 2, of="barrier"), faults.Corrupt(1, 3, of="all_reduce")]
SLOW = [
    *(faults.Kill(1, at, of=of) for of, at in SECOND_STEP.items()),
    *(faults.Stop(1, at, of=of) for of, at in SECOND_STEP.items()),
    *(faults.Drop(1, SECOND_STEP[of], of=of) for of in ("all_reduce", "send", "recv", "window.get")),
    faults.Drop(1, 4, of="all_reduce"), faults.Drop(1, 6, of="all_reduce"), faults.Corrupt(1, 6, of="all_reduce"),
]  # fmt: skip
OPENMPI = [
    faults.Kill(1, 5, of="all_reduce"), faults.Kill(1, 2, of="window.add"), faults.Stop(1, 2, of="recv"),
    faults.Drop(1, 2, of="recv"), faults.Corrupt(1, 3, of="all_reduce"),
]  # fmt: skip


@pytest.mark.parametrize("fault", DEFAULT, ids=repr)
def test_a_fault(fault: faults.Fault) -> None:
    check(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", SLOW, ids=repr)
def test_all_faults(fault: faults.Fault) -> None:
    check(fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", OPENMPI, ids=repr)
def test_faults_on_open_mpi(fault: faults.Fault) -> None:
    check(fault, "openmpi")


def test_faults_that_change_nothing_and_that_are_not_reached() -> None:
    plan = "delay:1@3,seconds=0.01; kill:2@500; drop:0@9,of=all_gather"
    outcome = launch("injected_faults.py", 3, limit_s=LIMIT_S, RINGTAPE_FAULTS=plan)
    assert outcome.code == 0 and sorted(re.findall(r"WENT ON <(\d)>", outcome.out)) == ["0", "1", "2"], outcome.err
    lines = sorted(line for line in outcome.err.splitlines() if line.startswith("ringtape: "))
    assert [re.sub(r" at injected_faults.py:\d+", "", line) for line in lines] == [
        "ringtape: injected fault on rank 1: delay:1@3,seconds=0.01, at all_reduce on 'dp@0', operation 3 of rank 1,",
        "ringtape: the fault drop:0@9,of=all_gather did not happen: rank 0 made 40 operations, 0 of them of all_gather",
        "ringtape: the fault kill:2@500 did not happen: rank 2 made 40 operations",
    ]


def test_a_rank_that_the_job_does_not_have_ends_it() -> None:
    outcome = launch("injected_faults.py", 3, limit_s=LIMIT_S, RINGTAPE_FAULTS="kill:3@2")
    assert outcome.code != 0 and not outcome.is_late
    assert re.search("ranks 0-2 of 3 raised .*MeshError: .*needed: a rank from 0 to 2 of a world", outcome.err)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["", "kill:1@7"])
def test_a_block_in_the_program_does_the_same(plan: str) -> None:
    arguments: list[Any] = [plan or "delay:0@1"]
    outcome = launch("injected_faults.py", 3, *arguments, limit_s=LIMIT_S)
    assert (outcome.code == 0) == (not plan), outcome.err
    if plan:
        assert re.search(SAYS["kill"], outcome.err, re.MULTILINE), outcome.err


@pytest.mark.parametrize(
    ("plan", "code", "out", "err"),
    [
        ("kill:0@3", -9, "", "ringtape: injected fault on rank 0: kill:0@3, at barrier on 'world', operation 3 of"),
        ("kill:1@1", 1, "", "RankFailed: rank 1 of 2 was killed by an injected fault: kill:1@1, at all_reduce on "),
        ("kill:1@9; stop:2@1", 1, "", "MeshError: fault stop:2@1: rank=2 was given; needed: a rank from 0 to 1"),
        ("kill:1@9", 0, "[2.0, 2.0]", "ringtape: the fault kill:1@9 did not happen: rank 1 made 1 operation\n"),
    ],
)  # fmt: skip
def test_a_program_of_one_process(plan: str, code: int, out: str, err: str) -> None:
    path = program_path("faults_of_one_process.py")
    done = run_program(Path(path).read_text(), path, limit_s=60, RINGTAPE_FAULTS=plan)
    assert (done.returncode, done.stdout.strip()) == (code, out), done.stderr
    assert err in done.stderr
