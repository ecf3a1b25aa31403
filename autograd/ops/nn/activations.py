"""GELU and SiLU: their derivative is computed in the forward pass, where most of it is at hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...engine.broadcasting import broadcast
from ...engine.primitive import op
from ...errors import ShapeError, call_site
from ...kernels import normal
from ..elementwise import exp, sigmoid, tanh
from .fused import Fused

_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_DENSITY = 1 / math.sqrt(2 * math.pi)


normal_cdf = op(
    "normal_cdf", "N", normal.normal_cdf, lambda ct, y, x: ct * (exp(x * x * -0.5) * _DENSITY), saves="0",
    dims=broadcast, operands="x",
)  # fmt: skip


def _gelu(x: Any, form: str) -> Any:
    if form == "tanh":
        return x * (0.5 + 0.5 * np.tanh((x * _SLOPE) * (x * x * _CUBIC + 1)))
    return x * normal.normal_cdf(x)


def _gelu_rule(ct: Any, y: Any, x: Any, form: str) -> Any:
    if form == "tanh":
        square = x * x
        h = 0.5 + 0.5 * tanh((x * _SLOPE) * (square * _CUBIC + 1))
        return ct * (h + x * h * (1 - h) * (square * (6 * _SLOPE * _CUBIC) + 2 * _SLOPE))
    return ct * (normal_cdf(x) + x * (exp(x * x * -0.5) * _DENSITY))


_gelu_op = Fused("gelu", "N", _gelu, (_gelu_rule,), saves="0", dims=broadcast, operands="x")


def gelu(x: Any, approximate: str = "none") -> Any:
    """``x P(x)`` with the normal distribution function P, elementwise.

    Parameters
    ----------
    approximate : "none" or "tanh"
        "tanh" for ``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2``.

    Notes
    -----
    Hendrycks & Gimpel 2016, section 2. Adjoint: ``ct (P(x) + x p(x))`` with the density p.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import ops
    >>> ops.gelu(ag.tensor([-1.0, 0.0, 1.0])).numpy().round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    if approximate not in ("none", "tanh"):
        raise ShapeError(f"gelu: approximate={approximate!r} was given; needed: 'none' or 'tanh'" + call_site())
    return _gelu_op(x, options=(approximate,))


def _silu_rule(ct: Any, y: Any, x: Any) -> Any:
    h = sigmoid(x)
    return ct * (h + x * h * (1 - h))


silu = Fused(
    "silu", "N", lambda x: x * (0.5 * (np.tanh(0.5 * x) + 1)), (_silu_rule,), saves="0", dims=broadcast, operands="x"
)
"""``x sigmoid(x)``, elementwise (Elfwing et al. 2018, section 2). Adjoint: ``ct (h + x h (1 - h))``, h = sigmoid(x)."""

__all__ = ["gelu", "normal_cdf", "silu"]
