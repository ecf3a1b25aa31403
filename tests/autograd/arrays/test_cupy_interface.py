"""The names and signatures of CuPy and NCCL that are used are those of the installed version. No GPU is needed."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from . import fake_nccl
from .cupy_interface import CUPY, NCCL, NCCL_RETURNS, stated, typed

ROOT = Path(__file__).resolve().parents[3]
installed = pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed (extra: gpu)")


class Uses(ast.NodeVisitor):
    """The dotted names that begin with CuPy's module, also through names that a function gives to parts of it."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.found: set[str] = set()

    def chain(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return "" if node.id == "cupy" else self.known.get(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "library":
            return ""
        if isinstance(node, ast.Attribute):
            if node.attr == "_cupy":
                return ""
            before = self.chain(node.value)
            return None if before is None else f"{before}.{node.attr}".lstrip(".")
        return None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before, self.known = self.known, dict(self.known)
        self.generic_visit(node)
        self.known = before

    def visit_Assign(self, node: ast.Assign) -> None:
        chain = self.chain(node.value)
        if chain and isinstance(node.targets[0], ast.Name):
            self.known[node.targets[0].id] = chain
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = self.chain(node)
        if chain:
            self.found.add(chain)
        self.generic_visit(node)


MODULES = {"cuda", "cuda.driver", "cuda.runtime", "cuda.nccl", "cuda.device", "_core", "_core._routines_linalg"}


def used() -> set[str]:
    uses = Uses()
    for file in sorted((ROOT / "autograd" / "arrays").glob("*.py")):
        uses.visit(ast.parse(file.read_text()))
    return uses.found - MODULES


def test_every_name_that_is_used_is_in_the_table() -> None:
    names = used()
    assert len(names) > 30, "the walk finds nothing"
    assert names <= set(CUPY), f"no signature is known of {sorted(names - set(CUPY))}"


def test_every_function_of_nccl_that_is_used_is_in_the_table() -> None:
    text = "".join((ROOT / "collectives" / file).read_text()
                   for file in ("transports/device/nccl.py", "tools/device_facts.py"))  # fmt: skip
    functions = set(re.findall(r"(?:comm|made\[0\])\.(\w+)\(", text))
    functions |= {f"{name}" for name in re.findall(r"library\.(\w+)\(", text)}
    known = {name.rpartition(".")[2] for name in NCCL}
    assert functions and functions <= known, functions - known


@installed
@pytest.mark.parametrize("name", CUPY)
def test_names_of_cupy(name: str) -> None:
    found: Any = attrgetter(name)(import_module("cupy"))
    if CUPY[name] is not None:
        right = CUPY[name] or ""
        assert stated(found) == right[right.index("(") :]


@installed
@pytest.mark.parametrize("name", NCCL)
def test_functions_of_nccl(name: str) -> None:
    library = pytest.importorskip("cupy.cuda.nccl", reason="CuPy has no NCCL here")
    if not library.available:
        pytest.skip("NCCL is not installed (extra: gpu)")
    found = attrgetter(name)(library)
    assert stated(found) == NCCL[name]
    if name in NCCL_RETURNS:
        assert type(found()) is NCCL_RETURNS[name]


@pytest.mark.parametrize("name", NCCL)
def test_the_fake_has_the_same_functions(name: str) -> None:
    assert callable(attrgetter(name)(fake_nccl.LIBRARY))
    if name in NCCL_RETURNS:
        assert type(getattr(fake_nccl.LIBRARY, name)()) is NCCL_RETURNS[name]


def test_the_fake_refuses_arguments_of_other_types() -> None:
    """An older CuPy took the identity as a tuple of numbers."""
    with pytest.raises(TypeError, match="got tuple"):
        fake_nccl.LIBRARY.NcclCommunicator(1, tuple(range(128)), 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 1 argument"):
        typed("NcclCommunicator.allReduce", lambda self, *given: None)(None, 1)
    with pytest.raises(TypeError, match="got float"):
        typed("NcclCommunicator.send", lambda self, *given: None)(None, 1, 2.0, 3, 4, 5)
