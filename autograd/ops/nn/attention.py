"""Scaled dot-product attention over (..., heads, tokens, width), causal or full, with a mask, with grouped heads.

The declaration is plain: scores, softmax, product. The kernel works in blocks of rows on views of any strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine.tensor import TENSORS
from ...errors import DtypeError, ShapeError, call_site
from ...layouts.layout import Mix
from ..arguments import constant_like, raw, stack
from ..elementwise import astype, equal, exp, stop_gradient, where
from ..indexing import getitem
from ..matmul import matmul
from ..reductions import max, sum
from ..shape import broadcast_to, reshape, swapaxes
from .fused import Fused

Shape = tuple[int, ...]


# -- the declaration in plain operations, on arrays and Tensors alike ------------------------------------------------
def _grouped(x: Any, heads: int) -> Any:
    """k or v with every head repeated for the query heads that share it."""
    *lead, own, tokens, width = raw(x).shape
    if own == heads:
        return x
    wide = broadcast_to(reshape(x, (*lead, own, 1, tokens, width)), (*lead, own, heads // own, tokens, width))
    return reshape(wide, (*lead, heads, tokens, width))


def _ungrouped(ct: Any, own: int) -> Any:
    """The adjoint of `_grouped`."""
    *lead, heads, tokens, width = raw(ct).shape
    if own == heads:
        return ct
    return sum(reshape(ct, (*lead, own, heads // own, tokens, width)), len(lead) + 1)


def _later(scores: Any) -> Any:
    """Which keys come after each query, [tokens, keys], where the scores live; the last query sees the last key."""
    array = raw(scores)
    one = np.ones_like(array, shape=array.shape[-2:])
    rows, keys = np.cumsum(one, axis=0), np.cumsum(one, axis=1)
    return constant_like(keys > rows + (array.shape[-1] - array.shape[-2]), scores)


def _weights(q: Any, k: Any, mask: Any, causal: bool, scale: float) -> Any:
    """The rows of probabilities; zeros for a row that sees nothing."""
    scores = matmul(q * scale, swapaxes(k, -1, -2))
    if not raw(scores).shape[-1]:
        return scores
    if causal:
        scores = where(_later(scores), -np.inf, scores)
    if mask is not None:
        scores = where(mask, scores, -np.inf) if raw(mask).dtype == bool else scores + mask
    top = max(stop_gradient(scores), -1, keepdims=True)
    e = exp(scores - where(equal(top, -np.inf), 0.0, top))
    total = sum(e, -1, keepdims=True)
    return e / where(equal(total, 0), 1.0, total)


def _attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
    mask, causal, scale = rest if len(rest) == 3 else (None, *rest)
    heads = raw(q).shape[-3]
    return matmul(_weights(q, _grouped(k, heads), mask, causal, scale), _grouped(v, heads))


def _rules(ct: Any, q: Any, k: Any, v: Any, *rest: Any, of: int) -> Any:
    mask, causal, scale = rest if len(rest) == 3 else (None, *rest)
    heads, own = raw(q).shape[-3], raw(k).shape[-3]
    wide = _grouped(k, heads)
    p = _weights(q, wide, mask, causal, scale)
    if of == 2:
        return _ungrouped(matmul(swapaxes(p, -1, -2), ct), own)
    dp = matmul(ct, swapaxes(_grouped(v, heads), -1, -2))
    ds = p * (dp - sum(dp * p, -1, keepdims=True)) * scale
    return matmul(ds, wide) if of == 0 else _ungrouped(matmul(swapaxes(ds, -1, -2), q), own)


def _rule(of: int) -> Any:
    return lambda ct, y, q, k, v, *rest: _rules(ct, q, k, v, *rest, of=of)


# -- q, k and v apart ------------------------------------------------------------------------------------------------
def _dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Batches and heads are separate; so are the queries, unless they are causal, when their places count."""
    q, k = shapes[:2]
    n = len(q)
    group = q[-3] // k[-3] if k[-3] else 1
    lead = tuple(range(n - 3))
    if group != 1:
        from fractions import Fraction  # with decimal behind it, too dear to import for all
    kv = (*lead, (n - 3, Fraction(group)) if group != 1 else n - 3, Mix)
    maps = [(*lead, n - 3, Mix if options[0] else n - 2, Mix), (*kv, Mix), (*kv, n - 1)]
    for mask in shapes[3:]:
        maps.append((*range(n - 2), Mix if options[0] else n - 2, Mix)[n - len(mask) :])
    return maps


attention_op = Fused(
    "attention", "N N a", _attend, tuple(map(_rule, range(3))), saves="012", dims=_dims, operands="q k v",
)  # fmt: skip
masked_attention_op = Fused(
    "masked_attention", "N N a S", _attend, (*map(_rule, range(3)), None), saves="0123", dims=_dims,
    operands="q k v mask", kernel="attention",
)  # fmt: skip


def attention(
    q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None
) -> Any:
    """``softmax(scale q k' + mask) v``: every query row's mean of the values, weighted by its likeness to the keys.

    Parameters
    ----------
    q : [..., heads, tokens, width]
    k, v : [..., own, keys, width], [..., own, keys, width of v]
        `own` divides `heads`: each head of k and v serves as many query heads in turn (grouped-query attention).
        Views of any strides, like transposed parts of one projection; they are not copied.
    mask : broadcastable to [..., heads, tokens, keys], optional
        Booleans, True where a query sees a key; or numbers that are added to the scores. One that is followed by a
        tape (a learned bias) gets its gradient too, by the plain composition.
    causal : bool
        No query sees a later key; with fewer queries than keys the last query sees the last key.
    scale : float, optional
        By default ``1 / sqrt(width)``.

    Returns
    -------
    [..., heads, tokens, width of v]; zeros in rows that see no key.

    Raises
    ------
    ShapeError, DtypeError

    Notes
    -----
    Vaswani et al. 2017, section 3.2.1; Ainslie et al. 2023 (grouped heads). Batches and heads may be sharded, queries
    too where not causal; keys and widths may not.

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
            "width] and [..., own, keys, any], with the same leading extents, and own a divisor of heads" + call_site()
        )
    scale = _scale(scale, a[-1])
    if mask is None:
        return attention_op(q, k, v, options=(bool(causal), scale))
    mask = _fitting_mask("attention", mask, (*a[:-1], b[-2]), q)
    if mask.__class__ in TENSORS and mask.requires_grad:
        return _attend(q, k, v, mask, bool(causal), scale)
    return masked_attention_op(q, k, v, mask, options=(bool(causal), scale))


def _scale(scale: float | None, width: int) -> float:
    return 1 / width**0.5 if scale is None and width else float(scale or 0.0)


def _fitting_mask(name: str, mask: Any, full: Shape, like: Any) -> Any:
    """The mask, checked; numbers in the dtype of the scores that they are added to."""
    array = raw(mask)
    if not hasattr(array, "dtype") or array.dtype.kind not in "bf":
        raise DtypeError(
            f"{name}: a mask of {getattr(array, 'dtype', type(array).__name__)}; needed: booleans (True: seen) or "
            "floating numbers that are added" + call_site()
        )
    shape = array.shape
    if len(shape) > len(full) or any(m not in (1, n) for m, n in zip(shape[::-1], full[::-1], strict=False)):
        raise ShapeError(f"{name}: a mask of shape {shape}; needed: one that broadcasts to {full}" + call_site())
    return mask if array.dtype == bool or array.dtype == raw(like).dtype else astype(mask, raw(like).dtype)


# -- one projection of all three -------------------------------------------------------------------------------------
def _split(x: Any) -> list[Any]:
    """q, k and v, (..., heads, tokens, width), of (..., tokens, 3, heads, width)."""
    return [swapaxes(getitem(x, (..., i, slice(None), slice(None))), -2, -3) for i in range(3)]


def _self_attend(x: Any, *rest: Any) -> Any:
    return swapaxes(_attend(*_split(x), *rest), -2, -3)


def _self_rule(ct: Any, y: Any, x: Any, *rest: Any) -> Any:
    q, k, v = _split(x)
    ct = swapaxes(ct, -2, -3)
    return stack([swapaxes(_rules(ct, q, k, v, *rest, of=i), -2, -3) for i in range(3)], len(raw(x).shape) - 3)


def _self_dims(shapes: Sequence[Shape], options: Any) -> Any:
    n = len(shapes[0])
    lead = tuple(range(n - 4))
    maps: list[Any] = [(*lead, Mix, Mix, n - 3, Mix)]
    for mask in shapes[1:]:  # [..., heads, tokens, keys]
        maps.append((*lead, n - 3, Mix, Mix)[n - 1 - len(mask) :])
    return maps


self_attention_op = Fused(
    "self_attention", "N", _self_attend, (_self_rule,), saves="0", dims=_self_dims, operands="qkv"
)
masked_self_attention_op = Fused(
    "masked_self_attention", "N S", _self_attend, (_self_rule, None), saves="01", dims=_self_dims,
    operands="qkv mask", kernel="self_attention",
)  # fmt: skip


def self_attention(qkv: Any, mask: Any = None, *, causal: bool = False, scale: float | None = None) -> Any:
    """`attention` of one array that holds queries, keys and values, as one projection makes them.

    Parameters
    ----------
    qkv : [..., tokens, 3, heads, width]
        A reshape of a projection to 3 x heads x width; the cotangent is written in that form too, so that nothing is
        cut apart or put together.
    mask, causal, scale
        As for `attention`.

    Returns
    -------
    [..., tokens, heads, width], which reshapes to the next projection's operand without a copy.

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> ops.self_attention(numpy.ones((4, 3, 2, 5)), causal=True).shape
    (4, 2, 5)
    """
    shape = raw(qkv).shape
    if len(shape) < 4 or shape[-3] != 3:
        raise ShapeError(
            f"self_attention: an array of shape {shape}; needed: [..., tokens, 3, heads, width]" + call_site()
        )
    scale = _scale(scale, shape[-1])
    if mask is None:
        return self_attention_op(qkv, options=(bool(causal), scale))
    mask = _fitting_mask("self_attention", mask, (*shape[:-4], shape[-2], shape[-4], shape[-4]), qkv)
    if mask.__class__ in TENSORS and mask.requires_grad:
        return _self_attend(qkv, mask, bool(causal), scale)
    return masked_self_attention_op(qkv, mask, options=(bool(causal), scale))


__all__ = ["attention", "self_attention"]
