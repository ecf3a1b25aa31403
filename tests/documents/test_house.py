"""The figures of the house stay at or below what they were, and no module changes another one at import.

`python -m tests.documents.house --before PATH` prints them. Lower a ceiling when its figure has fallen.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .house import ROOT, Figures, Tree, complexity, loaded, walks

CEILINGS = {
    "closure of the engine: files, lines": [38, 10_061],
    "closure of all_reduce: files, lines": [67, 17_564],
    "closure of DataParallel: files, lines": [143, 37_607],
    "complexity above 20, 30": [19, 7],
    "functions with a cache": [59],
    "node[k] outside the engine, of all": [0, 59],
    "globals that functions change": [34],
    "errors without the line, of all": [0, 1_148],
}
IMPORTS = {"autograd": [9, 2_033], "autograd.engine": [10, 2_086]}
WALKS = {  # a pipeline's rank that waits asks again and again, so its calls vary
    "all_reduce(to=I)": [13, 7, 9],
    "all_reduce(to=I) of a scalar loss": [13, 7, 9],
    "backward of cast, multiply, sum, all_reduce": [59, 24, 50],
    "DataParallel MLP, one bucket: forward": [59, 24, 42],
    "DataParallel MLP, one bucket: backward": [134, 28, 79],
    "Pipeline.step, 4 microbatches, 2 stages": [800, 38, 520],
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def over(found: Figures, ceilings: Figures) -> list[str]:
    """The figures that are above their ceilings. Each ceiling needs a figure."""
    return [
        f"{name}: {found[name]}, at most {most}"
        for name, most in ceilings.items()
        if any(n > m for n, m in zip(found[name], most, strict=True))
    ]


def test_no_figure_of_the_text_grows(tree: Tree) -> None:
    found = tree.figures()
    assert over(found, CEILINGS) == []
    assert all(n > 0 for name in CEILINGS if name.startswith("closure") for n in found[name])


def test_imports_stay_small() -> None:
    assert over({what: loaded(ROOT, what) for what in IMPORTS}, IMPORTS) == []


def test_no_walk_grows(capsys: pytest.CaptureFixture[str]) -> None:
    found = walks(ROOT)
    if not found:
        pytest.skip("no mpiexec beside the interpreter or on PATH")
    with capsys.disabled():
        for name, numbers in found.items():
            print(f"\n  {name}: {numbers[0]} calls, {numbers[1]} files, {numbers[2]} changes of file", end="")
    assert over(found, WALKS) == []


def test_no_module_changes_another_at_import(tree: Tree) -> None:
    assert tree.changes() == []


# -- that faults are found ---------------------------------------------------------------------------------------------

SOUND = {
    "autograd/__init__.py": "",
    "autograd/errors.py": "class RingtapeError(Exception):\n    pass\nclass TapeError(RingtapeError):\n    pass\n",
    "autograd/registry.py": "hooks = []\nclass Tape:\n    pass\n",
    "autograd/ops.py": "from .registry import hooks\nfrom . import registry\nown = []\nown.append(1)\n",
    "collectives/__init__.py": "",
    "parallel/__init__.py": "from autograd import ops\n",
}


def planted(folder: Path, text: str) -> Tree:
    """A small library, with text added to its file of operations."""
    for name, sound in SOUND.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(sound + text * (name == "autograd/ops.py"))
    return Tree(folder)


def test_a_sound_library_has_no_faults(tmp_path: Path) -> None:
    tree = planted(tmp_path, "def f():\n    own = []\n    own.append(hooks)\n")
    assert tree.changes() == tree.mutable_globals() == []
    assert tree.closure("parallel") == {"parallel", "autograd.ops", "autograd.registry"}


@pytest.mark.parametrize(
    "line",
    [
        "hooks.append(len)", "registry.Tape.planner = len", "setattr(registry.Tape, 'planner', len)",
        "registry.hooks[0:] = [len]", "hooks += [len]", "registry.hooks += [len]", "if hooks:\n    hooks.clear()",
        "for name in 'ab':\n    setattr(registry, name, len)", "def install():\n    hooks.append(len)\ninstall()",
    ],
)  # fmt: skip
def test_a_module_that_changes_another_is_found(tmp_path: Path, line: str) -> None:
    assert len(planted(tmp_path, line).changes()) == 1


def test_a_global_that_functions_change_is_found(tmp_path: Path) -> None:
    text = "told = {}\nmode = 1\nsaid = [1]\ndef f(x):\n    global mode\n    told[x] = mode = 2\n    said.sort()\n"
    assert planted(tmp_path, text).mutable_globals() == ["autograd.ops.mode", "autograd.ops.told"]


def test_an_error_without_the_programs_line_is_found(tmp_path: Path) -> None:
    text = "from .errors import TapeError\ndef f():\n    raise TapeError('no')\n"
    text += "def g():\n    raise TapeError('no' + call_site())\n"
    assert planted(tmp_path, text).errors() == (["autograd.ops:7"], 2)


def test_a_read_of_a_node_by_position_is_found(tmp_path: Path) -> None:
    text = "def f(node, k):\n    return node[3], node[k], node.parents\n"
    assert planted(tmp_path, text).figures()["node[k] outside the engine, of all"] == [1, 1]


def test_complexity_is_counted_as_stated() -> None:
    text = (
        "def f(x):\n    if x and x > 1 or x < 0:\n        return [y for y in x if y]\n"
        "    for y in x:\n        x = y if y else 0\n    def g():\n        if x: pass\n"
    )
    assert complexity(ast.parse(text).body[0]) == 1 + 1 + 2 + 2 + 1 + 1
