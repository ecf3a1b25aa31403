"""Rules that users give to functions of `autograd.numpy` and `autograd.scipy`, and graphs of their own nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import autograd.scipy.linalg
import autograd.scipy.special as special
from autograd import extend
from autograd.errors import ArgumentError, NotDifferentiable
from autograd.extend import defjvp, defvjp
from autograd.ops.numpy_protocol import table
from autograd.tracer import Node, trace

A = numpy.array([[2.0, 0.5], [0.25, 1.5]])
D = numpy.array([[1.0, -2.0], [0.5, 3.0]])


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Put the functions that were given rules back in their places."""
    modules = [m for name, m in sys.modules.items() if name.startswith(("autograd.numpy", "autograd.scipy"))]
    kept = [(m, dict(vars(m))) for m in modules]
    functions, vjps, jvps = dict(table()), dict(extend.primitive_vjps), dict(extend.primitive_jvps)
    yield
    for module, names in kept:
        for name, value in names.items():
            if vars(module).get(name) is not value:
                setattr(module, name, value)
    for known, before in ((table(), functions), (extend.primitive_vjps, vjps), (extend.primitive_jvps, jvps)):
        known.clear()
        known.update(before)
    extend._given_rules.clear()


def _inverse(x: Any) -> Any:
    return np.sum(np.linalg.inv(x) * D)


def test_a_forward_rule_is_used_forwards_and_reverse_mode_stays() -> None:
    before, called = ag.grad(_inverse)(A), []

    def rule(g: Any, ans: Any, x: Any) -> Any:
        called.append(x)
        return -np.matmul(ans, np.matmul(g, ans))

    defjvp(np.linalg.inv, rule)
    assert numpy.allclose(ag.grad(_inverse)(A), before, rtol=1e-12) and not called
    assert numpy.isclose(ag.jvp(_inverse, (A,), (D,))[1], numpy.sum(before * D)) and called
    curvature = ag.hessian(_inverse)(A)
    along = (ag.grad(_inverse)(A + 1e-6 * D) - ag.grad(_inverse)(A - 1e-6 * D)) / 2e-6
    assert numpy.allclose(numpy.tensordot(curvature, D, 2), along, rtol=1e-6)


def test_a_reverse_rule_replaces_the_derivative_under_each_name() -> None:
    """A straight-through estimator, by a name of autograd.numpy, by NumPy's own, in both modes."""
    defvjp(np.sign, lambda ans, x: lambda g: 3.0 * g)
    x = numpy.array([0.5, -2.0])
    for sign in (np.sign, numpy.sign):
        assert ag.grad(lambda x, sign=sign: np.sum(sign(x) * x))(x).tolist() == [2.5, -7.0]
        assert ag.jvp(sign, (x,), (numpy.ones(2),))[1].tolist() == [3.0, 3.0]
    assert np.sign(x).tolist() == [1.0, -1.0]
    defvjp(np.abs, lambda ans, x: lambda g: 5.0 * g)
    assert ag.grad(lambda x: np.sum(np.absolute(x)))(x).tolist() == [5.0, 5.0]  # the same function, another name


def test_no_derivative() -> None:
    """As autograd-gamma's clients declare at import."""
    defjvp(special.gammasgn, None)
    defvjp(special.gammasgn, None)
    assert ag.grad(lambda x: special.gammasgn(x) * x)(-0.5) == -1.0
    assert ag.jvp(special.gammasgn, (-0.5,), (1.0,))[1] == 0.0


def test_functions_that_are_refused() -> None:
    for other in (ag.ops.relu, ag.nn.functional.linear, 3.0):
        with pytest.raises(NotDifferentiable, match="was not made by"):
            defvjp(other, None)


class Recorded(Node):
    def __init__(self, value: Any, fun: Any, args: Any, kwargs: Any, parent_argnums: Any, parents: Any):
        names = dict(zip(parent_argnums, [parent.name for parent in parents], strict=True))
        again = fun(*args, **kwargs)
        assert numpy.array_equal(again, value) and type(again) is type(value)
        self.name = f"{fun.__name__}({', '.join(str(names.get(i, a)) for i, a in enumerate(args))})"

    def initialize_root(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(("f", "text"), [
    (lambda x: (np.sin(x) + np.exp(x) - 0.5) * x, "multiply(subtract(add(sin(x), exp(x)), 0.5), x)"),
    (lambda x: numpy.cos(2.0 / x), "cos(divide(2.0, x))"),
    (ag.grad(lambda x: np.sin(x) * 2.0), "multiply(2.0, cos(x))"),
    (lambda x: np.floor(x) + x, "add(1.0, x)"),
])  # fmt: skip
def test_a_node_for_each_operation(f: Any, text: str) -> None:
    value, node = trace(Recorded.new_root("x"), f, 1.0)
    assert value == f(1.0) and node.name == text


def test_a_result_that_does_not_depend() -> None:
    with pytest.warns(UserWarning, match="independent of input"):
        assert trace(Recorded.new_root("x"), lambda x: 3.0, 1.0) == (3.0, None)
    with pytest.raises(ArgumentError, match="needed: a Node"):
        trace(3.0, np.sin, 1.0)  # type: ignore[arg-type]
    for call in (lambda: Node.new_root(1.0), lambda: Node(1.0, np.sin, (), {}, (), ())):
        with pytest.raises(NotImplementedError):
            call()
