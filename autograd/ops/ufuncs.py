"""Functions of one and two numbers: trigonometric, hyperbolic, exponential; what is constant between steps.

Of complex numbers they are holomorphic, on NumPy's branches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..engine.broadcasting import broadcast
from ..engine.dispatch import identity
from ..engine.primitive import Primitive, op
from ..engine.tensor import TENSORS
from . import reductions
from .arguments import constant_like, instead_of, operand, raw, tensors_in, zero_like
from .elementwise import (
    absolute,
    add,
    elementwise,
    exp,
    imag,
    isfinite,
    maximum,
    minimum,
    multiply,
    power,
    real,
    sqrt,
    subtract,
    where,
    wins,
)

_LN2, _LN10 = math.log(2), math.log(10)

# -- exponentials and logarithms -------------------------------------------------------------------------------------
exp2 = elementwise("exp2", np.exp2, lambda y, x: y * _LN2, saves="y")
log2 = elementwise("log2", np.log2, lambda y, x: (1 / _LN2) / x, saves="0")
log10 = elementwise("log10", np.log10, lambda y, x: (1 / _LN10) / x, saves="0")
cbrt = elementwise("cbrt", np.cbrt, lambda y, x: (1 / 3) / (y * y), saves="y")
logaddexp = op(
    "logaddexp", "N N", np.logaddexp,
    (lambda ct, y, a, b: ct * exp(a - y), lambda ct, y, a, b: ct * exp(b - y)), saves="y01", dims=broadcast,
)  # fmt: skip
logaddexp2 = op(
    "logaddexp2", "N N", np.logaddexp2,
    (lambda ct, y, a, b: ct * exp2(a - y), lambda ct, y, a, b: ct * exp2(b - y)), saves="y01", dims=broadcast,
)  # fmt: skip

# -- trigonometric and hyperbolic ------------------------------------------------------------------------------------
tan = elementwise("tan", np.tan, lambda y, x: 1 + y * y, saves="y")
arcsin = elementwise("arcsin", np.arcsin, lambda y, x: 1 / sqrt(1 - x * x), saves="0")
arccos = elementwise("arccos", np.arccos, lambda y, x: -1 / sqrt(1 - x * x), saves="0")
arctan = elementwise("arctan", np.arctan, lambda y, x: 1 / (1 + x * x), saves="0")
sinh = elementwise("sinh", np.sinh, lambda y, x: cosh(x), saves="0")
cosh: Primitive = elementwise("cosh", np.cosh, lambda y, x: sinh(x), saves="0")
arcsinh = elementwise("arcsinh", np.arcsinh, lambda y, x: 1 / sqrt(1 + x * x), saves="0")
# two roots, not the root of a product: exact near 1, and on the right branch for complex numbers
arccosh = elementwise("arccosh", np.arccosh, lambda y, x: 1 / (sqrt(x - 1) * sqrt(x + 1)), saves="0")
arctanh = elementwise("arctanh", np.arctanh, lambda y, x: 1 / ((1 - x) * (1 + x)), saves="0")


def _scaled(name: str, function: Any, factor: float) -> Primitive:
    return op(name, "a", function, lambda ct, y, x: ct * factor, dims=broadcast, operands="x")


deg2rad = _scaled("deg2rad", np.deg2rad, math.pi / 180)
rad2deg = _scaled("rad2deg", np.rad2deg, 180 / math.pi)


def nonzero(x: Any) -> Any:
    """`x` with 1 in the place of 0: a divisor that leaves 0 / 0 as 0."""
    return where(x == 0, 1, x)


def _over_square(ct: Any, y: Any, x: Any) -> Any:
    return ct * (x / nonzero(x * x + y * y))


arctan2 = op(
    "arctan2", "N N", np.arctan2,
    (lambda ct, out, y, x: _over_square(ct, y, x), lambda ct, out, y, x: -_over_square(ct, x, y)),
    saves="01", dims=broadcast, operands="y x",
)  # fmt: skip
hypot = op(
    "hypot", "N N", np.hypot,
    (lambda ct, y, a, b: ct * (a / nonzero(y)), lambda ct, y, a, b: ct * (b / nonzero(y))),
    saves="y01", dims=broadcast,
)  # fmt: skip


# -- sin(pi x) / (pi x), any derivative of it, exact through zero ----------------------------------------------------
def _sinc(x: Any, order: int) -> Any:
    """The derivative of this order: by its recurrence, and near zero by its power series."""
    if not order:
        return np.sinc(x)
    near = np.abs(x) < 0.4 + 0.2 * order
    far = np.where(near, 1.0, x).astype(x.dtype)
    y = np.sinc(far)
    for n in range(1, order + 1):
        y = (np.pi ** (n - 1) * np.sin(np.pi * far + n * (np.pi / 2)) - n * y) / far
    small = np.where(near, x, 0.0).astype(x.dtype)
    series = small * 0
    for k in range(order + order % 2, 40 + 6 * order, 2):  # the terms (-1)^(k/2) (pi x)^k / (k + 1)!
        size = math.exp(k * math.log(math.pi) - math.lgamma(k + 2) + math.lgamma(k + 1) - math.lgamma(k - order + 1))
        series = series + (-1) ** (k // 2) * size * small ** (k - order)
    return np.where(near, series, y).astype(x.dtype)[()]


_sinc_op: Primitive = op(
    "sinc", "N", _sinc, lambda ct, y, x, order: ct * _sinc_op(x, options=(order + 1,)),
    saves="0", dims=broadcast, operands="x",
)  # fmt: skip


@instead_of(np.sinc)
def sinc(x: Any) -> Any:
    """``sin(pi x) / (pi x)``; every derivative is exact, at zero too."""
    return _sinc_op(x, options=(0,))


# -- remainders and choices; what is constant between steps has no derivative ----------------------------------------
def _stepped(name: str, function: Any, word: str = "S") -> Primitive:
    return op(name, word, function, (None,) * len(word.split()), dims=broadcast)


floor = _stepped("floor", np.floor)
ceil = _stepped("ceil", np.ceil)
trunc = _stepped("trunc", np.trunc)
rint = _stepped("rint", np.rint)
floor_divide = _stepped("floor_divide", np.floor_divide, "S S")
heaviside = _stepped("heaviside", np.heaviside, "S S")
_round_op = _stepped("round", lambda x, decimals: np.round(x, decimals))


@instead_of(np.fix)
def fix(x: Any) -> Any:
    """Round towards zero; without derivative."""
    return trunc(x)


@instead_of(np.round)
def round(a: Any, decimals: int = 0) -> Any:
    """Round to a number of decimals; without derivative."""
    return _round_op(a, options=(decimals,))


mod = op(
    "mod", "N N", np.remainder, (identity, lambda ct, y, a, b: -ct * floor(a / b)), saves="01", dims=broadcast,
)  # fmt: skip
fmod = op(
    "fmod", "N N", np.fmod, (identity, lambda ct, y, a, b: -ct * trunc(a / b)), saves="01", dims=broadcast,
)  # fmt: skip
remainder = mod


def _wins_over_nan(ct: Any, a: Any, b: Any, sign: int) -> Any:
    share = wins(a, b, ct) if sign > 0 else wins(b, a, ct)
    return ct * where(b != b, 1, share)


fmax = op(
    "fmax", "N N", np.fmax,
    (lambda ct, y, a, b: _wins_over_nan(ct, a, b, 1), lambda ct, y, a, b: _wins_over_nan(ct, b, a, 1)),
    saves="01", dims=broadcast,
)  # fmt: skip
fmin = op(
    "fmin", "N N", np.fmin,
    (lambda ct, y, a, b: _wins_over_nan(ct, a, b, -1), lambda ct, y, a, b: _wins_over_nan(ct, b, a, -1)),
    saves="01", dims=broadcast,
)  # fmt: skip

_clip_op = op(
    "clip", "N S S", np.clip,
    (lambda ct, y, x, lo, hi: where((x > lo) & (x < hi), ct, zero_like(ct)), None, None),
    saves="012", dims=broadcast, operands="x a_min a_max",
)  # fmt: skip


def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None, out: Any = None) -> Any:
    """Elements limited to an interval. The derivative is zero outside it and at its ends (as HIPS autograd has it).

    Limits that are Tensors have derivatives too; at a tie, element and limit then share the cotangent.
    """
    lo, hi = (a_min if min is None else min), (a_max if max is None else max)
    if out is not None or not (a.__class__ in TENSORS or tensors_in((a, lo, hi))):
        return np.clip(a, lo, hi, out=out)
    a = operand(a)
    if lo.__class__ in TENSORS or hi.__class__ in TENSORS or a.dtype.kind not in "fc" or a.__class__ not in TENSORS:
        a = a if lo is None else maximum(a, lo)
        return a if hi is None else minimum(a, hi)
    return _clip_op(a, -math.inf if lo is None else lo, math.inf if hi is None else hi)


_finite_op = op(
    "nan_to_num", "N", lambda x, *given: np.nan_to_num(x, True, *given),
    lambda ct, y, x, *given: where(isfinite(x), ct, zero_like(ct)), saves="0", dims=broadcast, operands="x",
)  # fmt: skip


@instead_of(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Finite numbers in the place of nan and infinities, whose cotangent is zero."""
    return _finite_op(x, options=(nan, posinf, neginf))


def angle(z: Any, deg: bool = False) -> Any:
    """The argument of complex numbers."""
    if z.__class__ not in TENSORS:
        return np.angle(z, deg)
    y = arctan2(imag(z), real(z)) if z.dtype.kind == "c" else arctan2(0.0, z)
    return rad2deg(y) if deg else y


@instead_of(np.real_if_close)
def real_if_close(a: Any, tol: float = 100) -> Any:
    """The real part, if all imaginary parts are close to zero."""
    return a if a.dtype.kind == "c" and np.real_if_close(a.array, tol).dtype.kind == "c" else real(a)


@instead_of(np.fabs)
def fabs(x: Any) -> Any:
    """The absolute value of real numbers."""
    return absolute(x if x.dtype.kind == "f" else x.astype(float))


@instead_of(np.copysign)
def copysign(x1: Any, x2: Any) -> Any:
    """The size of one operand with the sign of another."""
    size = absolute(x1)
    return where(signbit(x2), -size, size)


@instead_of(np.positive)
def positive(x: Any) -> Any:
    """The operand itself."""
    return x


@instead_of(np.float_power)
def float_power(x1: Any, x2: Any) -> Any:
    """A power in double precision at least."""
    wide = np.result_type(*(raw(x) if hasattr(x, "dtype") else x for x in (x1, x2)), np.float64)
    return power(*(x.astype(wide) if hasattr(x, "dtype") else x for x in (x1, x2)))


@instead_of(np.ldexp)
def ldexp(x1: Any, x2: Any) -> Any:
    """``x1 * 2**x2`` of an integer `x2`."""
    dtype = x1.dtype if hasattr(x1, "dtype") else np.dtype(float)
    return multiply(x1, exp2(x2.astype(dtype)) if hasattr(x2, "dtype") else 2.0**x2)


@instead_of(np.divmod)
def divmod(x1: Any, x2: Any) -> Any:
    """The quotient rounded down, which has no derivative, and the remainder."""
    return floor_divide(x1, x2), mod(x1, x2)


@instead_of(np.modf)
def modf(x: Any) -> Any:
    """The fractional part, and the integral part, which has no derivative."""
    whole = trunc(x)
    return subtract(x, whole), whole


@instead_of(np.ptp)
def ptp(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The largest less the smallest."""
    return subtract(reductions.max(a, axis, keepdims=keepdims), reductions.min(a, axis, keepdims=keepdims))


@instead_of(np.unwrap)
def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Any:
    """Angles without jumps: what is added is constant between jumps, so the cotangent passes."""
    values = raw(p)
    return add(p, constant_like(np.unwrap(values, discont, axis, period=period) - values, p))


# -- comparisons and predicates: their results are boolean -----------------------------------------------------------
logical_and = _stepped("logical_and", np.logical_and, "S S")
logical_or = _stepped("logical_or", np.logical_or, "S S")
logical_xor = _stepped("logical_xor", np.logical_xor, "S S")
isnan = _stepped("isnan", np.isnan)
isinf = _stepped("isinf", np.isinf)
isposinf = _stepped("isposinf", lambda x: np.isposinf(x))
isneginf = _stepped("isneginf", lambda x: np.isneginf(x))
signbit = _stepped("signbit", np.signbit)
iscomplex = _stepped("iscomplex", lambda x: np.iscomplex(x))
isreal = _stepped("isreal", lambda x: np.isreal(x))
_isclose_op = _stepped("isclose", lambda a, b, *tolerances: np.isclose(a, b, *tolerances), "S S")


@instead_of(np.isclose)
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Whether elements are close; without derivative."""
    return _isclose_op(a, b, options=(rtol, atol, equal_nan))


invert = _stepped("invert", np.invert)
bitwise_and = _stepped("bitwise_and", np.bitwise_and, "S S")
bitwise_or = _stepped("bitwise_or", np.bitwise_or, "S S")
bitwise_xor = _stepped("bitwise_xor", np.bitwise_xor, "S S")
left_shift = _stepped("left_shift", np.left_shift, "S S")
right_shift = _stepped("right_shift", np.right_shift, "S S")
