"""The notebooks run from top to bottom in one process, and print what is stored in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NUMBER = r"-?\d+\.\d+(?:e[-+]\d+)?"

RUN = """
import contextlib, io, json, sys
space, printed = {"__name__": "__main__"}, []
for at, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] == "code":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("".join(cell["source"]), f"cell {at}", "exec"), space)
        printed.append([at, out.getvalue()])
json.dump(printed, sys.stdout)
"""


def close(found: str, stored: str) -> bool:
    """Whether texts are equal up to the last digits of numbers, which depend on the processor."""
    numbers = [[float(n) for n in re.findall(NUMBER, text)] for text in (found, stored)]
    words = [re.sub(rf"\s*{NUMBER}\s*", "#", text) for text in (found, stored)]
    return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_stored(path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads(path.read_text())["cells"]
    for at, text in json.loads(done.stdout):
        stored = "".join(line for output in cells[at]["outputs"] for line in output["text"])
        assert close(text, stored), f"cell {at}:\n{text}\nstored:\n{stored}"


def test_there_are_two_and_the_comparison_notices() -> None:
    assert len(NOTEBOOKS) == 2
    assert close("a 1.23456 b\n", "a  1.23457 b\n") and not close("a 1.2 b", "a 1.3 b") and not close("a 1.2", "b 1.2")
