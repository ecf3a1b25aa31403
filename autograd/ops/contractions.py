"""Matrix products: `matmul`, and `linear` (``x @ w + b`` in one step)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from ..arrays.device import runtime_of
from ..arrays.half import in_float32, is_half
from ..arrays.products import dot, product
from ..engine.dispatch import ones, unbroadcast
from ..engine.primitive import Primitive, op
from ..kernels import on_device
from ..layouts.layout import Mix, Sum
from .shape import broadcast_to, swapaxes, transpose

_CONTRACTED = Sum("k")


def _dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    a, b = shapes
    batch = max(len(a), len(b), 2) - 2
    left = tuple(range(batch - (len(a) - 2), batch)) + (batch, _CONTRACTED) if len(a) > 1 else (_CONTRACTED,)
    columns = batch + (1 if len(a) > 1 else 0)
    right = tuple(range(batch - (len(b) - 2), batch)) + (_CONTRACTED, columns) if len(b) > 1 else (_CONTRACTED,)
    return [left, right]


def _rows(x: Any) -> Any:
    """An array as a matrix: all dimensions but the last merged into rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _has_rows(x: Any) -> bool:
    """Whether `x` is an array with values, the dimensions of which may be merged: of NumPy, or on a device."""
    return x.__class__ is ndarray or runtime_of(x.__class__) is not None


# In the adjoints, indices add and remove dimensions. A reshape could take a part of extent 1 for one that is added.
def _adjoint_of_a(ct: Any, y: Any, a: Any, b: Any) -> Any:
    """``ct @ b.T``, summed over dimensions that were broadcast."""
    if b.ndim == 2 and ct.ndim == 2 and a.ndim == 2:
        return product(ct, b.T)
    if b.ndim == 2 and a.ndim > 2 and ct.__class__ is b.__class__ and _has_rows(ct):
        return product(_rows(ct), b.T).reshape(a.shape)
    if b.ndim == 1:
        return ct * b if a.ndim == 1 else ct[..., None] * b
    if a.ndim == 1:
        g = product(b, ct[..., None])
        g = g[..., 0]
    else:
        g = product(ct, swapaxes(b, -1, -2))
    return unbroadcast(g, a.shape)


def _adjoint_of_b(ct: Any, y: Any, a: Any, b: Any) -> Any:
    """``a.T @ ct``, summed over dimensions that were broadcast."""
    if a.ndim == 2 and ct.ndim == 2 and b.ndim == 2:
        return product(a.T, ct)
    if b.ndim == 2 and a.ndim > 2 and ct.__class__ is a.__class__ and _has_rows(ct):
        return product(_rows(a).T, _rows(ct))  # one product instead of one per batch and their sum
    if a.ndim == 1:
        if b.ndim == 1:
            return ct * a
        g = product(a[:, None], ct[..., None, :])
        return unbroadcast(g, b.shape)
    if b.ndim == 1:
        g = product(swapaxes(a, -1, -2), ct[..., None])
        return unbroadcast(g[..., 0], b.shape)
    return unbroadcast(product(swapaxes(a, -1, -2), ct), b.shape)


matmul = op("matmul", "a b", product, (_adjoint_of_a, _adjoint_of_b), saves="01", dims=_dims, operands="x w")


# -- a linear layer ------------------------------------------------------------------------------------------


def _linear(x: Any, w: Any, b: Any) -> Any:
    if x.__class__ is w.__class__ is b.__class__ is ndarray and w.ndim == 2 and w.shape[1:] == b.shape and x.ndim > 1:
        if x.dtype.itemsize == 2 and is_half(x.dtype):
            return _linear_in_float32(x, w, b)
        try:
            y = dot(x if x.ndim == 2 else _rows(x), w)  # one product, not one per batch; `dot` is cheaper than @
        except ValueError:  # the product says what does not fit
            return NotImplemented
        y += b
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[1])
    return _linear_on_device(x, w, b)


def _linear_on_device(x: Any, w: Any, b: Any) -> Any:
    """``x @ w + b`` where a device has a kernel that adds the bias in place: the bits of ``matmul(x, w) + b``."""
    if not x.__class__ is w.__class__ is b.__class__ or (kernels := on_device("biases", x)) is None:
        return NotImplemented
    if x.ndim < 2 or w.ndim != 2 or w.shape[1:] != b.shape or not x.dtype == w.dtype == b.dtype:
        return NotImplemented
    y = product(x, w)
    return y if kernels.add_bias(y, b) is not None else y + b


_linear_in_float32 = in_float32(_linear)


def linear_dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    """The dimension rule of `linear`."""
    last = len(shapes[0]) - 1
    return [(*range(last), Mix), (Mix, last), (last,)]


def _linear_adjoint_of_x(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    """``ct @ w.T``."""
    if ct.__class__ is not ndarray:
        return _adjoint_of_a(ct, y, x, w)
    return dot(ct, w.T) if ct.ndim == 2 else dot(_rows(ct), w.T).reshape(x.shape)


def _linear_adjoint_of_w(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    """``x.T @ ct``, summed over all dimensions but the last."""
    if ct.__class__ is not ndarray:
        return _adjoint_of_b(ct, y, x, w)
    return dot(x.T, ct) if ct.ndim == 2 else dot(_rows(x).T, _rows(ct))


def _write_adjoint_of_w(out: Any, ct: Any, x: Any, w: Any, *_: Any) -> bool:
    """Write ``x.T @ ct``, summed over all dimensions but the last, to `out`, if that is possible."""
    if x.__class__ is not ndarray or w.ndim != 2 or x.ndim < 2 or not ct.dtype == x.dtype == out.dtype:
        return False
    if out.dtype.itemsize == 2:
        return False
    dot(x.T if x.ndim == 2 else _rows(x).T, ct if ct.ndim == 2 else _rows(ct), out)
    return True


def _linear_adjoint_of_b(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    """``ct``, summed over all dimensions but the last."""
    if ct.__class__ is not ndarray:
        kernels = on_device("biases", ct)
        found = None if kernels is None else kernels.column_sums(ct)
        return ct.sum(axis=tuple(range(ct.ndim - 1))) if found is None else found
    if ct.ndim != 2:
        ct = _rows(ct)
    rows = ones(len(ct), ct.dtype)
    return rows.dot(ct) if type(ct) is ndarray else np.dot(rows, ct)  # a traced array


linear = op(
    "linear", "N N N", _linear, (_linear_adjoint_of_x, _linear_adjoint_of_w, _linear_adjoint_of_b),
    saves="01", dims=linear_dims, operands="x w b",
    instead=lambda x, w, b: matmul(x, w) + b,
    tangent=(
        lambda dx, y, x, w, b: dx @ w, lambda dw, y, x, w, b: x @ dw,
        lambda db, y, x, w, b: broadcast_to(db, (*x.shape[:-1], *db.shape)),
    ),
)  # fmt: skip
"""Return ``x @ w + b`` in one step, which saves one array and one node per layer.

x is [..., n], w [n, m], b [m]; the result is [..., m]. Adjoints: ``ct @ w.T`` for x, ``x.T @ ct`` and ``sum(ct)`` over
all rows for w and b.

Its word is "N N N": because b is added, it is linear in none of its operands alone. So no operand may be Partial and
the contracted dimension may not be sharded. Where the layouts need that, or where a listener records events,
``matmul(x, w) + b`` runs instead.
"""

matmul.write_adjoint[1] = linear.write_adjoint[1] = _write_adjoint_of_w


# -- a contraction of several dimensions -----------------------------------------------------------------------


def _contract_dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    (a, b), (n,) = map(len, shapes), options
    sums = [Sum(i) for i in range(n)]
    return [(*range(a - n), *sums), (*sums, *range(a - n, a - n + b - n))]


def _rotated(x: Any, n: int) -> Any:
    """`x` with its first `n` dimensions last."""
    return transpose(x, (*range(n, x.ndim), *range(n)))


contract: Primitive = op(
    "contract", "a b", in_float32(lambda a, b, n: np.tensordot(a, b, n)),
    (lambda ct, y, a, b, n: contract(ct, _rotated(b, n), options=(b.ndim - n,)),
     lambda ct, y, a, b, n: contract(_rotated(a, a.ndim - n), ct, options=(a.ndim - n,))),
    saves="01", dims=_contract_dims, operands="x w",
)  # fmt: skip
"""Return the sum over the last ``n = options[0]`` dimensions of x and the first n of w, as one matrix product.

x is [..., k1 .. kn] and w [k1 .. kn, ...]; the result has the other dimensions of x and then those of w. Adjoints: the
cotangent contracted with w over its other dimensions, and x with the cotangent over the other dimensions of x.
"""
