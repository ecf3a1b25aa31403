"""The tables of rules beside the functions of the operations, and the names that they are registered under."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import autograd.scipy.special  # whose operations are loaded with it
import collectives as cc
from autograd.engine.first_use import load_operations
from autograd.engine.primitive import operation_named, registry
from autograd.errors import ScaleError
from collectives import I, R, Shard
from collectives.declaration.collective import collectives as registered
from collectives.scale.addends import _counts_of_all
from collectives.scale.numbers import Evidence
from collectives.scale.powers import UNKNOWN, ZERO, Power, joint
from collectives.scale.rules import COLLECTIVES, OPERATIONS
from parallel.context.ring import RING_ATTENTION

_random = numpy.random.default_rng(17)
X, Y = numpy.abs(_random.normal(size=(2, 4, 3))) + 0.1
CALLS: dict[str, Any] = {
    "divide": lambda x: ag.tensor(Y) / x, "max": lambda x: x.max(axis=1), "min": lambda x: x.min(axis=1),
}  # fmt: skip


load_operations()
DEGREES = {name: each.degree for name, each in registry.items() if getattr(each, "degree", None) is not None}


@pytest.mark.parametrize("name", sorted(DEGREES))
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


def test_an_unknown_term_excuses_no_other() -> None:
    """A sum has the powers of the terms that are known: a wrong one is wrong beside an unknown one."""
    wrong = Power(frozenset((1,)))
    assert joint([wrong, UNKNOWN]) == joint([UNKNOWN, wrong]) == (wrong.powers, False)
    assert joint([UNKNOWN, UNKNOWN]) == (None, False)
    assert joint([wrong, UNKNOWN, Power()]) == (None, True)
    assert joint([]) == (ZERO, False)


def of_a_mean(n: int, f: Any) -> None:
    """Run backward from a function of a mean over Shards and of the size."""

    def main() -> None:
        with cc.Mesh(dp=n) as mesh:
            dp = mesh.axis("dp")
            x = cc.from_local(X[int(dp.rank) :: n], {"dp": Shard(0)})
            w = ag.Parameter(numpy.ones(3))
            with ag.Tape() as tape:
                loss = f(cc.all_reduce((x @ cc.cast(w, "dp", to=R)).mean(), "dp", to=I), dp.size)
            tape.backward(loss)

    cc.check(scale="error")
    try:
        cc.run(main, n)
    finally:
        cc.check(scale="warn")


@pytest.mark.parametrize("f", [np.tanh, np.exp, np.log1p, ag.ops.sigmoid, lambda x: ag.ops.softmax(x.reshape(1)).sum()])
def test_a_function_of_a_wrong_value_is_told(f: Any) -> None:
    for wrong in (lambda y, n: f(y / n), lambda y, n: f(y * n) / n):
        with pytest.raises(ScaleError, match="a function of a value that is 3 times too"):
            of_a_mean(3, wrong)
    of_a_mean(3, lambda y, n: f(y))
    of_a_mean(3, lambda y, n: f(y * int(n)))  # meant


def test_numbers_whose_product_is_one_are_constants() -> None:
    for wrong in (lambda y, n: 2 * (n * y) / 2, lambda y, n: 6 * y * n / 2 / 3, lambda y, n: 0.7 * (n * y) / 0.7):
        with pytest.raises(ScaleError, match="4 times too large"):
            of_a_mean(4, wrong)
    of_a_mean(4, lambda y, n: 2 * y / 2)
    of_a_mean(2, lambda y, n: n * (2 * y) / 2)  # 2 may be the number of ranks, once


def test_a_power_without_those_of_a_number() -> None:
    q = Power(frozenset((1,)), base=frozenset((0, 1)))
    for added in (frozenset((0, -1)), frozenset((0, 1, 2)), ZERO):
        assert q.times(added).without([added]) == q
    assert UNKNOWN.without([ZERO]) == UNKNOWN


def test_a_function_is_right_for_one_power() -> None:
    """Of an argument that may be wrong by a number, as a half on two ranks may be one over them."""
    for f in (np.tanh, lambda x: np.maximum(1 - x, 0.0), lambda x: np.sqrt(1 + x**2)):
        for wrong in (lambda y, n, f=f: f(0.5 * y) / n, lambda y, n, f=f: n * f(y / 2)):
            with pytest.raises(ScaleError, match="2 times too"):
                of_a_mean(2, wrong)
        of_a_mean(2, lambda y, n, f=f: f(0.5 * y))
        of_a_mean(2, lambda y, n, f=f: f(0.5 * (n * y)))  # 0.5 is one over their number


def test_a_logarithm_hides_a_factor() -> None:
    of_a_mean(3, lambda y, n: np.log(y * n))
    of_a_mean(3, lambda y, n: np.log(y / n))
    with pytest.raises(ScaleError, match="3 times too small"):
        of_a_mean(3, lambda y, n: np.log(y * n) / n)


def test_a_scalar_leaf_is_a_plain_number() -> None:
    """Whatever its label; one that was computed off the tape may count anything."""
    def of_copies(y: Any, n: Any) -> Any:
        return cc.cast(cc.cast(y, "dp", to=R) * ag.tensor(0.3, {"dp": R}) / n, "dp", to=I)

    for wrong in (of_copies, lambda y, n: y * ag.tensor(0.3, {"dp": I}) / n):
        with pytest.raises(ScaleError, match="3 times too small"):
            of_a_mean(3, wrong)
    of_a_mean(3, lambda y, n: y * n / (ag.tensor([1.0, 2.0], {"dp": I}).sum()))


def test_the_message_names_a_term() -> None:
    """Beside an unknown term it does not say that all of the objective is wrong."""

    def main() -> None:
        with cc.Mesh(dp=3) as mesh:
            w = ag.tensor(X, layout={"dp": R}, requires_grad=True)
            scalar = ag.tensor([0.1, 0.2], layout={"dp": R}).sum()  # off the tape: it may count anything
            with ag.Tape() as tape:
                loss = cc.cast(w.sum() * mesh.axis("dp").size + w.mean() * scalar, "dp", to=I)
            tape.backward(loss)

    with pytest.raises(ScaleError, match="a term of the objective, and with it its part of every gradient, is 3 times"):
        cc.run(main, 3)


def test_a_root_of_the_size_hides_nothing_in_a_function() -> None:
    """A half is one over the root of 4 ranks; in a function it is a half."""
    with pytest.raises(ScaleError, match="4 times too small"):
        of_a_mean(4, lambda y, n: np.tanh(0.5 * y) / n)


def test_ranks_with_unequal_parts_find_the_same() -> None:
    """One element of rank 0 may be one of each rank, two of rank 1 are not: nothing is told by one rank alone."""

    def main() -> str:
        with cc.Mesh(dp=2) as mesh:
            dp = mesh.axis("dp")
            w = ag.Parameter(numpy.ones(3))
            with ag.Tape() as tape:
                rows = ag.tensor(X[: 1 + int(dp.rank)], {"dp": Shard(0)})  # whose extents the ranks have not agreed on
                loss = cc.all_reduce((rows @ cc.cast(w, "dp", to=R)).sum(), "dp", to=I) / dp.size
            try:
                tape.backward(loss)
            except ScaleError as error:
                return str(error)
        return ""

    cc.check(scale="error")
    try:
        assert len(set(cc.run(main, 2))) == 1
    finally:
        cc.check(scale="warn")


def test_counts_of_all_ranks() -> None:
    """A factor may be the count of any rank's mean, but a divisor behind a sum is one only if all have the same."""
    ranks = [Evidence(counts=(4, 8)), Evidence(counts=(5, 8))]
    assert _counts_of_all(ranks, 3, True) == {4, 5, 8} and _counts_of_all(ranks, 3, False) == {8}
    assert _counts_of_all([Evidence(counts=(4, 12), extents=(3, 4))], 3, True) == {4}  # 12 may be of 3 ranks


SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "size * x": lambda n, x: n * x, "x * size": lambda n, x: x * n, "x / size": lambda n, x: x / n,
    "1 / size * x": lambda n, x: 1 / n * x, "-size * x": lambda n, x: -n * x, "abs": lambda n, x: abs(n) * x,
    "size**-1 * x": lambda n, x: n**-1 * x, "size**0.5 twice": lambda n, x: n**0.5 * (n**0.5 * x),
    "size * 1.0": lambda n, x: n * 1.0 * x, "in place": operator.imul, "operator.mul": operator.mul,
    "__rmul__": lambda n, x: x.__rmul__(n), "__mul__": lambda n, x: operator.mul(n, x),
    "np.multiply": lambda n, x: np.multiply(n, x), "numpy.multiply": lambda n, x: numpy.multiply(n, x),
    "numpy.divide": lambda n, x: numpy.divide(x, n), "math.prod": lambda n, x: math.prod([n, x]),
    "sum": lambda n, x: sum([n * x]), "max": lambda n, x: max(n, 1) * x, "/= 1 / size": lambda n, x: x / (1 / n),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_size_on_either_side(name: str) -> None:
    def program(is_penalty: bool) -> None:
        with cc.Mesh(dp=3) as mesh:
            w = ag.Parameter(numpy.ones(3))
            rows = cc.from_local(numpy.random.default_rng(0).normal(size=(7, 3)), {"dp": Shard(0)})
            with ag.Tape() as tape:
                loss = cc.all_reduce(((rows @ cc.cast(w, "dp", to=R)) ** 2).mean(), "dp", to=I)
                size = mesh.axis("dp").size
                loss = loss + SIZES[name](size, (w * w).sum()) if is_penalty else SIZES[name](size, loss)
            tape.backward(loss)

    for is_penalty in (False, True):
        with pytest.raises(ScaleError, match="axis 'dp'"):
            cc.run(program, 3, is_penalty)
