"""Objects of a program's own vector space as arguments of transforms, as in HIPS autograd's example of an RKHS."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.arrays.plain import BOXED
from autograd.custom.vspace import VSpace
from autograd.errors import RingtapeError
from autograd.extend import Box, defvjp, primitive


class Sum:
    """``sum_i a_i exp(-(x - x_i)^2)``, as a vector with the coordinates a_i, by center."""

    def __init__(self, weights: dict[float, Any]):
        self.weights = weights

    @primitive
    def __call__(self, x: float) -> Any:
        return sum((a * numpy.exp(-((x - c) ** 2)) for c, a in self.weights.items()), 0.0)

    def __add__(self, other: Sum) -> Sum:
        return Sum({c: self.weights.get(c, 0.0) + other.weights.get(c, 0.0) for c in self.weights | other.weights})

    def __mul__(self, a: Any) -> Sum:
        return Sum({c: a * w for c, w in self.weights.items()})


class SumBox(Box, Sum):
    @property
    def weights(self) -> Any:
        return self._value.weights


class SumVSpace(VSpace):
    def zeros(self) -> Sum:
        return Sum({})


defvjp(Sum.__call__, lambda ans, f, x: lambda g: Sum({x: 1.0}) * g)


@pytest.fixture(autouse=True)
def registered() -> Any:
    SumBox.register(Sum)
    SumVSpace.register(Sum)
    yield
    del BOXED[Sum], VSpace.mappings[Sum]


F = Sum({0.0: 2.0, 1.5: -1.0})
POINTS, VALUES = [0.0, 0.5, 1.5, 0.5], [1.0, 2.0, -1.0, 0.0]


def _loss(f: Any, scale: Any = 1.0) -> Any:
    return sum((scale * (f(x) - y) ** 2 for x, y in zip(POINTS, VALUES, strict=True)), 0.0)


def test_the_gradient_is_an_object() -> None:
    g = ag.grad(_loss)(F)
    wanted: dict[float, float] = {}
    for x, y in zip(POINTS, VALUES, strict=True):  # each evaluation is the vector of its point
        wanted[x] = wanted.get(x, 0.0) + 2.0 * (F(x) - y)
    assert type(g) is Sum and g.weights.keys() == wanted.keys()
    assert all(numpy.isclose(g.weights[c], wanted[c], rtol=1e-12) for c in wanted)
    value, again = ag.value_and_grad(_loss)(F)
    assert value == _loss(F) and again.weights == g.weights


def test_beside_arrays_and_in_containers() -> None:
    g, by_scale = ag.grad(_loss, (0, 1))(F, 3.0)
    assert numpy.isclose(by_scale, _loss(F)) and numpy.isclose(g.weights[1.5], 6.0 * (F(1.5) + 1.0))
    g = ag.grad(lambda t: _loss(t["f"]) * np.sum(t["w"]))({"f": F, "w": numpy.ones(2)})
    assert numpy.isclose(g["f"].weights[1.5], 4.0 * (F(1.5) + 1.0)) and numpy.allclose(g["w"], _loss(F))
    assert ag.grad(lambda f, x: x * x)(F, 2.0).weights == {}  # the zero vector


def test_what_computes_with_it() -> None:
    def used(f: Any) -> Any:
        assert isinstance(f, Sum) and isinstance(f, Box) and f._value is F
        return f(0.5)

    assert ag.grad(used)(F).weights == {0.5: 1.0}
    with pytest.raises(RingtapeError):
        ag.grad(ag.grad(lambda f: f(0.5) ** 2))(F)  # the first gradient is no number
