"""The examples when a reader cuts their output, and the gallery of wrong programs without options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    "options", [["01_adjoints.py"], ["01_adjoints.py", "--ranks", "2"], ["00_core.py", "--ranks", "2"]]
)
def test_output_that_is_cut_leaves_no_traceback(options: list[str]) -> None:
    command = [sys.executable, str(ROOT / "examples" / options[0]), *options[1:]]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None and p.stderr is not None
        assert p.stdout.readline().startswith(("ranks:", "1. Ranks."))
        p.stdout.close()
        assert "Traceback" not in p.stderr.read()


def test_a_wrong_program_alone_shows_its_fault() -> None:
    command = [sys.executable, str(ROOT / "examples" / "wrong" / "01_forgotten_sum.py"), "--steps", "3"]
    ended = subprocess.run(command, check=False, env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "LayoutError" in ended.stdout
