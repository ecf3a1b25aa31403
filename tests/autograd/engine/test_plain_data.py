"""Conversions of a value to plain data on the active tape, through which no gradient flows."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np

from ...tables import each

EXITS: dict[str, Callable[[Any], Any]] = {
    "float(x)": lambda x: float(x),
    "int(x)": lambda x: int(x),
    "complex(x)": lambda x: complex(x).real,
    "math.exp(x)": lambda x: math.exp(x),
    "%f": lambda x: float("%f" % x),  # noqa: UP031 - the operator is asked
    "a format, as a number": lambda x: float(f"{x:.3f}"),
    "a format, as a whole number": lambda x: int(f"{x:.0f}"),
    "x.numpy()": lambda x: x.numpy(),
    "x.tolist()": lambda x: x.tolist(),
    "x.data": lambda x: x.data,
    "ag.constant(x)": lambda x: ag.constant(x),
}
ARRAYS = ("x.numpy()", "x.tolist()", "x.data", "ag.constant(x)")


def refused(run: Callable[[], Any], *says: str) -> None:
    with pytest.raises(ag.TapeError) as error:
        run()
    for words in (*says, "which the active tape follows", "fix: ", "test_plain_data.py:"):
        assert words in str(error.value), str(error.value)


@pytest.mark.parametrize("name", EXITS)
def test_a_value_that_the_active_tape_follows(name: str) -> None:
    w = ag.Parameter(2.0, name="speed")
    with ag.Tape() as tape:
        y = w * 3.0
        refused(lambda: EXITS[name](y), "f64[]")
        refused(lambda: EXITS[name](w), "speed" if name != "ag.constant(x)" else "f64[]")
        with ag.no_grad():
            EXITS[name](y)
        EXITS[name](ag.stop_gradient(y))
        EXITS[name](ag.tensor(2.0) * 3.0)  # depends on no leaf
        loss = y * y
    EXITS[name](y)
    tape.backward(loss)
    with ag.Tape():
        EXITS[name](loss)  # its tape is done, so no gradient can be lost


TRANSFORMS: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "grad": lambda f, x: ag.grad(f)(x),
    "value_and_grad": lambda f, x: ag.value_and_grad(f)(x),
    "elementwise_grad": lambda f, x: ag.elementwise_grad(f)(x),
    "jacobian": lambda f, x: ag.jacobian(f)(x),
    "hessian": lambda f, x: ag.hessian(f)(x),
    "hvp": lambda f, x: ag.hvp(f, (x,), (x,)),
    "vjp": lambda f, x: ag.vjp(f, x),
    "jvp": lambda f, x: ag.jvp(f, (x,), (x,)),
    "vmap of grad": lambda f, x: [ag.grad(f)(each) for each in (x, x)],
    "checkpoint": lambda f, x: ag.grad(ag.checkpoint(f))(x),
    "grad of grad": lambda f, x: ag.grad(lambda z: ag.grad(lambda y: f(y) * z)(z))(x),
}


@each(product(EXITS, TRANSFORMS), lambda case: case[1])
def test_inside_a_transform(case: tuple[str, str]) -> None:
    name, transform = case

    def function(x: Any) -> Any:
        left = EXITS[name](x * 1.5)
        return x * (left[()] if isinstance(left, numpy.ndarray) else left)

    refused(lambda: TRANSFORMS[transform](function, 0.5))


def test_the_fix_that_the_error_offers() -> None:
    """The value alone: the gradient is that of a factor that does not depend on x."""
    assert ag.grad(lambda x: x * (x * 1.5).item())(2.0) == 3.0
    assert ag.grad(lambda x: x * float(ag.stop_gradient(x * 1.5)))(2.0) == 3.0
    x = numpy.array([1.0, 2.0])
    assert ag.grad(lambda x: np.sum(x * ag.stop_gradient(x * 1.5).numpy()))(x).tolist() == [1.5, 3.0]
    assert math.isclose(ag.grad(lambda x: x * np.exp(x))(0.5), 1.5 * math.exp(0.5))  # and the operation


def test_what_stays_legal(capsys: pytest.CaptureFixture[str]) -> None:
    w = ag.Parameter(2.0)
    with ag.Tape() as tape:
        y = w * 3.0
        print(y, f"{y:.2f}", str(y), repr(y))
        text = f"{y:.2f}"
        assert text == "6.00" and {"6.00": 1}[text] and json.dumps([text]) == '["6.00"]' and f"{text}0" == "6.000"
        assert type(pickle.loads(pickle.dumps(text))) is type(copy.copy(text)) is type(str(text)) is str
        y = y * 2.0 if y > 1.0 and bool(y) else y
        y = max(y, w)
        assert y.item() == 12.0 and numpy.int64(y) == 12
    assert "6.00" in capsys.readouterr().out and float(text) == 6.0
    tape.backward(y)
    assert w.grad is not None and w.grad.item() == 6.0


@pytest.mark.parametrize("twin", [lambda x: x.copy(), copy.deepcopy, copy.copy], ids=["x.copy()", "deepcopy", "copy"])
def test_copies_keep_the_gradient(twin: Callable[[Any], Any]) -> None:
    assert ag.grad(lambda x: np.sum(twin(x * 2.0) ** 2))(numpy.ones(2)).tolist() == [8.0, 8.0]
    assert ag.grad(lambda x: np.sum(twin(x) ** 2))(numpy.ones(2)).tolist() == [2.0, 2.0]


def test_a_copy_of_a_parameter_is_a_leaf_of_its_own() -> None:
    w = ag.Parameter([1.0])
    twin_of_leaf = copy.deepcopy(w)
    assert type(twin_of_leaf) is ag.Parameter and twin_of_leaf.array is not w.array
    plain = copy.deepcopy(ag.tensor([1.0]) * 2.0)
    assert type(plain) is type(ag.tensor([1.0]) * 2.0) and plain.tolist() == [2.0]
