"""``help`` of the functions of `autograd.numpy` shows what they compute, and the adjoint."""

from __future__ import annotations

import pydoc
import re
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.engine.primitive import Primitive
from autograd.formula import expression
from autograd.ops import elementwise, ufuncs
from autograd.testing import stubs


def text(function: Any) -> str:
    return re.sub(r".\x08", "", pydoc.render_doc(function))


def test_help_shows_formula_adjoint_and_layouts() -> None:
    shown = text(np.sin)
    assert "Trigonometric sine" in shown and "y = sin(x)" in shown and "Adjoint: ``ct * cos(x)``" in shown
    assert "P is refused, because the operation is not linear" in shown and "Parameters" not in shown
    assert "y = a @ b" in text(np.matmul) and "Adjoint of ``a``: ``ct @ b.T``" in text(np.matmul)
    assert "P stays P" in text(np.add) and "no derivative" in text(np.floor)
    assert "Adjoint of ``x``: ``-(ct * (y / nonzero(y * y + x * x)))``" in text(np.arctan2)
    assert "Adjoint: ``ct * (y * 0.693147)``" in text(np.exp2)
    assert "Adjoint: the cotangent, broadcast" in text(np.sum)
    assert "Adjoint: the cotangents of the parts, joined" in text(np.split)


@pytest.mark.parametrize("name", stubs.STUBS)
def test_every_function_states_its_adjoint(name: str) -> None:
    module: ModuleType = import_module(name)
    without = []
    for each, function in stubs.own_functions(module).items():
        doc = function.__doc__ or ""
        if each in ("r_", "c_", "shape", "size"):
            continue
        states = "Adjoint" in doc or "no derivative" in doc if isinstance(function, Primitive) else (
            re.search("djoint|derivative|cotangent", doc))  # fmt: skip
        if not states or (isinstance(function, Primitive) and "Formula: ``" not in doc):
            without.append(each)
    assert without == []


def test_the_adjoints_that_are_shown_are_those_that_run() -> None:
    """Evaluate the text of the elementwise adjoints, and compare with the rules."""
    names = {**vars(elementwise), **vars(ufuncs)}
    x, z = numpy.array([0.3, 0.7]), numpy.array([0.45, 0.2])
    tried = 0
    for op in vars(np).values():
        if not isinstance(op, Primitive) or not op.elementwise or "S" in op.words:
            continue
        operands = (x, z)[: len(op.words)]
        with numpy.errstate(all="ignore"):
            try:
                y = op.function(*operands)
            except (TypeError, ValueError):
                continue  # it needs options
            for rule in op.adjoint:
                shown = expression(rule, ["ct", "y", "a", "b"][: 2 + len(operands)])
                if rule is None or not shown:
                    continue
                given = {"ct": x + 1.0, "y": y, **dict(zip("ab", operands, strict=False))}
                found = eval(shown, {**names, **given})
                numpy.testing.assert_allclose(found, rule(x + 1.0, y, *operands), rtol=2e-5, equal_nan=True)
                tried += 1
    assert tried > 50


def test_classes_and_users_operations_have_docstrings() -> None:
    assert (Primitive.__doc__ or "").startswith("A differentiable operation.")
    for subclass in Primitive.__subclasses__():
        assert (subclass.__doc__ or "x").split()[0] in ("A", "An", "x")

    def bent(x: Any) -> Any:
        z = x * x
        return z + 1

    op = ag.op("bent (example)", "N", bent, (lambda ct, y, x: 2 * ct * x,), saves="0", operands="x")
    assert (op.__doc__ or "").split("\n\n")[:4] == [
        "bent (example)(x)", "Formula: ``y = bent (example)(x)``", "Adjoint: ``2 * ct * x``",
        "``ct`` is the cotangent of ``y``.",
    ]  # fmt: skip
    made = ag.op("made (example)", "N", eval("lambda x: x"), (eval("lambda ct, y, x: ct"),), operands="x")
    assert "Adjoint: a lambda whose source is not available" in (made.__doc__ or "")
    made.__doc__ = "Return x."
    assert made.__doc__ == "Return x." and "Return x." in text(made)
