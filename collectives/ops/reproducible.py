"""`reproducible_sum`: its bits do not depend on the number of ranks, or on which rank holds which addend."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from autograd.arrays.device import as_array
from autograd.engine.leaves import tensor
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import ArgumentError, LayoutError, MeshError, ShapeError
from autograd.layouts.layout import I, Label, P, R, V
from autograd.layouts.messages import describe
from autograd.ops.arguments import stack
from autograd.ops.shape import broadcast_to

from ..algorithms.reproducible import check_indices, sum_addends
from ..algorithms.selected import Selected
from ..algorithms.table import check_name, widened
from ..declaration.call import Call
from ..declaration.collective import Collective
from ..declaration.staging import back, host_flat
from ..mesh import current_mesh
from ..transports.steps import finish
from .arguments import accumulated
from .sums import ALL_REDUCE, CAST_I_TO_R

__all__ = ["reproducible_sum"]


def _one(shape: list[int], call: Call) -> list[int]:
    return shape[1:]


REPRODUCIBLE_SUM = Collective("reproducible_sum", (V,), shape=_one)


@REPRODUCIBLE_SUM.forward
def _(x: Any, call: Call) -> Any:
    size = int(np.prod(x.shape[1:], dtype=np.int64))
    if call.group.dry:  # counted as the all-reduce that it replaces
        return back(call.group.all_reduce(host_flat(x)[:size]), x.shape[1:], x)
    wide = widened(host_flat(x)).reshape(x.shape[0], size)
    ends = np.cumsum(call.extents)
    indices = [call.extents2[end - n : end] for n, end in zip(call.extents, ends, strict=True)]
    group = call.group
    mine = dict(zip(indices[group.index], wide, strict=True))
    like = np.empty(size, wide.dtype)
    if isinstance(group, Selected) and group.size > 1:
        way = group.algorithm.partition(":")[2]
        total = group.channel.run(sum_addends(group.channel.messages, mine, indices, like, way))
    else:
        total = finish(sum_addends(group, mine, indices, like))
    return back(total.astype(x.dtype, copy=False), x.shape[1:], x)


@REPRODUCIBLE_SUM.adjoint
def _(ct: Any, call: Call) -> Any:
    """The cotangent of every addend is that of the sum."""
    if call.to is R:
        ct = ALL_REDUCE(ct, call, extents=(), extents2=(), source=P)
    else:
        ct = CAST_I_TO_R(ct, call, extents=(), extents2=(), source=I, to=R)
    shape = (call.extents[call.group.index], *ct.shape)
    return broadcast_to(ct, shape) if ct.__class__ in TENSORS else np.broadcast_to(ct, shape).copy()


def reproducible_sum(
    addends: Any,
    indices: Sequence[int],
    axis: str | Sequence[str],
    to: Label = R,
    *,
    algorithm: str = "reproducible",
) -> Tensor:
    """V -> R or I: the sum of the addends of all ranks, bitwise equal for any number of ranks and any distribution.

    Formula: ``y = sum_i a_i`` over the global index i, in the order of a balanced binary tree (see
    `collectives.algorithms.reproducible`). Adjoint: every addend gets the cotangent of the sum. With ``to=R`` the
    cotangents of the ranks are summed first (P -> R); with ``to=I`` there is only one, free.

    Each element is summed separately, so splitting arrays into buckets does not change the bits either. The addends
    themselves must have the same bits. For a microbatch that requires the same shape on every rank, because the
    rounding of BLAS depends on the shape.

    Parameters
    ----------
    addends : sequence of Tensor or array, or one of them with the addends along dimension 0
        The addends of this rank. All addends have the same shape and dtype. A rank without addends passes an array of
        shape ``(0, ...)``.
    indices : sequence of int
        The global indices of the addends. Over all ranks each of 0..N-1 occurs once, in any order and distribution.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    to : R or I
        R if the ranks use the result separately, I if they all repeat one computation with it.
    algorithm : str
        ``reproducible``, for long arrays, or ``reproducible:tree``, for short ones. Both give the same bits.

    Returns
    -------
    Tensor
        R or I on the axis, with the shape and dtype of one addend; small integers are added as by `all_reduce`.

    Raises
    ------
    ShapeError
        An index is missing or occurs twice (raised on all ranks); or there is not one index per addend; or the list of
        addends is empty.
    LayoutError
        The addends are R, I or P on the axis, or `to` is another label.
    MeshError
        `algorithm` is not reproducible.

    Notes
    -----
    ``2 (p-1)`` messages and ``(m+1) n (p-1)/p`` bytes per rank. Here m is the number of subtrees that the rank sums
    alone; it is 1 for an aligned share whose length is a power of two. The ranks exchange the indices first.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    >>> def program():
    ...     group = cc.world()
    ...     mine = range(group.rank, 5, group.size)
    ...     with cc.Mesh(dp=-1):
    ...         return cc.reproducible_sum(x[list(mine)], mine, "dp").numpy().tobytes()
    >>> len({bits for ranks in (1, 2, 3, 4) for bits in cc.run(program, ranks)})
    1
    """
    if to is not R and to is not I:
        raise LayoutError(f"reproducible_sum: to={to!r} was given; needed: to=R or to=I")
    mesh = current_mesh()
    on = mesh.axis(axis)
    if isinstance(addends, list | tuple):
        if not addends:
            raise ShapeError(
                "reproducible_sum was given an empty list; needed: addends, or an array of shape (0, ...) on a rank "
                "without any, which gives their shape and dtype"
            )
        addends = stack([a if a.__class__ in TENSORS else as_array(a) for a in addends])
    x = addends if addends.__class__ in TENSORS else tensor(addends)
    x.layout = x.labelled(mesh.grid) if x.layout is None else x.layout
    try:
        mine = [index(i) for i in indices]
    except TypeError as error:
        text = f"reproducible_sum: indices={indices!r} was given; needed: integers"
        raise ArgumentError(text) from error
    if x.array.ndim == 0 or x.array.shape[0] != len(mine):
        raise ShapeError(
            f"reproducible_sum({describe(x.array, x.array.shape, x.layout)}) was given {len(mine)} indices; needed: "
            "one for each addend along dimension 0"
        )
    REPRODUCIBLE_SUM.check(x, on)
    x = accumulated(x)
    if not isinstance(algorithm, str):
        raise MeshError(f"reproducible_sum: algorithm={algorithm!r} was given; needed: a name")
    if check_name(algorithm, "all_reduce").partition(":")[0] != "reproducible":
        raise MeshError(f"reproducible_sum: algorithm={algorithm!r}; needed: reproducible or reproducible:tree")
    group = on.using(algorithm)
    group.agree(lambda: f"reproducible_sum(axis={'*'.join(on.names)!r})")
    told = current_mesh().exchange(group, np.array(mine, np.int64).tobytes())
    gathered = [np.frombuffer(data, np.int64).tolist() for data in told]
    if not group.dry:  # a dry run assumes that all ranks have this rank's indices
        check_indices(gathered, group.name)
    extents = tuple(map(len, gathered))
    call = Call(on.names, group, to=to, extents=extents, extents2=tuple(i for each in gathered for i in each))
    result: Tensor = REPRODUCIBLE_SUM(x, call)
    return result
