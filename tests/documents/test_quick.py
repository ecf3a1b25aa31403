"""The table of quick tests names tests that exist, and leaves out no room."""

from __future__ import annotations

import ast
from pathlib import Path

from ..quick import EXEMPT, LONG, QUICK, is_quick
from .test_architecture import ROOT, Library

TESTS = Path(__file__).resolve().parents[1]


def test_every_room_has_quick_tests(library: Library) -> None:
    folders = {library.room(module) for module in library.files if library.files[module].parent != ROOT}
    rooms = {room for room in folders if library.is_package(room)} | {
        f"{path.parent.relative_to(ROOT)}".replace("/", ".") for path in library.files.values()
    }
    assert rooms == {*QUICK, *EXEMPT}


def test_the_tests_exist() -> None:
    functions: dict[str, set[str]] = {}
    for row in QUICK.values():
        for path in row:
            function, _, case = path.partition("[")
            file, _, name = function.partition("::")
            body = ast.parse((TESTS / file).read_text()).body
            functions[file] = {node.name for node in body if isinstance(node, ast.FunctionDef)}
            assert not name or name in functions[file], path
            assert is_quick(f"tests/{path}" if case else f"tests/{file}::{name or min(functions[file] - LONG)}[a::b]")
    assert set.union(*functions.values()) >= LONG
