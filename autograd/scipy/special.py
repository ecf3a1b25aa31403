"""``scipy.special`` with differentiable functions: ``import autograd.scipy.special``.

Derivatives are taken from the NIST Digital Library of Mathematical Functions (https://dlmf.nist.gov): gamma functions
5.2, 5.5, 5.9, 8.8; error functions 7.2, 7.10; Bessel functions 10.6, 10.29; beta functions 5.12, 8.17. Every other
function is SciPy's, and raises `NotDifferentiable` where a tape records one of its arguments, unless
`autograd.extend.defvjp` gives it a rule.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import runtime_of
from ..engine.primitive import Primitive, op
from ..errors import typed_errors
from ..layouts.inference import broadcast
from ..ops import absolute, exp, expm1, isfinite, log, log1p, max, minimum, reshape, sign, stop_gradient, sum, where
from ..ops import log_softmax as _log_softmax
from ..ops import softmax as _softmax
from ..ops.arguments import operand
from ..ops.elementwise import elementwise, real
from ..ops.ufuncs import cbrt, exp2, sinc
from ._load import as_ufunc, in_dtype, others, scipy, traced, without_derivative

_special = scipy("special")
_ROOT_PI = math.sqrt(math.pi)

# -- gamma functions -------------------------------------------------------------------------------------------------
def _polygamma_of(n: Any, x: Any) -> Any:
    if not isinstance(n, int | np.integer):
        return _special.polygamma(n, x)
    n = int(n)  # DLMF 5.15.1: a multiple of the Hurwitz zeta function
    return ((-1) ** (n + 1) * math.factorial(n)) * _zeta(n + 1, x) if n else _special.psi(x)


def _zeta(s: Any, x: Any) -> Any:
    """The Hurwitz zeta function. SciPy's calls a ufunc under another name, by which CuPy does not find its own."""
    runtime = runtime_of(type(x))
    return (_special if runtime is None else runtime.special()).zeta(s, x)


_polygamma = op(
    "polygamma", "S N", _polygamma_of, (None, lambda ct, y, n, x: ct * polygamma(n + 1, x)),
    saves="01", dims=broadcast, operands="n x",
)  # fmt: skip
polygamma: Any = without_derivative(_polygamma, 0)
digamma = psi = elementwise("digamma", _special.psi, lambda y, x: polygamma(1, x), saves="0")
gamma = elementwise("gamma", _special.gamma, lambda y, x: y * psi(x), saves="y0")
gammaln = elementwise("gammaln", _special.gammaln, lambda y, x: psi(x), saves="0")
rgamma = elementwise("rgamma", _special.rgamma, lambda y, x: -y * psi(x), saves="y0")
gammasgn = elementwise("gammasgn", _special.gammasgn, lambda y, x: x * 0, saves="0")  # piecewise constant


def _as_python_number(y: Any, *xs: Any) -> Any:
    """`y` as a Python number if all of `xs` are: a NumPy scalar would turn other operands into float64."""
    return float(y) if all(isinstance(x, int | float) and not hasattr(x, "dtype") for x in xs) else y


def _gamma_density(a: Any, x: Any) -> Any:
    """``x^(a - 1) exp(-x) / gamma(a)``, computed from its logarithm, which does not overflow."""
    return exp((a - 1) * log(x) - x - _as_python_number(gammaln(a), a))


gammainc = without_derivative(
    op("gammainc", "S N", as_ufunc(_special.gammainc),
       (None, in_dtype(1, lambda ct, y, a, x: ct * _gamma_density(a, x))), saves="01",
       dims=broadcast, operands="a x"), 0,
)  # fmt: skip
gammaincc = without_derivative(
    op("gammaincc", "S N", as_ufunc(_special.gammaincc),
       (None, in_dtype(1, lambda ct, y, a, x: -ct * _gamma_density(a, x))), saves="01",
       dims=broadcast, operands="a x"), 0,
)  # fmt: skip


@typed_errors
def multigammaln(a: Any, d: int) -> Any:
    """Return the logarithm of the multivariate gamma function of dimension `d`."""
    if not traced(a):
        return _special.multigammaln(a, d)
    halves = np.arange(d) / 2.0
    shifted = reshape(a, (*(int(n) for n in a.shape), 1)) - halves.astype(a.dtype)
    return sum(gammaln(shifted), axis=-1) + d * (d - 1) / 4.0 * math.log(math.pi)


# -- beta functions --------------------------------------------------------------------------------------------------
beta = op(
    "beta", "N N", _special.beta,
    (lambda ct, y, a, b: ct * (y * (psi(a) - psi(a + b))), lambda ct, y, a, b: ct * (y * (psi(b) - psi(a + b)))),
    saves="y01", dims=broadcast, operands="a b",
)  # fmt: skip
betaln = op(
    "betaln", "N N", _special.betaln,
    (lambda ct, y, a, b: ct * (psi(a) - psi(a + b)), lambda ct, y, a, b: ct * (psi(b) - psi(a + b))),
    saves="01", dims=broadcast, operands="a b",
)  # fmt: skip


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    """``x^(a - 1) (1 - x)^(b - 1) / beta(a, b)``, computed from its logarithm."""
    return exp((a - 1) * log(x) + (b - 1) * log1p(-x) - _as_python_number(betaln(a, b), a, b))


betainc = without_derivative(
    op("betainc", "S S N", _special.betainc,
       (None, None, in_dtype(2, lambda ct, y, a, b, x: ct * _beta_density(a, b, x))),
       saves="012", dims=broadcast, operands="a b x"), 0, 1,
)  # fmt: skip

# -- Bessel functions ------------------------------------------------------------------------------------------------
j0: Primitive = elementwise("j0", _special.j0, lambda y, x: -j1(x), saves="0")
j1: Primitive = elementwise("j1", _special.j1, lambda y, x: (j0(x) - jn(2, x)) / 2, saves="0")
y0: Primitive = elementwise("y0", _special.y0, lambda y, x: -y1(x), saves="0")
y1: Primitive = elementwise("y1", _special.y1, lambda y, x: (y0(x) - yn(2, x)) / 2, saves="0")
i0: Primitive = elementwise("i0", _special.i0, lambda y, x: i1(x), saves="0")
i1: Primitive = elementwise("i1", _special.i1, lambda y, x: (i0(x) + iv(2, x)) / 2, saves="0")


def _bessel_function(name: str, function: Any, derivative: Any) -> Any:
    """A function of an order n, in which it has no derivative here, and of x."""
    operation = op(
        name, "S N", function, (None, lambda ct, y, n, x: ct * derivative(y, n, x)), saves="y01", dims=broadcast,
        operands="n x",
    )  # fmt: skip
    return without_derivative(operation, 0)


jn: Any = _bessel_function("jv", _special.jv, lambda y, n, x: (jn(n - 1, x) - jn(n + 1, x)) / 2)
jv = jn
yn: Any = _bessel_function("yn", as_ufunc(_special.yn), lambda y, n, x: (yn(n - 1, x) - yn(n + 1, x)) / 2)
iv: Any = _bessel_function("iv", _special.iv, lambda y, n, x: (iv(n - 1, x) + iv(n + 1, x)) / 2)


def _ive_adjoint(ct: Any, y: Any, n: Any, x: Any) -> Any:
    # ive(n, x) = iv(n, x) exp(-|Re x|): the second factor depends on the real part of x alone
    return ct * ((ive(n - 1, x) + ive(n + 1, x)) / 2) - real(ct * y) * sign(real(x))


def _ive_tangent(dx: Any, y: Any, n: Any, x: Any) -> Any:
    return dx * ((ive(n - 1, x) + ive(n + 1, x)) / 2) - y * (real(dx) * sign(real(x)))


ive: Any = without_derivative(
    op("ive", "S N", _special.ive, (None, _ive_adjoint), saves="y01", dims=broadcast, operands="n x",
       tangent=(None, _ive_tangent)), 0,
)  # fmt: skip

# -- error functions, the normal distribution ------------------------------------------------------------------------
erf = elementwise("erf", _special.erf, lambda y, x: 2 / _ROOT_PI * exp(-x * x), saves="0", sensitive=True)
erfc = elementwise("erfc", _special.erfc, lambda y, x: -2 / _ROOT_PI * exp(-x * x), saves="0", sensitive=True)
erfinv = elementwise("erfinv", _special.erfinv, lambda y, x: _ROOT_PI / 2 * exp(y * y), saves="y")
erfcinv = elementwise("erfcinv", _special.erfcinv, lambda y, x: -_ROOT_PI / 2 * exp(y * y), saves="y")
_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
ndtr = elementwise("ndtr", _special.ndtr, lambda y, x: exp(-0.5 * x * x - _LOG_ROOT_2PI), saves="0", sensitive="result")
log_ndtr = elementwise("log_ndtr", _special.log_ndtr, lambda y, x: exp(-0.5 * x * x - _LOG_ROOT_2PI - y),
                       saves="y0", sensitive="result")  # fmt: skip
ndtri = elementwise("ndtri", _special.ndtri, lambda y, x: exp(0.5 * y * y + _LOG_ROOT_2PI), saves="y")

# -- the logistic function, entropies --------------------------------------------------------------------------------
expit = elementwise("expit", _special.expit, lambda y, x: y * (1 - y), saves="y", sensitive=True)
logit = elementwise("logit", _special.logit, lambda y, x: 1 / (x * (1 - x)), saves="0", sensitive="result")
log_expit = elementwise("log_expit", _special.log_expit, lambda y, x: expit(-x), saves="0", sensitive="result")
entr = elementwise("entr", _special.entr, lambda y, x: -log(x) - 1, saves="0")
xlogy: Primitive = op(
    "xlogy", "N N", _special.xlogy,
    (lambda ct, y, a, b: ct * log(b), lambda ct, y, a, b: ct * (a / b)),
    saves="01", dims=broadcast,
)  # fmt: skip
xlog1py: Primitive = op(
    "xlog1py", "N N", _special.xlog1py,
    (lambda ct, y, a, b: ct * log1p(b), lambda ct, y, a, b: ct * (a / (1 + b))),
    saves="01", dims=broadcast,
)  # fmt: skip


# -- sums of exponentials --------------------------------------------------------------------------------------------
@typed_errors
def logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    """Return ``log(sum(b * exp(a)))`` over axes, or over all, computed without overflow.

    Both `a` and `b` have derivatives. With `return_sign`, return the logarithm of the absolute value and the sign.

    Examples
    --------
    >>> from autograd.scipy.special import logsumexp
    >>> import numpy
    >>> float(logsumexp(numpy.array([1000.0, 1000.0])))
    1000.6931471805599
    """
    if not traced(a, b):
        return _special.logsumexp(a, axis=axis, b=b, keepdims=keepdims, return_sign=return_sign)
    axis = tuple(axis) if isinstance(axis, list) else axis
    counted = a if b is None else where(b == 0, -np.inf, a)
    top = stop_gradient(max(counted, axis=axis, keepdims=True))
    top = where(isfinite(top), top, 0)
    if b is not None:
        a = where(b == 0, minimum(a, top), a)  # a term of weight 0 must not overflow
    terms = exp(a - top)
    total = sum(terms if b is None else b * terms, axis=axis, keepdims=keepdims)
    signs = sign(total) if return_sign else None
    shift = top if keepdims else reshape(top, tuple(int(n) for n in total.shape))
    result = log(absolute(total) if return_sign else total) + shift
    return (result, signs) if return_sign else result


def softmax(x: Any, axis: int = -1) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along an axis, or over all elements with None."""
    x = operand(x)
    return _softmax(x, axis) if axis is not None else reshape(_softmax(reshape(x, (-1,)), 0), x.shape)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Return the logarithm of `softmax`."""
    x = operand(x)
    return _log_softmax(x, axis) if axis is not None else reshape(_log_softmax(reshape(x, (-1,)), 0), x.shape)


__getattr__ = others(_special)

__all__ = [
    "beta", "betainc", "betaln", "cbrt", "digamma", "entr", "erf", "erfc", "erfcinv", "erfinv", "exp2", "expit",
    "expm1", "gamma", "gammainc", "gammaincc", "gammaln", "gammasgn", "i0", "i1", "iv", "ive", "j0", "j1", "jn", "jv",
    "log1p", "log_expit", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri",
    "polygamma", "psi", "rgamma", "sinc", "softmax", "xlog1py", "xlogy", "y0", "y1", "yn",
]  # fmt: skip
