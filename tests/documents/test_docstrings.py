"""Docstrings of the packages: each names its subject, and that of a module has at most 25 lines.

"The cotangent that a rule returned" names its subject; "What a rule gave" leaves it to the reader. A story that is
longer than 25 lines stands in `docs/`, and the module's docstring has a summary and the page.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("autograd", "collectives", "parallel")
LONGEST = 25


@cache
def docstrings(text: str) -> list[tuple[bool, list[str]]]:
    """The docstrings of a module, its classes and functions, by lines; each with whether it is the module's."""
    found, nodes = [], [cast(ast.AST, ast.parse(text))]
    for node in nodes:  # statements only: a tree has ten times as many expressions
        nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler)]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if lines := (ast.get_docstring(node) or "").splitlines():
                found.append((isinstance(node, ast.Module), lines))
    return found


def without_subject(text: str) -> list[str]:
    """The first lines of docstrings that begin with a question word."""
    return [lines[0] for _, lines in docstrings(text) if lines[0].split()[0] in ("What", "How")]


def too_long(text: str) -> list[str]:
    """The first line of the module's docstring, if the docstring is longer than it may be."""
    return [lines[0] for is_module, lines in docstrings(text) if is_module and len(lines) > LONGEST]


def sources() -> Iterator[tuple[Path, str]]:
    """The files of the packages with their texts."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), path.read_text()


def test_docstrings_name_their_subject() -> None:
    found = {first: path for path, text in sources() for first in without_subject(text)}
    assert not found, "name the subject, as in 'The cotangent that a rule returned'"


def test_long_stories_of_modules_stand_in_docs() -> None:
    found = {first: path for path, text in sources() for first in too_long(text)}
    assert not found, f"move what is longer than {LONGEST} lines to docs/, and leave a summary that names the page"


def test_both_faults_are_found() -> None:
    story = "\n".join(["Sum."] + ["It adds."] * LONGEST)
    text = f'"""{story}"""\ndef f():\n    """What a rule gave."""\nclass C:\n    """How leaves are nested."""\n'
    assert without_subject(text) == ["What a rule gave.", "How leaves are nested."]
    assert too_long(text) == ["Sum."] and too_long(text.replace("It adds.\n", "", 1)) == []
