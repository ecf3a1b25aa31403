"""Layer norm and RMS norm over the last dimension."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, overload

import numpy as np

from ...arrays.half import epsilon
from ...engine.promotion import composite
from ...engine.tensor import Tensor
from ...errors import OptionError, ShapeError, typed_errors
from ...layouts.layout import Mix
from ..arguments import raw
from ..elementwise import sqrt
from ..reductions import mean, sum
from ..shape import broadcast_to
from .fused import Fused

Shape = tuple[int, ...]


def _dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Dimension rule: the last dimension is mixed, the others are independent."""
    n = len(shapes[0])
    return [(*range(n - 1), Mix), *((Mix,) for _ in shapes[1:])]


def _normed_and_scale(x: Any, eps: float) -> tuple[Any, Any]:
    """``(x - mean) / sigma`` and ``1 / sigma``, in differentiable operations."""
    centred = x - mean(x, -1, keepdims=True)
    centred = centred - mean(centred, -1, keepdims=True)  # the mean was rounded, and the row may be constant
    scale = 1 / sqrt(mean(centred * centred, -1, keepdims=True) + eps)
    return centred * scale, scale


def _sum_over_rows(ct: Any) -> Any:
    return sum(ct, tuple(range(len(raw(ct).shape) - 1)))


def _normalize_adjoint(g: Any, normed: Any, scale: Any) -> Any:
    return (g - mean(g, -1, keepdims=True) - normed * mean(g * normed, -1, keepdims=True)) * scale


def _normalize(x: Any, eps: float) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    centred = centred - np.mean(centred, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)


normalize_op = Fused(
    "normalize", "N", _normalize, (lambda ct, y, x, eps: _normalize_adjoint(ct, *_normed_and_scale(x, eps)),),
    saves="0", dims=_dims, operands="x", kernel="norms",
    # the Jacobian is symmetric, so the tangent has the formula of the adjoint
    tangent=(lambda dx, y, x, eps: _normalize_adjoint(dx, *_normed_and_scale(x, eps)),), sensitive="result",
)  # fmt: skip
layer_norm_op = Fused(
    "layer_norm", "N N N", lambda x, w, b, eps: _normalize(x, eps) * w + b,
    (
        lambda ct, y, x, w, b, eps: _normalize_adjoint(ct * w, *_normed_and_scale(x, eps)),
        lambda ct, y, x, w, b, eps: _sum_over_rows(ct * _normed_and_scale(x, eps)[0]),
        lambda ct, y, x, w, b, eps: _sum_over_rows(ct),
    ),
    saves="01", dims=_dims, operands="x weight bias", kernel="norms",
    tangent=(
        lambda dx, y, x, w, b, eps: _normalize_adjoint(dx, *_normed_and_scale(x, eps)) * w,
        lambda dw, y, x, w, b, eps: _normed_and_scale(x, eps)[0] * dw,
        lambda db, y, x, w, b, eps: broadcast_to(db, raw(x).shape),
    ), sensitive="result",
)  # fmt: skip


@overload
def layer_norm(x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor: ...
@overload
def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any: ...
@typed_errors
def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` along the last dimension.

    That dimension may not be sharded. The variance is that of the population (divided by n).

    Parameters
    ----------
    x : [..., n]
    weight, bias : [n], optional
    eps : float

    Raises
    ------
    ShapeError
        x has no dimension, or the shape of weight or bias is not [n].

    Notes
    -----
    Adjoint, with ``g = ct weight`` and the normalized ``h``: ``(g - mean(g) - h mean(g h)) / sigma`` for x,
    ``sum(ct h)`` for weight and ``sum(ct)`` for bias. Source: Ba et al. 2016, equation 3.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import ops
    >>> ops.layer_norm(ag.tensor([[1.0, 3.0]]), eps=0.0).numpy()
    array([[-1.,  1.]])
    """
    _check("layer_norm", x, eps, weight=weight, bias=bias)
    if weight is not None and bias is not None:
        return layer_norm_op(x, weight, bias, options=(float(eps),))
    return _normalized(x, weight, bias, float(eps))


@composite
def _normalized(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    y = normalize_op(x, options=(eps,))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _rms_scale(x: Any, eps: float) -> Any:
    return 1 / sqrt(mean(x * x, -1, keepdims=True) + eps)


def _rms_adjoint(g: Any, x: Any, eps: float) -> Any:
    scale = _rms_scale(x, eps)
    normed = x * scale
    return (g - normed * mean(g * normed, -1, keepdims=True)) * scale


rms_norm_op = Fused(
    "rms_norm", "N b", lambda x, w, eps: x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w,
    (
        lambda ct, y, x, w, eps: _rms_adjoint(ct * w, x, eps),
        lambda ct, y, x, w, eps: _sum_over_rows(ct * (x * _rms_scale(x, eps))),
    ),
    saves="01", dims=_dims, operands="x weight", kernel="norms",
    tangent=(lambda dx, y, x, w, eps: _rms_adjoint(dx, x, eps) * w,), sensitive="result",
)  # fmt: skip


@overload
def rms_norm(x: Tensor, weight: Any = None, eps: float | None = None) -> Tensor: ...
@overload
def rms_norm(x: Any, weight: Any = None, eps: float | None = None) -> Any: ...
@typed_errors
def rms_norm(x: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` along the last dimension, which may not be sharded.

    Parameters
    ----------
    x : [..., n]
    weight : [n], optional
    eps : float, optional
        By default the machine epsilon of the dtype.

    Raises
    ------
    ShapeError
        x has no dimension, or the shape of weight is not [n].

    Notes
    -----
    Adjoint, with ``g = ct weight`` and ``h = x / rms``: ``(g - h mean(g h)) / rms`` for x and ``sum(ct h)`` for weight.
    Source: Zhang & Sennrich 2019, equation 4.

    Examples
    --------
    >>> import autograd as ag
    >>> from autograd import ops
    >>> ops.rms_norm(ag.tensor([[3.0, 4.0]]), ag.tensor([5.0, 5.0])).numpy().round(4)
    array([[4.2426, 5.6569]])
    """
    _check("rms_norm", x, 0.0 if eps is None else eps, weight=weight)
    eps = epsilon(raw(x).dtype) if eps is None else float(eps)
    return _rms_normed(x, eps) if weight is None else rms_norm_op(x, weight, options=(eps,))


@composite
def _rms_normed(x: Any, eps: float) -> Any:
    return x * _rms_scale(x, eps)


def _check(name: str, x: Any, eps: Any, **given: Any) -> None:
    if not 0 <= eps < inf:
        raise OptionError(f"{name}: eps={eps!r} was given; needed: a finite number, at least 0")
    shape = raw(x).shape
    if not shape:
        raise ShapeError(f"{name}: a 0-dimensional value was given; needed: [..., n]")
    for what, w in given.items():
        if w is not None and raw(w).shape != shape[-1:]:
            raise ShapeError(f"{name}: {what} of shape {raw(w).shape} for x of shape {shape}; needed: {shape[-1:]}")


__all__ = ["layer_norm", "rms_norm"]
