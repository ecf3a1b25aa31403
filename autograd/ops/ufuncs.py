"""More of NumPy's universal functions: trigonometric, hyperbolic, exponential, remainders, rounding, predicates.

On complex numbers the smooth ones are holomorphic, with the branch cuts of NumPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays.device import is_inexact, require_one_device
from ..arrays.half import in_float32
from ..arrays.shape_only import Shaped
from ..engine.dispatch import identity
from ..engine.primitive import Primitive, op
from ..engine.tensor import TENSORS
from ..errors import ArgumentError
from ..layouts.inference import broadcast
from . import reductions
from .arguments import instead_of, normal_axis, operand, operands, zero_like
from .elementwise import (
    absolute,
    astype,
    elementwise,
    exp,
    imag,
    isfinite,
    maximum,
    minimum,
    multiply,
    over,
    power,
    real,
    sqrt,
    subtract,
    symmetric,
    where,
    wins,
)
from .shape import mixed_axis_dims

__all__ = [
    "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "bitwise_and", "bitwise_or",
    "bitwise_xor", "cbrt", "ceil", "clip", "copysign", "cosh", "deg2rad", "divmod", "exp2", "fabs", "fix",
    "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "heaviside", "hypot", "i0", "invert", "isclose",
    "iscomplex", "isinf", "isnan", "isneginf", "isposinf", "isreal", "ldexp", "left_shift", "log10", "log2",
    "logaddexp", "logaddexp2", "logical_and", "logical_or", "logical_xor", "modf", "nan_to_num", "positive", "ptp",
    "rad2deg", "real_if_close", "right_shift", "rint", "round", "signbit", "sinc", "sinh", "tan", "trunc", "unwrap",
]  # fmt: skip

_LN2, _LN10 = math.log(2), math.log(10)

# -- exponentials and logarithms -------------------------------------------------------------------------------------
exp2 = elementwise("exp2", np.exp2, lambda y, x: y * _LN2, saves="y", sensitive=True)
log2 = elementwise("log2", np.log2, lambda y, x: (1 / _LN2) / x, saves="0")
log10 = elementwise("log10", np.log10, lambda y, x: (1 / _LN10) / x, saves="0")
cbrt = elementwise("cbrt", np.cbrt, lambda y, x: (1 / 3) / (y * y), saves="y", degree=1 / 3)
logaddexp = symmetric("logaddexp", np.logaddexp, lambda ct, y, a, b: ct * exp(a - y), saves="y01", sensitive=True)
logaddexp2 = symmetric("logaddexp2", np.logaddexp2, lambda ct, y, a, b: ct * exp2(a - y), saves="y01", sensitive=True)

# -- trigonometric and hyperbolic ------------------------------------------------------------------------------------
tan = elementwise("tan", np.tan, lambda y, x: 1 + y * y, saves="y", sensitive=True)
arcsin = elementwise("arcsin", np.arcsin, lambda y, x: 1 / sqrt(1 - x * x), saves="0", sensitive=True)
arccos = elementwise("arccos", np.arccos, lambda y, x: -1 / sqrt(1 - x * x), saves="0", sensitive=True)
arctan = elementwise("arctan", np.arctan, lambda y, x: 1 / (1 + x * x), saves="0", sensitive=True)
sinh = elementwise("sinh", np.sinh, lambda y, x: cosh(x), saves="0", sensitive=True)
cosh: Primitive = elementwise("cosh", np.cosh, lambda y, x: sinh(x), saves="0", sensitive=True)
arcsinh = elementwise("arcsinh", np.arcsinh, lambda y, x: 1 / sqrt(1 + x * x), saves="0", sensitive=True)
# two roots instead of sqrt(x * x - 1): exact near 1, and on the right branch for complex numbers
arccosh = elementwise("arccosh", np.arccosh, lambda y, x: 1 / (sqrt(x - 1) * sqrt(x + 1)), saves="0", sensitive=True)
arctanh = elementwise("arctanh", np.arctanh, lambda y, x: 1 / ((1 - x) * (1 + x)), saves="0", sensitive=True)


deg2rad = op("deg2rad", "a", np.deg2rad, lambda ct, y, x: ct * (math.pi / 180), dims=broadcast)
rad2deg = op("rad2deg", "a", np.rad2deg, lambda ct, y, x: ct * (180 / math.pi), dims=broadcast)

nonzero = op(
    "nonzero", "N", lambda x: np.where(x == 0, 1, x), lambda ct, y, x: ct * where(x == 0, np.nan, y / y), saves="y0",
    dims=broadcast,
)  # fmt: skip
"""Return `x` with 1 in place of 0. Dividing by it gives 0 where the plain quotient would be 0 / 0.

Its derivative at 0 is NaN, and so is that of the quotient."""


arctan2 = op(  # its derivatives at the origin are 0
    "arctan2", "N N", np.arctan2,
    (lambda ct, out, y, x: ct * (x / nonzero(x * x + y * y)),
     lambda ct, out, y, x: -(ct * (y / nonzero(y * y + x * x)))),
    saves="01", dims=broadcast, operands="y x",
)  # fmt: skip


def _hypot_adjoint(ct: Any, y: Any, a: Any, b: Any) -> Any:
    """``ct * a / y``, and 0 at the origin."""
    # on arrays the quotient comes first, for numbers so small that ``ct / y`` overflows
    return ct * over(a, y) if y.__class__ not in TENSORS else over(ct, y) * a


hypot = symmetric("hypot", np.hypot, _hypot_adjoint, saves="y01", degree=1)


# -- modified Bessel functions of the first kind ---------------------------------------------------------------------
@in_float32
def _bessel(x: Any, order: int) -> Any:
    """``I_n(x) = mean(exp(x cos t) cos(n t))`` over the circle, for n > 0 by the trapezoidal rule, which is exact."""
    if order == 0 or type(x) is Shaped:
        return np.i0(x) if type(x) is not Shaped else x
    largest = 711.0 if x.dtype.itemsize > 4 else 90.0  # of those whose result is finite
    if isinstance(x, np.ndarray | np.generic):  # values of a device are not read
        largest = float(np.max(np.abs(x), where=np.abs(x) < largest, initial=0.0))
    quarter = 12 + (order + int(10 * np.sqrt(largest))) // 4 + 1
    even_or_odd = np.sinh if order % 2 else np.cosh  # half of the exponential, so that small terms do not cancel
    total = np.zeros_like(x)
    for k in range(quarter + 1):  # the other quarters of the circle have the same terms
        t, weight = k * (np.pi / 2 / quarter), 0.5 if k in (0, quarter) else 1.0
        total = total + even_or_odd(x * x.dtype.type(np.cos(t))) * x.dtype.type(weight * np.cos(order * t))
    return total / quarter


_bessel_op = op(
    "modified_bessel", "N", _bessel, lambda ct, y, x, order: ct * _bessel_slope(x, order), saves="0", dims=broadcast
)


def _bessel_slope(x: Any, order: int) -> Any:
    """The derivative, half of the sum of the functions of the neighbouring orders."""
    if order == 0:
        return _bessel_op(x, options=(1,))
    return (_bessel_op(x, options=(order - 1,)) + _bessel_op(x, options=(order + 1,))) * 0.5


@instead_of(np.i0)
def i0(x: Any) -> Any:
    """Return the modified Bessel function of the first kind of order 0. Adjoint: ``ct * I_1(x)``."""
    return _bessel_op(x if x.dtype.kind == "f" else x.astype(float), options=(0,))


# -- sinc and its derivatives of every order, exact at zero too ------------------------------------------------------
@in_float32
def _sinc(x: Any, order: int) -> Any:
    """The derivative of sinc of this order: by a recurrence, and near zero by the power series."""
    if not order:
        return np.sinc(x)
    near = np.abs(x) < 0.4 + 0.2 * order
    far = np.where(near, 1.0, x).astype(x.dtype)
    y = np.sinc(far)
    for n in range(1, order + 1):
        y = (np.pi ** (n - 1) * np.sin(np.pi * far + n * (np.pi / 2)) - n * y) / far
    small = np.where(near, x, 0.0).astype(x.dtype)
    series = small * 0
    for k in range(order + order % 2, 40 + 6 * order, 2):  # the terms (-1)^(k/2) (pi x)^k / (k + 1)!, differentiated
        size = math.exp(k * math.log(math.pi) - math.lgamma(k + 2) + math.lgamma(k + 1) - math.lgamma(k - order + 1))
        series = series + (-1) ** (k // 2) * size * small ** (k - order)
    return np.where(near, series, y).astype(x.dtype)[()]


_sinc_op: Primitive = op(
    "sinc", "N", _sinc, lambda ct, y, x, order: ct * _sinc_op(x, options=(order + 1,)),
    saves="0", dims=broadcast, sensitive="result",
)  # fmt: skip


@instead_of(np.sinc, in_float32=True)
def sinc(x: Any) -> Any:
    """Return ``sin(pi x) / (pi x)``, which is 1 at zero. Derivatives of every order are exact, at zero too.

    Adjoint: ``ct * (cos(pi x) - sinc(x)) / x``.
    """
    return _sinc_op(x, options=(0,))


# -- rounding, which is piecewise constant and has no derivative; remainders -----------------------------------------
def _without_derivative(name: str, function: Any, word: str = "S") -> Primitive:
    return op(name, word, function, (None,) * len(word.split()), dims=broadcast)


floor = _without_derivative("floor", np.floor)
ceil = _without_derivative("ceil", np.ceil)
trunc = _without_derivative("trunc", np.trunc)
rint = _without_derivative("rint", np.rint)
floor_divide = _without_derivative("floor_divide", np.floor_divide, "S S")
heaviside = op(  # at 0 it is its second operand
    "heaviside", "S N", np.heaviside,
    (None, lambda ct, y, x, h: astype(where(x == 0, ct, zero_like(ct)), h.dtype)), saves="01", dims=broadcast,
)  # fmt: skip
_round_op = _without_derivative("round", lambda x, decimals: np.round(x, decimals))


@instead_of(np.fix)
def fix(x: Any) -> Any:
    """Return `x` rounded towards zero. It has no derivative."""
    return trunc(x)


@instead_of(np.round)
def round(a: Any, decimals: int = 0) -> Any:
    """Return `a` rounded to a number of decimals. It has no derivative."""
    return _round_op(a, options=(decimals,))


mod = op(
    "mod", "N N", np.remainder, (identity, lambda ct, y, a, b: -ct * floor(a / b)), saves="01", dims=broadcast,
)  # fmt: skip
fmod = op(
    "fmod", "N N", np.fmod, (identity, lambda ct, y, a, b: -ct * trunc(a / b)), saves="01", dims=broadcast,
)  # fmt: skip
remainder = mod


# one operand has all of the cotangent where the other is nan
fmax = symmetric("fmax", np.fmax, lambda ct, y, a, b: ct * where(b != b, 1, wins(a, b, ct)), saves="01", degree=1)
fmin = symmetric("fmin", np.fmin, lambda ct, y, a, b: ct * where(b != b, 1, wins(b, a, ct)), saves="01", degree=1)

_clip_op = op(
    "clip", "N S S", np.clip,
    (lambda ct, y, x, lo, hi: where((x > lo) & (x < hi), ct, zero_like(ct)), None, None),
    saves="012", dims=broadcast, operands="x a_min a_max",
)  # fmt: skip


_MISSING: Any = object()


@instead_of(np.clip, checked=3)
def clip(
    a: Any, a_min: Any = _MISSING, a_max: Any = _MISSING, *, min: Any = None, max: Any = None, out: Any = None
) -> Any:
    """Return the elements limited to the interval from `a_min` to `a_max`.

    The derivative is 0 outside the interval and at its ends, as in HIPS autograd. Limits that are Tensors have
    derivatives too; an element equal to such a limit then shares the cotangent equally with it.
    """
    if (a_min is _MISSING) != (a_max is _MISSING):
        raise ArgumentError("clip: one of a_min and a_max was given; needed: both, either of which may be None")
    lo, hi = (min, max) if a_min is _MISSING else (a_min, a_max)
    a = operand(a)
    if lo.__class__ in TENSORS or hi.__class__ in TENSORS or not is_inexact(a.dtype) or a.__class__ not in TENSORS:
        a = a if lo is None else maximum(a, lo)
        return a if hi is None else minimum(a, hi)
    return _clip_op(a, -math.inf if lo is None else lo, math.inf if hi is None else hi)


_nan_to_num_op = op(
    "nan_to_num", "N", lambda x, *given: np.nan_to_num(x, True, *given),
    lambda ct, y, x, *given: where(isfinite(x), ct, zero_like(ct)), saves="0", dims=broadcast,
)  # fmt: skip


@instead_of(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Return `x` with nan and infinities replaced by finite numbers. The cotangent of a replaced element is 0."""
    return _nan_to_num_op(x, options=(nan, posinf, neginf))


@instead_of(np.angle)
def angle(z: Any, deg: bool = False) -> Any:
    """Return the angle (argument) of complex numbers in radians, or in degrees with ``deg=True``.

    Adjoint: ``-1j * ct / z``, and 0 for real numbers.
    """
    y = arctan2(imag(z), real(z)) if z.dtype.kind == "c" else arctan2(0, z)
    return rad2deg(y) if deg else y


@instead_of(np.real_if_close)
def real_if_close(a: Any, tol: float = 100) -> Any:
    """Return the real part if all imaginary parts are close to zero, else `a` unchanged. Adjoint: the cotangent."""
    return a if a.dtype.kind == "c" and np.real_if_close(a.array, tol).dtype.kind == "c" else real(a)


@instead_of(np.fabs)
def fabs(x: Any) -> Any:
    """Return the absolute value of real numbers as floats. Adjoint: ``ct * sign(x)``."""
    return absolute(x if is_inexact(x.dtype) and x.dtype.kind != "c" else x.astype(float))


@instead_of(np.copysign)
def copysign(x1: Any, x2: Any) -> Any:
    """Return the magnitude of `x1` with the sign of `x2`.

    Adjoint: the cotangent times the sign of ``x1 * x2`` for `x1`, and 0 for `x2`.
    """
    x1, x2 = operands(x1, x2)
    magnitude = absolute(x1.astype(np.copysign.resolve_dtypes((x1.dtype, x2.dtype, None))[-1]))
    return where(signbit(x2), -magnitude, magnitude)


@instead_of(np.positive)
def positive(x: Any) -> Any:
    """Return the operand unchanged. Adjoint: the cotangent."""
    return x


@instead_of(np.float_power)
def float_power(x1: Any, x2: Any) -> Any:
    """Return ``x1 ** x2`` computed in at least double precision. Adjoint: that of `power`."""
    if x1.__class__ in TENSORS and x2.__class__ in (int, float):
        return power(x1.astype(np.result_type(x1.dtype, np.float64)), float(x2))
    x1, x2 = operands(x1, x2)
    wide = np.result_type(x1.dtype, x2.dtype, np.float64)
    return power(x1.astype(wide), x2.astype(wide))


@instead_of(np.ldexp)
def ldexp(x1: Any, x2: Any) -> Any:
    """Return ``x1 * 2**x2`` for an integer `x2`. Adjoint: ``ct * 2**x2`` for `x1`."""
    dtype = x1.dtype if hasattr(x1, "dtype") else np.dtype(float)
    return multiply(x1, exp2(x2.astype(dtype)) if hasattr(x2, "dtype") else 2.0**x2)


@instead_of(np.divmod)
def divmod(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Return the quotient rounded down, which has no derivative, and the remainder."""
    return floor_divide(x1, x2), mod(x1, x2)


@instead_of(np.modf)
def modf(x: Any) -> tuple[Any, Any]:
    """Return the fractional part, and the integral part, which has no derivative."""
    whole = trunc(x)
    return where(isinf(x), zero_like(x), subtract(x, whole)), whole


@instead_of(np.ptp, in_float32=True)
def ptp(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the maximum minus the minimum over axes ("peak to peak").

    Adjoint: the cotangent at the maximum, and its negative at the minimum.
    """
    return subtract(reductions.max(a, axis, keepdims=keepdims), reductions.min(a, axis, keepdims=keepdims))


_unwrap_op = op(
    "unwrap", "N", in_float32(lambda p, axis, discont, period: np.unwrap(p, discont, axis, period=period)), identity,
    dims=mixed_axis_dims, operands="p", tangent=(lambda dp, y, p, *_: dp,),
)  # fmt: skip


@instead_of(np.unwrap, in_float32=True)
def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Any:
    """Return angles with jumps larger than `discont` removed by adding multiples of `period`.

    What is added is piecewise constant, so the adjoint is the identity.
    """
    p = operand(p)
    return _unwrap_op(p, options=(normal_axis(axis, p.ndim), discont, period))


# -- comparisons and predicates: their results are boolean -----------------------------------------------------------
logical_and = _without_derivative("logical_and", np.logical_and, "S S")
logical_or = _without_derivative("logical_or", np.logical_or, "S S")
logical_xor = _without_derivative("logical_xor", np.logical_xor, "S S")
isnan = _without_derivative("isnan", np.isnan)
isinf = _without_derivative("isinf", np.isinf)
isposinf = _without_derivative("isposinf", lambda x: np.isposinf(x))
isneginf = _without_derivative("isneginf", lambda x: np.isneginf(x))
signbit = _without_derivative("signbit", np.signbit)
iscomplex = _without_derivative("iscomplex", lambda x: np.iscomplex(x))
isreal = _without_derivative("isreal", lambda x: np.isreal(x))
def _isclose(a: Any, b: Any, *tolerances: Any) -> Any:
    if a.__class__ is not b.__class__:  # CuPy would copy an array on the host
        require_one_device("isclose", a=a, b=b)
    return np.isclose(a, b, *tolerances)


_isclose_op = _without_derivative("isclose", _isclose, "S S")


@instead_of(np.isclose)
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Return whether elements are equal within tolerances. It has no derivative."""
    return _isclose_op(a, b, options=(rtol, atol, equal_nan))


invert = _without_derivative("invert", np.invert)
bitwise_and = _without_derivative("bitwise_and", np.bitwise_and, "S S")
bitwise_or = _without_derivative("bitwise_or", np.bitwise_or, "S S")
bitwise_xor = _without_derivative("bitwise_xor", np.bitwise_xor, "S S")
left_shift = _without_derivative("left_shift", np.left_shift, "S S")
right_shift = _without_derivative("right_shift", np.right_shift, "S S")
