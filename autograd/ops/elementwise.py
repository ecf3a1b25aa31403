"""Elementwise operations: arithmetic, exponentials, comparisons, `where`, casts and complex parts.

All broadcast as in NumPy. The Jacobian of an elementwise operation is diagonal, so one rule per operand, the
multiplication by a partial derivative, serves as its adjoint and as its tangent.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..arrays.device import current_device, device_of, dtype_named, is_bfloat16
from ..arrays.device import to_device as array_on
from ..arrays.half import is_half, rounded
from ..engine.dispatch import identity
from ..engine.primitive import Primitive, op
from ..engine.recording import options_of
from ..engine.tensor import TENSORS
from ..errors import ArgumentError, DtypeError
from ..kernels import on_device
from ..layouts.inference import broadcast
from ..layouts.layout import V
from .arguments import made_like, zero_like

__all__ = [
    "absolute", "conj", "cos", "equal", "exp", "expm1", "greater", "greater_equal", "imag", "isfinite", "less",
    "less_equal", "log", "log1p", "logical_not", "maximum", "minimum", "not_equal", "real", "reciprocal", "sign",
    "sin", "sqrt", "square", "tanh",
]  # fmt: skip

Partial = Callable[..., Any]


def elementwise(
    name: str, function: Callable[..., Any], derivative: Partial, saves: str, **words: Any
) -> Primitive:
    """Declare an elementwise operation ``y = function(x)`` whose derivative dy/dx is ``derivative(y, x)``.

    `words` are more of `Primitive`.
    """
    return op(name, "N", function, lambda ct, y, x: ct * derivative(y, x), saves=saves, dims=broadcast, **words)


def symmetric(name: str, function: Callable[..., Any], derivative: Partial, saves: str, **words: Any) -> Primitive:
    """Declare an elementwise operation ``y = function(a, b)`` that does not change where `a` and `b` are exchanged.

    ``derivative(ct, y, a, b)`` is the cotangent times dy/da. `words` are more of `Primitive`.
    """
    rules = derivative, lambda ct, y, a, b: derivative(ct, y, b, a)
    return op(name, "N N", function, rules, saves=saves, dims=broadcast, **words)


# -- arithmetic ------------------------------------------------------------------------------------------------------
def _counted_once(of: str) -> Mapping[str, Callable[[Any], list[str]]]:
    """The further fixes for a term that would count once per rank in a later sum over the ranks."""
    why = "is summed over the ranks later: in the sum it would count once per rank"

    def to_data(refusal: Any) -> list[str]:
        is_data = refusal.labels[refusal.at[1]] is V
        return [f"add {{x}} to the result of all_reduce(..., {{a!r}}, to=I), if {{y}} {why}"] if is_data else []

    def to_addends(refusal: Any) -> list[str]:
        return [f"{of} {{y}} after the outer all_reduce, if {{x}} {why}"] if "all_reduce" in refusal.found else []

    return {"invariant": to_data, "added": to_addends}


add = op("add", "a a", operator.add, (identity, identity), dims=broadcast, neutral_zero=True, number="shifts",
         fixes=_counted_once("add"))  # fmt: skip
subtract = op("subtract", "a a", operator.sub, (identity, lambda ct, y, a, b: -ct), dims=broadcast, neutral_zero=True,
              number="shifts", fixes=_counted_once("subtract"))  # fmt: skip
negative = op("negative", "a", operator.neg, lambda ct, y, x: -ct, dims=broadcast)
multiply = op(
    "multiply",
    "a b",
    operator.mul,
    (lambda ct, y, a, b: ct * b, lambda ct, y, a, b: ct * a),
    saves="01",
    dims=broadcast,
    number="scales",
)
divide = op(
    "divide", "a N", operator.truediv, (lambda ct, y, a, b: ct / b, lambda ct, y, a, b: -(ct * y) / b),
    saves="y1", dims=broadcast, number="scales", degree=-1,
)  # fmt: skip


def _power_adjoint_of_base(ct: Any, y: Any, a: Any, b: Any) -> Any:
    """``ct * b * a**(b - 1)``, and 0 where b is 0."""
    # the derivative of x**0 is 0 everywhere; the formula b * x**(b - 1) would give 0 * 0**-1 = nan at x = 0
    lower = (b - 1 if b else b) if isinstance(b, int | float) else where(b == 0, b, b - 1)
    return ct * (b * power(a, lower))


def _power_adjoint_of_exponent(ct: Any, y: Any, a: Any, b: Any) -> Any:
    """``ct * y * log(a)``, and 0 where a is 0."""
    # the derivative of 0**b with respect to b is 0 for b > 0; the formula y * log(0) would give nan
    if isinstance(a, int | float):
        return ct * (y * float(np.log(float(a)) if a else 0.0))
    return ct * (y * log(where(a == 0, 1, a)))


def _power(a: Any, b: Any) -> Any:
    if b.__class__ is int and 0 <= b <= 4:  # products are faster than NumPy's power, 10 times in float32
        return (np.ones_like(a), a, a * a, a * a * a, (a * a) * (a * a))[b] if b > 1 else a**b
    return a**b


power = op("power", "N N", _power, (_power_adjoint_of_base, _power_adjoint_of_exponent), saves="y01", dims=broadcast)

# -- functions of one operand ----------------------------------------------------------------------------------------
exp = elementwise("exp", np.exp, lambda y, x: y, saves="y", sensitive=True)
expm1 = elementwise("expm1", np.expm1, lambda y, x: y + 1, saves="y", cancels=True, sensitive=True)
log = elementwise("log", np.log, lambda y, x: 1 / x, saves="0")
log1p = elementwise("log1p", np.log1p, lambda y, x: 1 / (1 + x), saves="0", sensitive=True)
sqrt = elementwise("sqrt", np.sqrt, lambda y, x: 0.5 / y, saves="y", degree=0.5)
square = elementwise("square", np.square, lambda y, x: 2 * x, saves="0", degree=2)
reciprocal = elementwise("reciprocal", np.reciprocal, lambda y, x: -(y * y), saves="y", degree=-1)
sin = elementwise("sin", np.sin, lambda y, x: cos(x), saves="0", sensitive=True)
cos: Primitive = elementwise("cos", np.cos, lambda y, x: -sin(x), saves="0", sensitive=True)
tanh = elementwise("tanh", np.tanh, lambda y, x: 1 - y * y, saves="y", cancels=True, sensitive=True)


# -- magnitudes. At 0 they have a kink, and their derivative is taken as 0. This does not give the second derivative of
#    a function such as abs(x)**2, which exists and is not 0. It is NaN ------------------------------------------------


unknown = op(
    "unknown", "a S", lambda a, at: np.where(at & (a != 0), np.nan, a * 0),
    (lambda ct, y, a, at: ct * astype(where(at, np.nan, 0), ct.dtype), None), saves="1", dims=broadcast,
    operands="a at",
)  # fmt: skip
"""Return NaN where a derivative is a multiple of `a` that is not known, and 0 elsewhere and of 0. It is linear: the sum
of such multiples is known only if all are 0."""
over = op(
    "over", "a N", lambda ct, y: np.where(y == 0, ct * 0, ct / np.where(y == 0, 1, y)),  # a NaN stays one
    (lambda ct, v, a, y: ct / where(y == 0, np.nan, y),
     lambda ct, v, a, y: ct * (unknown(a, y == 0) - v / where(y == 0, 1, y))),
    saves="y01", dims=broadcast, operands="ct y",
)  # fmt: skip
"""Return ``ct / y`` for a magnitude y, and 0 where y is 0. There its own derivatives are NaN, but for ``ct = 0``."""


_sign_op = op(
    "sign", "N", np.sign,
    lambda ct, y, x: over(ct - real(ct * y) * conj(y), absolute(x)) if x.dtype.kind == "c" else ct * (x * 0),
    saves="y0", dims=broadcast, tangent=(
        lambda dx, y, x: over(dx - y * real(conj(y) * dx), absolute(x)) if x.dtype.kind == "c" else dx * (x * 0),
    ),
)  # fmt: skip


def sign(x: Any) -> Any:
    """Return the sign of each element: -1, 0 or 1.

    The sign of a complex number is ``x / |x|``, which has a derivative; the sign of a real number has derivative 0.
    """
    return _sign_op(x) if x.__class__ in TENSORS else np.sign(x)


_signed = op(
    "signed", "a N", lambda a, x, forward: a * np.sign(x),
    (lambda ct, y, a, x, forward: ct * where(x == 0, np.nan, sign(x)),
     lambda ct, y, a, x, forward: ct * a * (where(x == 0, np.nan, x * 0) if forward else x * 0)),
    saves="01", dims=broadcast, operands="a x",
)  # fmt: skip
"""Return ``a * sign(x)``, where sweeps are recorded. At 0 the derivative with respect to `a` is NaN. That with respect
to `x` is 0, so that sums of magnitudes have the second derivative 0; but NaN of tangents, which do not show whether the
magnitude is used in another function."""


def _absolute_adjoint(ct: Any, y: Any, x: Any) -> Any:
    """``ct * sign(x)``, conjugated where x is complex; 0 at 0."""
    if x.__class__ not in TENSORS:
        return ct * (np.conjugate(np.sign(x)) if x.dtype.kind == "c" else np.sign(x))
    return over(ct, absolute(x)) * conj(x) if x.dtype.kind == "c" else _signed(ct, x, options=(False,))


def _absolute_tangent(dx: Any, y: Any, x: Any) -> Any:
    if x.dtype.kind == "c":
        return over(real(dx * conj(x)), absolute(x))
    return _signed(dx, x, options=(True,))


absolute: Primitive = op(
    "absolute", "N", np.absolute, _absolute_adjoint, saves="0", dims=broadcast, tangent=(_absolute_tangent,), degree=1
)


# -- maximum, minimum, where; at a tie the cotangent is shared equally -----------------------------------------------


def wins(a: Any, b: Any, like: Any) -> Any:
    """Return 1 where ``a > b``, 0.5 where they are equal and 0 elsewhere, in the dtype of `like`."""
    return (a > b) + 0.5 * (a == b) if like.dtype.itemsize == 8 else ((a > b) + 0.5 * (a == b)).astype(like.dtype)


maximum = symmetric("maximum", np.maximum, lambda ct, y, a, b: ct * wins(a, b, ct), saves="01", degree=1)
minimum = symmetric("minimum", np.minimum, lambda ct, y, a, b: ct * wins(b, a, ct), saves="01", degree=1)


def _where(condition: Any, x: Any, y: Any) -> Any:
    if not hasattr(condition, "dtype"):  # CuPy takes no number for it
        like = next((v for v in (x, y) if device_of(v) != "cpu"), None)
        condition = condition if like is None else made_like(partial(np.full, (), condition, bool), like)
    return np.where(condition, x, y)


where: Primitive = op(
    "where", "S a a", _where,
    (None, lambda ct, y, c, a, b: where(c, ct, zero_like(ct)), lambda ct, y, c, a, b: where(c, zero_like(ct), ct)),
    saves="0", dims=broadcast, operands="condition x y",
)  # fmt: skip


def _cast(x: Any, dtype: Any, source: Any = None) -> Any:
    if x.__class__ is not np.ndarray and (kernels := on_device("casts", x)) is not None:
        y = kernels.cast(x, dtype)
        if y is not None:
            return y
    if x.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        x = x.real
    return rounded(x, dtype) if dtype.itemsize == 2 and is_half(dtype) else x.astype(dtype)


class _Cast(Primitive):
    """An operation whose adjoint changes the dtype of the cotangent, which is therefore not rounded to it."""

    widens = False

    def bind(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """Return the call, and the step of a reverse sweep, which tells the sweep of cotangents of 16 bits."""
        call, step = super().bind()

        def pull(node: Any, ct: Any, sweep: Any) -> None:
            step(node, ct, sweep)
            source = options_of(node)[1]
            sweep.general = sweep.general or (source.itemsize == 2 and is_half(source))

        return call, pull


_astype = _Cast(
    "astype", "a", _cast, lambda ct, y, x, dtype, source: astype(ct, source), dims=broadcast,
    tangent=(lambda dx, y, x, dtype, source: astype(dx, dtype),),
)  # fmt: skip


# a conversion that rounds is not linear: the sum of rounded addends is not the rounded sum
_discrete = op("astype_discrete", "S", _cast, (None,), dims=broadcast, called="astype")


_DTYPES: dict[Any, Any] = {kind: np.dtype(kind) for kind in (bool, int, float, complex)}
for _dtype in map(np.dtype, "?bhilqBHILQefdFD"):
    _DTYPES[_dtype] = _DTYPES[_dtype.type] = _dtype


def _dtype_of_numbers(given: Any) -> np.dtype[Any]:
    try:
        dtype = dtype_named(given)
    except TypeError as error:
        raise ArgumentError(f"astype: dtype {given!r} was given; needed: a dtype of numbers") from error
    if dtype.kind not in "biufc" and not is_bfloat16(dtype):
        raise DtypeError(f"astype: dtype {dtype} was given; needed: a dtype of numbers")
    return dtype


def astype(x: Any, dtype: Any) -> Any:
    """Return `x` converted to `dtype`; a complex `x` converted to a real dtype loses its imaginary part.

    Adjoint: the cotangent converted to the dtype of `x` (its real part where `x` is real).
    """
    try:
        dtype = _DTYPES[dtype]
    except (KeyError, TypeError):
        dtype = _dtype_of_numbers(dtype)
    x = x if hasattr(x, "dtype") else np.asarray(x)
    if x.dtype == dtype:
        return x
    rounds = dtype.kind == "b" or (dtype.kind in "iu" and x.dtype.kind not in "biu")
    return (_discrete if rounds else _astype)(x, options=(dtype, x.dtype))


def _moved(x: Any, device: str, source: str) -> Any:
    y = array_on(x, device)
    return y[()] if y.__class__ is np.ndarray and not y.shape else y  # a number on the host is a NumPy scalar


_to_device: Primitive = op(
    "to_device", "a", _moved,
    lambda ct, y, x, device, source: _to_device(ct, options=(source, device)), dims=broadcast,
    tangent=(lambda dx, y, x, device, source: _to_device(dx, options=(device, source)),),
)  # fmt: skip


def to_device(x: Any, device: str) -> Any:
    """Return `x` on a device: itself if it is there. Adjoint: the cotangent, moved back."""
    source = device_of(x.array)
    kind = device if ":" in device or device == "cpu" else current_device()
    return x if kind == source else _to_device(x, options=(device, source))


# -- complex numbers -------------------------------------------------------------------------------------------------
def real(val: Any) -> Any:
    """Return the real part. Adjoint: the cotangent converted to the complex dtype."""
    if val.__class__ not in TENSORS:
        return np.real(val)
    return astype(val, val.dtype.type(0).real.dtype)


_imag_op = op(
    "imag", "a", lambda x, source: np.imag(x), lambda ct, y, x, source: astype(ct, source) * -1j, dims=broadcast,
    tangent=(lambda dx, y, x, source: imag(dx),),
)  # fmt: skip
_conj_op = op("conj", "a", np.conjugate, lambda ct, y, x: conj(ct), dims=broadcast)


def imag(val: Any) -> Any:
    """Return the imaginary part, zeros where `val` is real. Adjoint: the cotangent times -i."""
    if val.__class__ not in TENSORS:
        return np.imag(val)
    if val.dtype.kind == "c":
        return _imag_op(val, options=(val.dtype,))
    return where(np.False_, val, val.dtype.type(0) if val.layout is None else zero_like(val))


def conj(x: Any) -> Any:
    """Return the complex conjugate. Adjoint: the conjugate of the cotangent, because the pairing is bilinear."""
    if x.__class__ not in TENSORS:
        return np.conjugate(x)
    if x.dtype.kind == "b":
        return astype(x, np.conjugate(np.True_).dtype)
    return _conj_op(x) if x.dtype.kind == "c" else x


# -- without derivative ----------------------------------------------------------------------------------------------
equal = op("equal", "S S", operator.eq, (None, None), dims=broadcast, takes_none=True)
not_equal = op("not_equal", "S S", operator.ne, (None, None), dims=broadcast, takes_none=True)
less = op("less", "S S", operator.lt, (None, None), dims=broadcast)
less_equal = op("less_equal", "S S", operator.le, (None, None), dims=broadcast)
greater = op("greater", "S S", operator.gt, (None, None), dims=broadcast)
greater_equal = op("greater_equal", "S S", operator.ge, (None, None), dims=broadcast)
logical_not = op("logical_not", "S", np.logical_not, (None,), dims=broadcast)
isfinite = op("isfinite", "S", np.isfinite, (None,), dims=broadcast)
stop_gradient = op("stop_gradient", "S", lambda x: x, (None,), dims=broadcast)
