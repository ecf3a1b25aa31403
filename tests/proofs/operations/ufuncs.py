"""Cases of `autograd.numpy`'s other elementwise functions, and the reasons why some have no derivative."""

from __future__ import annotations

import numpy

import autograd.numpy as np

from .base import (
    WITHOUT_DERIVATIVE,
    Maker,
    apart,
    between,
    case,
    normal,
    numpy_case,
    offset,
    positive,
    real_only,
    strided,
)

_INSIDE = (-0.9, 0.9)
_UNARY: dict[str, Maker] = {
    "exp2": normal,
    "log2": positive,
    "log10": positive,
    "cbrt": positive,
    "tan": between(-1.2, 1.2),
    "arcsin": between(*_INSIDE),
    "arccos": between(*_INSIDE),
    "arctan": normal,
    "sinh": normal,
    "cosh": normal,
    "arcsinh": normal,
    "arccosh": between(1.2, 3.0),
    "arctanh": between(*_INSIDE),
    "deg2rad": normal,
    "rad2deg": normal,
    "sinc": normal,
    "nan_to_num": normal,
}
for _name, _domain in _UNARY.items():
    _ours, _theirs = getattr(np, _name), getattr(numpy, _name)
    for _shape in ((), (2, 3), (0, 2)):
        case(_name, str(_shape), _ours, _theirs, _domain(*_shape))
    case(_name, "strided", _ours, _theirs, strided(_domain(2, 2)))
case("sinc", "near zero", np.sinc, numpy.sinc, lambda rng: numpy.array([0.0, 1e-9, -1e-4, 0.3, 1.0, -2.0]))
case("sinc", "far", np.sinc, numpy.sinc, lambda rng: rng.uniform(2.0, 9.0, 4))

_BINARY: dict[str, tuple[Maker, Maker]] = {
    "logaddexp": (normal, normal),
    "logaddexp2": (normal, normal),
    "arctan2": (positive, positive),
    "hypot": (positive, positive),
    "mod": (between(5.1, 5.4), between(2.1, 2.3)),
    "fmod": (between(-5.4, -5.1), between(2.1, 2.3)),
    "fmax": (between(1.0, 2.0), between(2.5, 3.0)),
    "fmin": (between(1.0, 2.0), between(2.5, 3.0)),
}
for _name, (_left, _right) in _BINARY.items():
    _ours, _theirs = getattr(np, _name), getattr(numpy, _name)
    for _a, _b in (((), ()), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0, 3), (3,))):
        case(_name, f"{_a} {_b}", _ours, _theirs, _left(*_a), _right(*_b))
    case(_name, "number", lambda x, f=_ours: f(x, 2.5), lambda x, f=_theirs: f(x, 2.5), _left(2, 2))
for _lo, _hi in ((-0.2, 0.4), (None, 0.2), (0.0, None)):
    case("clip", f"{_lo} {_hi}", lambda x, a=_lo, b=_hi: np.clip(x, a, b),
         lambda x, a=_lo, b=_hi: numpy.clip(x, a, b), apart(2, 3))  # fmt: skip
case("clip", "limits that have derivatives", lambda x, a: np.clip(x, a, 9.0), lambda x, a: numpy.clip(x, a, 9.0),
     apart(2, 3), between(0.01, 0.05)(3))  # fmt: skip

numpy_case("heaviside", "at zero", lambda np, x: np.heaviside(x * 0, x), normal(2, 3))
numpy_case("heaviside", "repeated", lambda np, x: np.heaviside(np.stack([x * 0, x]), x), apart(3))
numpy_case("heaviside", "away from zero", lambda np, x: np.heaviside(x, x), apart(3))

# compositions, declared as cases of the operation that they use
case("absolute", "fabs", np.fabs, numpy.fabs, apart(3))
case("where", "copysign", lambda x: np.copysign(x, -2.0), lambda x: numpy.copysign(x, -2.0), apart(3))
case("power", "float_power", lambda x: np.float_power(x, 1.5), lambda x: numpy.float_power(x, 1.5).astype(x.dtype)
     if x.dtype == "float64" else numpy.float_power(x, 1.5), positive(3))  # fmt: skip
case("multiply", "ldexp", lambda x: np.ldexp(x, 3), lambda x: numpy.ldexp(x, 3), normal(3))
case("mod", "divmod", lambda x: np.divmod(x, 2.2)[1], lambda x: numpy.divmod(x, 2.2)[1], between(5.1, 5.4)(3))
case("mod", "operator", lambda x: x % 2.2, lambda x: x % 2.2, between(5.1, 5.4)(3))
case("mod", "reflected operator", lambda x: 5.0 % x, lambda x: 5.0 % x, between(2.1, 2.3)(3))
case("subtract", "modf", lambda x: np.modf(x)[0], lambda x: numpy.modf(x)[0], between(5.1, 5.4)(3))
case("subtract", "ptp", lambda x: np.ptp(x, 1), lambda x: numpy.ptp(x, 1), apart(2, 3))
case("unwrap", "of a row", np.unwrap, numpy.unwrap, lambda rng: numpy.array([0.1, 2.0, 5.0, -1.0, 0.4]))
case("negative", "positive", lambda x: -np.positive(x), lambda x: -numpy.positive(x), normal(3))

real_only("clip", "fmax", "fmin", reason="complex numbers have no order")

_BOOLEAN = [
    "isnan", "isinf", "isposinf", "isneginf", "signbit", "iscomplex", "isreal", "isclose", "logical_and",
    "logical_or", "logical_xor", "any", "all",
]  # fmt: skip
_STEPS = ["floor", "ceil", "trunc", "rint", "round", "floor_divide", "astype_discrete"]
_WHOLE = [
    "count_nonzero", "argmin", "argsort", "argpartition", "invert", "bitwise_and", "bitwise_or", "bitwise_xor",
    "left_shift", "right_shift",
]  # fmt: skip
WITHOUT_DERIVATIVE.update(dict.fromkeys(_BOOLEAN, "its result is boolean"))
WITHOUT_DERIVATIVE.update(dict.fromkeys(_STEPS, "it is piecewise constant"))
WITHOUT_DERIVATIVE.update(dict.fromkeys(_WHOLE, "its result is an integer"))
numpy_case("modified_bessel", "i0", lambda np, x: np.i0(x), normal(2, 3))
numpy_case("modified_bessel", "i0 of large numbers", lambda np, x: np.i0(x), offset(normal(3), 5.0))
