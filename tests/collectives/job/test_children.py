"""Child processes of ranks: they keep no job alive, hide no death, and none is left when a job has failed."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from collectives.job.processes import is_alive

from ..launch import Outcome, launch, launch_command, program_path
from .endings import LEFT, SIGKILL, ended_by

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the supervisor")
LIMIT_S = 8.0  # from the fault to the end of mpiexec
START_S = 60.0


def check(outcome: Outcome, text: str) -> None:
    ended = time.time()
    assert not outcome.is_late, f"the job hung\n{outcome.out}\n{outcome.err}"
    assert outcome.code != 0
    fault = re.search(r"FAULT ([\d.]+)", outcome.out)
    assert fault is not None, outcome
    assert ended - float(fault[1]) < LIMIT_S
    assert "WENT ON" not in outcome.out
    pattern = r"^ringtape: rank (\d) of \d (?:.* (\d+\.\d+) s after the world)?.*$"
    reports = re.findall(pattern, outcome.err, re.MULTILINE)
    first = min(reports, key=lambda found: float(found[1] or 0))
    assert first[0] == "1", outcome.err
    assert len(reports) == 1 or all(time_s for _, time_s in reports), outcome.err
    assert re.search(rf"^ringtape: rank 1 of \d.*{text}", outcome.err, re.MULTILINE), outcome.err
    processes = [int(pid) for pid in re.findall(r"PID (\d+)", outcome.out)]
    end = time.monotonic() + LIMIT_S
    while left := [pid for pid in processes if is_alive(pid)]:
        assert time.monotonic() < end, f"left: {left}"
        time.sleep(0.05)


KILLED, RAISED, RETURNED = ended_by(SIGKILL), "raised ValueError: planted", "exited early"
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "child", "on"),
    [
        ("kill", "fork", "here"),
        ("raise", "program", "here"),
        ("kill", "fork", "openmpi"),
        pytest.param("kill", "fork", "hosts", marks=slow),
        *(pytest.param(how, child, on, marks=slow) for on in ("here", "openmpi", "hosts", "hosts openmpi")
          for how in ("kill", "os._exit", "raise", "return") for child in ("fork", "bare fork", "program")
          if (how, child) != ("kill", "fork")),
        pytest.param("kill", "fork", "hosts openmpi", marks=slow),
    ],
)  # fmt: skip
def test_a_live_child_process(how: str, child: str, on: str) -> None:
    outcome = launch("has_children.py", 4 if on.startswith("hosts") else 3, how, child, limit_s=START_S, on=on,
                     forked=False)  # fmt: skip
    check(outcome, {"raise": RAISED, "return": RETURNED, "os._exit": ended_by(LEFT)}.get(how, KILLED))


@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=slow), pytest.param("hosts", marks=slow)])
def test_a_killed_supervisor_is_replaced(on: str) -> None:
    outcome = launch("has_children.py", 4 if on == "hosts" else 3, "kill", "none", "supervisor", limit_s=START_S, on=on,
                     forked=False)  # fmt: skip
    check(outcome, KILLED)


@pytest.mark.parametrize("on", ["here", pytest.param("openmpi", marks=slow)])
def test_ranks_that_a_script_starts_have_one_supervisor(on: str, tmp_path: Path) -> None:
    """Every rank has a parent of its own, as under a script that binds it to a GPU."""
    script = tmp_path / "start.py"
    script.write_text(
        "import subprocess, sys\n"
        f"command = [sys.executable, {program_path('has_children.py')!r}, 'kill', 'none']\n"
        "sys.exit(subprocess.run(command, close_fds=False).returncode and 1)\n"
    )
    check(launch_command([str(script)], 3, limit_s=START_S, on=on, forked=False), KILLED)


def test_a_child_process_that_is_forked_keeps_no_connection() -> None:
    outcome = launch("forks.py", 2, limit_s=START_S, forked=False)
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    assert outcome.out.count("KEEPS 0 of 3") == 2, outcome.out
