"""The README's program runs, and breaking it as the text says gives the error that it shows; paths and links exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ..forks import run_file

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _run(program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "try.py"
    file.write_text(program)
    return run_file(file, limit_s=60)


def test_the_program_runs(tmp_path: Path) -> None:
    file = tmp_path / "try.py"
    file.write_text(_blocks("python")[0])
    path = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, env=path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == _blocks("text")[1].strip()


def test_without_the_cast_it_is_refused_as_shown(tmp_path: Path) -> None:
    program = _blocks("python")[0].replace('cc.cast(w, "dp", to=R)', "w")
    done = _run(program, tmp_path)
    assert done.returncode != 0
    headline, shown = _blocks("text")[0].strip(), _blocks("text")[2].strip()
    assert headline == shown
    assert shown in done.stderr, f"README shows\n{shown}\nand it says\n{done.stderr}"


def test_the_tables_of_the_idea_are_those_of_the_example() -> None:
    ended = run_file(ROOT / "examples" / "01_adjoints.py", "--ranks", "3", limit_s=60)
    printed = {text.split(",")[0]: re.findall(r"^\[rank .*$", text, re.M) for text in ended.stdout.split("\n\n")}
    idea = README.split("## The idea")[1].split("\n## ")[0]
    shown = [re.split(r" *\| *", row)[2:-1] for row in re.findall(r"^\| \d .*$", idea, re.M)]
    expected = [re.split(r" {2,}", line.split("] ")[1]) for name in ("cast(to=R)", "all_reduce(to=I)") for line in
                printed[name]]  # fmt: skip
    assert shown == expected and len(shown) == 6


def test_division_by_the_local_number_of_rows_is_refused(tmp_path: Path) -> None:
    done = _run(_blocks("python")[0].replace("x.global_shape[0]", "x.shape[0]"), tmp_path)
    assert done.returncode != 0 and "LayoutError: divide" in done.stderr


def test_links_and_commands_name_files_that_exist() -> None:
    links = [target for target in re.findall(r"\]\(([^)]+)\)", README) if not target.startswith("http")]
    scripts = re.findall(r"python ((?:examples|benchmarks)/[\w/]+\.py)", README)
    assert links and scripts
    for path in [target.partition("#")[0] for target in links] + scripts:
        assert (ROOT / path).exists(), path
