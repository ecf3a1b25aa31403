"""The guide and the example of pipelines, as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parallel.pipeline import draw, one_f_one_b, zb_h1

from ...collectives.launch import find_mpiexec

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "guides" / "pipeline.md").read_text()


def test_guide() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert len(blocks) == 4
    exec(compile("\n".join(blocks), "pipeline.md", "exec"), {"__name__": "guide"})
    assert f"{draw(one_f_one_b(3, 4))}\n{draw(zb_h1(3, 4))}" in GUIDE


def example(*command: str) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "RINGTAPE_COMPILED": "0"}
    full = [*command, str(ROOT / "examples" / "04_pipeline.py"), "--steps", "3"]
    done = subprocess.run(full, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_example(tmp_path: Path) -> None:
    one, processes = example(sys.executable), example(find_mpiexec(), "-n", "3", sys.executable)
    assert "ranks 0, 1 wait for each other" in one and "zb-v: bubble" in one
    losses = [re.findall(r"step +\d+: loss (\S+)", text) for text in (one, processes)]
    assert losses[0] == losses[1] and losses[0]
