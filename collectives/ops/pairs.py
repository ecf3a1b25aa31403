"""The adjoint pairs: every collective on raw arrays, with its adjoint right under it.

A pair knows nothing of users' arguments (`ops` checks those and makes the `Call`), and its adjoint's layouts follow by
duality: they are never written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import is_inexact, move, to_host
from autograd.arrays.shape_only import DRY, Shaped
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS, Tensor
from autograd.layouts.layout import C, I, Label, Layout, P, R, Rooted, Shard, V
from autograd.layouts.partition import parts

from ..call import Call
from ..collective import Asked, Collective, in_shape
from ..staging import back, host_flat
from .extents import joined, split


def _rooted(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    """Rooted at the root's coordinate on the k-th axis."""
    return Rooted(coordinates(call.root, [layout.grid.sizes[layout.grid.axis(a)] for a in call.axes])[k])


def coordinates(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(rank, tuple(sizes)))


def _zeros(x: Any) -> Any:
    zeros = x * 0 if type(x) is Shaped else np.zeros_like(x)  # x * 0 would keep a nan
    return zeros[()] if isinstance(x, np.generic) else zeros


def _elsewhere(shape: Sequence[int], dtype: Any, call: Call) -> Shaped:
    return Shaped(shape, dtype, f"it is rooted on rank {call.root} of axis {'*'.join(call.axes)!r}")


def _buffer(call: Call, shape: Sequence[int], dtype: Any) -> Any:
    """Where the transport writes what it receives."""
    if call.group.dry:
        return Shaped((int(np.prod(shape, dtype=np.int64)),), dtype, DRY)
    return np.empty(int(np.prod(shape, dtype=np.int64)), dtype)


def _as_told(flat: Any, x: Any, call: Call) -> Any:
    """What came from a rank that alone had it: in the shape of the call, where the operand or the sample lives."""
    like = x if x is not None and type(x) is not Shaped else call.like
    return flat.reshape(call.shape) if like is None else back(flat, call.shape, like)


def _front(x: Any, dim: int) -> tuple[Any, int]:
    """The host array with `dim` in front, flat, and how many elements one row has."""
    row = math.prod(x.shape[:dim] + x.shape[dim + 1 :])
    if dim == 0 or (type(x) is Shaped and not x.absent):
        return host_flat(x), row
    return np.ascontiguousarray(np.moveaxis(to_host(x), dim, 0)).reshape(-1), row


def _unfront(flat: Any, shape: tuple[int, ...], extent: int, dim: int, like: Any) -> Any:
    """The array that was flattened so: `shape` with another extent of `dim`."""
    host = flat.reshape((extent, *shape[:dim], *shape[dim + 1 :]))
    if dim:
        host = np.moveaxis(host, 0, dim)
    return host if type(host) is Shaped else move(np.ascontiguousarray(host), like)


def _joined_whole(y: Any, x: Any, call: Call) -> Any:
    return _unfront(y, x.shape, sum(call.extents), call.dim, x)


def _own_part(y: Any, x: Any, call: Call) -> Any:
    return _unfront(y, x.shape, call.extents[call.group.rank], call.dim, x)


def _counts(extents: Sequence[int], row: int) -> list[int]:
    return [int(n) * row for n in extents]


def _joined_shape(shape: list[int], call: Call) -> list[int]:
    shape[call.dim] = sum(call.extents)
    return shape


def _cut_shape(shape: list[int], call: Call) -> list[int]:
    shape[call.dim] = call.extents[call.group.rank]
    return shape


def _swapped_shape(shape: list[int], call: Call) -> list[int]:
    shape[call.dim], shape[call.dim2] = call.extents[call.group.rank], sum(call.extents2)
    return shape


def _joined_dims(call: Call, labels: list[Label]) -> tuple[int, ...]:
    """Parts that are V have extents that only they know: what another axis said of the whole dimension is stale."""
    return () if all(type(x) is Shard for x in labels) else (call.dim,)


def _swapped_dims(call: Call, labels: list[Label]) -> tuple[int, ...]:
    told = call.dim != call.dim2 and all(type(x) is Shard for x in labels)
    return () if told else (call.dim, call.dim2)


def _nothing(shape: list[int], call: Call) -> list[int]:
    return [0]


# -- sums ----------------------------------------------------------------------------------------------------

all_reduce = Collective("all_reduce", (P, V, Shard), meets=True, flat="all_reduce")


@all_reduce.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.to is R:
        return all_reduce(ct, call, source=P)
    return enter(ct, call, source=I, to=R)


enter = Collective("cast I->R", (I, C), silent=True)


@enter.adjoint
def _(ct: Any, call: Call) -> Any:
    return all_reduce(ct, call, source=P, to=I)


leave = Collective("cast R->I", (R, C), silent=True)


@leave.adjoint
def _(ct: Any, call: Call) -> Any:
    return keep_first(ct, call, source=I, to=P)


keep_first = Collective("cast to P", (I, R, C), silent=True)


@keep_first.forward
def _(x: Any, call: Call) -> Any:
    return x if call.group.rank == 0 else _zeros(x)


@keep_first.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.source is R:
        return keep_first(ct, call, source=R, to=P)
    return leave(ct, call, source=R, to=I)


relabel = Collective("relabel", (V, R, Shard, C), free=True)  # V->P, R->V, Shard<->V: nothing moves


@relabel.adjoint
def _(ct: Any, call: Call) -> Any:
    return ct


# -- parts ---------------------------------------------------------------------------------------------------


def _cut_label(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    """The label of this rank's part on the k-th axis: earlier axes are the outer ones."""
    grid = layout.grid
    extent, offset = sum(call.extents), 0
    for axis in call.axes[: k + 1]:
        at, whole = grid.axis(axis), extent
        extents, offsets = parts(whole, grid.sizes[at])
        extent, offset = extents[grid.place[at]], offsets[grid.place[at]]
    return Shard(call.dim, whole, offset)


all_gather = Collective("all_gather", (V, Shard), shape=_joined_shape, meets=True, resizes=_joined_dims)


@all_gather.asks
def _(x: Any, call: Call) -> Asked:
    flat, n = _front(x, call.dim)
    return "all_gather", (flat, _counts(call.extents, n)), _joined_whole


@all_gather.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.to is R:
        return reduce_scatter(ct, call, source=P, to=V)
    return shard(ct, call, source=I, to=V)


reduce_scatter = Collective("reduce_scatter", (P, V), _cut_label, shape=_cut_shape, meets=True)


@reduce_scatter.asks
def _(x: Any, call: Call) -> Asked:
    flat, n = _front(x, call.dim)
    return "reduce_scatter", (flat, _counts(call.extents, n)), _own_part


@reduce_scatter.adjoint
def _(ct: Any, call: Call) -> Any:
    return all_gather(ct, call, source=V, to=R)


shard = Collective("shard", (R, I), _cut_label, silent=True, shape=_cut_shape)


@shard.forward
def _(x: Any, call: Call) -> Any:
    return split(x, call.extents, call.dim, call.group.rank)


@shard.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.source is I:
        return all_gather(ct, call, source=V, to=I)
    return pad(ct, call, source=V, to=P)


pad = Collective("pad", (V, Shard), silent=True, shape=_joined_shape)


@pad.forward
def _(x: Any, call: Call) -> Any:
    shape = list(x.shape)
    shape[call.dim] = sum(call.extents)
    if type(x) is Shaped:
        return Shaped(shape, x.dtype, x.why)
    whole = np.zeros_like(x, shape=tuple(shape))
    start = sum(call.extents[: call.group.rank])
    whole[(slice(None),) * call.dim + (slice(start, start + x.shape[call.dim]),)] = x
    return whole


@pad.adjoint
def _(ct: Any, call: Call) -> Any:
    return shard(ct, call, source=R, to=V)


def _swap_label(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    if type(layout[call.axes[k]]) is Shard and call.dim != call.dim2:
        return _cut_label(call, layout, k, shape)
    return V  # along one dimension, parts of a Shard change their order


all_to_all = Collective(
    "all_to_all", (V, Shard), _swap_label, shape=_swapped_shape, meets=True, resizes=_swapped_dims
)


@all_to_all.asks
def _(x: Any, call: Call) -> Asked:
    group = call.group
    blocks = [host_flat(split(x, call.extents, call.dim, r)) for r in range(group.size)]
    sizes = [math.prod(shape) for shape in _received(x, call)]
    return "all_to_all", (np.concatenate(blocks), [b.size for b in blocks], sizes), _joined_parts


def _received(x: Any, call: Call) -> list[tuple[int, ...]]:
    """The shapes of what comes from every rank."""
    shape = list(x.shape)
    shape[call.dim] = call.extents[call.group.rank]
    return [(*shape[: call.dim2], n, *shape[call.dim2 + 1 :]) for n in call.extents2]


def _joined_parts(y: Any, x: Any, call: Call) -> Any:
    return move(joined(y, _received(x, call), call.dim2), x)


@all_to_all.adjoint
def _(ct: Any, call: Call) -> Any:
    return all_to_all(ct, call, dim=call.dim2, extents=call.extents2, dim2=call.dim, extents2=call.extents)


# -- one rank to another -------------------------------------------------------------------------------------


def _varying(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    return V


def _leaving(x: Any, call: Call) -> list[tuple[Any, int]]:
    me = call.group.rank
    return [(host_flat(x), target) for source, target in call.pairs if source == me != target]


permute = Collective("permute", (V, Shard), _varying, alone=None, sends=_leaving)


@permute.asks
def _(x: Any, call: Call) -> Asked:
    me = call.group.rank
    source = next((s for s, target in call.pairs if target == me), None)
    if source is None:
        return "", (), lambda _, x, call: _zeros(x)
    if source == me:
        kept = host_flat(x).copy()
        return "", (), lambda _, x, call: back(kept, x.shape, x)
    return "recv", (np.empty_like(host_flat(x)), source), in_shape


@permute.adjoint
def _(ct: Any, call: Call) -> Any:
    return permute(ct, call.but(pairs=tuple((t, s) for s, t in call.pairs)))


class _PointToPoint(Collective):
    """Only two ranks take part, so there is no fingerprint of the group: the header says what was sent."""

    def run(self, x: Any, call: Call, recorded: bool | None, operand: Any = None) -> Any:
        return super().run(x, call, recorded) if call.elsewhere else self._forward(x, call)

    def tangent(self, t: Any, call: Call, out: Layout, record: bool) -> Any:
        if self is not recv:
            return self(t, call)
        return received(call, out) if record else self.run(None, call, None)


send = _PointToPoint("send", (V, Shard), _varying, shape=_nothing, alone=None)
recv = _PointToPoint("recv", (V,), _varying, alone=None)


@send.asks
def _(x: Any, call: Call) -> Asked:
    # a send has no result; nothing can depend on it
    return "send", (host_flat(x), call.root), lambda _, x, call: np.zeros(0, x.dtype)


@send.adjoint
def _(ct: Any, call: Call) -> Any:
    if ct.__class__ in TENSORS:
        return received(call, ct.layout)
    return recv.run(None, call, None)


@recv.asks
def _(x: Any, call: Call) -> Asked:
    return "recv", (_buffer(call, call.shape, call.dtype), call.root), _as_told


@recv.adjoint
def _(ct: Any, call: Call) -> Any:
    send(ct, call)  # the operand of a recv is on the other rank


def received(call: Call, layout: Layout) -> Tensor:
    """Receive, and record that: the only collective without an operand of its own."""
    call = call.but(elsewhere=layout.absent_beyond(call.axes))
    y = recv.run(None, call, None)
    if state.recording is None or not is_inexact(y.dtype):
        return Tensor(y, layout)
    return recv.record(None, layout, y, layout, call, state.recording)


# -- from and to one root ------------------------------------------------------------------------------------

broadcast = Collective("broadcast", (Rooted, V), meets=True)


@broadcast.asks
def _(x: Any, call: Call) -> Asked:
    flat = host_flat(x) if call.group.rank == call.root else _buffer(call, call.shape, call.dtype)
    return "broadcast", (flat, call.root), _as_told


@broadcast.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.to is R:
        return reduce(ct, call, source=P, to=Rooted(call.root))
    return keep_root(ct, call, source=I, to=Rooted(call.root))


keep_root = Collective("keep on the root", (I, C), _rooted, silent=True)


@keep_root.forward
def _(x: Any, call: Call) -> Any:
    return x if call.group.rank == call.root else _elsewhere(x.shape, x.dtype, call)


@keep_root.adjoint
def _(ct: Any, call: Call) -> Any:
    return broadcast(ct, call, source=Rooted(call.root), to=I, shape=ct.shape, dtype=ct.dtype)


reduce = Collective("reduce", (P, V, Shard), _rooted, meets=True)


@reduce.asks
def _(x: Any, call: Call) -> Asked:
    return "reduce", (host_flat(x), call.root), _on_root


def _on_root(y: Any, x: Any, call: Call) -> Any:
    return _elsewhere(x.shape, x.dtype, call) if y is None else back(y, x.shape, x)


@reduce.adjoint
def _(ct: Any, call: Call) -> Any:
    return broadcast(ct, call, source=Rooted(call.root), to=R, shape=ct.shape, dtype=ct.dtype)


scatter = Collective("scatter", (Rooted, V), _cut_label, shape=_cut_shape, meets=True)


@scatter.asks
def _(x: Any, call: Call) -> Asked:
    row = math.prod(call.shape[: call.dim] + call.shape[call.dim + 1 :])
    flat = _front(x, call.dim)[0] if call.group.rank == call.root else None
    return "scatter", (flat, _counts(call.extents, row), call.root, call.dtype), _part_told


def _part_told(y: Any, x: Any, call: Call) -> Any:
    like = x if x is not None and type(x) is not Shaped else call.like
    return _unfront(y, call.shape, call.extents[call.group.rank], call.dim, y if like is None else like)


@scatter.adjoint
def _(ct: Any, call: Call) -> Any:
    return gather(ct, call, source=V, to=Rooted(call.root), shape=())


gather = Collective("gather", (V, Shard), _rooted, shape=_joined_shape, meets=True, resizes=_joined_dims)


@gather.asks
def _(x: Any, call: Call) -> Asked:
    flat, n = _front(x, call.dim)
    return "gather", (flat, _counts(call.extents, n), call.root), _whole_on_root


def _whole_on_root(y: Any, x: Any, call: Call) -> Any:
    if y is None:
        return _elsewhere(_joined_shape(list(x.shape), call), x.dtype, call)
    return _joined_whole(y, x, call)


@gather.adjoint
def _(ct: Any, call: Call) -> Any:
    return scatter(ct, call, source=Rooted(call.root), to=V, shape=ct.shape, dtype=ct.dtype)
