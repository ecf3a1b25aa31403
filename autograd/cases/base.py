"""How a case of an operation is written, and how its arguments are drawn.

    case("exp", "of a matrix", registry["exp"], numpy.exp, normal(2, 3))

The function is called with Tensors, with plain arrays and with arrays of a device; NumPy's with plain arrays only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.random import Generator

__all__ = ["CASES", "WITHOUT_DERIVATIVE", "Case", "Maker", "apart", "between", "case", "normal", "positive", "strided"]

Array = Any
Maker = Callable[..., Callable[[Generator], Array]]

WITHOUT_DERIVATIVE: dict[str, str] = {
    "equal": "its result is boolean",
    "not_equal": "its result is boolean",
    "less": "its result is boolean",
    "less_equal": "its result is boolean",
    "greater": "its result is boolean",
    "greater_equal": "its result is boolean",
    "logical_not": "its result is boolean",
    "isfinite": "its result is boolean",
    "argmax": "its result is an integer",
    "stop_gradient": "cuts the derivative, which is what it is for",
}
"""Operations without cases, and the reason."""



def normal(*shape: int) -> Callable[[Generator], Array]:
    return lambda rng: rng.standard_normal(shape)


def positive(*shape: int) -> Callable[[Generator], Array]:
    return lambda rng: rng.uniform(0.5, 2.0, shape)


def apart(*shape: int) -> Callable[[Generator], Array]:
    """Distinct values, away from each other and from zero: no kink is near."""

    def make(rng: Generator) -> Array:
        n = int(numpy.prod(shape))
        return ((rng.permutation(n) - n // 2 + 0.5) * 0.2).reshape(shape)

    return make


def between(low: float, high: float) -> Maker:
    """Values of an interval, of whatever shape."""
    return lambda *shape: lambda rng: rng.uniform(low, high, shape)


def strided(make: Callable[[Generator], Array]) -> Callable[[Generator], Array]:
    """The same values with every dimension reversed in memory and a gap after each element."""

    def made(rng: Generator) -> Array:
        x = make(rng)
        wide = numpy.zeros(tuple(2 * n for n in x.shape[::-1]))
        view = wide[tuple(slice(None, None, 2) for _ in x.shape)].T
        view[...] = x
        assert x.ndim < 2 or x.size < 2 or not view.flags.c_contiguous
        return view

    return made


@dataclass(frozen=True)
class Case:
    """One use of an operation: what it computes on Tensors, NumPy's own way, and how its arguments are drawn."""

    operation: str
    label: str
    f: Callable[..., Any]
    numpy: Callable[..., Any]
    args: tuple[Callable[[Generator], Array], ...]

    def draw(self, seed: int = 1) -> list[Array]:
        rng = numpy.random.default_rng(seed)
        return [make(rng) for make in self.args]


CASES: list[Case] = []


def case(operation: str, label: str, f: Any, numpys: Any, *args: Any) -> None:
    CASES.append(Case(operation, label, f, numpys, args))
