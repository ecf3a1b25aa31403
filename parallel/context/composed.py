"""Ring attention with a mask, and the adjoint and the tangent of ring attention without one, composed of `permute` and
differentiable operations.

Adjoint and tangent run where a sweep is recorded (on Tensors, for derivatives of higher order) and in forward mode. All
blocks are computed with masks by position, also those that are masked as a whole. The formulas are those of the module
`ring`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autograd import ops
from autograd.arrays.device import move
from autograd.engine.tensor import TENSORS, Tensor, relabel
from autograd.layouts.layout import C, V
from autograd.ops.arguments import raw
from collectives import cast
from collectives.declaration.call import Call
from collectives.ops.messages import PERMUTE

__all__ = ["adjoint", "masked", "tangent"]


def masked(x: Any, mask: Any, call: Call) -> Any:
    """Attention with a mask: [..., tokens, groups, heads, width] of [..., tokens, slots, heads, width].

    `mask` is V on the axes of the call and broadcasts to [..., groups, heads, tokens, all tokens]; True where a query
    sees a key. Its tokens are those of this rank, and its keys are in the order of the sequence.

    The blocks are added up with their sums of exponentials, relative to the largest score so far, and divided at the
    end. A query that sees no key gets zeros.
    """
    scale, groups = call.options.scale, raw(x).shape[-3] - 2
    for axis in call.axes:  # products of a part with one of another rank are no parts of a sum
        x = cast(x, axis, to=V)
    x = _by_heads(x)
    q = _slots(x, 0, groups)
    total: Any = 0
    weighted: Any = 0
    top: Any = None
    for owner, kv in _visits(_slots(x, groups, groups + 2), call):
        if not call.extents[owner]:
            continue
        scores = _scores(q, _slots(kv, 0, 1), scale, call, owner)
        part = _keys_of(mask, call, owner)
        scores = ops.where(part, scores, -np.inf) if raw(part).dtype == bool else scores + part
        highest = ops.max(ops.stop_gradient(scores), -1, keepdims=True)
        highest = highest if top is None else ops.maximum(top, highest)
        base = ops.where(ops.equal(highest, -np.inf), 0.0, highest)
        e, rest = ops.exp(scores - base), 0.0 if top is None else ops.exp(top - base)
        total = total * rest + ops.sum(e, -1, keepdims=True)
        weighted = weighted * rest + ops.matmul(e, _slots(kv, 1, 2))
        top = highest
    return _by_tokens(weighted / ops.where(ops.equal(total, 0), 1.0, total))


def _keys_of(mask: Any, call: Call, owner: int) -> Any:
    """The columns of a mask for the keys of one rank."""
    if raw(mask).shape[-1] == 1:
        return mask
    parts = [ops.getitem(mask, (..., piece)) for piece in call.options.order.pieces(owner, call.extents)]
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, -1)


def adjoint(ct: Any, call: Call, x: Any, y: Any) -> Any:
    """The cotangent of the operand x of ring attention, from that of its result y."""
    scale, groups = call.options.scale, raw(x).shape[-3] - 2
    x, y, ct = (_by_heads(_varying(a, call)) for a in (x, y, ct))
    q, (o, log_sums), (ct_o, ct_l) = _slots(x, 0, groups), _columns(y), _columns(ct)
    dots = ops.sum(ct_o * o, -1, keepdims=True) - ct_l
    dq = total = 0
    for step, (owner, kv) in enumerate(_visits(_slots(x, groups, groups + 2), call)):
        k, v = _slots(kv, 0, 1), _slots(kv, 1, 2)
        p = _probabilities(q, k, log_sums, call, owner)
        ds = p * (ops.matmul(ct_o, _transposed(v)) - dots) * scale
        dq = dq + ops.matmul(ds, k)
        dk, dv = (ops.sum(ops.matmul(_transposed(a), b), -4, keepdims=True) for a, b in ((ds, q), (p, ct_o)))
        found = _padded(ops.concatenate([dk, dv], -4), call)
        total = found if step == 0 else _next(total, call) + found
    return _by_tokens(ops.concatenate([dq, _cut(_next(total, call), call, call.group.index)], -4))


def tangent(t: Any, call: Call, x: Any, y: Any) -> Any:
    """The tangent of the result y of ring attention, from that of its operand x."""
    scale, groups, out = call.options.scale, raw(x).shape[-3] - 2, y.layout if y.__class__ in TENSORS else None
    x, y, t = (_by_heads(_varying(a, call)) for a in (x, y, t))
    q, tq, (o, log_sums) = _slots(x, 0, groups), _slots(t, 0, groups), _columns(y)
    to: Any = 0
    tl: Any = 0
    both = ops.concatenate([_slots(a, groups, groups + 2) for a in (x, t)], -4)
    for owner, held in _visits(both, call):
        k, v, tk, tv = (_slots(held, i, i + 1) for i in range(4))
        p = _probabilities(q, k, log_sums, call, owner)
        weighted = p * (ops.matmul(tq, _transposed(k)) + ops.matmul(q, _transposed(tk))) * scale
        to = to + ops.matmul(weighted, v) + ops.matmul(p, tv)
        tl = tl + ops.sum(weighted, -1, keepdims=True)
    found = _by_tokens(ops.concatenate([to - tl * o, tl], -1))
    return found if out is None else relabel(found, out)


def _visits(kv: Any, call: Call) -> Iterator[tuple[int, Any]]:
    """The owner of the keys and values on this rank, and these, step by step."""
    held = _padded(kv, call)
    for step in range(call.group.size):
        owner = (call.group.index - step) % call.group.size
        yield owner, _cut(held, call, owner)
        if step + 1 < call.group.size:
            held = _next(held, call)


def _next(x: Any, call: Call) -> Any:
    """The value of the rank before."""
    ranks = call.group.size
    if ranks == 1:
        return x
    pairs = tuple([(r, (r + 1) % ranks) for r in range(ranks)])
    return PERMUTE(x, call, pairs=pairs, options=(), extents=(), dim=0, dtype=None)


def _padded(x: Any, call: Call) -> Any:
    """Zeros after the tokens, up to the number of the rank with most, since a permute takes equal shapes."""
    *lead, tokens, width = raw(x).shape
    missing = max(call.extents) - tokens
    if not missing:
        return x
    zeros = np.zeros_like(raw(x), shape=(*lead, missing, width))
    return ops.concatenate([x, Tensor(zeros, x.layout) if x.__class__ in TENSORS else zeros], -2)


def _cut(x: Any, call: Call, owner: int) -> Any:
    """Without the zeros after the tokens of the owner."""
    tokens = call.extents[owner]
    return x if raw(x).shape[-2] == tokens else ops.getitem(x, (..., slice(0, tokens), slice(None)))


def _probabilities(q: Any, k: Any, log_sums: Any, call: Call, owner: int) -> Any:
    return ops.exp(_scores(q, k, call.options.scale, call, owner) - log_sums)


def _scores(q: Any, k: Any, scale: float, call: Call, owner: int) -> Any:
    """The scores of this rank's queries and the keys of one rank, -inf for later keys if attention is causal."""
    order = call.options.order
    scores = ops.matmul(q * scale, _transposed(k))
    if order.causal:
        mine, theirs = (order.positions(rank, call.extents) for rank in (call.group.index, owner))
        seen = move(np.asarray(mine[:, None] >= theirs), raw(scores))
        if scores.__class__ in TENSORS and scores.layout is not None:
            seen = Tensor(seen, scores.layout.grid.uniform(C).replace(call.axes, V))
        scores = ops.where(seen, scores, -np.inf)
    return scores


def _varying(x: Any, call: Call) -> Any:
    """The value as V on the axes of the call: products of a part with one of another rank are no parts of a sum."""
    return x if x.__class__ not in TENSORS or x.layout is None else relabel(x, x.layout.replace(call.axes, V))


def _by_heads(x: Any) -> Any:
    """[..., slots, heads, tokens, width] of [..., tokens, slots, heads, width]."""
    n = len(raw(x).shape)
    return ops.moveaxis(x, n - 4, n - 2)


def _by_tokens(x: Any) -> Any:
    """[..., tokens, slots, heads, width] of [..., slots, heads, tokens, width]."""
    n = len(raw(x).shape)
    return ops.moveaxis(x, n - 2, n - 4)


def _slots(x: Any, start: int, stop: int) -> Any:
    return ops.getitem(x, (..., slice(start, stop), slice(None), slice(None), slice(None)))


def _columns(y: Any) -> tuple[Any, Any]:
    """The output, and the column of the logarithms."""
    return ops.getitem(y, (..., slice(None, -1))), ops.getitem(y, (..., slice(-1, None)))


def _transposed(x: Any) -> Any:
    return ops.swapaxes(x, -1, -2)
