"""The Python of every page in docs and below it runs, as it stands, in order; and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ..collectives.launch import launch_command
from ..forks import run_program

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)


def blocks(text: str) -> list[tuple[int, str]]:
    """The blocks of Python with the line on which each begins."""
    return [(text[: m.start(1)].count("\n"), m.group(1)) for m in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)]


def program(text: str) -> str:
    """All blocks as one program whose lines stand where they do on the page, so that errors name its lines."""
    lines: list[str] = []
    for start, block in blocks(text):
        lines += [""] * (start - len(lines)) + block.splitlines()
    return "\n".join(lines) + "\n"


def run(page: Path, text: str) -> subprocess.CompletedProcess[str]:
    return run_program(program(text), page.name, limit_s=100)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p.read_text())], ids=lambda p: p.name)
def test_the_code_of_a_page_runs(page: Path) -> None:
    done = run(page, page.read_text())
    assert done.returncode == 0, done.stderr


def test_the_program_for_a_cluster_runs_under_mpiexec(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program((ROOT / "docs" / "guides" / "cluster.md").read_text()))
    shown = []
    for ranks in (1, 3):
        done = launch_command([str(tmp_path / "train.py")], ranks, limit_s=60)
        assert done.code == 0 and done.out.startswith(f"{ranks} ranks: loss "), done.err
        shown.append(done.out.partition(":")[2])
    assert shown[0] == shown[1]


def test_a_page_whose_code_is_wrong_is_seen() -> None:
    page = ROOT / "docs" / "engine.md"
    text = page.read_text().replace("ct * 3.0003 * x**2", "ct * 3.0 * x**2")
    done = run(page, text)
    assert done.returncode != 0 and "not seen" in done.stderr and "engine.md" in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    headings = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"`[^`]*`", "", text)):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("http"):
            assert (page.parent / target.partition("#")[0]).exists(), target
