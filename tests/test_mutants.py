"""Planted faults: which places of a text are changed, and what the report of a run tells."""

from __future__ import annotations

import ast
from pathlib import Path

from .mutants import drawn, faults_of, planted, run

TEXT = '''
def f(x: list[int] = [2], axis=0):
    """A text, with a - b."""
    if not x:
        raise ValueError(f"{1 + 1}")
    y = x[1 + axis:] if axis < 3 else sum(x, 1)
    y.append(axis * 2)
    return g(y, root=axis) and -axis

LIMIT = 5 + 5
'''
FAULTS = {
    "not x -> (not not x)", "not x -> (x)", "1 + axis -> (1 - axis)", "1 -> 2", "1 + axis: -> 1 + axis + 1:",
    "axis < 3 -> (axis <= 3)", "axis < 3 -> (not axis < 3)", "3 -> 4", "sum(x, 1) -> (x)", "y.append(axis * 2) -> pass",
    "axis * 2 -> (axis + 2)", "2 -> 3", "root=axis -> root=axis + 1", "-axis -> (axis)",
    "g(y, root=axis) and -axis -> (g(y, root=axis) or -axis)",
}  # fmt: skip


def test_the_faults_of_a_text() -> None:
    """In functions only: no annotation, docstring, default or text of an error is changed."""
    found = faults_of("f.py", TEXT)
    assert {f"{fault.before} -> {fault.text}" for fault in found} == FAULTS
    for fault in found:
        text = planted(fault, TEXT)
        assert text != TEXT and ast.dump(ast.parse(text)) != ast.dump(ast.parse(TEXT)), fault


def test_a_fault_is_seen_by_its_test(tmp_path: Path) -> None:
    text = "def twice(x):\n    return x * 2\n"
    tests = [f"def test_{name}():\n    assert twice({x}) == {2 * x}\n" for name, x in (("two", 2), ("five", 5))]
    (tmp_path / "module.py").write_text(text)
    (tmp_path / "test_module.py").write_text("\n".join(["from module import twice", *tests]))
    assert run(tmp_path, ["test_module.py"]) == {"test_module.py::test_two": True, "test_module.py::test_five": True}
    (fault,) = [f for f in drawn(["module.py"], 9, 0, tmp_path) if f.before == "x * 2"]
    (tmp_path / "module.py").write_text(planted(fault, text))
    assert run(tmp_path, ["test_module.py"]) == {"test_module.py::test_two": True, "test_module.py::test_five": False}


def test_a_case_of_a_table_counts_as_a_test(tmp_path: Path) -> None:
    text = "def twice(x):\n    return x * 2\n"
    table = (
        "from module import twice\nfrom tests.tables import each\n\n"
        "@each([1, 2, 3, 5], lambda x: x % 2)\ndef test_twice(x):\n    assert twice(x) == x + x\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "tables.py").write_text((Path(__file__).parent / "tables.py").read_text())
    (tmp_path / "module.py").write_text(text.replace("x * 2", "x + 2"))
    (tmp_path / "test_module.py").write_text(table)
    right = {1: False, 2: True, 3: False, 5: False}
    found = run(tmp_path, ["test_module.py"])
    assert found == {f"test_module.py::test_twice[{x % 2}]::{x}": ok for x, ok in right.items()}
