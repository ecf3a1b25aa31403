"""The table of refusals: a row for each reason of inference, and no operation named beside its declaration."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.engine import promotion
from autograd.engine.primitive import registry
from autograd.extend import op
from autograd.layouts import inference, refusals
from collectives import Shard


def constants(module: ModuleType) -> set[str]:
    """The texts in a module's source."""
    tree = ast.parse(inspect.getsource(module))
    return {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant) and isinstance(x.value, str)}


def test_each_reason_has_a_row() -> None:
    raised = {
        node.args[0].value
        for node in ast.walk(ast.parse(inspect.getsource(inference)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refused"
        if isinstance(node.args[0], ast.Constant)
    }
    assert raised == set(refusals.REASONS)


def test_no_operation_is_named() -> None:
    """A fix that belongs to an operation stands in its declaration."""
    assert "astype" in constants(promotion) & set(registry)  # the conversion, which it calls
    assert (constants(promotion) | constants(refusals)) & set(registry) == {"astype"}


def test_fixes_of_a_declaration_are_offered() -> None:
    mirrored = op(
        "mirrored (example of refusals)", "a", lambda x: x[::-1], lambda ct, y, x: mirrored(ct), operands="x",
        called="mirror",
        fixes={"mixes": "exchange({x}, {a!r}), for the parts of the ranks from the last to the first"},
    )  # fmt: skip

    def program() -> str:
        with cc.Mesh(dp=-1), pytest.raises(ag.LayoutError) as caught:
            mirrored(ag.tensor(numpy.ones(4), layout={"dp": Shard(0)}))
        return str(caught.value)

    first, _, *lines, last = cc.run(program, 2)[0].splitlines()
    assert first.startswith("mirror(") and last.startswith("  at test_refusals.py:")
    assert lines[-1] == "  or:  exchange(x, 'dp'), for the parts of the ranks from the last to the first"
