"""Ctrl-C: the job ends with a short message and without processes that stay, and no finalizer prints anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from ..launch import QUIET, ROOT, is_open_mpi, program_path
from ..launch import find_mpiexec as find
from .fault_cases import left_processes


@pytest.mark.parametrize("what", ["train", "recv", pytest.param("compute", marks=pytest.mark.slow)])
@pytest.mark.parametrize("to", ["group", pytest.param("mpiexec", marks=pytest.mark.slow)])
def test_interrupt_of_a_job(what: str, to: str) -> None:
    """SIGINT to all processes, as a terminal sends it, or to mpiexec alone."""
    mpiexec, mark = find(), uuid.uuid4().hex
    job = subprocess.Popen(
        [mpiexec, "-n", "3", sys.executable, program_path("interrupted.py"), what],
        env={**QUIET, **os.environ, "PYTHONPATH": str(ROOT), "RINGTAPE_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert job.stdout is not None
        begun = ""
        while begun.count("READY") < 3:
            begun += job.stdout.readline()
        time.sleep(1.0)
        if to == "group":
            os.killpg(job.pid, signal.SIGINT)
        else:
            job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=20)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode != 0
    assert left_processes(mark, set()) == []
    assert "Traceback" not in err and "ignored" not in err, err
    ours = [line for line in err.splitlines() if line.startswith("ringtape:")]
    if is_open_mpi(mpiexec):
        assert len(ours) <= 1, err  # its launcher kills the ranks, which say nothing then
    else:
        assert len(ours) == 1 and "raised KeyboardInterrupt at interrupted.py:" in ours[0], err
        assert len(err.splitlines()) <= 6, err


_FINALIZER = """
import signal, time
import numpy as np
import autograd as ag

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without it

class Leaf:
    uses, array = 1, np.ones(3)
    def __setattr__(self, name, value):
        if not hasattr(type(self), "sent"):
            type(self).sent = True
            signal.raise_signal(signal.SIGINT)
        object.__setattr__(self, name, value)

x = ag.tensor(np.ones(3), requires_grad=True)
array = x.array
with ag.Tape() as tape:
    y = x * x
tape.recording._held.insert(0, Leaf())
assert not array.flags.writeable
del tape, y
x.tape = None
assert array.flags.writeable, "an array stays read-only"
try:
    time.sleep(5)
except KeyboardInterrupt:
    print("INTERRUPTED")
"""


_SLOWLY = """
import _thread, time
from types import SimpleNamespace
from autograd.engine import locks

def start(function, args):  # on a slow machine the finalizer goes on for a while after it has started a thread
    _thread.start_new_thread(function, args)
    time.sleep(0.2)

locks._thread = SimpleNamespace(start_new_thread=start, interrupt_main=_thread.interrupt_main)
"""


@pytest.mark.parametrize("before", ["", _SLOWLY], ids=["", "slowly"])
def test_interrupt_of_a_finalizer(before: str) -> None:
    """A tape that is dropped while Ctrl-C arrives: nothing is printed, and the interrupt is not lost."""
    done = subprocess.run(
        [sys.executable, "-c", before + _FINALIZER], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(ROOT))},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "INTERRUPTED\n", "")
