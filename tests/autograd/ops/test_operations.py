"""Every operation of the registry: its value against NumPy's, its derivatives in both modes to order 2.

The table in `tests.proofs.operations` is complete by construction: `test_every_operation_has_cases` fails where the
registry has an operation that has neither a case there nor a reason in `WITHOUT_DERIVATIVE`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, mutually_broadcastable_shapes

import autograd as ag
import autograd.numpy as np
from autograd import nn, ops
from autograd.engine.primitive import registry
from autograd.extend import Mix
from autograd.testing import GradientMismatch, check_adjoint, check_grads
from autograd.testing import numeric_gradient as slopes

from ...proofs.operations import CASES, WITHOUT_DERIVATIVE, Case, apart
from ...proofs.operations.elementwise import BINARY, sigmoid
from ...tables import each

Array = Any

def named(c: Case) -> str:
    return f"{c.operation} {c.label}"


every = each(CASES, lambda c: c.operation, named)
together = each(CASES, lambda c: f"operations in {c.operation[0]}", named)  # pytest takes longer for a test than these


def raw(x: Any) -> Array:
    return numpy.asarray(x.array if isinstance(x, ag.Tensor) else x)


# -- the tests of each case ------------------------------------------------------------------------------------------


def test_every_operation_has_cases() -> None:
    tested = {c.operation for c in CASES}
    declared = {name for name in registry if "example" not in name}  # docstrings declare examples
    missing = sorted(declared - tested - set(WITHOUT_DERIVATIVE))
    assert not missing, f"operations without cases in tests/proofs/operations: {missing}"
    assert not (tested | set(WITHOUT_DERIVATIVE)) - declared, "cases of operations that do not exist"
    print(f"\n{len(CASES)} cases of {len(tested)} operations; without derivative:")
    for name, reason in WITHOUT_DERIVATIVE.items():
        print(f"  {name}: {reason}")


@together
def test_value_is_numpys(c: Case) -> None:
    args = c.draw()
    with numpy.errstate(all="ignore"):
        expected = numpy.asarray(c.numpy(*args))
        on_tensors = c.f(*map(ag.tensor, args))
        on_arrays = c.f(*args)
    assert isinstance(on_tensors, ag.Tensor)
    assert not isinstance(on_arrays, ag.Tensor)
    for found in (raw(on_tensors), numpy.asarray(on_arrays)):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        numpy.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


FIRST = {c.operation: n for n, c in reversed([*enumerate(CASES)])}
ORDERS = [2 if FIRST[c.operation] == n else 1 for n, c in enumerate(CASES)]
"""By default 2 for the first case of an operation; all have the dot-product test of order 2 below."""


@each(zip(CASES, ORDERS, strict=True), lambda pair: pair[0].operation, lambda pair: named(pair[0]))
def test_derivatives_to_order_2(case_and_order: tuple[Case, int]) -> None:
    c, order = case_and_order
    check_grads(c.f, *c.draw(), order=order)


@pytest.mark.slow
@every
def test_all_derivatives_to_order_2(c: Case) -> None:
    check_grads(c.f, *c.draw(), order=2)


def test_every_operation_has_order_2_by_default() -> None:
    assert {c.operation for c, order in zip(CASES, ORDERS, strict=True) if order == 2} == {c.operation for c in CASES}


@together
def test_adjoint_against_forward_mode(c: Case) -> None:
    for seed in (1, 2):
        check_adjoint(c.f, *c.draw(seed), seed=seed)


@each(CASES, lambda c: f"operations in {c.operation[:2]}", named)
def test_second_adjoint_against_second_forward_mode(c: Case) -> None:
    """The dot-product test of the gradient itself, as a function."""
    args = c.draw(3)
    y = raw(c.f(*args))
    ct = numpy.random.default_rng(5).standard_normal(y.shape)
    for i in range(len(args)):
        check_adjoint(lambda *xs, i=i: _nth(ag.vjp(c.f, *xs)[1](ct), i, len(xs)), *args)


def _nth(found: Any, i: int, n: int) -> Any:
    return found if n == 1 else found[i]


@together
def test_float32_stays_float32(c: Case) -> None:
    args = [a.astype(numpy.float32) for a in c.draw()]
    with numpy.errstate(all="ignore"):
        expected = numpy.asarray(c.numpy(*args))
    with ag.Tape() as tape:
        xs = [ag.tensor(a, requires_grad=True) for a in args]
        y = c.f(*xs)
    assert raw(y).dtype == expected.dtype
    tape.backward(y, numpy.ones(y.shape, y.dtype), retain=True)
    for x in xs:
        assert x.grad is not None
        assert raw(x.grad).dtype == numpy.float32
        assert raw(x.grad).shape == raw(x).shape
    (tangent,) = tape.forward(xs, [numpy.ones_like(a) for a in args], [y])
    assert tangent is None or raw(tangent).dtype == raw(y).dtype
    wide = ag.vjp(c.f, *(a.astype(float) for a in args))[1](numpy.ones(y.shape, y.dtype))
    for x, g in zip(xs, _all(wide), strict=True):
        numpy.testing.assert_allclose(raw(x.grad), g, rtol=2e-3, atol=2e-4)


@together
def test_adjoint_leaves_its_inputs_alone(c: Case) -> None:
    args = c.draw()
    y, pullback = ag.vjp(c.f, *args)
    ct = numpy.random.default_rng(0).standard_normal(numpy.shape(y)).astype(raw(y).dtype)
    before = [a.copy() for a in (*args, ct)]
    first = pullback(ct)
    second = pullback(ct)
    for a, b in zip((*args, ct), before, strict=True):
        assert numpy.array_equal(a, b)
    for a, b in zip(_all(first), _all(second), strict=True):
        assert numpy.array_equal(a, b), "the second pullback differs from the first"


def _all(found: Any) -> list[Array]:
    return [raw(g) for g in (found if isinstance(found, tuple) else (found,))]


# -- shapes drawn at random ------------------------------------------------------------------------------------------
settled = hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)


def along(f: Callable[..., Any], *args: Array) -> None:
    """Both modes agree, and forward mode agrees with one central difference."""
    check_adjoint(f, *args)
    check_grads(f, *args, order=1, modes=["forward"])


@pytest.mark.parametrize("name", BINARY)
@settled
@given(shapes=mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3, max_dims=4))
def test_broadcasting(name: str, shapes: Any) -> None:
    expected, left, right = BINARY[name]
    rng = numpy.random.default_rng(0)
    a, b = (d(*s)(rng) for d, s in zip((left, right), shapes.input_shapes, strict=True))
    assert numpy.array_equal(registry[name](ag.tensor(a), ag.tensor(b)).numpy(), expected(a, b))
    along(registry[name], a, b)


@settled
@given(shapes=mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_side=3, max_dims=3), seed=st.integers(0, 9))
def test_where_broadcasts_three_ways(shapes: Any, seed: int) -> None:
    rng = numpy.random.default_rng(seed)
    c, a, b = shapes.input_shapes
    mask = rng.random(c) < 0.5
    along(lambda x, y: np.where(mask, x, y), rng.standard_normal(a), rng.standard_normal(b))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@settled
@given(data=st.data(), shape=array_shapes(min_dims=0, max_dims=4, max_side=3), keepdims=st.booleans())
def test_reductions_over_any_axes(name: str, data: Any, shape: tuple[int, ...], keepdims: bool) -> None:
    some = st.lists(st.sampled_from(range(len(shape))), unique=True).map(tuple) if shape else st.none()
    axes = data.draw(st.none() | some)
    x = apart(*shape)(numpy.random.default_rng(0))
    along(lambda z: getattr(np, name)(z, axis=axes, keepdims=keepdims), x)


@settled
@given(shapes=mutually_broadcastable_shapes(signature=numpy.matmul.signature, min_side=0, max_side=3, max_dims=2))
def test_matmul_of_any_shapes(shapes: Any) -> None:
    rng = numpy.random.default_rng(0)
    a, b = (rng.standard_normal(s) for s in shapes.input_shapes)
    assert numpy.allclose((ag.tensor(a) @ ag.tensor(b)).numpy(), a @ b)
    along(lambda x, y: x @ y, a, b)


@settled
@given(data=st.data(), shape=array_shapes(min_dims=1, max_dims=4, max_side=3))
def test_transpose_and_reshape_of_any_shape(data: Any, shape: tuple[int, ...]) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    x = numpy.random.default_rng(0).standard_normal(shape)
    along(lambda z: np.reshape(np.transpose(z, axes), (-1,)), x)
    assert numpy.array_equal(np.transpose(ag.tensor(x), axes).numpy(), x.transpose(axes))


@settled
@given(data=st.data(), shape=array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
def test_indexing_with_any_basic_key(data: Any, shape: tuple[int, ...]) -> None:
    from hypothesis.extra.numpy import basic_indices

    key = data.draw(basic_indices(shape, allow_newaxis=True))
    x = numpy.random.default_rng(0).standard_normal(shape)
    assert numpy.array_equal(ag.tensor(x)[key].numpy(), x[key])
    along(lambda z: z[key], x)


# -- dtypes ----------------------------------------------------------------------------------------------------------
KINDS: list[Any] = [numpy.float32, numpy.float64, numpy.complex64, numpy.complex128, numpy.int64, numpy.int32,
                    numpy.bool_]  # fmt: skip


@each(itertools.product(["add", "multiply", "divide", "maximum", "where"], KINDS[:4], KINDS), lambda case: case[0])
def test_promotion_is_numpys_and_gradients_have_their_operands_dtype(case: tuple[str, Any, Any]) -> None:
    name, left, right = case
    if name == "maximum" and "c" in (numpy.dtype(left).kind, numpy.dtype(right).kind):
        return  # complex numbers have no order
    mask = numpy.array([True, False])
    f = {"where": lambda a, b: np.where(mask, a, b)}.get(name, registry[name])
    g = {"where": lambda a, b: numpy.where(mask, a, b)}.get(name, getattr(numpy, name))
    a, b = numpy.array([1, 2]).astype(left), numpy.array([3, 1]).astype(right)
    for order in (1, -1):
        x, y = ag.tensor(a, requires_grad=True), ag.tensor(b)
        y.requires_grad = y.dtype.kind in "fc"
        operands = (x, y)[::order]
        with ag.Tape() as tape:
            z = f(*operands)
        expected = g(*(a, b)[::order])
        assert z.dtype == expected.dtype
        assert numpy.array_equal(z.numpy(), expected)
        tape.backward(z, numpy.ones(2, z.dtype))
        assert x.grad is not None and x.grad.dtype == left
        assert (y.grad is None) == (y.dtype.kind not in "fc")
        assert y.grad is None or y.grad.dtype == right


@pytest.mark.parametrize("number", [True, 2, 2.5])
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "power", "maximum"])
def test_python_numbers_are_weak(name: str, number: Any) -> None:
    x = ag.Parameter(numpy.array([1.0, 4.0], numpy.float32))
    f, g = registry[name], getattr(numpy, name)
    for ours, theirs in ((lambda: f(x, number), lambda: g(x.numpy(), number)),
                         (lambda: f(number, x), lambda: g(number, x.numpy()))):  # fmt: skip
        x.zero_grad()
        with ag.Tape() as tape:
            y = ours()
        if name == "subtract" and number is True:
            assert y.dtype == numpy.float32
        assert y.dtype == numpy.float32 == theirs().dtype
        numpy.testing.assert_allclose(y.numpy(), theirs(), rtol=1e-6)
        tape.backward(y, numpy.ones(2, numpy.float32))
        assert x.grad is not None and x.grad.dtype == numpy.float32


def test_numpy_scalars_are_not_weak() -> None:
    x = ag.Parameter(numpy.ones(2, numpy.float32))
    assert (x * numpy.float64(2)).dtype == numpy.float64
    assert (numpy.float64(2) * x).dtype == numpy.float64
    assert (x * numpy.array(2.0)).dtype == numpy.float64
    with ag.Tape() as tape:
        y = (numpy.float64(2) * x).sum()
    tape.backward(y)
    assert x.grad is not None and x.grad.dtype == numpy.float32


def test_integers_become_floats_where_numpy_says_so() -> None:
    x = ag.tensor(numpy.array([1, 4]))
    assert (x / 2).dtype == numpy.float64
    assert np.sqrt(x).dtype == numpy.float64
    assert np.mean(x).dtype == numpy.float64
    assert (x + 1).dtype == numpy.int64
    assert np.sum(ag.tensor(numpy.array([True, True]))).dtype == numpy.int64


@pytest.mark.parametrize("name", ["exp", "sin", "square", "tanh", "reciprocal", "negative", "log", "sqrt", "expm1"])
def test_holomorphic_functions_of_complex_numbers(name: str) -> None:
    rng = numpy.random.default_rng(0)
    z = rng.uniform(0.5, 1.5, (2, 2)) + 1j * rng.uniform(0.5, 1.5, (2, 2))
    check_grads(registry[name], z, order=2)
    check_adjoint(registry[name], z)


def test_products_of_complex_numbers_are_bilinear() -> None:
    rng = numpy.random.default_rng(0)
    a, b = (rng.standard_normal((2, 2)) + 1j * rng.standard_normal((2, 2)) for _ in range(2))
    for f in (lambda x, y: x * y, lambda x, y: x / y, lambda x, y: x @ y, lambda x, y: (x * y).sum()):
        check_grads(f, a, b, order=2)
        check_adjoint(f, a, b)
    g = ag.vjp(lambda x: x * (2 + 3j), a)[1](numpy.ones((2, 2), complex))
    assert numpy.allclose(g, 2 + 3j), "no conjugate: the convention of HIPS autograd"


def test_a_real_operand_of_a_complex_product_gets_a_real_gradient() -> None:
    x = numpy.array([1.0, 2.0])
    check_grads(lambda z: z * (2 + 3j), x)
    check_grads(lambda z: np.exp(z * 1j), x)


# -- kinks, ties, edges ----------------------------------------------------------------------------------------------


def test_ties_share_the_cotangent() -> None:
    x = numpy.array([1.0, 3.0, 3.0])
    assert ag.grad(np.max)(x).tolist() == [0, 0.5, 0.5]
    assert ag.grad(lambda z: np.min(-z))(x).tolist() == [0, -0.5, -0.5]
    assert ag.grad(lambda z: np.maximum(z, 3.0).sum())(x).tolist() == [0, 0.5, 0.5]
    a, b = ag.grad(lambda p, q: np.minimum(p, q).sum(), (0, 1))(x, x)
    assert a.tolist() == b.tolist() == [0.5, 0.5, 0.5]
    for f in (lambda z: np.max(z, keepdims=True), lambda z: np.maximum(z, 3.0)):
        check_adjoint(f, x)


def test_kinks() -> None:
    zero = numpy.array([0.0, -0.0])
    assert ag.grad(lambda z: ops.relu(z).sum())(zero).tolist() == [0, 0]
    assert ag.grad(lambda z: np.absolute(z).sum())(zero).tolist() == [0, 0]
    assert ag.grad(lambda z: np.sign(z).sum())(numpy.array([2.0, -1.0])).tolist() == [0, 0]


def test_forward_mode_of_a_cast_has_the_results_dtype() -> None:
    x = numpy.ones(2, numpy.float32)
    assert ag.jvp(lambda z: z.astype("float64"), (x,), (x,))[1].dtype == numpy.float64
    assert ag.jvp(lambda z: z * numpy.ones(2), (x,), (x,))[1].dtype == numpy.float64
    assert ag.jvp(lambda z: z.astype("complex64"), (x,), (x,))[1].dtype == numpy.complex64


def test_power_at_zero() -> None:
    x = numpy.array([0.0, 2.0])
    assert ag.grad(lambda z: (z**2).sum())(x).tolist() == [0, 4]
    assert ag.grad(lambda z: (z**1).sum())(x).tolist() == [1, 1]
    assert ag.grad(lambda z: (z**0).sum())(x).tolist() == [0, 0]
    assert ag.grad(lambda b: (numpy.array([0.0, 2.0]) ** b).sum())(numpy.array([2.0, 1.0]))[0] == 0
    two = ag.grad(lambda z: ag.grad(lambda w: (w**2).sum())(z).sum())
    assert two(x).tolist() == [2, 2]


def test_large_arguments_do_not_overflow() -> None:
    big = numpy.array([[1000.0, 0.0], [-1000.0, 0.0]])
    with numpy.errstate(over="raise", invalid="raise"):
        assert ops.softmax(ag.tensor(big)).numpy().tolist() == [[1, 0], [0, 1]]
        assert ops.logsumexp(ag.tensor(big)).numpy().tolist() == [1000, 0]
        assert ops.cross_entropy(ag.tensor(big), numpy.array([0, 0])).numpy().tolist() == [0, 1000]
        assert ops.sigmoid(ag.tensor(big)).numpy().tolist() == [[1, 0.5], [0, 0.5]]
        assert ops.softplus(ag.tensor(big)).numpy()[0, 0] == 1000
        g = ag.grad(lambda z: ops.cross_entropy(z, numpy.array([0, 0])).sum())(big)
        assert g.tolist() == [[0, 0], [-1, 1]]
        assert ag.grad(lambda z: ops.sigmoid(z).sum())(big).tolist() == [[0, 0.25], [0, 0.25]]


def test_logsumexp_of_minus_infinity() -> None:
    x = numpy.array([[-numpy.inf, 0.0], [-numpy.inf, -numpy.inf]])
    with numpy.errstate(divide="ignore"):
        assert ops.logsumexp(ag.tensor(x)).numpy().tolist() == [0, -numpy.inf]
    assert ag.grad(lambda z: ops.logsumexp(z[0]))(x).tolist() == [[0, 1], [0, 0]]


def test_a_masked_branch_does_not_leak_nan() -> None:
    """The classic guard: where(mask, f(x), 0) with f undefined off the mask, guarded inside as well."""
    x = numpy.array([0.0, 4.0])

    def guarded(z: Any) -> Any:
        safe = np.where(z > 0, z, 1.0)
        return np.where(z > 0, np.log(safe) / safe, 0.0).sum()

    assert numpy.isfinite(ag.grad(guarded)(x)).all()


def test_no_gradient_means_zero_whatever_the_value() -> None:
    x = numpy.array([numpy.inf, numpy.nan, 1.0])
    assert ag.grad(lambda z: np.sum(ops.stop_gradient(z)) * 0 + 1.0)(x).tolist() == [0, 0, 0]
    assert ag.grad(lambda z, w: (w * w).sum())(x, numpy.ones(2)).tolist() == [0, 0, 0]
    assert ag.grad(lambda z: np.where(numpy.array([False, False, True]), z, 0.0).sum())(x).tolist() == [0, 0, 1]
    assert ag.jvp(ops.stop_gradient, (x,), (numpy.ones(3),))[1].tolist() == [0, 0, 0]


def test_an_element_taken_twice_counts_twice() -> None:
    g = ag.grad(lambda z: (z[numpy.array([0, 0, 1])] * numpy.array([1.0, 2.0, 3.0])).sum())(numpy.zeros(3))
    assert g.tolist() == [3, 3, 0]


def test_the_users_index_array_may_change_afterwards() -> None:
    key = numpy.array([0, 1])
    x = ag.Parameter(numpy.arange(3.0))
    with ag.Tape() as tape:
        y = x[key].sum()
    key[:] = 2
    tape.backward(y)
    assert x.grad is not None and x.grad.numpy().tolist() == [1, 1, 0]


def test_a_tensor_as_an_index() -> None:
    x = ag.Parameter(numpy.arange(3.0))
    with ag.Tape() as tape:
        y = x[ag.tensor([2, 2])].sum()
    tape.backward(y)
    assert x.grad is not None and x.grad.numpy().tolist() == [0, 0, 2]


BITS = ("invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")


@pytest.mark.parametrize("name", WITHOUT_DERIVATIVE)
def test_operations_without_derivative(name: str) -> None:
    a, b = numpy.array([1.0, 2.0, numpy.inf]), numpy.array([2.0, 2.0, 2.0])
    if name in BITS:
        a, b = numpy.array([1, 2, 7]), b.astype(int)
    x = ag.tensor(a) if name in BITS else ag.Parameter(a)
    others = {1: (), 2: (b,)}[len(registry[name].words)] if name != "argpartition" else (1,)
    with ag.Tape() as tape:
        if name == "stop_gradient":
            y, expected = ops.stop_gradient(x), a
        else:
            f, theirs = getattr(np, name, registry[name]), getattr(numpy, name, registry[name].function)
            if name == "astype_discrete":
                f, theirs = (lambda x: x.astype(bool)), (lambda x: x.astype(bool))
            with numpy.errstate(all="ignore"):
                y, expected = f(x, *others), theirs(a, *others)
    numpy.testing.assert_array_equal(y.numpy(), expected)
    assert y.dtype == numpy.asarray(expected).dtype
    assert y.tape is None and not y.requires_grad
    assert len(tape.recording.nodes) == 0


def test_operators_and_methods_are_the_operations() -> None:
    rng = numpy.random.default_rng(0)
    a, b = rng.uniform(0.5, 2, (2, 2)), rng.uniform(0.5, 2, (2, 2))
    x, y = ag.tensor(a), ag.tensor(b)
    for ours, theirs in (
        (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (x @ y, a @ b), (x**y, a**b), (-x, -a),
        (abs(-x), a), (2 + x, 2 + a), (2 - x, 2 - a), (2 * x, 2 * a), (2 / x, 2 / a), (2**x, 2**a), (b @ x, b @ a),
        (b + x, b + a), (b - x, b - a), (b * x, b * a), (b / x, b / a), (b**x, b**a), (x == x, a == a),
        (x != y, a != b), (x < y, a < b), (x <= y, a <= b), (x > y, a > b), (x >= y, a >= b), (x.T, a.T),
        (x.sum(0), a.sum(0)), (x.mean(), a.mean()), (x.max(1), a.max(1)), (x.min(), a.min()),
        (x.reshape(4), a.reshape(4)), (x.reshape(-1, 1), a.reshape(-1, 1)),
        (x.transpose(1, 0), a.T), (x.transpose(), a.T), (x.swapaxes(0, 1), a.T),
        (x.astype("float32"), a.astype("float32")), (x.argmax(1), a.argmax(1)), (x[0], a[0]), (numpy.add(a, y), a + b),
        (numpy.exp(x), numpy.exp(a)), (nn.ReLU()(x - 1), numpy.maximum(a - 1, 0)), (nn.Sigmoid()(x), sigmoid(a)),
    ):  # fmt: skip
        assert isinstance(ours, ag.Tensor)
        assert raw(ours).dtype == theirs.dtype
        numpy.testing.assert_allclose(raw(ours), theirs, rtol=1e-14)


# -- the checks themselves -------------------------------------------------------------------------------------------


def wrong(name: str, word: str, function: Any, adjoint: Any, **words: Any) -> Any:
    """An operation with a planted fault; it leaves the registry at once."""
    from autograd.engine.primitive import op

    made = op(name, word, function, adjoint, **words)
    del registry[name]
    return made


def test_the_checks_see_a_wrong_factor() -> None:
    from autograd.layouts.inference import broadcast

    bad = wrong("bad", "N", lambda x: x * x, lambda ct, y, x: ct * x, saves="0", dims=broadcast)
    with pytest.raises(GradientMismatch, match=r"(?s)reverse mode, order 1, argument 0 of shape \(2,\): 2 of 2.*\[1\]"):
        check_grads(bad, numpy.array([1.0, 2.0]), order=1)
    with pytest.raises(GradientMismatch, match=r"forward mode, order 1, the value of shape \(2,\)"):
        check_grads(bad, numpy.array([1.0, 2.0]), order=1, modes=["forward"])


def test_a_tie_in_float32_stays_float32() -> None:
    x = numpy.ones(2, numpy.float32)
    for f in (lambda z: np.maximum(z, x), lambda z: np.max(z, 0), lambda z: np.minimum(z, 1.0)):
        y, pullback = ag.vjp(f, x)
        assert pullback(numpy.ones_like(y)).dtype == numpy.float32
        assert ag.jvp(f, (x,), (x,))[1].dtype == numpy.float32


def test_the_checks_see_a_wrong_second_derivative() -> None:
    from autograd.layouts.inference import broadcast

    rule = lambda ct, y, x: ct * (3 * ops.stop_gradient(x) ** 2)
    bad = wrong("bad", "N", lambda x: x**3, rule, saves="0", dims=broadcast)
    check_grads(bad, numpy.array([1.0, 2.0]), order=1)
    with pytest.raises(GradientMismatch, match="order 2"):
        check_grads(bad, numpy.array([1.0, 2.0]), order=2)


def test_the_dot_product_test_sees_an_adjoint_that_is_not_the_tangents() -> None:
    bad = wrong("bad", "a", lambda x: x[::-1].copy(), lambda ct, y, x: ct * 1.0,
                dims=lambda shapes, options: [(Mix,)], operands="x")  # fmt: skip
    with pytest.raises(GradientMismatch, match="argument 0 of shape"):
        check_adjoint(bad, numpy.array([1.0, 2.0, 4.0]))


def test_the_checks_see_a_wrong_dtype() -> None:
    bad = wrong("bad", "a", lambda x: x * 2, lambda ct, y, x: (ct * 2).astype("float64"),
                dims=lambda shapes, options: [(Mix,)], operands="x")  # fmt: skip
    with pytest.raises(GradientMismatch, match="float64"):
        check_grads(bad, numpy.ones(2, numpy.float32), order=1)


def test_the_checks_refuse_what_they_cannot_check() -> None:
    with pytest.raises(ag.DtypeError, match="int64"):
        check_grads(lambda x: x, numpy.array([1, 2]))
    with pytest.raises(ag.RingtapeError, match="modes"):
        check_grads(lambda x: x, numpy.ones(1), modes=["backward"])
    with pytest.raises(ag.ShapeError, match="no arguments"):
        check_adjoint(lambda: 1.0)
    with pytest.raises(ag.ShapeError, match="2 values"):
        check_grads(lambda x: (x, x), numpy.ones(1))


def test_finite_differences_themselves() -> None:
    x = numpy.array([[1.0, 2.0]])
    g = slopes(lambda z: z**3, [x], 0, numpy.array([[1.0, 10.0]]), 1e-5)
    numpy.testing.assert_allclose(g, [[3.0, 120.0]], rtol=1e-8)
