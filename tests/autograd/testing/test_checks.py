"""The checks of derivatives: what is right passes, however ill-conditioned; what is wrong by 1e-4 does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import ops
from autograd.engine.primitive import op, registry
from autograd.layouts.inference import broadcast
from autograd.layouts.layout import Mix
from autograd.testing import GradientMismatch, check_adjoint, check_grads, complex_step, settled_slope

Array = Any


def planted(function: Callable[..., Any], adjoint: Any, word: str = "N", **words: Any) -> Any:
    """An operation with a planted fault; it leaves the registry at once."""
    made = op("planted", word, function, adjoint, **{"saves": "0", "dims": broadcast, **words})
    del registry["planted"]
    return made


def scaled(function: Callable[[Any], Any], slope: Callable[[Any], Any], factor: float) -> Any:
    """An elementwise operation whose derivative is off by a factor."""
    return planted(function, lambda ct, y, x: ct * (slope(x) * factor))


FUNCTIONS: dict[str, tuple[Any, Any, Any]] = {
    "cube": (lambda x: x * x * x, lambda x: 3 * (x * x), numpy.array([0.5, 1.0, -2.0])),
    "small beside a large value": (lambda x: 1e8 + np.sin(x), np.cos, numpy.array([0.3, 1.0])),
    "steep": (lambda x: np.sin(1e4 * x), lambda x: 1e4 * np.cos(1e4 * x), numpy.array([0.1, 0.2])),
    "near its pole": (lambda x: 1 / (1e-3 - x), lambda x: 1 / ((1e-3 - x) * (1e-3 - x)), numpy.array([0.0, 1e-4])),
    "elements 1e12 apart": (lambda x: x * x * x, lambda x: 3 * (x * x), numpy.array([1e-3, 1e3])),
    "tiny": (lambda x: 1e-9 * (x * x), lambda x: 2e-9 * x, numpy.array([1.0, 3.0])),
    "flat": (lambda x: np.exp(-x), lambda x: -np.exp(-x), numpy.array([1.0, 12.0])),
    "large arguments": (np.log, lambda x: 1 / x, numpy.array([1e5, 1e9])),
    "small arguments": (np.sqrt, lambda x: 0.5 / np.sqrt(x), numpy.array([1e-6, 1e-9])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_right_passes_and_wrong_by_one_in_ten_thousand_fails(name: str) -> None:
    function, slope, x = FUNCTIONS[name]
    check_grads(scaled(function, slope, 1.0), x)
    for factor in (1 + 1e-4, 1 - 1e-4):
        for mode in ("reverse", "forward"):
            with pytest.raises(GradientMismatch, match="differ"):
                check_grads(scaled(function, slope, factor), x, order=1, modes=[mode])


def test_a_wrong_factor_in_one_element_is_named() -> None:
    factor = numpy.array([1.0, 1.0, 1.0001])
    bad = scaled(lambda x: x * x, lambda x: 2 * x, factor)
    with pytest.raises(GradientMismatch) as error:
        check_grads(lambda a, b: a * bad(b), numpy.array(2.0), numpy.array([1.0, 2.0, 3.0]), order=1, modes=["reverse"])
    assert re.search(r"reverse mode, order 1, argument 1 of shape \(3,\): 1 of 3 elements differ\n"
                     r"  element \[2\]: expected \S+( \(\+- \S+\))?, got \S+\n  wrong: ", str(error.value))  # fmt: skip


def test_a_second_derivative_that_is_wrong_by_little() -> None:
    """The first derivative is right; the rule of the rule hides a factor."""
    inner = planted(lambda x: 3 * x * x, lambda ct, y, x: ct * (6.0006 * x))
    outer = planted(lambda x: x * x * x, lambda ct, y, x: ct * inner(x))
    check_grads(outer, numpy.array([1.0, 2.0]), order=1)
    with pytest.raises(GradientMismatch, match=r"order 2 \(of the reverse derivative\)"):
        check_grads(outer, numpy.array([1.0, 2.0]), order=2)


def test_single_precision_is_compared_in_double() -> None:
    x = numpy.array([0.5, 2.0], numpy.float32)
    check_grads(np.tanh, x)
    check_grads(lambda a: np.exp(a) @ np.ones(2).astype("float32"), x)
    with pytest.raises(GradientMismatch, match="differ"):
        check_grads(scaled(lambda a: a * a, lambda a: 2 * a, 1.003), x, order=1)


def test_a_function_that_wants_single_precision() -> None:
    def narrow(x: Any) -> Any:
        assert x.dtype == numpy.float32, "this function takes float32 only"
        return np.sin(x)

    check_grads(narrow, numpy.array([0.5, 2.0], numpy.float32), order=1, rtol=0.02, atol=0.02)


def test_a_kink_is_not_called_right() -> None:
    with pytest.raises(GradientMismatch):
        check_grads(np.absolute, numpy.array([1e-7]), order=1, modes=["reverse"])


def test_a_function_that_is_rough_everywhere_is_not_called_right() -> None:
    jagged = planted(lambda x: x + 0.05 * numpy.sign(numpy.sin(1e9 * x)) + 0 * numpy.arctan2(x, 1),
                     lambda ct, y, x: ct * 1.0)  # fmt: skip
    with pytest.raises(GradientMismatch, match="do not converge"):
        check_grads(jagged, numpy.array([0.7, 0.3]), order=1, modes=["rev"])


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_values_that_are_rounding_alone(dtype: str) -> None:
    """A value in which all has cancelled shows by its rounding what its derivative may be off by, and no more."""

    def nothing(wrong: float) -> Any:
        made = op("nothing", "N", lambda x: x - numpy.log(numpy.exp(x)),
                  lambda ct, y, x: ct - ct * np.exp(y) * (1 + wrong), saves="y", dims=broadcast)  # fmt: skip
        del registry["nothing"]
        return made

    for seed in range(6):
        x = numpy.random.default_rng(seed).standard_normal((2, 2)).astype(dtype)
        x = x + 1j * x[::-1] if dtype == "complex128" else x
        check_grads(nothing(0.0), x, seed=seed)
        for mode in ("reverse", "forward"):
            with pytest.raises(GradientMismatch):
                check_grads(nothing(3e4 * float(numpy.finfo(dtype).eps)), x, order=1, modes=[mode], seed=seed)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_a_jump_does_not_pass_for_rounding(mode: str) -> None:
    for f in (np.sign, lambda x: np.sign(x) + x, lambda x: np.where(x > 0.5, 3.0, -3.0) * x):
        with pytest.raises(GradientMismatch):
            check_grads(f, numpy.array([0.5, 0.0]), order=1, modes=[mode])


def test_what_is_not_analytic_is_held_against_differences() -> None:
    """|x| + i0 is real for complex numbers too, and the complex step of it would be zero."""
    x = numpy.array([0.5, -2.0])
    assert complex_step(lambda z: numpy.absolute(z), [x], [numpy.ones(2)]) is None
    check_grads(lambda z: np.absolute(z) * 1e-4 + 1e3, x, order=1)
    check_grads(lambda z: np.absolute(z) * 1e-9 + 1e3, x, order=1)  # a few steps of rounding are all there is to see
    check_grads(lambda z: z * numpy.asarray(getattr(ag.stop_gradient(z), "array", z)).real ** 0, x, order=1)


def test_differences_that_overwhelm_are_settled_by_the_complex_step() -> None:
    """1e12 + x loses all but four digits of x; the complex step loses none."""
    x = numpy.array([0.3, 1.0])
    calls = []

    def noisy(z: Any) -> Any:
        calls.append(numpy.iscomplexobj(z))
        return (1e12 + np.sin(z)) - 1e12

    check_grads(noisy, x, order=1)
    assert any(calls)


def test_slopes_know_their_error() -> None:
    for f, exact in ((lambda t: numpy.exp(t), 1.0), (lambda t: numpy.sin(1e3 * t), 1e3), (lambda t: 1e6 + t, 1.0)):
        slope, error = settled_slope(f)
        assert abs(slope - exact) <= 2 * error + 1e-12, (slope, error)
    slope, error = settled_slope(lambda t: numpy.array([t, numpy.sqrt(1 + t)]))
    assert numpy.all(numpy.abs(slope - [1, 0.5]) <= 2 * error + 1e-12)


def test_the_dot_product_test_names_the_element() -> None:
    weights = numpy.array([1.0, 2.0, 3.0])
    bad = planted(lambda x: x * weights, lambda ct, y, x: ct * (weights + numpy.array([0, 1e-6, 0])), word="a",
                  dims=lambda shapes, options: [(Mix,)], saves="", operands="x")  # fmt: skip
    with pytest.raises(GradientMismatch, match=r"(?s)argument 1 of shape \(3,\): <ct, J.*  element \[1\]: exp") as e:
        check_adjoint(lambda a, b: a + bad(b), numpy.ones(3), numpy.ones(3))
    assert "argument 0" not in str(e.value) and "element [0]" not in str(e.value)


def test_complex_arguments_and_values() -> None:
    z = numpy.array([0.5 + 1j, -1.0 + 0.3j])
    check_grads(lambda a: np.exp(a) * a, z)
    bad = planted(lambda a: a * a, lambda ct, y, a: ct * (2 * a * (1 + 1e-4j)))
    with pytest.raises(GradientMismatch, match="2 of 2 elements differ"):
        check_grads(bad, z, order=1, modes=["reverse"])
    check_grads(lambda a: np.absolute(ops.exp(a.astype(complex))), numpy.array([0.3, 1.0]), order=1)


def test_empty_and_0d() -> None:
    check_grads(np.tanh, numpy.zeros((0, 3)))
    check_grads(np.tanh, numpy.float64(0.3))
    check_grads(lambda x: np.sum(x), numpy.zeros((2, 0)))
    check_adjoint(np.tanh, numpy.zeros((0, 3)))


def test_the_present_calls_still_work() -> None:
    check_grads(np.sin, numpy.ones(2), eps=1e-5, rtol=1e-5, atol=1e-5, seed=3, modes=("fwd",), order=1)
    from autograd.testing import compare, norm, numeric_gradient, numeric_tangent, pairing, random_like

    x = numpy.ones(2)
    assert pairing(x, x) == 2 and norm(x) == pytest.approx(2**0.5)
    compare("here", x, x, 1e-9, 1e-9)
    assert numeric_gradient(lambda a: a * 2, [x], 0, x, 1e-5) == pytest.approx([2, 2])
    assert numeric_tangent(lambda a: a * 2, [x], [x], 1e-5) == pytest.approx([2, 2])
    assert random_like(x, numpy.random.default_rng(0)).shape == (2,)
    assert issubclass(ag.testing.GradientMismatch, AssertionError)


def test_the_dot_product_test_sees_an_adjoint_from_which_the_tangent_is_computed() -> None:
    def both(rule: Any, **more: Any) -> Any:
        return planted(lambda x: 1.5 * numpy.tanh(x / 1.5), rule, **more)

    x = numpy.random.default_rng(0).standard_normal(7)
    check_adjoint(both(lambda ct, y, x: ct * (1 - np.tanh(x / 1.5) ** 2)), x)
    bad = both(lambda ct, y, x: ct * (1 - np.tanh(x / 1.5)))
    with pytest.raises(GradientMismatch, match=r"(?s)adjoint of operand 0 of shape \(7,\).*fix: the adjoint, at .*:"):
        check_adjoint(lambda x: np.sum(bad(x) ** 2), x)
    rules = lambda ct, y, a, b: ct * a / y, lambda ct, y, a, b: ct * b / y * 1.01
    nearly = planted(numpy.hypot, rules, word="N N", saves="y01", operands="a b")
    with pytest.raises(GradientMismatch, match="adjoint of operand 1 "):
        check_adjoint(nearly, x, x + 1)
    meant = both(lambda ct, y, x: ct, tangent=[lambda t, y, x: t])  # a straight-through estimator says so
    check_adjoint(meant, x)
    kinked = planted(lambda x: numpy.maximum(x, 0), lambda ct, y, x: ct * (x > 0))
    check_adjoint(kinked, numpy.array([0.0, 1.0, -1.0]))
