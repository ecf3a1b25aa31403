"""Values computed from a leaf while no tape recorded, which a tape then uses: their gradient was silently missing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import nn, ops
from autograd.extend import defvjp, primitive

W, X = numpy.array([1.0, -2.0, 3.0]), numpy.array([0.5, 0.25, -1.0])
REFUSED = "computed from a value that requires a gradient while no tape recorded it"


@primitive
def cube(x: Any) -> Any:
    return x**3


defvjp(cube, lambda ans, x: lambda g: 3 * g * x**2)


def in_a_thread(w: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: w * 2.0).result()


def after_a_block(w: Any) -> Any:
    with ag.Tape():
        h = w * 2.0
    return h + 1.0


def a_transforms_value(w: Any) -> Any:
    value, _ = ag.value_and_grad(lambda w: (w * w).sum())(w)
    return value


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "one operand": np.exp,
    "two operands": lambda w: w * 2.0,
    "reflected": lambda w: 2.0 - w,
    "three operands": lambda w: ops.linear(w.reshape((1, 3)), ag.tensor(numpy.eye(3)), ag.tensor(numpy.ones(3))),
    "any number of operands": lambda w: np.concatenate([ag.tensor(X), w])[3:],
    "where": lambda w: np.where(W > 0, w, 0.0),
    "an index": lambda w: w[1],
    "several outputs": lambda w: np.linalg.eigh(np.outer(w, w))[0],
    "a primitive": lambda w: cube(w),
    "a module": lambda w: nn.Embedding(4, 3)(numpy.array([1])),
    "a chain": lambda w: np.sum((w + 1.0).reshape((3, 1)), axis=0) * 3.0,
    "a copy": lambda w: copy.deepcopy(w * 2.0),
    "another dtype": lambda w: w.astype(numpy.float32),
    "checkpoint": lambda w: ag.checkpoint(np.tanh)(w),
    "a thread": in_a_thread,
    "after the block": after_a_block,
    "the value of a transform": a_transforms_value,
}


def trained(h: Any) -> Any:
    """The gradient of another leaf, and the tape, of a loss in which h is used."""
    v = ag.Parameter(X)
    with ag.Tape() as tape:
        loss = (v * h).sum()
    tape.backward(loss)
    assert v.grad is not None
    return v.grad.numpy()


@pytest.mark.parametrize("name", COMPUTED)
def test_a_value_that_no_tape_recorded_is_refused_on_a_tape(name: str) -> None:
    h = COMPUTED[name](ag.Parameter(W))
    with pytest.raises(ag.TapeError, match=REFUSED) as error:
        trained(h)
    assert "f64[" in str(error.value) or "f32[" in str(error.value)
    assert "test_unrecorded.py" in str(error.value)


USES: dict[str, Callable[[Any], Any]] = {
    "one operand": np.exp,
    "two operands": lambda h: 2.0 * h,
    "three operands": lambda h: ops.linear(ag.tensor(X.reshape(1, 3)), ag.tensor(numpy.eye(3)), h),
    "any number of operands": lambda h: np.concatenate([h, h]),
    "several outputs": lambda h: np.linalg.eigh(np.outer(h, h))[0],
    "several outputs directly": lambda h: np.linalg.eigh(h.reshape((1, 3))[:, :1]),
    "a primitive": lambda h: cube(h),
    "checkpoint": lambda h: ag.checkpoint(np.tanh)(h),
    "a closure of checkpoint": lambda h: ag.checkpoint(lambda v: v * h)(ag.Parameter(X)),
    "the argument of a transform": lambda h: ag.grad(lambda v: (v * v).sum())(h),
    "a closure of a transform": lambda h: ag.grad(lambda v: (v * h).sum())(ag.Parameter(X)),
}


@pytest.mark.parametrize("name", USES)
def test_every_kind_of_use_refuses_it(name: str) -> None:
    h = ag.Parameter(W) * 2.0
    with ag.Tape(), pytest.raises(ag.TapeError, match=REFUSED):
        USES[name](h)


def test_backward_of_it_names_the_block() -> None:
    w = ag.Parameter(W)
    loss = (w * w).sum()
    with ag.Tape() as tape:
        pass
    with pytest.raises(ag.TapeError, match="computed outside the tape's block"):
        tape.backward(loss)


def test_the_first_fix_has_the_gradient() -> None:
    w, v = ag.Parameter(W), ag.Parameter(X)
    with ag.Tape() as tape:
        loss = (v * (w * 2.0)).sum()
    tape.backward(loss)
    assert w.grad is not None and numpy.array_equal(w.grad.numpy(), 2 * X)


@pytest.mark.parametrize("as_data", [
    ag.stop_gradient, lambda h: ag.tensor(h.numpy()), ag.tensor, ag.constant, lambda h: h.numpy(), lambda h: h.data,
], ids=["stop_gradient", "numpy", "tensor", "constant", "a plain array", "data"])  # fmt: skip
def test_it_can_be_meant_as_data(as_data: Callable[[Any], Any]) -> None:
    assert numpy.array_equal(trained(as_data(ag.Parameter(W) * 2.0)), 2 * W)


def test_no_grad_makes_data() -> None:
    """As in the update of an exponential moving average, that a tape uses then."""
    w = ag.Parameter(W)
    with ag.no_grad():
        average = ag.tensor(0.0 * X)
        for _ in range(2):
            average = 0.5 * average + 0.5 * w
    assert numpy.array_equal(trained(average), 0.75 * W)
    with ag.Tape():
        with ag.no_grad():
            h = w * 2.0
        assert (h * 1.0).tape is None
    with ag.no_grad(), ag.Tape():
        pass
    with pytest.raises(ag.TapeError, match=REFUSED):  # the block of no_grad is over
        trained(w * 2.0)


def test_values_without_a_derivative_are_data() -> None:
    w = ag.Parameter(W)
    assert numpy.array_equal(trained((w > 0.0) * 1.0), (W > 0) * 1.0)
    assert numpy.array_equal(trained(w.astype(int)), W)
    assert numpy.array_equal(trained(np.zeros_like(w)), 0 * W)
    assert numpy.array_equal(trained(ag.tensor(W) * 2.0), 2 * W)


def test_a_leaf_may_be_made_of_it() -> None:
    w = ag.Parameter(ag.Parameter(W) * 2.0)
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss)
    assert w.grad is not None and numpy.array_equal(w.grad.numpy(), 4 * W)


def test_transforms_take_it_as_an_argument_and_as_a_constant() -> None:
    """A functional update makes such values. The transform differentiates with respect to its argument alone."""
    w, v = ag.Parameter(W), ag.Parameter(X)
    for _ in range(3):
        gradient = ag.grad(lambda w, v: (w * ag.checkpoint(np.tanh)(w * v)).sum(), (0, 1))(w, v)
        w, v = w - 0.1 * gradient[0], v - 0.1 * gradient[1]
    a, b = W, X
    for _ in range(3):
        gradient = ag.grad(lambda w, v: np.sum(w * np.tanh(w * v)), (0, 1))(a, b)
        a, b = a - 0.1 * gradient[0], b - 0.1 * gradient[1]
    assert numpy.allclose(w.numpy(), a) and numpy.allclose(v.numpy(), b)
    h = ag.Parameter(W) * 2.0
    assert numpy.allclose(ag.grad(lambda x: (ag.checkpoint(lambda x: x * h)(x)).sum())(X), 2 * W)


def test_evaluation_and_updates_outside_tapes_are_legal() -> None:
    w = ag.Parameter(W)
    assert float((w * w).sum()) == 14.0
    with ag.Tape() as tape:
        loss = (w * X).sum()
        assert f"{loss:.2f}" == "-3.00"
    tape.backward(loss)
    assert w.grad is not None
    w.data = (w - 0.1 * w.grad).numpy()
    assert numpy.array_equal(trained(w), W - 0.1 * X)


# -- a gradient whose sweep was not recorded ---------------------------------------------------------------------------
def hessian_product(record: bool, zero: bool, how: str) -> Any:
    """The product of the Hessian of ``sum(w**3)`` with v by two sweeps of a tape."""
    w, v = ag.Parameter([1.0, 2.0]), ag.constant(numpy.array([1.0, -1.0]))
    with ag.Tape() as tape:
        tape.backward((w**3).sum(), record=record)
        product = (w.grad * v).sum()  # type: ignore[operator]
        if zero:
            w.zero_grad()
    if how == "tape":
        tape.backward(product)
    else:
        product.backward()
    assert w.grad is not None
    return w.grad.numpy()


@pytest.mark.parametrize("how", ["tape", "value"])
def test_a_value_computed_from_a_gradient_without_history(how: str) -> None:
    with pytest.raises(ag.TapeError) as caught:
        hessian_product(False, False, how)
    text = str(caught.value)
    assert "backward did not record the sweep" in text
    assert "fix: tape.backward(loss, record=True)" in text and "w.zero_grad()" in text and "at test_unrecorded" in text
    numpy.testing.assert_allclose(hessian_product(True, True, how), [6.0, -12.0])
