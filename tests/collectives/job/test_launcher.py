"""The rank and the number of ranks are read from the launcher's variables or asked of MPI, and never assumed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.job import launcher

from ..launch import ROOT, find_mpiexec, is_open_mpi, launch, launch_command, open_mpi, program_path

LIMIT_S = 60.0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, (1, 3)),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, (5, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # inside an allocation, without srun
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "RINGTAPE_RANK_PID": "1"}, (0, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "RINGTAPE_RANK_PID": str(os.getpid())}, (2, 4)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "RINGTAPE_LAUNCHER": "none"}, (0, 1)),
    ],
)
def test_launched(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert launcher.launched(environment) == expected
    assert launcher.unknown_launcher(environment) == ""


@pytest.mark.parametrize(
    "environment",
    [{"PMIX_RANK": "1"}, {"PMI_RANK": "0"}, {"PMI_ID": "3"}, {"PALS_RANKID": "2"}, {"PMI_RANK": "1", "PMI_SIZE": "x"}],
)
def test_launchers_without_a_number_of_ranks(environment: dict[str, str]) -> None:
    (name, value), *_ = environment.items()
    assert launcher.unknown_launcher(environment) == f"{name}={value}"
    assert launcher.unknown_launcher({**environment, "RINGTAPE_RANK_PID": "1"}) == ""
    assert launcher.unknown_launcher({**environment, "RINGTAPE_LAUNCHER": "none"}) == ""


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ValueError, match="RINGTAPE_LAUNCHER='no': needed 'none', or nothing"):
        launcher.launched({"RINGTAPE_LAUNCHER": "no"})


def alone(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program as one process, with variables of a launcher."""
    return subprocess.run(
        [sys.executable, program_path("trains.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "needed"),
    [
        ({"PALS_RANKID": "3"}, ("a launcher has started several ranks (PALS_RANKID=3), but MPI's world has 1",)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, ("has started 4 ranks, but MPI's world has 1",)),
    ],
)
def test_ranks_that_mpi_does_not_connect_are_refused(environment: dict[str, str], needed: tuple[str, ...]) -> None:
    """As under ``srun`` without an MPI plugin, and under launchers that are not known here."""
    find_mpiexec()
    done = alone(**environment)
    assert done.returncode != 0
    for text in (*needed, "Fix: use the mpiexec that belongs to the library", "RINGTAPE_LAUNCHER=none"):
        assert text in done.stdout, done
    fixed = alone(**environment, RINGTAPE_LAUNCHER="none")
    assert (fixed.returncode, fixed.stdout) == (0, "SIZE 1 TOTAL 1\n"), fixed.stderr


def test_without_mpi_an_unknown_launcher_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('planted')")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = alone(PMIX_RANK="0", PYTHONPATH=path)
    assert done.returncode == 1
    assert "REFUSED a launcher has started this process (PMIX_RANK=0) without a number of ranks" in done.stdout
    fixed = alone(PMIX_RANK="0", PYTHONPATH=path, RINGTAPE_LAUNCHER="none")
    assert (fixed.returncode, fixed.stdout) == (0, "SIZE 1 TOTAL 1\n")


HIDES = (
    "import os, runpy, sys\n"
    "for name in [name for name in os.environ if name.endswith('SIZE')]: del os.environ._data[name.encode()]\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_a_launcher_that_is_not_known_is_asked_through_mpi(on: str, tmp_path: Path) -> None:
    """Only the variable of the rank is left to the program; MPI itself knows more."""
    program = tmp_path / "hides.py"
    program.write_text(HIDES)
    outcome = launch_command([str(program), program_path("trains.py")], 2, limit_s=LIMIT_S, on=on)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("SIZE 2 TOTAL 2") == 2, outcome.out


@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_a_failure_under_a_launcher_that_is_not_known_is_reported(on: str, tmp_path: Path) -> None:
    program = tmp_path / "hides.py"
    program.write_text(HIDES)
    arguments = [str(program), program_path("fails.py"), "kill", "all_reduce", "world"]
    outcome = launch_command(arguments, 3, limit_s=LIMIT_S, on=on)
    assert outcome.code != 0 and not outcome.is_late
    assert "ringtape: rank 1 of 3" in outcome.err and "was killed or left by os._exit" in outcome.err


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_launcher_of_another_library_is_refused(is_ours: bool) -> None:
    """MPICH's mpiexec and Open MPI's library, or the other way round: each rank would be a world of its own."""
    pythons = [sys.executable, open_mpi()]
    if is_open_mpi(find_mpiexec()):
        pytest.skip("this interpreter's library is Open MPI, too")
    launchers = [[find_mpiexec()], [str(Path(pythons[1]).parent / "mpiexec"), "--oversubscribe"]]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"
    }  # fmt: skip
    done = subprocess.run(
        [*launchers[not is_ours], "-n", "2", pythons[is_ours], program_path("trains.py")],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "SIZE 1" not in done.stdout
    if is_ours:  # the other way round MPICH itself refuses
        assert "REFUSED the launcher has started 2 ranks, but MPI's world has 1" in done.stdout
        assert "was killed" not in done.stderr and "Traceback" not in done.stderr


# -- what importing does -----------------------------------------------------------------------------------------------
def test_import_can_leave_the_process_alone() -> None:
    outcome = launch("imports.py", 2, "guarded", limit_s=LIMIT_S)
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    assert outcome.out.count("GUARDED") == 2
    outcome = launch("imports.py", 2, "alone", limit_s=LIMIT_S, RINGTAPE_GUARD="0")
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    assert outcome.out.count("ALONE") == 2


def test_without_the_guard_an_early_exit_is_still_reported() -> None:
    outcome = launch("fails.py", 3, "raise", "barrier", "world", limit_s=LIMIT_S, RINGTAPE_GUARD="0")
    assert outcome.code != 0 and not outcome.is_late
    assert "ValueError: planted" in outcome.err
    assert "rank 1 of 3 exited early" in outcome.err


def test_unknown_values_of_the_guard_are_refused() -> None:
    done = alone(RINGTAPE_GUARD="off")
    assert "RINGTAPE_GUARD='off': needed 0 or 1" in done.stderr


def test_a_program_that_uses_timers_keeps_them() -> None:
    """A job ends although MPI does not return from the abort, and SIGALRM belongs to the program."""
    assert importlib.util.find_spec("signal") is not None
    outcome = launch("uses_alarms.py", 2, limit_s=LIMIT_S)
    assert outcome.code != 0 and not outcome.is_late, outcome
    assert "raised ValueError: planted" in outcome.err
    assert "ALARM AT 0.5 s" in outcome.out, outcome.out
