"""Cases of the elementwise operations."""

from __future__ import annotations

from typing import Any

import numpy

import autograd.numpy as np
from autograd.engine.primitive import registry
from autograd.ops.nn import activations as activations  # declares sigmoid, relu and softplus

from .base import Array, apart, case, normal, offset, positive, real_only, strided


def softplus(x: Array) -> Array:
    return numpy.log1p(numpy.exp(x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + numpy.exp(-x))


UNARY: dict[str, tuple[Any, Any]] = {
    "negative": (numpy.negative, normal),
    "exp": (numpy.exp, normal),
    "expm1": (numpy.expm1, normal),
    "log": (numpy.log, positive),
    "log1p": (numpy.log1p, positive),
    "sqrt": (numpy.sqrt, positive),
    "square": (numpy.square, normal),
    "reciprocal": (numpy.reciprocal, positive),
    "sin": (numpy.sin, normal),
    "cos": (numpy.cos, normal),
    "tanh": (numpy.tanh, normal),
    "sign": (numpy.sign, apart),
    "absolute": (numpy.absolute, apart),
    "sigmoid": (sigmoid, normal),
    "relu": (lambda x: numpy.maximum(x, 0), apart),
    "softplus": (softplus, normal),
}
for _name, (_numpy, _domain) in UNARY.items():
    for _shape in ((), (3,), (2, 3), (0,), (2, 0, 3)):
        case(_name, str(_shape), registry[_name], _numpy, _domain(*_shape))
    case(_name, "strided (2, 3)", registry[_name], _numpy, strided(_domain(2, 3)))

BINARY: dict[str, tuple[Any, Any, Any]] = {
    "add": (numpy.add, normal, normal),
    "subtract": (numpy.subtract, normal, normal),
    "multiply": (numpy.multiply, normal, normal),
    "divide": (numpy.divide, normal, positive),
    "power": (numpy.power, positive, normal),
}
_PAIRS = [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), (2, 1)), ((2, 1), (1, 3)), ((), (2, 2)), ((2, 2), ()),
          ((1,), ()), ((0, 3), (3,)), ((0,), (1,)), ((2, 1, 3), (4, 1))]  # fmt: skip
for _name, (_numpy, _left, _right) in BINARY.items():
    for _a, _b in _PAIRS:
        case(_name, f"{_a} {_b}", registry[_name], _numpy, _left(*_a), _right(*_b))
    case(_name, "strided", registry[_name], _numpy, strided(_left(2, 3)), strided(_right(2, 3)))
    case(_name, "number right", lambda x, f=registry[_name]: f(x, 1.5), lambda x, f=_numpy: f(x, 1.5), _left(2, 2))
    case(_name, "number left", lambda x, f=registry[_name]: f(1.5, x), lambda x, f=_numpy: f(1.5, x), _right(2, 2))
    case(_name, "array right", lambda x, f=registry[_name]: f(x, numpy.array([1.5, 2.5])),
         lambda x, f=_numpy: f(x, numpy.array([1.5, 2.5])), _left(2, 1))  # fmt: skip
    case(_name, "one operand twice", lambda x, f=registry[_name]: f(x, x), lambda x, f=_numpy: f(x, x), positive(3))
for _n in (0, 1, 2, 3, 4, 5, -1, -2):
    case("power", f"integer {_n}", lambda x, n=_n: x**n, lambda x, n=_n: x ** float(n), apart(2, 3))
    case("power", f"0-d integer {_n}", lambda x, n=_n: x**n, lambda x, n=_n: x ** float(n), apart())
case("power", "a base of zero", lambda x: x**3, lambda x: x**3, lambda rng: numpy.array([0.0, 1.0]))
case("power", "half", lambda x: x**0.5, lambda x: x**0.5, positive(3))
for _name, _numpy in (("maximum", numpy.maximum), ("minimum", numpy.minimum)):
    for _a, _b in (((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (3,)), ((0, 2), (2,))):
        # odd multiples of 0.1 on one side, of 0.1 + 0.05 on the other: never a tie
        case(_name, f"{_a} {_b}", registry[_name], _numpy, apart(*_a), offset(apart(*_b), 0.05))
    case(_name, "number", lambda x, f=registry[_name]: f(x, 0.0), lambda x, f=_numpy: f(x, 0.0), apart(2, 3))
case("nonzero", "", registry["nonzero"], lambda x: x, apart(2, 3))
case("unknown", "nowhere", lambda a: registry["unknown"](a, a != a), lambda a: a * 0, normal(2, 3))
case("over", "a row of magnitudes", registry["over"], lambda a, y: a / y, normal(2, 3), positive(3))
for _forward in (False, True):
    case("signed", f"forward={_forward}", lambda a, x, o=(_forward,): registry["signed"](a, x, options=o),
         lambda a, x: a * numpy.sign(x), normal(2, 3), apart(3))  # fmt: skip
real_only("signed", reason="the sign of complex numbers is `sign`")
real_only("maximum", "minimum", reason="complex numbers have no order")
real_only("relu", "softplus", reason="defined by the order of real numbers")
case("to_device", "to the host", lambda x: registry["to_device"](x, options=("cpu", "cpu")), lambda x: x, normal(2, 3))
case("to_device", "strided", lambda x: registry["to_device"](x, options=("cpu", "cpu")), lambda x: x,
     strided(normal(2, 3)))  # fmt: skip
_MASK = numpy.array([[True, False, True], [False, False, True]])
for _a, _b in (((2, 3), (2, 3)), ((3,), (2, 1)), ((), (3,)), ((2, 3), ())):
    case("where", f"{_a} {_b}", lambda a, b: np.where(_MASK, a, b), lambda a, b: numpy.where(_MASK, a, b), normal(*_a),
         normal(*_b))  # fmt: skip
case("where", "one row of conditions", lambda a, b: np.where(_MASK[0], a, b), lambda a, b: numpy.where(_MASK[0], a, b),
     normal(2, 3), normal(3))  # fmt: skip
case("where", "number", lambda a: np.where(a > 0, a, 0.0), lambda a: numpy.where(a > 0, a, 0.0), apart(2, 3))
case("astype", "to complex", lambda x: x.astype(complex) * (1 + 2j),
     lambda x: x.astype(complex) * (1 + 2j), normal(2, 3))  # fmt: skip
case("astype", "to float64", lambda x: x.astype("float64") * 2, lambda x: x.astype("float64") * 2, normal(3))
