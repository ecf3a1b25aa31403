"""How each collective is started: what the transport is asked for, and what is left to do to what it gives.

A rule takes the raw operand and the call, as the collective's forward does, and returns a pending communication and a
function of its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autograd.arrays import Shaped, move

from .communicator import Pending
from .cuts import joined, split
from .pairs import _counts, _elsewhere, _front, _unfront, _zeros
from .primitive import Call, back, host_flat

__all__ = ["STARTS"]

Started = tuple[Pending[Any], Callable[[Any], Any]]


def _all_reduce(x: Any, call: Call) -> Started:
    return call.group.start("all_reduce", host_flat(x)), lambda y: back(y, x.shape, x)


def _all_gather(x: Any, call: Call) -> Started:
    flat, row, n = _front(x, call.dim)
    pending = call.group.start("all_gather", flat, _counts(call.extents, n))
    return pending, lambda y: _unfront(y, row, sum(call.extents), call.dim, x)


def _reduce_scatter(x: Any, call: Call) -> Started:
    flat, row, n = _front(x, call.dim)
    pending = call.group.start("reduce_scatter", flat, _counts(call.extents, n))
    return pending, lambda y: _unfront(y, row, call.extents[call.group.rank], call.dim, x)


def _all_to_all(x: Any, call: Call) -> Started:
    group, me = call.group, call.group.rank
    blocks = [host_flat(split(x, call.extents, call.dim, r)) for r in range(group.size)]
    rest = list(x.shape)
    rest[call.dim] = call.extents[me]
    shapes = []
    for n in call.extents2:
        rest[call.dim2] = n
        shapes.append(tuple(rest))
    sizes = [int(np.prod(s, dtype=np.int64)) for s in shapes]
    pending = group.start("all_to_all", np.concatenate(blocks), [b.size for b in blocks], sizes)
    return pending, lambda y: move(joined(y, shapes, call.dim2), x)


def _permute(x: Any, call: Call) -> Started:
    group, me = call.group, call.group.rank
    flat = host_flat(x)
    for source, target in call.pairs:
        if source == me and target != me:
            group.send(flat, target)
    for source, target in call.pairs:
        if target == me:
            pending = Pending.done(flat.copy()) if source == me else group.start("recv", np.empty_like(flat), source)
            return pending, lambda y: back(y, x.shape, x)
    return Pending.done(None), lambda y: _zeros(x)


def _broadcast(x: Any, call: Call) -> Started:
    size = int(np.prod(call.shape, dtype=np.int64))
    flat = host_flat(x) if call.group.rank == call.root else np.empty(size, call.dtype)
    like = x if x is not None and type(x) is not Shaped else call.like

    def finish(y: np.ndarray) -> Any:
        return y.reshape(call.shape) if like is None else back(y, call.shape, like)

    return call.group.start("broadcast", flat, call.root), finish


def _reduce(x: Any, call: Call) -> Started:
    pending = call.group.start("reduce", host_flat(x), call.root)
    return pending, lambda y: _elsewhere(x.shape, x.dtype, call) if y is None else back(y, x.shape, x)


def _send(x: Any, call: Call) -> Started:
    return call.group.start("send", host_flat(x), call.root), lambda y: np.zeros(0, x.dtype)


def _recv(x: Any, call: Call) -> Started:
    flat = np.empty(int(np.prod(call.shape, dtype=np.int64)), call.dtype)

    def finish(y: np.ndarray) -> Any:
        y = y.reshape(call.shape)
        return y if call.like is None else move(y, call.like)

    return call.group.start("recv", flat, call.root), finish


STARTS: dict[str, Callable[[Any, Call], Started]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "send": _send,
    "recv": _recv,
}
"""By the collective's name. What is not here (casts, `shard`) moves nothing, and is made at once."""
