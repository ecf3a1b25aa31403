"""Gather, scatter and exchange the parts of a value along a dimension.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
all_gather(to=R)                    V -> R            reduce_scatter                         P -> V
all_gather(to=I)                    V -> I            shard                                  I -> V
reduce_scatter                      P -> V            all_gather(to=R)                       V -> R
shard                               R -> V            pad with zeros                         V -> P
shard                               I -> V            all_gather(to=I)                       V -> I
all_to_all                          V -> V            all_to_all, dimensions exchanged       V -> V
==================================  ================  =====================================  ==================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.shape_only import Shaped
from autograd.engine.tensor import Tensor
from autograd.errors import LayoutError, ShapeError
from autograd.layouts.layout import C, D, I, Label, Layout, P, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.partition import labels_of_parts, nested_parts

from ..declaration.call import Call, Refusal
from ..declaration.collective import Asked, Collective
from ..declaration.staging import flat, from_front, front, to_device
from ..mesh import Axis
from ..transports.protocol import Request
from .arguments import AxisName, Use, addends, check_to, group_of, operand, sizes_of, user_function
from .casts import cast
from .extents import (
    check_inner,
    check_outer,
    checked_counts,
    extents_along,
    extents_received,
    joined,
    normal_dim,
    split_part,
)

__all__ = ["all_gather", "all_to_all", "reduce_scatter", "shard"]


# -- shapes and labels of parts and wholes ---------------------------------------------------------------------


def whole_shape(shape: Sequence[int], call: Call) -> list[int]:
    """The shape of all parts concatenated along ``call.dim``."""
    return [*shape[: call.dim], sum(call.extents), *shape[call.dim + 1 :]]


def part_shape(shape: Sequence[int], call: Call) -> list[int]:
    """The shape of this rank's part along ``call.dim``."""
    return [*shape[: call.dim], call.extents[call.group.index], *shape[call.dim + 1 :]]


def part_label(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    """The label of this rank's part on the k-th axis of the call. Earlier axes are outer axes."""
    grid = layout.grid
    at = [grid.axis(axis) for axis in call.axes]
    sizes, places = [grid.sizes[i] for i in at], [grid.place[i] for i in at]
    return labels_of_parts(call.dim, call.extents, sizes, places)[k]


def joined_dims(call: Call, labels: list[Label]) -> tuple[int, ...]:
    """Dimensions for which labels of other axes become stale: no label describes the extents of V parts."""
    return () if all(type(x) is Shard for x in labels) else (call.dim,)


def counts_of(call: Call, row: int) -> list[int]:
    """The number of elements on each rank, with `row` elements per index of ``call.dim``."""
    return [int(n) * row for n in call.extents]


# -- the declarations ------------------------------------------------------------------------------------------

ALL_GATHER = Collective(
    "all_gather", (V, Shard), shape=whole_shape, meets=True, gathers=True, resizes=joined_dims,
    refuses={P: Refusal("the ranks hold addends, not parts")},
)  # fmt: skip
REDUCE_SCATTER = Collective(
    "reduce_scatter", (P, V), part_label, shape=part_shape, meets=True, adds=True,
    refuses={Shard: Refusal("the ranks hold parts already", "leave reduce_scatter out; or cast({x}, {a!r}, to=V), if "
                            "the parts are addends of one sum")},
)  # fmt: skip
SHARD = Collective(
    "shard", (R, I), part_label, silent=True, shape=part_shape,
    refuses={P: Refusal("a slice of an addend is not a slice of the sum",
                        "reduce_scatter({x}, {a!r}, dim=...)   (takes the sum and keeps this rank's part of it)"),
             V: Refusal("each rank would keep a part of another value",
                        "cc.from_local({x}, {{..., {a!r}: Shard(...)}}), if {x} is this rank's part already")},
)  # fmt: skip
PAD = Collective("pad", (V, Shard), silent=True, shape=whole_shape)


@ALL_GATHER.asks
def _(x: Any, call: Call) -> Asked:
    rows, row = front(x, call.dim)
    return Request("all_gather", rows, counts=counts_of(call, row)), from_front(whole_shape(x.shape, call), call.dim)


@ALL_GATHER.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.to is R:
        return REDUCE_SCATTER(ct, call, source=P, to=V)
    return SHARD(ct, call, source=I, to=V)


@REDUCE_SCATTER.asks
def _(x: Any, call: Call) -> Asked:
    rows, row = front(x, call.dim)
    finish = from_front(part_shape(x.shape, call), call.dim)
    return Request("reduce_scatter", rows, counts=counts_of(call, row)), finish


@REDUCE_SCATTER.adjoint
def _(ct: Any, call: Call) -> Any:
    return ALL_GATHER(ct, call, source=V, to=R)


@SHARD.forward
def _(x: Any, call: Call) -> Any:
    return split_part(x, call.extents, call.dim, call.group.index)


@SHARD.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.source is I:
        return ALL_GATHER(ct, call, source=V, to=I)
    return PAD(ct, call, source=V, to=P)


@PAD.forward
def _(x: Any, call: Call) -> Any:
    shape = whole_shape(x.shape, call)
    if type(x) is Shaped:
        return Shaped(shape, x.dtype, x.why)
    whole = np.zeros_like(x, shape=tuple(shape))
    start = sum(call.extents[: call.group.index])
    whole[(slice(None),) * call.dim + (slice(start, start + x.shape[call.dim]),)] = x
    return whole


@PAD.adjoint
def _(ct: Any, call: Call) -> Any:
    return SHARD(ct, call, source=R, to=V)


def _exchanged_shape(shape: Sequence[int], call: Call) -> list[int]:
    found = part_shape(shape, call)
    found[call.dim2] = sum(call.extents2)
    return found


def _exchanged_label(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    if type(layout[call.axes[k]]) is Shard and call.dim != call.dim2:
        return part_label(call, layout, k, shape)
    return V  # an exchange along one dimension changes the order of a Shard's parts


def _exchanged_dims(call: Call, labels: list[Label]) -> tuple[int, ...]:
    is_known = call.dim != call.dim2 and all(type(x) is Shard for x in labels)
    return () if is_known else (call.dim, call.dim2)


ALL_TO_ALL = Collective(
    "all_to_all", (V, Shard), _exchanged_label, shape=_exchanged_shape, meets=True, resizes=_exchanged_dims
)


@ALL_TO_ALL.asks
def _(x: Any, call: Call) -> Asked:
    blocks = [flat(split_part(x, call.extents, call.dim, r)) for r in range(call.group.size)]
    shape = part_shape(x.shape, call)
    received = [(*shape[: call.dim2], n, *shape[call.dim2 + 1 :]) for n in call.extents2]
    request = Request("all_to_all", np.concatenate(blocks), counts=[b.size for b in blocks],
                      receive_counts=[math.prod(each) for each in received])  # fmt: skip
    return request, lambda y, x, call: to_device(joined(y, received, call.dim2), x)


@ALL_TO_ALL.adjoint
def _(ct: Any, call: Call) -> Any:
    return ALL_TO_ALL(ct, call, dim=call.dim2, extents=call.extents2, dim2=call.dim, extents2=call.extents)


# -- public functions ------------------------------------------------------------------------------------------


@user_function
def all_gather(x: Any, axis: AxisName, dim: int = 0, to: Label = R, *, algorithm: str | None = None) -> Use:
    """V -> R or I: concatenate the parts of all ranks along `dim`, in order of rank. Parts may be uneven.

    Formula: ``y = concatenate(x_0, ..., x_{p-1})``. Adjoint: with ``to=R`` a reduce-scatter (P -> V), with ``to=I``
    this rank's own slice, free (I -> V).

    Parameters
    ----------
    x : Tensor or array, V or Shard(dim)
        The same dtype and shape on all ranks, except for the extent of `dim`.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    dim : int
        The dimension along which the parts are concatenated.
    to : R or I
        R if the ranks use the result separately, I if they all repeat one computation with it.
    algorithm : str, optional
        As in `all_reduce`.

    Returns
    -------
    Tensor
        R or I on the axis. Its extent along `dim` is the sum of the extents of the parts.

    Raises
    ------
    LayoutError
        `x` is R or I (already whole) or P (addends, not parts), or it is sharded along another dimension, or an inner
        axis still splits `dim`.
    ShapeError
        `x` has no dimension `dim`.

    Notes
    -----
    ``n (p-1)/p`` bytes per rank for a result of n bytes, in ``p-1`` messages with a ring. If `x` is V, or a Shard
    without agreed extents, the ranks exchange them first. It is the parameter gather of FSDP and ZeRO-3 (Rajbhandari et
    al. 2020).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         return cc.all_gather(ag.tensor([float(cc.world().rank)]), "dp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[0.0, 1.0], [0.0, 1.0]]
    """
    check_to(to, (R, I), "all_gather")
    x, on = operand(x, axis, "all_gather")
    dim = normal_dim(dim, x.array.shape, "all_gather")
    ALL_GATHER.check(x, on)
    check_outer(x, on, dim, "all_gather")
    extents, is_known = extents_along(x, on, dim, ALL_GATHER)
    call = on.call(group_of(on, algorithm, "all_gather"), to=to, dim=dim, extents=extents)
    return Use(ALL_GATHER, x, call, is_known)


@user_function
def reduce_scatter(x: Any, axis: AxisName, dim: int = 0, *, algorithm: str | None = None) -> Use:
    """P (or V) -> Shard(dim): this rank's part of the sum over the ranks, split as by ``numpy.array_split``.

    Formula: ``y_r = part_r(sum_s x_s)``. Adjoint: ``all_gather(to=R)`` (V -> R).

    Parameters
    ----------
    x : Tensor or array
        Any shape with a dimension `dim`, and any dtype, the same on all ranks. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    dim : int
        The dimension that is split.
    algorithm : str, optional
        As in `all_reduce`.

    Returns
    -------
    Tensor
        Shard(dim) on the axis. Its dtype is that of `all_reduce`: small integers and booleans are added in 64 bits.

    Raises
    ------
    LayoutError
        `x` is R, I or Shard, or an inner axis already splits `dim`.
    ShapeError
        `x` has no dimension `dim`.

    Notes
    -----
    ``n (p-1)/p`` bytes per rank for an operand of n bytes, in ``p-1`` messages with a ring. It ends a region of
    sequence parallelism (Korthikanti et al. 2022).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(tp=2):
    ...         return cc.reduce_scatter(ag.tensor([1.0, 2.0, 3.0]), "tp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[2.0, 4.0], [6.0]]
    """
    x, on = addends(x, axis, REDUCE_SCATTER)
    dim = normal_dim(dim, x.array.shape, "reduce_scatter")
    REDUCE_SCATTER.check(x, on)
    check_inner(x, on, dim, "reduce_scatter")
    call = on.call(group_of(on, algorithm, "reduce_scatter"), dim=dim, extents=_even_parts(x, on, dim))
    return Use(REDUCE_SCATTER, x, call)


@user_function
def shard(x: Any, axis: AxisName, dim: int = 0) -> Use:
    """R or I -> Shard(dim): keep this rank's part, split as by ``numpy.array_split``. Forward it sends nothing.

    Formula: ``y_r = part_r(x)``. Adjoint: for R, the cotangent padded with zeros (V -> P); for I, ``all_gather(to=I)``
    (V -> I).

    Parameters
    ----------
    x : Tensor or array, R or I, a constant or a random draw
        Any shape with a dimension `dim`, and any dtype.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    dim : int
        The dimension that is split.

    Returns
    -------
    Tensor
        Shard(dim) on the axis.

    Raises
    ------
    LayoutError
        `x` is P (a slice of an addend is not a slice of the sum: use `reduce_scatter`) or V; it has different labels
        on several axes; or an inner axis already splits `dim`.
    ShapeError
        `x` has no dimension `dim`.

    Notes
    -----
    No bytes forward, nor backward for R; for I the all-gather of the adjoint. It corresponds to Megatron-LM's scatter
    to a model-parallel region (Shoeybi et al. 2019).

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(tp=2):
    ...         x = ag.tensor([1.0, 2.0, 3.0], layout={"tp": cc.R})
    ...         return cc.shard(x, "tp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[1.0, 2.0], [3.0]]
    """
    x, on = operand(x, axis, "shard")
    dim = normal_dim(dim, x.array.shape, "shard")
    assert x.layout is not None
    for a in on.names:
        if x.layout[a] is C or x.layout[a] is D:
            x = cast(x, a, to=R)
    assert x.layout is not None
    SHARD.check(x, on)
    check_inner(x, on, dim, "shard")
    labels = {x.layout[a] for a in on.names}
    if len(labels) > 1:
        raise LayoutError(
            f"shard({describe(x.array, x.array.shape, x.layout)}, axis {'*'.join(on.names)!r}): the labels on these "
            "axes differ\n  fix: cast the Invariant ones to R first"
        )
    return Use(SHARD, x, on.call(source=labels.pop(), dim=dim, extents=_even_parts(x, on, dim)))


def _even_parts(x: Tensor, on: Axis, dim: int) -> tuple[int, ...]:
    return nested_parts(int(x.array.shape[dim]), sizes_of(on))


@user_function
def all_to_all(
    x: Any, axis: AxisName, split_dim: int = 0, concat_dim: int = 1, *, counts: Sequence[int] | None = None,
    received: Sequence[int] | None = None,
) -> Use:
    """V -> V, or Shard(concat_dim) -> Shard(split_dim): split along one dimension, then concatenate.

    Rank r sends its s-th part along `split_dim` to rank s, and concatenates what it receives along `concat_dim` in
    order of rank. Formula: ``y_r = concatenate(part_r(x_0), ..., part_r(x_{p-1}))``. Adjoint: the same with the two
    dimensions exchanged. If they are equal, the amounts that were sent and received are exchanged instead.

    Parameters
    ----------
    x : Tensor or array
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    split_dim, concat_dim : int
        If they are equal, parts are exchanged as by MPI's Alltoallv. The result is then V, even for a Shard, because
        the order of its parts changes.
    counts : sequence of int, optional
        Only with ``split_dim == concat_dim``: the extent to send to each rank. Ranks may pass different counts. The
        default is parts as by ``numpy.array_split``.
    received : sequence of int, optional
        Only with `counts`: the extent that each rank sends to this one, where the program knows it. The ranks then do
        not exchange it first, except while they compare their calls (see `check`).

    Returns
    -------
    Tensor
        V, or Shard(split_dim) if `x` is Shard(concat_dim) and the dimensions differ.

    Raises
    ------
    LayoutError
        `x` is R, I or P on the axis, or an inner axis splits one of the dimensions.
    ShapeError
        `counts` are not one number per rank, do not sum to the extent, or were given with two different dimensions;
        `received` was given without `counts`, or is not what the ranks send.

    Notes
    -----
    ``n (p-1)/p`` bytes per rank. It is used by DeepSpeed-Ulysses (Jacobs et al. 2023) and to dispatch tokens to experts
    (Lepikhin et al. 2020). If `split_dim` equals `concat_dim` and `received` is not given, the ranks exchange the
    extents first.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(sp=2):
    ...         x = ag.tensor([[cc.world().rank * 10.0], [cc.world().rank * 10.0 + 1]])
    ...         return cc.all_to_all(x, "sp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[[0.0, 10.0]], [[1.0, 11.0]]]
    >>> def dispatch():
    ...     with cc.Mesh(ep=2) as mesh:
    ...         x = ag.tensor([1.0, 2.0, 3.0]) * float(1 + 9 * int(mesh.axis("ep").rank))
    ...         return cc.all_to_all(x, "ep", 0, 0, counts=[1, 2]).numpy().tolist()
    >>> cc.run(dispatch, ranks=2)
    [[1.0, 10.0], [2.0, 3.0, 20.0, 30.0]]
    """
    x, on = operand(x, axis, "all_to_all")
    split_dim = normal_dim(split_dim, x.array.shape, "all_to_all")
    concat_dim = normal_dim(concat_dim, x.array.shape, "all_to_all")
    ALL_TO_ALL.check(x, on)
    check_inner(x, on, split_dim, "all_to_all")
    check_outer(x, on, concat_dim, "all_to_all")
    if received is not None and (counts is None or split_dim != concat_dim):
        raise ShapeError(
            f"all_to_all: received={received!r} was given without counts, split_dim={split_dim} and "
            f"concat_dim={concat_dim}; needed: counts too, along one dimension"
        )
    if split_dim == concat_dim:
        cuts = _even_parts(x, on, split_dim) if counts is None else checked_counts(x, on, split_dim, counts)
        joins, is_known = extents_received(x, on, split_dim, cuts, received), on.group.size == 1
    elif counts is not None:
        raise ShapeError(
            f"all_to_all: counts={counts!r} was given with split_dim={split_dim} and concat_dim={concat_dim}: what "
            "a rank receives must fit together along both. Needed: counts along one dimension, split_dim == concat_dim"
        )
    else:
        cuts = _even_parts(x, on, split_dim)
        joins, is_known = extents_along(x, on, concat_dim, ALL_TO_ALL)
    call = on.call(dim=split_dim, extents=cuts, dim2=concat_dim, extents2=joins)
    return Use(ALL_TO_ALL, x, call, is_known)
