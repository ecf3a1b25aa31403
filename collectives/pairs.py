"""The adjoint pairs: every collective on raw arrays, with its adjoint right under it.

A pair knows nothing of users' arguments (`ops` checks those and makes the `Call`), and its adjoint's layouts follow by
duality: they are never written.
"""


from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays import DRY, Shaped, is_inexact, move, to_host
from autograd.layout import C, I, Label, Layout, P, R, Rooted, Shard, V
from autograd.parts import parts
from autograd.state import state
from autograd.tensor import TENSORS, Tensor

from .cuts import joined, split
from .primitive import Call, Collective, back, host_flat


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


def _front(x: Any, dim: int) -> tuple[Any, tuple[int, ...], int]:
    """The host array with `dim` in front, flat; the shape of one row, and its number of elements."""
    if type(x) is Shaped and not x.absent:
        row = x.shape[:dim] + x.shape[dim + 1 :]
        return x.reshape(-1), row, int(np.prod(row, dtype=np.int64))
    host = np.moveaxis(to_host(x), dim, 0)
    row = host.shape[1:]
    return np.ascontiguousarray(host).reshape(-1), row, int(np.prod(row, dtype=np.int64))


def _unfront(flat: Any, row: tuple[int, ...], extent: int, dim: int, like: Any) -> Any:
    host = np.moveaxis(flat.reshape((extent, *row)), 0, dim)
    if type(host) is Shaped:
        return host
    return move(np.ascontiguousarray(host), like)


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


def _nothing(shape: list[int], call: Call) -> list[int]:
    return [0]


# -- sums ----------------------------------------------------------------------------------------------------

all_reduce = Collective("all_reduce", (P, V, Shard), meets=True)


@all_reduce.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    return back(call.group.all_reduce(host_flat(x)), x.shape, x)


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


all_gather = Collective("all_gather", (V, Shard), shape=_joined_shape, meets=True)


@all_gather.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    flat, row, n = _front(x, call.dim)
    return _unfront(call.group.all_gather(flat, _counts(call.extents, n)), row, sum(call.extents), call.dim, x)


@all_gather.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.to is R:
        return reduce_scatter(ct, call, source=P, to=V)
    return shard(ct, call, source=I, to=V)


reduce_scatter = Collective("reduce_scatter", (P, V), _cut_label, shape=_cut_shape, meets=True)


@reduce_scatter.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    flat, row, n = _front(x, call.dim)
    part = call.group.reduce_scatter(flat, _counts(call.extents, n))
    return _unfront(part, row, call.extents[call.group.rank], call.dim, x)


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
    if type(layout[call.axes[k]]) is Shard:
        return _cut_label(call, layout, k, shape)
    return V


all_to_all = Collective("all_to_all", (V, Shard), _swap_label, shape=_swapped_shape, meets=True)


@all_to_all.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    group, me = call.group, call.group.rank
    blocks = [host_flat(split(x, call.extents, call.dim, r)) for r in range(group.size)]
    rest = list(x.shape)
    rest[call.dim] = call.extents[me]
    shapes = []
    for n in call.extents2:
        rest[call.dim2] = n
        shapes.append(tuple(rest))
    received = group.all_to_all(
        np.concatenate(blocks), [b.size for b in blocks], [int(np.prod(s, dtype=np.int64)) for s in shapes]
    )
    return move(joined(received, shapes, call.dim2), x)


@all_to_all.adjoint
def _(ct: Any, call: Call) -> Any:
    return all_to_all(ct, call, dim=call.dim2, extents=call.extents2, dim2=call.dim, extents2=call.extents)


# -- one rank to another -------------------------------------------------------------------------------------


def _varying(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    return V


permute = Collective("permute", (V, Shard), _varying)


@permute.forward
def _(x: Any, call: Call) -> Any:
    group, me = call.group, call.group.rank
    flat = host_flat(x)
    for source, target in call.pairs:
        if source == me and target != me:
            group.send(flat, target)
    for source, target in call.pairs:
        if target == me:
            return back(flat.copy() if source == me else group.recv(np.empty_like(flat), source), x.shape, x)
    return _zeros(x)


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


send = _PointToPoint("send", (V, Shard), _varying, shape=_nothing)
recv = _PointToPoint("recv", (V,), _varying)


@send.forward
def _(x: Any, call: Call) -> Any:
    call.group.send(host_flat(x), call.root)
    return np.zeros(0, x.dtype)  # a send has no result; nothing can depend on it


@send.adjoint
def _(ct: Any, call: Call) -> Any:
    if ct.__class__ in TENSORS:
        return received(call, ct.layout)
    return recv.run(None, call, None)


@recv.forward
def _(x: Any, call: Call) -> Any:
    flat = _buffer(call, call.shape, call.dtype)
    y = call.group.recv(flat, call.root).reshape(call.shape)
    return move(y, call.like) if call.like is not None else y


@recv.adjoint
def _(ct: Any, call: Call) -> Any:
    send(ct, call)  # the operand of a recv is on the other rank


def received(call: Call, layout: Layout) -> Tensor:
    """Receive, and record that: the only collective without an operand of its own."""
    call = call.but(elsewhere=layout.absent_beyond(call.axes))
    y = recv.run(None, call, None)
    if state.recording is None or not is_inexact(y.dtype):
        return Tensor(y, layout)
    return recv.record(None, layout, y, layout, call)


# -- from and to one root ------------------------------------------------------------------------------------

broadcast = Collective("broadcast", (Rooted, V), meets=True)


@broadcast.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    flat = host_flat(x) if call.group.rank == call.root else _buffer(call, call.shape, call.dtype)
    y = call.group.broadcast(flat, call.root).reshape(call.shape)
    like = x if x is not None and type(x) is not Shaped else call.like
    return y if like is None else back(y.reshape(-1), call.shape, like)


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


@reduce.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    total = call.group.reduce(host_flat(x), call.root)
    return _elsewhere(x.shape, x.dtype, call) if total is None else back(total, x.shape, x)


@reduce.adjoint
def _(ct: Any, call: Call) -> Any:
    return broadcast(ct, call, source=Rooted(call.root), to=R, shape=ct.shape, dtype=ct.dtype)


scatter = Collective("scatter", (Rooted, V), _cut_label, shape=_cut_shape, meets=True)


@scatter.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    shape = list(call.shape)
    row = (*shape[: call.dim], *shape[call.dim + 1 :])
    n = int(np.prod(row, dtype=np.int64))
    flat = _front(x, call.dim)[0] if call.group.rank == call.root else None
    part = call.group.scatter(flat, _counts(call.extents, n), call.root, call.dtype)
    like = x if x is not None and type(x) is not Shaped else call.like
    return _unfront(part, row, call.extents[call.group.rank], call.dim, part if like is None else like)


@scatter.adjoint
def _(ct: Any, call: Call) -> Any:
    return gather(ct, call, source=V, to=Rooted(call.root), shape=())


gather = Collective("gather", (V, Shard), _rooted, shape=_joined_shape, meets=True)


@gather.forward
def _(x: Any, call: Call) -> Any:
    if call.group.size == 1:
        return x
    flat, row, n = _front(x, call.dim)
    whole = call.group.gather(flat, _counts(call.extents, n), call.root)
    total = sum(call.extents)
    if whole is None:
        return _elsewhere((*row[: call.dim], total, *row[call.dim :]), x.dtype, call)
    return _unfront(whole, row, total, call.dim, x)


@gather.adjoint
def _(ct: Any, call: Call) -> Any:
    return scatter(ct, call, source=Rooted(call.root), to=V, shape=ct.shape, dtype=ct.dtype)
