"""The tables of rules beside the functions of the operations, and the names that they are registered under."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.engine.primitive import operation_named
from collectives.declaration.collective import collectives as registered
from collectives.scale.rules import COLLECTIVES, DEGREES, OPERATIONS
from parallel.context.ring import RING_ATTENTION

_random = numpy.random.default_rng(17)
X, Y = numpy.abs(_random.normal(size=(2, 4, 3))) + 0.1
CALLS: dict[str, Any] = {
    "divide": lambda x: ag.tensor(Y) / x, "max": lambda x: x.max(axis=1), "min": lambda x: x.min(axis=1),
}  # fmt: skip


@pytest.mark.parametrize("name", DEGREES)
def test_degrees(name: str) -> None:
    """``f(c x) = c**degree f(x)`` for c > 0, jointly in the operands N."""
    op: Any = operation_named(name)

    def value(c: float) -> Any:
        operands = [ag.tensor(c * x) for x in (X, Y)]
        if name in CALLS:
            return CALLS[name](operands[0]).numpy()
        return op(*operands[: len(op.letters(1))]).numpy()

    assert "N" in op.letters(1), "an operation that is linear needs no degree"
    for c in (0.5, 3.0):
        numpy.testing.assert_allclose(value(c), c ** float(DEGREES[name]) * value(1.0), rtol=1e-12)


def test_names() -> None:
    """Each row is that of an operation or a collective."""
    assert cc.reproducible_sum  # which is loaded with its first use
    for name in OPERATIONS:
        assert operation_named(name).name == name
    known = {*registered, RING_ATTENTION.name}
    assert COLLECTIVES.keys() <= known, COLLECTIVES.keys() - known
