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


# -- the function of a transform, which uses what was computed outside of it from its argument -------------------------
def cubes(w: Any, h: Any) -> Any:
    return np.sum(w * h)


GRADIENTS: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "grad": lambda f, w: ag.grad(f)(w),
    "grad of a container": lambda f, w: ag.grad(lambda p: f(p["w"]))({"w": w})["w"],
    "value_and_grad": lambda f, w: ag.value_and_grad(f)(w)[1],
    "grad_and_aux": lambda f, w: ag.grad_and_aux(lambda w: (f(w), None))(w)[0],
    "vjp": lambda f, w: ag.vjp(f, w)[1](1.0),
    "jacobian": lambda f, w: ag.jacobian(f)(w),
    "checkpoint": lambda f, w: ag.grad(ag.checkpoint(f))(w),
    "in a transform": lambda f, w: ag.grad(lambda x: np.sum(x * ag.grad(f)(w)))(numpy.ones(3)),
    "jvp": lambda f, w: np.stack([ag.jvp(f, (w,), (e,))[1] for e in numpy.eye(3)]),
    "hvp": lambda f, w: ag.hvp(f, (w,), (numpy.ones(3),))[1] * w / 2.0,
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_transform_refuses_what_was_computed_outside_of_its_function(name: str) -> None:
    """The gradient of ``sum(w * w**2)`` was silently that of ``sum(w * h)``, with h constant."""
    w = ag.Parameter(W)
    h = w**2
    with pytest.raises(ag.TapeError, match=REFUSED) as error:
        GRADIENTS[name](lambda w: np.sum(w * h), w)
    text = str(error.value)
    assert text.startswith("h: f64[3] was computed") and "outside of the function that is differentiated" in text
    assert "fix: compute it inside the function, from its argument\n" in text and "at test_unrecorded.py" in text
    assert "or:  pass h as an argument that argnum does not name, or stop_gradient(h), if" in text
    inside = GRADIENTS[name](lambda w: np.sum(w * w**2), w)
    found = inside.numpy() if isinstance(inside, ag.Tensor) else inside
    numpy.testing.assert_allclose(found, 3 * W**2)


def test_check_grads_refuses_it() -> None:
    w = ag.Parameter(W)
    h = w**2
    with pytest.raises(ag.TapeError, match="outside of the function"):
        ag.testing.check_grads(lambda w: np.sum(w * h), w)
    ag.testing.check_grads(lambda w: np.sum(w * w**2), w)


DATA: dict[str, Callable[[Any, Any], Any]] = {
    "another argument": lambda w, h: ag.grad(cubes)(w, h),
    "another argument, in a container": lambda w, h: ag.grad(lambda w, d: cubes(w, d["h"][0]))(w, {"h": [h]}),
    "a keyword": lambda w, h: ag.grad(cubes)(w, h=h),
    "another argument of checkpoint": lambda w, h: ag.grad(lambda w, h: ag.checkpoint(cubes)(w, h))(w, h),
    "another argument of an inner transform": lambda w, h: ag.jacobian(ag.grad(lambda w, h: np.sum(w**2 * h) / 2.0))(
        w, h).sum(0),
    "stop_gradient": lambda w, h: ag.grad(lambda w: cubes(w, ag.stop_gradient(h)))(w),
    "plain data": lambda w, h: ag.grad(lambda w: cubes(w, W**2))(w),
    "of another leaf, for a plain argument": lambda w, h: ag.grad(lambda x: cubes(x, h))(W),
    "of an outer tape": lambda w, h: ag.grad(lambda x: ag.grad(lambda w: cubes(w, x**2))(w).sum())(W) / 2.0 * W,
}


@pytest.mark.parametrize("name", DATA)
def test_what_is_no_source_of_an_argument_stays_legal(name: str) -> None:
    w = ag.Parameter(W)
    found = DATA[name](w, w**2)
    numpy.testing.assert_allclose(found.numpy() if isinstance(found, ag.Tensor) else found, W**2)


def test_updates_by_turns_of_two_groups_of_weights() -> None:
    """Each is data where the other is differentiated, and so is the value before the step."""
    w, v, a, b = ag.Parameter(W), ag.Parameter(X), W, X
    for _ in range(3):
        near = lambda x, y, before: np.sum(x * y) + np.sum((x - before) ** 2) / 2.0
        w = w - 0.1 * ag.grad(lambda x, y: near(x, y, w))(w, v)  # noqa: B023 - called at once
        v = v - 0.1 * ag.grad(near, 1)(w, v, v)
        a = a - 0.1 * b
        b = b - 0.1 * a
    assert numpy.allclose(w.numpy(), a) and numpy.allclose(v.numpy(), b)


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
        product = (w.grad * v).sum()
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
    assert "if it was computed from a gradient such as w.grad" in text
    assert "or:  tape.backward(loss, record=True)" in text and "w.zero_grad()" in text and "at test_unrecorded" in text
    numpy.testing.assert_allclose(hessian_product(True, True, how), [6.0, -12.0])
