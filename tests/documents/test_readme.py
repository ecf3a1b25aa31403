"""The README's program runs as it stands, and breaking it as it says gives the error that it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _run(program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "try.py"
    file.write_text(program)
    path = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, env=path, check=False)


def test_the_program_runs(tmp_path: Path) -> None:
    done = _run(_blocks("python")[0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "layout={dp: I}" in done.stdout


def test_without_the_cast_it_is_refused_as_shown(tmp_path: Path) -> None:
    program = _blocks("python")[0].replace('cc.cast(w, "dp", to=R)', "w")
    done = _run(program, tmp_path)
    assert done.returncode != 0
    shown = _blocks("text")[0].strip()
    assert shown in done.stderr, f"README shows\n{shown}\nand it says\n{done.stderr}"
