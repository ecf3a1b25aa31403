"""Scaled dot-product attention over [..., heads, tokens, width]: causal or full, with masks and grouped heads.

It is declared as the composition of scores, softmax and product, and its rules alike. The fused kernel works on
blocks of rows, and on views of any strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from ...arrays.half import is_half
from ...arrays.plain import require_plain
from ...engine.promotion import composite
from ...engine.tensor import TENSORS, Tensor
from ...errors import DtypeError, ShapeError, typed_errors
from ...layouts.layout import Mix
from ..arguments import constant_like, raw, stack
from ..contractions import matmul
from ..elementwise import astype, equal, exp, stop_gradient, where
from ..indexing import getitem
from ..reductions import max, sum
from ..shape import broadcast_to, reshape, swapaxes
from .fused import Fused

Shape = tuple[int, ...]


# -- attention and its adjoints composed of differentiable operations, for arrays and Tensors ------------------------
def _repeat_heads(x: Any, heads: int) -> Any:
    """k or v with each head repeated for the query heads that share it. A product broadcasts a single head itself."""
    *lead, own, tokens, width = raw(x).shape
    if own in (1, heads):
        return x
    wide = broadcast_to(reshape(x, (*lead, own, 1, tokens, width)), (*lead, own, heads // own, tokens, width))
    return reshape(wide, (*lead, heads, tokens, width))


def _sum_repeated_heads(ct: Any, own: int) -> Any:
    """The adjoint of `_repeat_heads`: the sum over the query heads that share a head."""
    *lead, heads, tokens, width = raw(ct).shape
    if own == heads:
        return ct
    if own == 1:
        return sum(ct, -3, keepdims=True)
    return sum(reshape(ct, (*lead, own, heads // own, tokens, width)), len(lead) + 1)


def _is_later(scores: Any) -> Any:
    """A mask [tokens, keys] that is true where a key comes after the query; the last query sees the last key.

    It is computed from an array like the scores, so that it is on the same device.
    """
    array = raw(scores)
    one = np.ones_like(array, shape=array.shape[-2:])
    rows, keys = np.cumsum(one, axis=0), np.cumsum(one, axis=1)
    return constant_like(keys > rows + (array.shape[-1] - array.shape[-2]), scores)


def _probabilities(q: Any, k: Any, mask: Any, causal: bool, scale: float) -> Any:
    """``softmax(scale q k' + mask)``; a row whose keys are all masked is zero."""
    scores = matmul(q * scale, swapaxes(k, -1, -2))
    if not raw(scores).shape[-1]:
        return scores
    if causal:
        scores = where(_is_later(scores), -np.inf, scores)
    if mask is not None:
        scores = where(mask, scores, -np.inf) if raw(mask).dtype == bool else scores + mask
    top = max(stop_gradient(scores), -1, keepdims=True)
    e = exp(scores - where(equal(top, -np.inf), 0.0, top))
    total = sum(e, -1, keepdims=True)
    return e / where(equal(total, 0), 1.0, total)


def _attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    mask, causal, scale = rest if len(rest) == 3 else (None, *rest)
    heads = raw(q).shape[-3]
    return matmul(_probabilities(q, _repeat_heads(k, heads), mask, causal, scale), _repeat_heads(v, heads))


def _adjoint(ct: Any, q: Any, k: Any, v: Any, *rest: Any, of: int) -> Any:
    mask, causal, scale = rest if len(rest) == 3 else (None, *rest)
    heads, own = raw(q).shape[-3], raw(k).shape[-3]
    wide = _repeat_heads(k, heads)
    p = _probabilities(q, wide, mask, causal, scale)
    if of == 2:
        return _sum_repeated_heads(matmul(swapaxes(p, -1, -2), ct), own)
    dp = matmul(ct, swapaxes(_repeat_heads(v, heads), -1, -2))
    ds = p * (dp - sum(dp * p, -1, keepdims=True)) * scale
    return matmul(ds, wide) if of == 0 else _sum_repeated_heads(matmul(swapaxes(ds, -1, -2), q), own)


def _adjoint_of(of: int) -> Any:
    return lambda ct, y, q, k, v, *rest: _adjoint(ct, q, k, v, *rest, of=of)


# -- q, k and v as separate operands ---------------------------------------------------------------------------------
def _dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Dimension rule: batches and heads are independent, and so are the queries unless attention is causal."""
    q, k = shapes[:2]
    n = len(q)
    group = q[-3] // k[-3] if k[-3] else 1
    lead = tuple(range(n - 3))
    if group != 1:
        from fractions import Fraction  # loaded lazily: it imports decimal, which is slow to load
    kv = (*lead, (n - 3, Fraction(group)) if group != 1 else n - 3, Mix)
    maps = [(*lead, n - 3, Mix if options[0] else n - 2, Mix), (*kv, Mix), (*kv, n - 1)]
    for mask in shapes[3:]:
        maps.append((*range(n - 2), Mix if options[0] else n - 2, Mix)[n - len(mask) :])
    return maps


attention_op = Fused(
    "attention", "N N a", _attend, tuple(map(_adjoint_of, range(3))), saves="012", dims=_dims, operands="q k v",
    kernel="attention",
)  # fmt: skip
masked_attention_op = Fused(
    "masked_attention", "N N a S", _attend, (*map(_adjoint_of, range(3)), None), saves="0123", dims=_dims,
    operands="q k v mask", kernel="attention.attention",
)  # fmt: skip


@overload
def attention(
    q: Tensor, k: Any, v: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None
) -> Tensor: ...
@overload
def attention(
    q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None
) -> Any: ...
@typed_errors
def attention(
    q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None
) -> Any:
    """Return ``softmax(scale q k' + mask) v``, the scaled dot-product attention.

    Parameters
    ----------
    q : [..., heads, tokens, width]
    k, v : [..., own, keys, width], [..., own, keys, width of v]
        `own` must divide `heads`: each head of k and v serves ``heads / own`` consecutive query heads (grouped-query
        attention). Views of any strides, such as transposed parts of one projection, are not copied.
    mask : broadcastable to [..., heads, tokens, keys], optional
        Booleans, True where a query sees a key; or numbers that are added to the scores. A mask that requires a
        gradient (a learned bias) gets one; the composition of plain operations then runs instead of the kernel.
    causal : bool
        No query sees a later key. With fewer queries than keys the last query sees the last key.
    scale : float, optional
        By default ``1 / sqrt(width)``.

    Returns
    -------
    [..., heads, tokens, width of v]
        Zeros in rows that see no key.

    Raises
    ------
    ShapeError
        The shapes do not fit, or the mask does not broadcast.
    DtypeError
        The mask is neither boolean nor floating.

    Notes
    -----
    Batches and heads may be sharded, and queries where attention is not causal; keys and widths may not. Adjoint,
    with P the probabilities and ``D = P * (ct v' - rowsum(ct v' * P)) * scale``: ``D k`` for q, ``D' q`` for k and
    ``P' ct`` for v. Sources: Vaswani et al. 2017, section 3.2.1; Ainslie et al. 2023 (grouped heads).

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> q = numpy.zeros((1, 3, 2)); v = numpy.array([[[3.0], [1.0], [5.0]]])
    >>> ops.attention(q, q, v, causal=True)[0, :, 0]
    array([3., 2., 3.])
    """
    shapes = [raw(x).shape for x in (q, k, v)]
    a, b, c = shapes
    fits = (
        len(a) == len(b) == len(c) > 2 and a[:-3] == b[:-3] == c[:-3] and a[-1] == b[-1] and b[-3:-1] == c[-3:-1]
        and (a[-3] == b[-3] or (b[-3] and a[-3] % b[-3] == 0))
    )  # fmt: skip
    if not fits:
        raise ShapeError(
            f"attention: q, k and v of shapes {a}, {b}, {c}; needed: [..., heads, tokens, width], [..., own, keys, "
            "width] and [..., own, keys, any], with equal leading extents, and own a divisor of heads"
        )
    scale = _default_scale(scale, a[-1])
    if mask is None:
        return attention_op(q, k, v, options=(bool(causal), scale))
    mask = _check_mask("attention", mask, (*a[:-1], b[-2]), q)
    if mask.__class__ in TENSORS and mask.requires_grad:
        return composite(_attend)(q, k, v, mask, bool(causal), scale)
    return masked_attention_op(q, k, v, mask, options=(bool(causal), scale))


@overload
def attention_weights(
    q: Tensor, k: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None
) -> Tensor: ...
@overload
def attention_weights(q: Any, k: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None) -> Any: ...
@typed_errors
def attention_weights(q: Any, k: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None) -> Any:
    """Return ``softmax(scale q k' + mask)``, the weights of `attention`, [..., heads, tokens, keys].

    The arguments are those of `attention`. The product of the weights with v is the attention; the weights are needed
    to show them, or to drop some of them.

    Raises
    ------
    ShapeError, DtypeError
        As for `attention`.

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> q = numpy.zeros((1, 3, 2))
    >>> ops.attention_weights(q, q, causal=True)[0, 1]
    array([0.5, 0.5, 0. ])
    """
    a, b = raw(q).shape, raw(k).shape
    if not (len(a) == len(b) > 2 and a[:-3] == b[:-3] and a[-1] == b[-1] and b[-3] and a[-3] % b[-3] == 0):
        raise ShapeError(
            f"attention_weights: q and k of shapes {a}, {b}; needed: [..., heads, tokens, width] and [..., own, keys, "
            "width], with equal leading extents, and own a divisor of heads"
        )
    mask = None if mask is None else _check_mask("attention_weights", mask, (*a[:-1], b[-2]), q)
    return composite(_probabilities)(q, _repeat_heads(k, a[-3]), mask, bool(causal), _default_scale(scale, a[-1]))


def _default_scale(scale: float | None, width: int) -> float:
    return 1 / width**0.5 if scale is None and width else float(scale or 0.0)


def _check_mask(name: str, mask: Any, full: Shape, like: Any) -> Any:
    """Check the mask, and convert one of numbers to the dtype of the scores that it is added to."""
    array = raw(mask)
    if mask.__class__ not in TENSORS:
        require_plain(mask, name)
    if not hasattr(array, "dtype") or not (array.dtype.kind in "bf" or is_half(array.dtype)):
        raise DtypeError(
            f"{name}: a mask of {getattr(array, 'dtype', type(array).__name__)}; needed: booleans (True: seen) or "
            "floating-point numbers that are added to the scores"
        )
    shape = array.shape
    if len(shape) > len(full) or any(m not in (1, n) for m, n in zip(shape[::-1], full[::-1], strict=False)):
        raise ShapeError(f"{name}: a mask of shape {shape}; needed: one that broadcasts to {full}")
    return mask if array.dtype == bool or array.dtype == raw(like).dtype else astype(mask, raw(like).dtype)


# -- q, k and v in one array -----------------------------------------------------------------------------------------
def _split(x: Any) -> list[Any]:
    """q, k and v, each [..., heads, tokens, width], as views of [..., tokens, 3, heads, width]."""
    return [swapaxes(getitem(x, (..., i, slice(None), slice(None))), -2, -3) for i in range(3)]


def _self_attend(x: Any, *rest: Any) -> Any:
    return swapaxes(_attend(*_split(x), *rest), -2, -3)


def _self_adjoint(ct: Any, y: Any, x: Any, *rest: Any) -> Any:
    q, k, v = _split(x)
    ct = swapaxes(ct, -2, -3)
    return stack([swapaxes(_adjoint(ct, q, k, v, *rest, of=i), -2, -3) for i in range(3)], len(raw(x).shape) - 3)


def _self_dims(shapes: Sequence[Shape], options: Any) -> Any:
    n = len(shapes[0])
    lead = tuple(range(n - 4))
    maps: list[Any] = [(*lead, Mix, Mix, n - 3, Mix)]
    for mask in shapes[1:]:  # [..., heads, tokens, keys]
        maps.append((*lead, n - 3, Mix, Mix)[n - 1 - len(mask) :])
    return maps


self_attention_op = Fused(
    "self_attention", "N", _self_attend, (_self_adjoint,), saves="0", dims=_self_dims, operands="qkv",
    kernel="attention",
)
masked_self_attention_op = Fused(
    "masked_self_attention", "N S", _self_attend, (_self_adjoint, None), saves="01", dims=_self_dims,
    operands="qkv mask", kernel="attention.self_attention",
)  # fmt: skip


@overload
def self_attention(qkv: Tensor, mask: Any = None, *, causal: bool = False, scale: float | None = None) -> Tensor: ...
@overload
def self_attention(qkv: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None) -> Any: ...
@typed_errors
def self_attention(qkv: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None) -> Any:
    """Return the `attention` of queries, keys and values held in one array, the result of one projection.

    Parameters
    ----------
    qkv : [..., tokens, 3, heads, width]
        A reshape of a projection to 3 x heads x width. Its cotangent is computed in the same form, so that neither
        the array nor the cotangent is split or joined.
    mask, causal, scale
        As for `attention`.

    Returns
    -------
    [..., tokens, heads, width]
        It reshapes to the operand of the next projection without a copy.

    Raises
    ------
    ShapeError, DtypeError
        As for `attention`.

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> ops.self_attention(numpy.ones((4, 3, 2, 5)), causal=True).shape
    (4, 2, 5)
    """
    shape = raw(qkv).shape
    if len(shape) < 4 or shape[-3] != 3:
        raise ShapeError(f"self_attention: an array of shape {shape}; needed: [..., tokens, 3, heads, width]")
    scale = _default_scale(scale, shape[-1])
    if mask is None:
        return self_attention_op(qkv, options=(bool(causal), scale))
    mask = _check_mask("self_attention", mask, (*shape[:-4], shape[-2], shape[-4], shape[-4]), qkv)
    if mask.__class__ in TENSORS and mask.requires_grad:
        return _self_attend(qkv, mask, bool(causal), scale)
    return masked_self_attention_op(qkv, mask, options=(bool(causal), scale))


__all__ = ["attention", "attention_weights", "self_attention"]
