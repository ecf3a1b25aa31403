"""A process that is killed at any point of a save loses nothing that was saved; see `kills`."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("safetensors", reason="safetensors is not installed")


@pytest.mark.parametrize(("first", "last"), [
    (0, 15), *(pytest.param(k, k + 37, marks=pytest.mark.slow) for k in range(15, 200, 37)),
])  # fmt: skip
def test_a_kill_loses_nothing(first: int, last: int) -> None:
    command = [sys.executable, "-m", "tests.parallel.checkpoint.kills", str(first), str(last)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0 and "0 lost" in found.stdout, found.stdout + found.stderr
