"""Laws of the house, which are zeros: no number here can be raised. Figures that are no laws are printed, not tested.

`python -m tests.documents.house --before PATH` prints all figures beside those of another checkout.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .house import ROOT, STARTS, Tree, complexity, walks


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def test_every_error_names_the_line(tree: Tree) -> None:
    without, count = tree.errors()
    assert without == [] and count > 0


def test_nodes_are_read_by_position_in_the_engine_alone(tree: Tree) -> None:
    outside, count = tree.positions()
    assert outside == 0 < count


def test_closures_are_found(tree: Tree) -> None:
    assert all(len(tree.closure(start)) > 10 for start in STARTS.values())


def test_walks_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = walks(ROOT)
    if not found:
        pytest.skip("no mpiexec beside the interpreter or on PATH")
    with capsys.disabled():
        for name, numbers in found.items():
            print(f"\n  {name}: {numbers[0]} calls, {numbers[1]} files, {numbers[2]} changes of file", end="")
    assert all(n > 0 for numbers in found.values() for n in numbers)


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


def test_large_classes_long_signatures_and_fragments_are_found(tmp_path: Path) -> None:
    text = "class A:\n    __slots__ = ('x',)\n    b: int\n    c = 1\n    def f(self, x, *y, z=1, **options):\n"
    text += "        self.d = self.d.e = x\n        x.g = 1\n"
    text += "def _once():\n    'Four lines.'\n    a = 1\n    b = 2\n    c = 3\n    return _twice(a)\n"
    text += "def _twice(x):\n    return x\ndef _long():\n    a = 1\n    b = 2\n    c = 3\n    d = 4\n    return a\n"
    text += "print(_once(), _twice(1), _long())\n"
    tree = planted(tmp_path, text)
    assert tree.large_classes(2) == ["autograd.ops.A: 3"] and tree.large_classes(3) == []
    assert tree.long_signatures(1) == ["autograd.ops:9 f: 2"] and tree.long_signatures(2) == []
    assert tree.fragments() == (["autograd.ops:12 _once"], 3)


def test_complexity_is_counted_as_stated() -> None:
    text = (
        "def f(x):\n    if x and x > 1 or x < 0:\n        return [y for y in x if y]\n"
        "    for y in x:\n        x = y if y else 0\n    def g():\n        if x: pass\n"
    )
    assert complexity(ast.parse(text).body[0]) == 1 + 1 + 2 + 2 + 1 + 1
