"""A job that is asked to end saves the step that it is in, and exits with a code that says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import collectives as cc
from autograd.errors import OptionError
from parallel import checkpoint
from parallel.checkpoint import REQUEUE, Preemption
from parallel.checkpoint.preemption import _asked

from ...collectives.launch import find_mpiexec

pytest.importorskip("safetensors", reason="safetensors is not installed")


def program(folder: str) -> None:
    """Save and exit at the step at which the job is asked to end. Each rank tells at which step it is."""
    with cc.Mesh(dp=-1) as mesh, Preemption() as preemption:
        for step in range(1000):
            time.sleep(0.02)  # the work of a step
            if mesh.ranks.rank == 0:
                Path(folder, "at").write_text(str(step))
            if preemption.asked():
                checkpoint.save(folder, {"step": step}, step)
                preemption.exit()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_under_mpiexec(tmp_path: Path, number: int) -> None:
    command = [find_mpiexec(), "-n", "2", sys.executable, "-m", __name__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        at = tmp_path / "at"
        for _ in range(3000):
            if at.exists() and at.read_text() not in ("", "0", "1"):
                break
            time.sleep(0.01)
        before = int(at.read_text())
        job.send_signal(number)
        out, err = job.communicate(timeout=60)
    assert job.returncode == REQUEUE, out + err
    assert not err, err
    found = checkpoint.load(tmp_path, {})
    assert found.values == {"step": found.step} and before <= found.step <= before + 5
    assert int(at.read_text()) == found.step  # no further step


def test_on_threads_all_ranks_are_told_of_one_signal() -> None:
    def ranks() -> list[bool]:
        with cc.Mesh(dp=3) as mesh:
            preemption, found = Preemption(every=2), []
            for step in range(6):
                if step == 2 and mesh.ranks.rank == 1:
                    os.kill(os.getpid(), signal.SIGUSR1)
                    assert _asked.wait(60)  # the main thread receives it
                mesh.ranks.barrier()
                found.append(preemption.asked())
            return found

    with Preemption():
        found = cc.run(ranks, 3)
    assert found == [[False, False, False, True, False, True]] * 3


def test_the_handlers_are_those_of_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Preemption() as preemption:
        assert signal.getsignal(signal.SIGTERM) is not before
        assert not preemption.asked()
    assert signal.getsignal(signal.SIGTERM) is before
    for wrong in (0, True, 1.5):
        with pytest.raises(OptionError, match="Preemption: every="):
            Preemption(every=wrong)  # type: ignore[arg-type]


def main(argv: Any = None) -> None:
    program(sys.argv[1])


if __name__ == "__main__":
    main()
