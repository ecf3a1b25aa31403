"""The sum of all ranks' addends, with bits that do not depend on how many ranks there are or who holds which addend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.engine.parameter import tensor
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import LayoutError, MeshError, ShapeError, call_site
from autograd.layouts.layout import I, Label, P, R, V
from autograd.layouts.messages import describe
from autograd.ops.shape import broadcast_to, stack

from ..algorithms.reproducible import check_indices, sum_addends
from ..algorithms.selected import Selected
from ..algorithms.steps import finish
from ..algorithms.table import check_name, widened
from ..call import Call
from ..collective import Collective
from ..mesh import current_mesh
from ..staging import back, host_flat
from .sums import ALL_REDUCE, CAST_I_TO_R

__all__ = ["reproducible_sum"]


def _one(shape: list[int], call: Call) -> list[int]:
    return shape[1:]


REPRODUCIBLE_SUM = Collective("reproducible_sum", (V,), shape=_one)


@REPRODUCIBLE_SUM.forward
def _(x: Any, call: Call) -> Any:
    size = int(np.prod(x.shape[1:], dtype=np.int64))
    if call.group.dry:  # counted as the all-reduce that it is in the place of
        return back(call.group.all_reduce(host_flat(x)[:size]), x.shape[1:], x)
    wide = widened(host_flat(x)).reshape(x.shape[0], size)
    ends = np.cumsum(call.extents)
    indices = [call.extents2[end - n : end] for n, end in zip(call.extents, ends, strict=True)]
    group = call.group
    mine = dict(zip(indices[group.rank], wide, strict=True))
    like = np.empty(size, wide.dtype)
    if isinstance(group, Selected) and group.size > 1:
        way = group.algorithm.partition(":")[2]
        total = group.channel.run(sum_addends(group.channel.messages, mine, indices, like, way))
    else:
        total = finish(sum_addends(group, mine, indices, like))
    return back(total.astype(x.dtype, copy=False), x.shape[1:], x)


@REPRODUCIBLE_SUM.adjoint
def _(ct: Any, call: Call) -> Any:
    """Every addend has the sum's cotangent."""
    if call.to is R:
        ct = ALL_REDUCE(ct, call, extents=(), extents2=(), source=P)
    else:
        ct = CAST_I_TO_R(ct, call, extents=(), extents2=(), source=I, to=R)
    shape = (call.extents[call.group.rank], *ct.shape)
    return broadcast_to(ct, shape) if ct.__class__ in TENSORS else np.broadcast_to(ct, shape).copy()


def reproducible_sum(
    addends: Any,
    indices: Sequence[int],
    axis: str | Sequence[str],
    to: Label = R,
    *,
    algorithm: str = "reproducible",
) -> Tensor:
    """V -> R or I: the sum of all addends of all ranks, the same bits for any number of ranks and any shares.

    Formula: ``y = sum_i a_i`` over the global index i, in the order of a balanced binary tree (see
    `collectives.algorithms.reproducible`). Adjoint: every addend gets the sum's cotangent, summed over the ranks with
    ``to=R`` (P -> R), free with ``to=I``.

    Elements are summed one by one, so cutting arrays into buckets changes no bit either. The addends themselves must
    have the same bits: a microbatch of the same shape wherever it is computed, since BLAS rounds by shape.

    Parameters
    ----------
    addends : sequence of Tensor or array, or one of them with the addends along dimension 0
        This rank's; all of one shape and dtype. A rank without any gives an array of shape ``(0, ...)``.
    indices : sequence of int
        Their global numbers: over all ranks each of 0..N-1 once, in any order and any share.
    axis : str or tuple of str
    to : R or I
    algorithm : str
        ``reproducible``, for long arrays, or ``reproducible:tree``, for short ones: the same bits.

    Raises
    ------
    ShapeError
        Indices that are missing or doubled, on all ranks; or not one for each addend.

    Notes
    -----
    ``2 (p-1)`` messages and ``(m+1) n (p-1)/p`` bytes a rank, where m is the number of the tree's nodes that the rank
    adds up alone: 1 for an aligned share of a power of two. The numbers of the addends are exchanged first.

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
        raise LayoutError(f"reproducible_sum: to={to!r} was given; needed: to=R or to=I" + call_site())
    mesh = current_mesh()
    on = mesh.axis(axis)
    if isinstance(addends, list | tuple):
        if not addends:
            raise ShapeError(
                "reproducible_sum was given an empty list; needed: addends, or an array of shape (0, ...) on a rank "
                "without any, which tells their shape and dtype" + call_site()
            )
        addends = stack([a if a.__class__ in TENSORS else np.asarray(a) for a in addends])
    x = addends if addends.__class__ in TENSORS else tensor(addends)
    x.layout = x.labelled(mesh.grid) if x.layout is None else x.layout
    mine = [int(i) for i in indices]
    if x.array.ndim == 0 or x.array.shape[0] != len(mine):
        raise ShapeError(
            f"reproducible_sum({describe(x.array, x.array.shape, x.layout)}) was given {len(mine)} indices; needed: "
            "one for each addend along dimension 0" + call_site()
        )
    REPRODUCIBLE_SUM.check(x, on)
    if check_name(algorithm, "all_reduce").partition(":")[0] != "reproducible":
        raise MeshError(f"reproducible_sum: algorithm={algorithm!r}; needed: reproducible or reproducible:tree")
    group = on.using(algorithm)
    if group.size > 1 and group.checking:
        group.agree(f"reproducible_sum(axis={'*'.join(on.names)!r})")
    told = [np.frombuffer(data, np.int64).tolist() for data in group.exchange(np.array(mine, np.int64).tobytes())]
    if not group.dry:  # where all others are taken to say what this rank says
        check_indices(told, group.name)
    extents = tuple(map(len, told))
    call = Call(on.names, group, to=to, extents=extents, extents2=tuple(i for each in told for i in each))
    result: Tensor = REPRODUCIBLE_SUM(x, call)
    return result
