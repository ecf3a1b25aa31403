"""Dispatch: tokens go to the ranks of their experts by an all_to_all of uneven parts, and their results come back.

A `Plan` says where each token goes. The ranks make it from their counts, so that all of them know the loads of all
experts. Which tokens an expert drops does not depend on the number of ranks: its queue is in the order of the global
batch.

===============  ======================================================  ===========================================
step             forward, bytes that a rank sends                        backward
===============  ======================================================  ===========================================
plan             all_gather of ``8 (2 + experts)`` bytes per segment     none: counts have no derivative
dispatch         rows for the experts of other ranks, each ``width``     the same rows back: all_to_all
combine          the same rows back                                      rows for the experts of other ranks
===============  ======================================================  ===========================================

The cotangents have the layouts of the values: all are Varying along the axis of the experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import collectives as cc
from autograd import ops
from autograd.arrays.device import move, to_host
from autograd.arrays.shape_only import Shaped
from autograd.engine.tensor import Tensor
from autograd.errors import LayoutError
from autograd.layouts.layout import R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.partition import nested_parts
from autograd.ops.arguments import labelled, raw

from .load import Load

__all__ = ["Plan", "combine", "dispatch", "plan_dispatch"]


class Plan(NamedTuple):
    """Where the tokens of one call go. A *row* is a token on its way to one of its experts.

    Attributes
    ----------
    rows : array of int, [n]
        The choices, numbers of ``token * top_k + k`` on this rank, in the order in which their rows are sent: by
        expert, then in the order of tokens. Choices that were dropped are left out.
    top_k : int
    sent, received : tuple of int
        The number of rows for each rank along the axis of the experts, and from each.
    order, inverse : array of int or None
        The order of the received rows by expert, and its inverse. They arrive by rank, and by expert from each rank.
    groups : array of int, [experts of this rank]
        The number of rows of each.
    counts : array of int, [experts]
        How often each expert was chosen, by the tokens of all ranks.
    load : Load
    """

    rows: Any
    top_k: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    order: Any
    inverse: Any
    groups: Any
    counts: Any
    load: Load


def plan_dispatch(
    choice: Tensor, experts: int, capacity: float | None, axes: Sequence[str], axis: str | None,
    extents: Sequence[int],
) -> Plan:  # fmt: skip
    """Plan the dispatch of tokens to their experts. All ranks of the `axes` call it.

    The plan is made on the host: of a choice on a GPU that is one read, and the orders of rows are moved there.

    Parameters
    ----------
    choice : Tensor of int, [..., top_k]
        The experts of each token of this rank.
    experts : int
    capacity : float or None
        An expert takes at most ``ceil(capacity * top_k * tokens / experts)`` rows, where `tokens` counts those of all
        ranks: the first ones in the order of the global batch, that is by the index of the token in the global array
        (batch, then sequence), and then by the token's preference. With None nothing is dropped.
    axes : sequence of str
        The mesh axes that divide the tokens, in the mesh's order.
    axis : str or None
        The one of them that divides the experts.
    extents : sequence of int
        The number of experts of each rank of that axis.

    Raises
    ------
    LayoutError
        With a capacity: the tokens are Varying along one of the axes, or Shard without agreed extents, so their places
        in the global batch are not known.
    """
    found = raw(choice)
    if type(found) is Shaped:
        return _balanced(choice, found, experts, axes, axis, extents)
    flat = to_host(found).reshape(-1)
    top_k = found.shape[-1]
    starts = np.zeros(1, np.int64) if capacity is None or not axes else _starts(choice, axes)
    segments = len(starts)
    segment = np.repeat(np.arange(segments), flat.size // max(segments, 1))
    mine = np.bincount(segment * experts + flat, minlength=segments * experts).reshape(segments, experts)
    index, sizes, place = 0, tuple[int, ...](), tuple[int, ...]()
    if axes:
        on, grid = cc.current_mesh().axis(axes), cc.current_mesh().grid
        index, sizes = on.group.index, tuple(grid.sizes[grid.axis(a)] for a in axes)
        place = tuple(grid.place[grid.axis(a)] for a in axes)
    table = np.column_stack([np.full(segments, index), starts, mine])
    if math.prod(sizes) > 1:
        assert choice.layout is not None
        layout = choice.layout.replace(axes, V)
        table = to_host(cc.all_gather(Tensor(table, layout), tuple(axes), to=R).array)
    rank, counts = table[:, 0], table[:, 2:]
    before, kept = _queues(table[:, 1], counts, capacity)
    chosen_by_rank, kept_by_rank = (np.zeros((math.prod(sizes), experts), np.int64) for _ in range(2))
    np.add.at(chosen_by_rank, rank, counts)
    np.add.at(kept_by_rank, rank, kept)

    order = np.argsort(flat, kind="stable")  # by expert, then in the order of tokens
    if capacity is not None:
        first = mine.T.reshape(-1)
        ahead = before[rank == index].T.reshape(-1)
        position = np.arange(flat.size) + np.repeat(ahead - (np.cumsum(first) - first), first)
        order = order[position < _limit(counts, capacity)]
    own = kept_by_rank[index]
    along = None if axis is None else axes.index(axis)
    load = Load(chosen_by_rank, kept_by_rank, sizes, along, tuple(extents))
    total = chosen_by_rank.sum(0)
    if along is None:
        return Plan(move(order, found), top_k, (), (), None, None, own, total, load)
    bounds = np.cumsum([0, *extents])
    sent = tuple(int(own[a:b].sum()) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    at = place[along]
    beside: Any = (*place[:along], slice(None), *place[along + 1 :])  # the ranks along the axis
    arriving = kept_by_rank.reshape(*sizes, experts)[beside][:, bounds[at] : bounds[at + 1]]
    received = tuple(int(n) for n in arriving.sum(1))
    expert = np.repeat(np.tile(np.arange(extents[at]), sizes[along]), arriving.reshape(-1))
    regroup = inverse = None
    if sizes[along] > 1:
        regroup = np.argsort(expert, kind="stable")
        inverse = np.empty_like(regroup)
        inverse[regroup] = np.arange(len(regroup))
        regroup, inverse = move(regroup, found), move(inverse, found)
    return Plan(move(order, found), top_k, sent, received, regroup, inverse, arriving.sum(0), total, load)


def _limit(counts: Any, capacity: float) -> int:
    """The capacity of each expert in rows."""
    return math.ceil(capacity * int(counts.sum()) / max(counts.shape[1], 1))


def _queues(starts: Any, counts: Any, capacity: float | None) -> tuple[Any, Any]:
    """For each segment, the length of each expert's queue before it, and how many of its own choices are kept."""
    order = np.argsort(starts, kind="stable")
    before = np.empty_like(counts)
    before[order] = np.cumsum(counts[order], axis=0) - counts[order]
    if capacity is None:
        return before, counts
    return before, np.clip(_limit(counts, capacity) - before, 0, counts)


def _starts(choice: Tensor, axes: Sequence[str]) -> Any:
    """The places in the global batch at which this rank's segments begin: its runs of tokens without a gap.

    Where only the first dimension is divided, the tokens of a rank are one segment; where the sequence is divided, each
    row of the batch is one.
    """
    layout = choice.layout
    assert layout is not None
    shape = raw(choice).shape[:-1]
    whole, offset = list(shape), [0] * len(shape)
    last = 0
    for axis in reversed(axes):  # the outer axes last: their labels have the extents of the whole
        label = layout[axis]
        if not isinstance(label, Shard) or label.extent is None or label.offset is None:
            why = "without agreed extents" if isinstance(label, Shard) else label.word
            raise LayoutError(
                f"MixtureOfExperts(capacity=...) of tokens {describe(raw(choice), raw(choice).shape, layout)}\n  axis "
                f"{axis!r}: they are {why}, and the tokens that an expert drops are the last ones in the order of the "
                f"global batch. Needed: parts whose places are known\n  fix: cc.from_local(tokens, {{{axis!r}: "
                "Shard(...)}), contiguous parts of the sequence (zigzag=False), or capacity=None"
            )
        whole[label.dim], offset[label.dim] = label.extent, offset[label.dim] + label.offset
        last = max(last, label.dim)
    lead = shape[:last]
    index = np.array(list(np.ndindex(*lead)), np.int64).reshape(math.prod(lead), last)
    index += np.array(offset[:last], np.int64)
    strides = np.cumprod([1, *whole[:0:-1]])[::-1]
    return index @ strides[:last] + offset[last] * strides[last]


def _balanced(choice: Tensor, found: Shaped, experts: int, axes: Sequence[str], axis: str | None,
              extents: Sequence[int]) -> Plan:  # fmt: skip
    """The plan of a dry run, which knows no values: each rank chooses all experts equally often."""
    counts = np.array(nested_parts(found.size, (experts,)), np.int64)
    sizes: tuple[int, ...] = ()
    table: Any = None
    if axes:
        mesh = cc.current_mesh()
        assert choice.layout is not None
        sizes = tuple(mesh.grid.sizes[mesh.grid.axis(a)] for a in axes)
        if math.prod(sizes) > 1:
            table = Tensor(Shaped((1, 2 + experts), np.int64, found.why), choice.layout.replace(axes, V))
            cc.all_gather(table, tuple(axes), to=R)
    table = np.repeat(counts[None], math.prod(sizes), 0)
    along = None if axis is None else axes.index(axis)
    load = Load(table, table, sizes, along, tuple(extents))
    rows = Shaped((found.size,), np.int64, found.why)
    if along is None:
        return Plan(rows, found.shape[-1], (), (), None, None, counts, table.sum(0), load)
    at, bounds = int(cc.current_mesh().axis(axes[along]).rank), np.cumsum([0, *extents])
    sent = tuple(int(counts[a:b].sum()) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    received, order = (sent[at],) * sizes[along], None
    if sizes[along] > 1:
        order = Shaped((sum(received),), np.int64, found.why)
    groups = counts[bounds[at] : bounds[at + 1]] * sizes[along]
    return Plan(rows, found.shape[-1], sent, received, order, order, groups, table.sum(0), load)


def dispatch(x: Any, plan: Plan, axis: str | None) -> Any:
    """The rows of this rank's experts, sorted by expert, from the tokens x [tokens, width] of all ranks of the axis.

    Adjoint: each token gets the sum of the cotangents of its rows.
    """
    rows = ops.take_rows(x, labelled(plan.rows // plan.top_k, x))
    if axis is not None:
        rows = cc.all_to_all(rows, axis, 0, 0, counts=plan.sent, received=plan.received)
    return rows if plan.order is None else ops.take_rows(rows, labelled(plan.order, rows))


def combine(rows: Any, weights: Any, plan: Plan, axis: str | None) -> Any:
    """The sum of the results of each token's experts, [tokens, width], each multiplied by its weight.

    `rows` are the results in the order of `dispatch`, `weights` [tokens * top_k] those of this rank's choices. A token
    all of whose choices were dropped gets zeros. Adjoint: that of the sum, and the results go back to their experts.
    """
    if plan.inverse is not None:
        rows = ops.take_rows(rows, labelled(plan.inverse, rows))
    if axis is not None:
        rows = cc.all_to_all(rows, axis, 0, 0, counts=plan.received, received=plan.sent)
    tokens = raw(weights).shape[0] // plan.top_k
    mine = ops.take_rows(weights, labelled(plan.rows, weights))
    return ops.add_rows(rows * mine[:, None], labelled(plan.rows // plan.top_k, rows), options=(tokens,))
