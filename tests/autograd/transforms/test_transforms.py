"""Transforms on one process: conventions, modes against each other and against finite differences, errors."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.testing import check_grads
from autograd.transforms.wrapping import unary_to_nary

A = numpy.random.default_rng(0).standard_normal((4, 3))
X = numpy.array([0.5, -1.0, 2.0])
ORDERS = [f"{a}-over-{b}" for a in ("forward", "reverse") for b in ("forward", "reverse")]


def curve(x: Any) -> Any:
    """R^3 -> R^4, with products, a matmul, indexing and a reduction in it."""
    return np.tanh(A @ x) * x[0] + np.sum(x * x) / (2.0 + x[1] * x[1])


def loss(x: Any) -> Any:
    return np.sum(curve(x) ** 3)


def slopes(f: Callable[[Any], Any], x: numpy.ndarray, h: float = 1e-6) -> numpy.ndarray:
    """Central differences: the Jacobian with the argument's dimensions last."""
    columns = []
    for at in numpy.ndindex(*x.shape):
        step = numpy.zeros_like(x)
        step[at] = h
        columns.append((numpy.asarray(f(x + step)) - numpy.asarray(f(x - step))) / (2 * h))
    return numpy.stack(columns, -1).reshape(*numpy.shape(columns[0]), *x.shape)


def close(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    numpy.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# -- names, texts, arguments -------------------------------------------------------------------------------------------


def test_names_and_texts_of_what_is_transformed() -> None:
    def foo(x: Any, y: Any) -> Any:
        return x * y

    assert ag.grad.__name__ == "grad" and (ag.grad.__doc__ or "").lstrip().startswith("Returns a function which")
    for name in ("grad", "value_and_grad", "jacobian", "hessian", "elementwise_grad", "make_vjp", "make_jvp", "deriv",
                 "holomorphic_grad", "make_hvp", "grad_and_aux", "hessian_tensor_product",
                 "tensor_jacobian_product", "make_jvp_reversemode"):  # fmt: skip
        made = getattr(ag, name)(foo, 1)
        assert made.__name__ == f"{name}_of_foo_wrt_argnum_1"
        assert made.__doc__.startswith(f"    {name} of function foo with respect to argument number 1")
        assert made.__wrapped__ is foo
    assert ag.grad(partial(foo, y=1.0)).__name__ == "grad_of_[unknown name]_wrt_argnum_0"
    assert ag.make_ggnvp(foo).__name__ == "make_ggnvp_of_foo_wrt_argnum_0"
    assert ag.egrad is ag.elementwise_grad and ag.hessian_vector_product is ag.hessian_tensor_product
    assert ag.vector_jacobian_product is ag.tensor_jacobian_product


def test_every_public_transform_says_what_it_is_and_has_an_example() -> None:
    from autograd import transforms

    for name in transforms.__all__:
        text = getattr(transforms, name).__doc__
        assert text and ">>> " in text, name


@pytest.mark.parametrize("argnum", [1, -2, (0, 2), [2, 0], numpy.int64(1)])
def test_argnum_chooses_arguments(argnum: Any) -> None:
    def f(a: Any, b: Any, c: Any, power: float = 1.0) -> Any:
        return np.sum(a * b**2 * c**3) ** power

    args = (2.0, numpy.array([1.0, 3.0]), 0.5)
    every = ag.grad(lambda xs: f(*xs, power=2.0))(args)
    found = ag.grad(f, argnum)(*args, power=2.0)
    if isinstance(argnum, tuple | list):
        assert type(found) is tuple
        for i, g in zip(argnum, found, strict=True):
            close(g, every[i])
    else:
        close(found, every[argnum])


def test_kinds_of_arguments_and_of_results() -> None:
    for x in (2.0, numpy.float64(2.0)):
        g = ag.grad(lambda x: x**3)(x)
        assert isinstance(g, float) and g == 12
        assert isinstance(ag.hessian(lambda x: x**3)(x), float) and isinstance(ag.jacobian(lambda x: x**3)(x), float)
    for dtype in (numpy.float32, numpy.float16, numpy.longdouble):
        assert ag.grad(np.sum)(numpy.ones(2, dtype)).dtype == dtype
        assert type(ag.grad(lambda x: x * x)(dtype(2.0))) is dtype
    g = ag.grad(lambda x: x * x)(ag.tensor([2.0]))
    assert isinstance(g, ag.Tensor) and g.array == 4
    assert ag.grad(lambda x: x * x)(numpy.ones((1, 1))).shape == (1, 1)


def test_results_are_the_callers_own() -> None:
    """No view, none that the caller gave, none twice: `g *= 2` must not reach anything else."""
    x = numpy.ones(3)
    for g in (ag.grad(np.sum)(x), ag.grad(lambda x: np.broadcast_to(x, (2, 3)).sum())(x)):
        assert g.base is None and g.flags.writeable
    ct = numpy.ones(3)
    y, pullback = ag.vjp(lambda x: x, x)
    assert not numpy.shares_memory(pullback(ct), ct) and not numpy.shares_memory(y, x)
    a, b = ag.grad(lambda a, b: np.sum(a + b), (0, 1))(numpy.ones(()), numpy.ones(()))
    assert a is not b or not isinstance(a, numpy.ndarray)
    a, b = ag.vjp(lambda a, b: a + b, x, x)[1](ct)
    assert not numpy.shares_memory(a, b)
    t = numpy.ones(3)
    assert not numpy.shares_memory(ag.jvp(lambda x: x, (x,), (t,))[1], t)


def test_containers_as_arguments_and_results() -> None:
    params = {"w": X.copy(), "layers": [(1.0, None), (numpy.ones((2, 2)), 3.0)], "empty": [], "unused": 2.0}

    def f(p: Any, scale: float) -> Any:
        return scale * np.sum(p["w"] ** 2) * p["layers"][0][0] * np.sum(p["layers"][1][0] * p["layers"][1][1])

    value, g = ag.value_and_grad(f)(params, 2.0)
    assert value == 2 * numpy.sum(X**2) * 12 and not isinstance(value, ag.Tensor)
    close(g["w"], 2 * X * 24)
    assert g["layers"][0] == (numpy.sum(X**2) * 24, None) and g["empty"] == [] and g["unused"] == 0
    close(g["layers"][1][0], numpy.full((2, 2), 6 * numpy.sum(X**2)))
    assert type(ag.grad(lambda p: p["a"] * 2.0)(OrderedDict(a=1.0))) is OrderedDict

    def both(p: Any) -> Any:
        return {"out": [p["a"] * p["b"], np.sin(p["a"])]}

    p, v = {"a": 2.0, "b": X}, {"a": 1.0, "b": X * 0}
    pullback, y = ag.make_vjp(both)(p)
    close(y["out"][0], 2 * X)
    ct = {"out": (numpy.array([1.0, 0.0, 2.0]), 10.0)}
    got = pullback(ct)
    close(got["a"], X[0] + 2 * X[2] + 10 * numpy.cos(2.0))
    close(got["b"], [2.0, 0.0, 4.0])
    close(ag.make_jvp(both)(p)(v)[1]["out"][0], X)
    close(ag.make_jvp_reversemode(both)(p)(v)["out"][0], X)
    jac = ag.jacobian(both)(p)
    close(jac["out"][0]["a"], X)
    close(jac["out"][0]["b"], 2 * numpy.eye(3))
    close(jac["out"][1]["b"], numpy.zeros(3))
    hess = ag.hessian(lambda p: p["a"] ** 2 * np.sum(p["b"] ** 2))(p)
    close(hess["a"]["b"], 8 * X)
    close(hess["b"]["a"], 8 * X)
    close(hess["b"]["b"], 8 * numpy.eye(3))


def test_empty_arguments_and_outputs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for empty in ([], (), {}):
            assert ag.grad(lambda x: 1.0)(empty) == empty
    assert ag.jacobian(lambda x: x[:0])(X).shape == (0, 3)
    assert ag.jacobian(lambda x: x * 2.0)(numpy.ones((2, 0))).shape == (2, 0, 2, 0)
    assert ag.jacobian(lambda x: x * 2.0, mode="forward")(numpy.ones((2, 0))).shape == (2, 0, 2, 0)
    assert ag.hessian(lambda x: np.sum(x * x))(numpy.ones(0)).shape == (0, 0)


def test_grad_and_aux_grad_named_multigrad() -> None:
    gradient, aux = ag.grad_and_aux(lambda x: (np.sum(x * x), {"name": "it", "y": x * 3.0, "n": 2}))(X)
    close(gradient, 2 * X)
    assert aux["name"] == "it" and aux["n"] == 2 and type(aux["y"]) is numpy.ndarray
    close(aux["y"], 3 * X)

    def f(a: Any, b: Any, c: Any = 3.0, *rest: Any, d: Any = 0.5, **more: Any) -> Any:
        return a * b * c * d + sum(r * r for r in rest) + sum(m * 2.0 for m in more.values())

    assert ag.grad_named(f, "b")(2.0, 3.0) == 3
    found = ag.multigrad_dict(f)(2.0, 5.0, 3.0, 7.0, e=1.0)
    assert list(found) == ["a", "b", "c", "rest", "d", "more"]
    assert found == {"a": 7.5, "b": 3.0, "c": 5.0, "rest": (14.0,), "d": 30.0, "more": {"e": 2.0}}
    assert ag.multigrad_dict(lambda x, y=2.0: x * y)(1.0) == {"x": 2.0, "y": 1.0}


def test_a_transform_of_ones_own() -> None:
    @unary_to_nary
    def twice(f: Any, x: Any, times: int = 2) -> Any:
        """Says."""
        return times * f(x)

    assert twice(lambda a, b: a * b, 1, times=3)(2.0, 5.0) == 30
    assert twice.__name__ == "twice" and twice.__doc__ == "Says."


# -- modes against each other and against finite differences ----------------------------------------------------------


@pytest.mark.parametrize("mode", [None, "reverse", "forward"])
def test_jacobian(mode: str | None) -> None:
    close(ag.jacobian(curve, mode=mode)(X), slopes(curve, X), 1e-8)

    def table(x: Any) -> Any:
        return np.sin(x)[:, None] * x.T[None, :, 0]

    x = numpy.random.default_rng(1).standard_normal((2, 3))
    expected = slopes(lambda x: numpy.sin(x)[:, None] * x.T[None, :, 0], x)
    found = ag.jacobian(table, mode=mode)(x)
    assert found.shape == expected.shape
    close(found, expected, 1e-8)


def test_the_cheaper_mode_is_chosen() -> None:
    """By counting sweeps: as many as the smaller side has elements."""

    def counted(f: Any, x: Any, **how: Any) -> int:
        from autograd.engine.tape import Tape

        count = [0]
        saved = Tape.backward, Tape.forward

        def counting(which: Any) -> Any:
            def call(*args: Any, **words: Any) -> Any:
                count[0] += 1
                return which(*args, **words)

            return call

        Tape.backward, Tape.forward = map(counting, saved)
        try:
            ag.jacobian(f, **how)(x)
        finally:
            Tape.backward, Tape.forward = saved
        return count[0]

    wide, tall = (lambda x: np.sum(np.reshape(x, (2, 3)), 1)), (lambda x: np.broadcast_to(x, (5, 2)) * 2.0)
    assert counted(wide, numpy.ones(6)) == 2 and counted(tall, numpy.ones(2)) == 2
    assert counted(wide, numpy.ones(6), mode="forward") == 6 and counted(tall, numpy.ones(2), mode="reverse") == 10


@pytest.mark.parametrize("mode", [None, *ORDERS])
def test_hessian_in_every_order(mode: str | None) -> None:
    found = ag.hessian(loss, mode=mode)(X)
    close(found, ag.jacobian(ag.grad(loss))(X))
    close(found, found.T)
    close(found, slopes(ag.grad(loss), X), 1e-7)
    close(ag.hessian(curve, mode=mode)(X), slopes(ag.jacobian(curve), X), 1e-7)  # of an array: output first


def test_products_are_products_with_the_matrices() -> None:
    v, w = numpy.array([1.0, -2.0, 0.5]), numpy.array([1.0, 2.0, -1.0, 3.0])
    jac, hess, g = ag.jacobian(curve)(X), ag.hessian(loss)(X), ag.grad(loss)(X)
    close(ag.make_jvp(curve)(X)(v)[1], jac @ v)
    close(ag.make_jvp(curve)(X)(v)[0], curve(X))
    close(ag.make_jvp_reversemode(curve)(X)(v), jac @ v)
    close(ag.make_vjp(curve)(X)[0](w), w @ jac)
    close(ag.tensor_jacobian_product(curve)(X, w), w @ jac)
    product, gradient = ag.make_hvp(loss)(X)
    close(gradient, g)
    close(product(v), hess @ v)
    close(product(2 * v), hess @ v * 2)
    gradient, found = ag.hvp(loss, (X,), (v,))
    close(gradient, g)
    close(found, hess @ v)
    close(ag.hessian_tensor_product(loss)(X, v), hess @ v)
    close(ag.make_ggnvp(curve)(X)(v), jac.T @ jac @ v)

    def quartic(y: Any) -> Any:
        return np.sum(y**4) + np.sum(y * y)

    curvature = ag.hessian(quartic)(curve(X))
    close(ag.make_ggnvp(curve, quartic)(X)(v), jac.T @ curvature @ jac @ v)
    y, found = ag.ggnvp(curve, (X,), (v,), quartic)
    close(found, jac.T @ curvature @ jac @ v)
    close(y, curve(X))


def test_tensor_products_of_several_dimensions() -> None:
    rng = numpy.random.default_rng(2)
    x, v3, v2 = (rng.standard_normal(s) for s in ((2, 3, 4), (2, 3, 4), (2, 3)))

    def f(x: Any) -> Any:
        return np.sin(x) * np.sum(x) + x * x

    jac = ag.jacobian(f)(x)
    for v in (v3, v2):
        close(ag.tensor_jacobian_product(f)(x, v), numpy.tensordot(v, jac, v.ndim))
    hess = ag.hessian(lambda x: np.sum(f(x) ** 2))(x)
    close(ag.hessian_tensor_product(lambda x: np.sum(f(x) ** 2))(x, v3), numpy.tensordot(hess, v3, 3))
    two = ag.hessian_tensor_product(lambda a, b: np.sum(a * b * b), 1)(v3, x, v3)
    close(two, 2 * v3 * v3)
    (a, b), (da, db) = ag.hvp(lambda a, b: np.sum(a * b * b), (v3, x), (x * 0, v3))
    close(a, x * x)
    close(db, 2 * v3 * v3)
    close(da, 2 * x * v3)
    close(b, 2 * v3 * x)


@pytest.mark.parametrize("f, expected", [
    (np.sin, [numpy.cos, lambda x: -numpy.sin(x), lambda x: -numpy.cos(x), numpy.sin]),
    (lambda x: x**4, [lambda x: 4 * x**3, lambda x: 12 * x**2, lambda x: 24 * x, lambda x: 24.0]),
])  # fmt: skip
def test_any_order_by_any_mixture(f: Any, expected: list[Any]) -> None:
    modes = {"grad": ag.grad, "deriv": ag.deriv, "egrad": ag.egrad, "jacobian": ag.jacobian}
    for names in itertools.product(modes, repeat=3):
        g = f
        for order, name in enumerate(names):
            g = modes[name](g)
            close(g(0.7), expected[order](0.7))
    g = ag.grad(ag.grad(ag.deriv(ag.grad(f))))
    close(g(0.7), expected[3](0.7))


def test_derivatives_of_derivatives() -> None:
    """What transforms return can be differentiated: checked by finite differences, in both modes."""
    for f in (
        lambda x: np.sum(np.sin(ag.jacobian(curve)(x))),
        lambda x: np.sum(np.sin(ag.jacobian(curve, mode="forward")(x))),
        lambda x: np.sum(np.sin(ag.hessian(loss)(x) * 0.1)),
        lambda x: np.sum(ag.hvp(loss, (x,), (x * x,))[1] ** 2) * 1e-3,
        lambda x: np.sum(ag.make_ggnvp(curve)(x)(x) ** 2),
        lambda x: np.sum(ag.make_jvp_reversemode(curve)(x)(x) ** 2),
        lambda x: np.sum(ag.tensor_jacobian_product(curve)(x, A[:, 0]) ** 2),
    ):
        check_grads(f, X * 0.3, order=1)


def test_a_pullback_made_outside_is_differentiated_in_its_cotangent() -> None:
    pullback, _ = ag.make_vjp(curve)(X)
    w = numpy.array([1.0, 2.0, -1.0, 3.0])
    jac = ag.jacobian(curve)(X)
    close(ag.grad(lambda w: np.sum(pullback(w) ** 2))(w), 2 * jac @ (w @ jac))
    push = ag.make_jvp(curve)(X)
    close(ag.grad(lambda v: np.sum(push(v)[1] ** 2))(X), 2 * jac.T @ (jac @ X))
    product, _ = ag.make_hvp(loss)(X)
    close(ag.jacobian(product)(X), ag.hessian(loss)(X))


def test_elementwise_and_deriv_sum_over_what_they_do_not_keep() -> None:
    jac = ag.jacobian(curve)(X)
    close(ag.elementwise_grad(curve)(X), jac.sum(0))
    close(ag.deriv(curve)(X), jac.sum(1))
    close(ag.elementwise_grad(lambda a, b: np.tanh(a) * b, 1)(0.5, X), numpy.full(3, numpy.tanh(0.5)))


# -- complex numbers -----------------------------------------------------------------------------------------------


def test_the_gradient_of_a_real_function_at_a_complex_point() -> None:
    """df/dx - i df/dy, by finite differences along both axes."""
    c, z = 0.3 - 0.7j, numpy.array([1 + 2j, -0.5 + 0.1j])
    found, pullback = ag.vjp(lambda z: z * z * c, z)
    assert found.dtype == complex
    h = 1e-6
    for ct in (1.0, 1j):
        pulled = pullback(numpy.full(2, ct))
        for k in range(2):
            step = numpy.eye(2)[k] * h

            def real(z: Any, ct: complex = ct) -> Any:
                return numpy.sum(ct * z * z * c).real

            slope = (real(z + step) - real(z - step)) / (2 * h), (real(z + 1j * step) - real(z - 1j * step)) / (2 * h)
            close(pulled[k], slope[0] - 1j * slope[1], 1e-8)


def test_holomorphic_grad() -> None:
    z = 0.4 + 1.1j
    close(ag.holomorphic_grad(lambda z: np.exp(z) * z)(z), numpy.exp(z) * (z + 1))
    close(ag.holomorphic_grad(ag.holomorphic_grad(np.exp))(z), numpy.exp(z))
    with pytest.warns(UserWarning, match="not complex"):
        assert ag.holomorphic_grad(lambda x: x * x)(3.0) == 6


def test_complex_jacobians() -> None:
    z, x = numpy.array([1 + 1j, 2.0]), numpy.array([1.0, 2.0])
    for mode in (None, "reverse", "forward"):
        close(ag.jacobian(lambda z: z * z * (1 + 2j), mode=mode)(z), numpy.diag(2 * z * (1 + 2j)))
        close(ag.jacobian(lambda x: x * x * (1 + 2j), mode=mode)(x), numpy.diag(2 * x * (1 + 2j)))
    twisted = ag.jacobian(lambda z: z * (np.abs(z) * (1 + 0j)))
    with pytest.raises(ag.ObjectiveError, match="holomorphic"):
        twisted(z)


def test_real_functions_of_complex_arguments_in_both_modes_and_orders() -> None:
    """Rows of the Jacobian are df/dx - i df/dy; the Hessian of a sum of squares of moduli."""
    z = numpy.array([1 + 1j, 2.0 - 0.5j])

    def f(z: Any) -> Any:
        return np.real(z) * np.imag(z) + np.abs(z) ** 2

    x, y = z.real, z.imag
    expected = numpy.diag((y + 2 * x) - 1j * (x + 2 * y))
    for mode in (None, "reverse", "forward"):
        close(ag.jacobian(f, mode=mode)(z), expected)
    close(ag.grad(lambda z: np.sum(f(z)))(z), numpy.diag(expected))
    close(ag.elementwise_grad(f)(z), numpy.diag(expected))
    value, found = ag.value_and_grad(lambda z: np.real(np.sum(z * z)))(z)
    close(found, 2 * z)
    assert isinstance(value, float) and found.dtype == complex
    assert ag.grad(lambda x: np.real(x * (1 + 2j)))(2.0).dtype == float  # a real argument has a real gradient


def test_results_that_are_named_tuples() -> None:
    """Of operations with several results, through pullbacks, tangents and checkpoints."""
    a = numpy.array([[2.0, 0.5], [0.5, 1.0]])
    for wrap in (lambda f: f, ag.checkpoint):
        pullback, found = ag.make_vjp(wrap(np.linalg.eigh))(a)
        assert type(found) is type(numpy.linalg.eigh(a))
        slope = slopes(lambda a: numpy.linalg.eigvalsh((a + a.T) / 2)[0], a)
        g = pullback(type(found)(numpy.array([1.0, 0.0]), numpy.zeros((2, 2))))
        close((g + g.T) / 2, slope, 1e-8)
        f = lambda a, w=wrap: np.sum(w(np.linalg.eigh)(a @ a.T)[0] ** 2)
        close(ag.grad(f)(a), 4 * a @ a.T @ a, 1e-9)
        close(ag.hessian(f)(a), slopes(ag.grad(f), a), 1e-6)


def test_a_complex_objective_is_refused_as_a_type_error() -> None:
    for transform in (ag.grad, ag.value_and_grad, ag.elementwise_grad):
        with pytest.raises(TypeError, match="the function returned .*complex"):
            transform(lambda x: x * 1j)(2.0)


# -- what is refused, and what is warned of ----------------------------------------------------------------------------


@pytest.mark.parametrize("call, kind, words", [
    (lambda: ag.grad(lambda x: x * x)(1), TypeError, ["argument 0", "int64", "pass 2.0 for 2"]),
    (lambda: ag.grad(lambda a, x: x * x, 1)(1.0, True), TypeError, ["argument 1", "bool"]),
    (lambda: ag.grad(lambda p: p["a"])({"a": 1.0, "b": [1.0, 2]}), TypeError, ["argument 0['b'][1]", "int64"]),
    (lambda: ag.grad(lambda p, q: p, (0, 1))(1.0, 2), TypeError, ["argument (0, 1)[1]"]),
    (lambda: ag.grad(lambda p: p)("text"), TypeError, ["argument 0"]),
    (lambda: ag.grad(lambda x: x * 2.0)(X), TypeError, ["shape (3,)", "sum it", "jacobian"]),
    (lambda: ag.grad(lambda x: x * 2.0)(X), ValueError, ["shape (3,)"]),
    (lambda: ag.grad(lambda x: [x, x])(1.0), TypeError, ["[*, *]", "one number"]),
    (lambda: ag.grad(lambda x: None)(1.0), TypeError, ["None", "one number"]),
    (lambda: ag.grad(lambda x: numpy.allclose(x.array, 1))(1.0), TypeError, ["bool"]),
    (lambda: ag.grad(lambda x: x)(x=1.0), TypeError, ["0 positional arguments", "by position"]),
    (lambda: ag.grad(lambda x: x, 3)(1.0), TypeError, ["argument 3", "1 positional"]),
    (lambda: ag.grad(lambda x: x, "x"), TypeError, ["argnum='x'", "int"]),
    (lambda: ag.grad(lambda x: x, 1.0), TypeError, ["argnum=1.0"]),
    (lambda: ag.jacobian(lambda x: x, mode="sideways"), TypeError, ["sideways", "reverse, forward"]),
    (lambda: ag.hessian(lambda x: x, mode="reverse"), TypeError, ["forward-over-reverse"]),
    (lambda: ag.make_vjp(lambda x: {"a": x})(1.0)[0]([1.0]), TypeError, ["the cotangent", "['a']"]),
    (lambda: ag.make_jvp(lambda x: x["a"])({"a": 1.0})(1.0), TypeError, ["the tangent", "['a']"]),
    (lambda: ag.jvp(lambda x: x, (X,), ()), ValueError, ["0 tangents", "1 arguments"]),
    (lambda: ag.hvp(loss, (X,), ()), ValueError, ["0 tangents"]),
    (lambda: ag.ggnvp(curve, (X,), ()), ValueError, ["0 tangents"]),
    (lambda: ag.jvp(lambda x: x, (X,), (numpy.ones(2),)), ValueError, ["(2,)", "(3,)"]),
    (lambda: ag.vjp(lambda: 1.0), TypeError, ["no arguments were given", "fix: vjp("]),
    (lambda: ag.vjp(lambda x: x, X)[1](numpy.ones(2)), ValueError, ["(2,)", "(3,)"]),
    (lambda: ag.tensor_jacobian_product(curve)(X, numpy.ones(3)), ValueError, ["(3,)", "(4,)", "first dimensions"]),
    (lambda: ag.tensor_jacobian_product(lambda x: [x, x])(X, X), TypeError, ["[*, *]", "make_vjp"]),
    (lambda: ag.hessian_tensor_product(loss)(), TypeError, ["no arguments"]),
    (lambda: ag.grad_and_aux(lambda x: x)(1.0), TypeError, ["a pair"]),
    (lambda: ag.grad_named(lambda x: x, "y"), TypeError, ["'y'", "'x'"]),
])  # fmt: skip
def test_what_is_refused(call: Any, kind: type, words: list[str]) -> None:
    with pytest.raises(kind) as error:
        call()
    assert isinstance(error.value, ag.RingtapeError)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_an_output_that_depends_on_nothing_is_warned_of_once_and_outside_only() -> None:
    for call in (
        lambda: ag.grad(lambda x: 3.0)(1.0),
        lambda: ag.elementwise_grad(lambda x: numpy.ones(2))(X),
        lambda: ag.jacobian(lambda x: numpy.ones(2))(X),
        lambda: ag.make_vjp(lambda x: 3.0)(1.0)[0](1.0),
        lambda: ag.make_jvp(lambda x: 3.0)(1.0),
        lambda: ag.deriv(lambda x: 3.0)(1.0),
    ):
        with pytest.warns(UserWarning, match="Output seems independent of input") as heard:
            call()
        assert len(heard) == 1 and heard[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ag.hessian(lambda x: np.sum(x * 2.0))(X).tolist() == numpy.zeros((3, 3)).tolist()
        assert ag.grad(lambda x: x * ag.grad(lambda y: x * 1.0)(1.0) + x)(2.0) == 1


# -- the checks are seen to fail -----------------------------------------------------------------------------------


def test_planted_faults_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is planted in the transforms, and the test above that is meant to see it does."""
    from autograd.transforms import jacobians, reverse, traced

    def transposed(*args: Any) -> Any:
        return numpy.swapaxes(join(*args), 0, -1)

    join = jacobians._join
    with monkeypatch.context() as m:  # rows and columns exchanged
        m.setattr(jacobians, "_join", transposed)
        with pytest.raises(AssertionError):
            test_jacobian(None)
    with monkeypatch.context() as m:  # arrays handed out that are views or shared
        m.setattr(traced, "_owned", lambda results, given: results)
        with pytest.raises(AssertionError):
            test_results_are_the_callers_own()
    with monkeypatch.context() as m:  # always reverse
        m.setattr(jacobians, "_cheaper_mode", lambda *args: "reverse")
        with pytest.raises(AssertionError):
            test_the_cheaper_mode_is_chosen()
    with monkeypatch.context() as m:  # any output goes
        m.setattr(reverse, "objective", lambda *args, **words: None)
        with pytest.raises((AssertionError, pytest.fail.Exception, TypeError)):
            test_a_complex_objective_is_refused_as_a_type_error()
    with monkeypatch.context() as m:  # the second derivative of a constant cotangent: sweeps that are not recorded
        m.setattr(traced.Traced, "pull", _unrecorded(traced.Traced.pull))
        with pytest.raises(AssertionError):
            test_hessian_in_every_order("reverse-over-reverse")


def _unrecorded(pull: Any) -> Any:
    def call(self: Any, cts: Any) -> Any:
        with ag.no_grad():
            return pull(self, cts)

    return call
