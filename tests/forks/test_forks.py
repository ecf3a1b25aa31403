"""A fork does what a Python of its own would, and leaves no trace for the next one."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..collectives.launch import find_mpiexec, launch_command
from . import run_file, run_program, run_python

PROGRAMS = {
    "output": "import sys\nprint('out')\nprint('err', file=sys.stderr)\nassert sys.stdin.read() == ''",
    "no line end": "print('out', end='')",
    "main": "import sys\nx = 1\nassert __name__ == '__main__' and sys.modules[__name__].x == 1\nprint(sys.argv[1:])",
    "error": "def f():\n    return {}['key']\n\nf()",
    "cause": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError from error",
    "syntax": "x = (",
    "warning": "import warnings\nwarnings.warn('old', DeprecationWarning)\nprint('not reached')",
    "warning of the library": "import autograd.numpy as np\nnp.array(1.0) / np.array(0.0)\nprint('not reached')",
    "status": "raise SystemExit(3)",
    "message": "import sys\nsys.exit('a message')",
    "at exit": "import atexit\natexit.register(print, 'last')\nraise ValueError",
    "hook": "import sys\nsys.excepthook = lambda *given: print('mine', given[0])\nraise ValueError",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('done'))).start()",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "not imported": "collectives",
    "loaded": "import sys\nprint([m for m in ('pytest', 'parallel', 'mpi4py', 'subprocess') if m in sys.modules])",
    "beside": "import beside\nprint(beside.__name__)",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("")
    return tmp_path / "program.py"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fork_does_what_a_python_of_its_own_does(name: str, file: Path) -> None:
    file.write_text(PROGRAMS[name])
    forked = run_file(file, "one", "two", limit_s=60)
    alone = subprocess.run([sys.executable, "-W", "error", file, "one", "two"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert (forked.returncode, forked.stdout, forked.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert alone.stdout or alone.stderr or alone.returncode in (3, -signal.SIGTERM)


def test_a_program_does_not_change_the_next_one() -> None:
    first = "import os, sys, autograd\nos.environ['X'] = sys.mark = autograd.mark = mark = 'left'"
    assert run_program(first, "first.py", limit_s=60).returncode == 0
    second = "import os, sys, autograd\nprint('X' in os.environ, *('mark' in vars(m) for m in (sys, autograd)))"
    assert run_program(second, "second.py", limit_s=60).stdout == "False False False\n"
    assert run_program(second, "second.py", limit_s=60, X="given").stdout == "True False False\n"


def test_a_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    program = f"import fcntl, signal\nfile = open({str(lock)!r}, 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\nsignal.pause()"
    assert run_program("", "starts the parent.py", limit_s=60).returncode == 0
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(program, "waits.py", limit_s=2)
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # it is free when the program has ended
    assert run_program("print('the next one')", "next.py", limit_s=60).stdout == "the next one\n"


# -- as ranks of a job -------------------------------------------------------------------------------------------------
RANK = r"""
import os, signal, sys, time
from mpi4py import MPI
import collectives as cc
comm = MPI.COMM_WORLD
if sys.argv[1] == "answers":
    mesh = cc.world()
    found = [comm.Get_rank(), comm.Get_size(), mesh.rank, os.environ["GIVEN"], os.getcwd(), sys.argv[2:], __name__]
    sys.stdout.write(f"{found}\n")
    sys.exit(3 * comm.Get_rank())
if sys.argv[1] == "hangs":
    os.write(1, f"PID {os.getpid()}\n".encode())
    time.sleep(600)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def rank(tmp_path: Path) -> list[str]:
    find_mpiexec()
    (tmp_path / "rank.py").write_text(RANK)
    return [str(tmp_path / "rank.py")]


def test_forks_are_the_ranks_of_a_job(rank: list[str]) -> None:
    arguments = [*rank, "answers", "more"]
    forks, processes = (launch_command(arguments, 2, limit_s=60, forked=forked, GIVEN="x") for forked in (True, False))
    assert sorted(forks.out.splitlines()) == [str([r, 2, r, "x", os.getcwd(), ["more"], "__main__"]) for r in range(2)]
    assert sorted(processes.out.splitlines()) == sorted(forks.out.splitlines())
    assert (forks.code, forks.err) == (processes.code, processes.err) and forks.code != 0


def test_a_killed_rank_ends_the_job(rank: list[str]) -> None:
    done = launch_command([*rank, "dies"], 2, limit_s=60)
    assert done.code != 0 and not done.is_late
    assert re.search("rank . of 2 .*was killed", done.err), done.err


def test_ranks_that_hang_are_killed(rank: list[str]) -> None:
    done = launch_command([*rank, "hangs"], 2, limit_s=10)
    assert done.is_late
    pids = [int(line.split()[1]) for line in done.out.splitlines()]
    assert len(pids) == 2 and not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_arguments_of_python(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os, sys\nprint(sys.argv, input(), os.getcwd(), __name__)")
    for start, name in ((("-m", "beside"), str(tmp_path / "beside.py")), (("beside.py",), "beside.py"),
                        (("-c", "import beside, sys; print(sys.argv)"), "-c")):  # fmt: skip
        done = run_python(*start, "more", folder=tmp_path, typed="typed\n")
        first = [name, "more"], "typed", str(tmp_path), "beside" if name == "-c" else "__main__"
        assert done.stdout.splitlines()[0] == " ".join(map(str, first)), done


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_the_variables_of_the_library_are_read(compiled: str) -> None:
    text = """
from autograd.kernels.compiled import load
from collectives.checks.modes import check_mode
print(check_mode(), load() > 0)
"""
    done = run_python("-c", text, RINGTAPE_CHECK="always", RINGTAPE_COMPILED=compiled)
    assert done.stdout == f"always {compiled == '1' and importlib.util.find_spec('numba') is not None}\n", done
