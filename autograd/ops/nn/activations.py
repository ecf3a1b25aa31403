"""Activations: functions of one number that NumPy does not have. Those in ``__all__`` are in `ag.ops` and `ag.nn`."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np

from ...arrays.half import in_float32
from ...engine.primitive import op
from ...engine.tensor import Tensor
from ...errors import ShapeError, typed_errors
from ...kernels import are_bare, functions, loop
from ...layouts.inference import broadcast
from ..elementwise import elementwise, exp, sign, tanh
from .fused import Fused

__all__ = ["gelu", "relu", "sigmoid", "silu", "softplus"]


@in_float32
def _sigmoid(x: Any) -> Any:
    return 0.5 * (np.tanh(0.5 * x) + 1)  # unlike 1 / (1 + exp(-x)), it never overflows


sigmoid = elementwise("sigmoid", _sigmoid, lambda y, x: y * (1 - y), saves="y", cancels=True, sensitive=True)

_ZEROS = {np.dtype(f): np.zeros((), f) for f in (np.float32, np.float64)}  # NumPy converts a Python 0 at every call


def _relu_adjoint(ct: Any, y: Any, x: Any) -> Any:
    if type(y) is np.ndarray:  # for a traced array the loop is made of what follows, with the same bits
        compiled = loop("relu_backward", y.dtype)
        if compiled is not None and are_bare(y.dtype, ct, y) and ct.shape == y.shape:
            g = np.empty(y.shape, y.dtype)
            compiled(ct.ravel(), y.ravel(), g.ravel())
            return g
    # y is never negative, so its sign is 1 where x > 0 and 0 elsewhere; `sign` also works on Tensors
    return ct * ((y > _ZEROS.get(y.dtype, 0)) if y.__class__ is np.ndarray else sign(y))


relu = op(
    "relu", "N", lambda x: np.maximum(x, _ZEROS.get(x.dtype, 0) if x.__class__ is np.ndarray else 0), _relu_adjoint,
    saves="y", dims=broadcast, operands="x", degree=1,
)  # fmt: skip
softplus = elementwise("softplus", lambda x: np.logaddexp(x, 0), lambda y, x: sigmoid(x), saves="0", sensitive=True)

# -- with a kernel: its forward pass also computes the derivative, with which it shares most work ----------------------
_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)
_normal_cdf = functions("normal", np.ndarray).normal_cdf

normal_cdf = op(
    "normal_cdf", "N", _normal_cdf, lambda ct, y, x: ct * (exp(x * x * -0.5) * _DENSITY_AT_0), saves="0",
    dims=broadcast, operands="x", sensitive=True,
)  # fmt: skip


def _gelu(x: Any, form: str) -> Any:
    if form == "tanh":
        return x * (0.5 + 0.5 * np.tanh((x * _TANH_SCALE) * (x * x * _CUBIC + 1)))
    return x * _normal_cdf(x)


def _gelu_adjoint(ct: Any, y: Any, x: Any, form: str) -> Any:
    if form == "tanh":
        square = x * x
        h = 0.5 + 0.5 * tanh((x * _TANH_SCALE) * (square * _CUBIC + 1))
        return ct * (h + x * h * (1 - h) * (square * (6 * _TANH_SCALE * _CUBIC) + 2 * _TANH_SCALE))
    return ct * (normal_cdf(x) + x * (exp(x * x * -0.5) * _DENSITY_AT_0))


gelu_op = Fused("gelu", "N", _gelu, (_gelu_adjoint,), saves="0", dims=broadcast,
    operands="x", sensitive=True, kernel="activations")


@overload
def gelu(input: Tensor, approximate: str = "none") -> Tensor: ...
@overload
def gelu(input: Any, approximate: str = "none") -> Any: ...
@typed_errors
def gelu(input: Any, approximate: str = "none") -> Any:
    """Return ``x P(x)``, where P is the standard normal distribution function, elementwise.

    Parameters
    ----------
    input : Tensor or array
    approximate : "none" or "tanh"
        "tanh" computes ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``.

    Raises
    ------
    ShapeError
        Another value of `approximate`.

    Notes
    -----
    Adjoint: ``ct (P(x) + x p(x))`` with the normal density p. Source: Hendrycks & Gimpel 2016, section 2.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import ops
    >>> ops.gelu(ag.tensor([-1.0, 0.0, 1.0])).numpy().round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"gelu: approximate={approximate!r} was given; needed: 'none' or 'tanh'")
    return gelu_op(input, options=(approximate,))


def _silu_adjoint(ct: Any, y: Any, x: Any) -> Any:
    h = sigmoid(x)
    return ct * (h + x * h * (1 - h))


silu = Fused(
    "silu", "N", lambda x: x * _sigmoid(x), (_silu_adjoint,), saves="0", dims=broadcast, operands="x", sensitive=True,
    kernel="activations",
)  # fmt: skip
"""Return ``x sigmoid(x)``, elementwise. Adjoint: ``ct (h + x h (1 - h))`` with h = sigmoid(x).

Source: Elfwing et al. 2018, section 2.
"""
