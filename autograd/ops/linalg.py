"""Matrix products."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from ..errors import LayoutError
from ..events import listeners
from ..layout import Mix, Sum
from ..primitive import Primitive, Signature, ones, op, unbroadcast
from ..state import state
from ..tape import Node, Sweep
from ..tensor import FREE, TENSORS, interior
from .shape import broadcast_to, swapaxes

_K = Sum("k")


def _dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    a, b = shapes
    batch = max(len(a), len(b), 2) - 2
    left = tuple(range(batch - (len(a) - 2), batch)) + (batch, _K) if len(a) > 1 else (_K,)
    columns = batch + (1 if len(a) > 1 else 0)
    right = tuple(range(batch - (len(b) - 2), batch)) + (_K, columns) if len(b) > 1 else (_K,)
    return [left, right]


def _rows(x: Any) -> Any:
    """A NumPy array as a matrix of its last dimension."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _left(ct: Any, y: Any, a: Any, b: Any) -> Any:
    if b.ndim == 2 and ct.ndim == 2 and a.ndim == 2:
        return ct @ b.T
    if b.ndim == 2 and a.ndim > 2 and ct.__class__ is b.__class__ is ndarray:
        return _rows(ct).dot(b.T).reshape(a.shape)
    if b.ndim == 1:
        return ct * b if a.ndim == 1 else ct.reshape((*ct.shape, 1)) * b
    if a.ndim == 1:
        g = b @ ct.reshape((*ct.shape, 1))
        g = g.reshape(g.shape[:-1])
    else:
        g = ct @ swapaxes(b, -1, -2)
    return unbroadcast(g, a.shape)


def _right(ct: Any, y: Any, a: Any, b: Any) -> Any:
    if a.ndim == 2 and ct.ndim == 2 and b.ndim == 2:
        return a.T @ ct
    if b.ndim == 2 and a.ndim > 2 and ct.__class__ is a.__class__ is ndarray:
        return _rows(a).T.dot(_rows(ct))  # one product, in the place of one per batch and their sum
    if a.ndim == 1:
        if b.ndim == 1:
            return ct * a
        g = a.reshape((a.shape[0], 1)) @ ct.reshape((*ct.shape[:-1], 1, ct.shape[-1]))
        return unbroadcast(g, b.shape)
    if b.ndim == 1:
        g = swapaxes(a, -1, -2) @ ct.reshape((*ct.shape, 1))
        return unbroadcast(g.reshape(g.shape[:-1]), b.shape)
    return unbroadcast(swapaxes(a, -1, -2) @ ct, b.shape)


matmul = op("matmul", "a b", operator.matmul, (_left, _right), saves="01", dims=_dims, operands="x w")


def dot(a: Any, b: Any) -> Any:
    """NumPy's dot for operands of up to two dimensions."""
    return matmul(a, b) if np.ndim(a) and np.ndim(b) else a * b


# -- a linear layer ------------------------------------------------------------------------------------------


class _Linear(Primitive):
    """x @ w + b in one step: one array the less, and one node the less on every layer of every model.

    Its word is "N N N": it is linear in none of them alone (b is added once), so no operand may be Partial and no
    contracted dimension sharded. Where labels ask for that it is the product and the sum, which know how; and where
    listeners want to see them.
    """

    def __call__(self, x: Any, w: Any, b: Any) -> Any:  # type: ignore[override]
        if x.__class__ not in TENSORS or w.__class__ not in TENSORS or b.__class__ not in TENSORS or listeners:
            return matmul(x, w) + b
        a, m, v = x.array, w.array, b.array
        plain = a.__class__ is m.__class__ is v.__class__ is ndarray and a.dtype is m.dtype is v.dtype
        ndim = a.ndim
        if not plain or ndim < 2 or m.ndim != 2 or m.shape[1:] != v.shape:
            return matmul(x, w) + b
        signature = layout = None
        lx, lw = x.layout, w.layout
        if lx is not None or lw is not None or state.grid is not None:
            key = (lx, lw, b.layout, a.shape, m.shape)
            signature = self.signatures.get(key)
            if signature is None:
                signature = self.signatures[key] = self._sign_or_refuse((x, w, b), (a, m, v))
            if signature is _IN_TWO_STEPS:
                return matmul(x, w) + b
            layout = signature.out
        try:
            # of two dimensions the same as @, without its machinery; of more, one product and not one per batch
            y = a.dot(m) if ndim == 2 else _rows(a).dot(m)
        except ValueError as error:
            raise matmul.unfit(error, (x, w)) from error
        y += v
        if ndim != 2:
            y = y.reshape(*a.shape[:-1], y.shape[1])
        recording = state.recording
        if recording is None:
            return interior(y, layout, None, -1)
        p = x.node if x.tape is recording else recording.enter(x)
        q = w.node if w.tape is recording else recording.enter(w)
        r = b.node if b.tape is recording else recording.enter(b)
        if p < 0 and q < 0 and r < 0:
            return interior(y, layout, None, FREE)
        nodes = recording.nodes
        nodes.append((self, None, (a, m, None), (p, q, r), (), None, signature))
        return interior(y, layout, recording, len(nodes) - 1)

    def _sign_or_refuse(self, xs: Sequence[Any], arrays: Sequence[Any]) -> Signature:
        try:
            return self.sign(xs, arrays, ())
        except LayoutError:
            return _IN_TWO_STEPS

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        _, _, (a, m, _), (p, q, r), _, _, signature = node
        if sweep.record or (signature is not None and not signature.checked):
            return super().pull(node, ct, sweep)
        add = sweep.add
        shape = a.shape
        if len(shape) != 2:
            a, ct = _rows(a), _rows(ct)
        if r >= 0:
            add(r, ones(len(ct), ct.dtype).dot(ct))
        if q >= 0:
            add(q, a.T.dot(ct))
        if p >= 0:
            add(p, ct.dot(m.T) if len(shape) == 2 else ct.dot(m.T).reshape(shape))
        return None


_IN_TWO_STEPS: Any = object()


def _linear_dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    last = len(shapes[0]) - 1
    return [(*range(last), Mix), (Mix, last), (last,)]


def _left_of_linear(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    return _left(ct, y, x, w)


def _right_of_linear(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    return _right(ct, y, x, w)


linear = _Linear(
    "linear", "N N N", lambda x, w, b: x @ w + b,
    (_left_of_linear, _right_of_linear, lambda ct, y, x, w, b: ct.sum(axis=tuple(range(ct.ndim - 1)))),
    saves="01", dims=_linear_dims, operands="x w b",
    tangent=(
        lambda dx, y, x, w, b: dx @ w, lambda dw, y, x, w, b: x @ dw,
        lambda db, y, x, w, b: broadcast_to(db, (*x.shape[:-1], *db.shape)),
    ),
)  # fmt: skip
