"""The sum over the ranks: `all_reduce`, `mean`, and the cast I -> R, which is the adjoint of ``all_reduce(to=I)``.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
all_reduce(to=R)                    P -> R            all_reduce(to=R)                       P -> R
all_reduce(to=I)                    P -> I            cast(to=R), free                       I -> R
cast(to=R)                          I -> R            all_reduce(to=I)                       P -> I
==================================  ================  =====================================  ==================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.half import is_half
from autograd.engine.state import no_grad
from autograd.engine.tensor import Tensor
from autograd.errors import LayoutError
from autograd.layouts.layout import C, I, Label, P, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of

from ..checks import modes
from ..declaration.call import Call, Refusal
from ..declaration.collective import Asked, Collective
from ..declaration.staging import InShape, flat
from ..mesh import Axis
from ..transports.protocol import Request
from .arguments import AxisName, Use, addends, check_to, converted, group_of, operand, user_function

__all__ = ["all_reduce", "mean"]

_WHY = "the sum of equal copies over the ranks is the value times the number of ranks"
_FIX = (
    "leave all_reduce out: {x} is the same on all ranks already\n"
    "  or:  cast({x}, {a!r}, to=P) first, for a program that also gives addends   (kept on the first rank; free)"
)
_OF_GRADIENT = "leave all_reduce out: {x} is the sum over the ranks already"
_COPIES = Refusal(_WHY, _FIX, of_gradient=_OF_GRADIENT)
_USED_COPIES = Refusal(  # a rank may have taken something of its own from a list, which forgets the rank number
    _WHY, _FIX + "\n  or:  cast({x}, {a!r}, to=V) first, if each rank has computed a value of its own",
    of_gradient=_OF_GRADIENT,
)  # fmt: skip

PARTS = Refusal(
    "its parts are different elements of one value, which are rarely added to each other",
    "all_gather({x}, {a!r}, dim={d}) for the whole; or sum over dimension {d} first: {x}.sum({d}) is Partial\n"
    "  or:  declare_partial({x}, {a!r}), if the parts themselves are to be added to each other",
)

ALL_REDUCE = Collective(
    "all_reduce", (P, V), meets=True, adds=True, refuses={R: _USED_COPIES, I: _COPIES, C: _COPIES, Shard: PARTS}
)
CAST_I_TO_R = Collective("cast I->R", (I, C), silent=True)


@ALL_REDUCE.asks
def _(x: Any, call: Call) -> Asked:
    return Request("all_reduce", flat(x)), InShape(x.shape)


@ALL_REDUCE.adjoint
def _(ct: Any, call: Call) -> Any:
    if call.to is R:
        return ALL_REDUCE(ct, call, source=P)
    return CAST_I_TO_R(ct, call, source=I, to=R)


@CAST_I_TO_R.adjoint
def _(ct: Any, call: Call) -> Any:
    return ALL_REDUCE(ct, call, source=P, to=I)


@user_function
def all_reduce(x: Any, axis: AxisName, to: Label = R, *, algorithm: str | None = None) -> Use:
    """P (or V) -> R or I: the sum over the ranks of an axis.

    Formula: ``y = sum_r x_r``. Adjoint: with ``to=R`` the ranks use their copies separately, so their cotangents are
    summed, ``ct_x = sum_r ct_r`` (P -> R); with ``to=I`` there is one cotangent, which is passed on, free (I -> R).

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype, the same on all ranks. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    to : R or I
        R if the ranks use the result separately, I if they all repeat one computation with it.
    algorithm : str, optional
        A name of `collectives.algorithms.table`, for this call and its adjoint. The default is the mesh's algorithm.

    Returns
    -------
    Tensor
        R or I on the axis, with the shape and dtype of `x`. As by ``numpy.sum``, booleans and integers of fewer than
        64 bits are added in 64 bits: the result is int64, or uint64 of unsigned ones.

    Raises
    ------
    LayoutError
        `x` is R or I: the sum of equal copies is the value times the number of ranks. Or it is a Shard, whose parts are
        different elements: `declare_partial` states that they are addends.
    MeshError
        `algorithm` is unknown.

    Notes
    -----
    About ``2 n (p-1)/p`` bytes and ``2 (p-1)`` messages per rank with a ring. It corresponds to Megatron-LM's g
    (``to=I``; Shoeybi et al. 2019, section 3) and JAX's psum.

    Examples
    --------
    >>> import collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3):
    ...         x = cc.world().rank + 1.0
    ...         return cc.all_reduce(ag.tensor([x]), "dp").numpy().tolist()
    >>> import autograd as ag
    >>> cc.run(program, ranks=3)
    [[6.0], [6.0], [6.0]]
    """
    check_to(to, (R, I), "all_reduce")
    x, on = addends(x, axis, ALL_REDUCE)
    return Use(ALL_REDUCE, x, on.call(group_of(on, algorithm, "all_reduce"), to=to))


def mean(x: Any, axis: AxisName, to: Label = R) -> Tensor:
    """V -> R or I: the sum over the ranks divided by their number.

    Formula: ``y = sum_r x_r / p``. Adjoint: that of `all_reduce`, divided by p, because the division is recorded. The
    result is the mean of the ranks' values. For *local means* it is the global mean only if all ranks average the same
    number of items. A Partial value is refused: it is one value, the sum over the ranks, and a division by p would make
    it p times too small.

    Parameters
    ----------
    x : Tensor or array
        Any shape, the same on all ranks. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    to : R or I
        As in `all_reduce`.

    Returns
    -------
    Tensor
        R or I on the axis, with the shape of `x`. As by ``numpy.mean``, integers and booleans are averaged in float64,
        and the sum of float16 is divided in float32.

    Raises
    ------
    LayoutError
        `x` is P: ``all_reduce(x, axis)`` is the value. Or `x` is R or I, as in `all_reduce`.

    Notes
    -----
    The messages and bytes are those of `all_reduce`. It corresponds to JAX's pmean.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         return float(cc.mean(ag.tensor(float(cc.world().rank)), "dp"))
    >>> cc.run(program, ranks=2)
    [0.5, 0.5]
    """
    x, on = operand(x, axis, "mean")
    if is_half(x.dtype):  # the sum may not fit where the mean does
        return mean(x.astype(np.float32), axis, to=to).astype(x.dtype)
    for one in on.names:
        if x.layout[one] is P:
            raise LayoutError(_mean_of_addends(x, one, on.group.size))
        if x.layout[one] is I or x.layout[one] is R:
            raise LayoutError(_mean_of_copies(x, one))
    check_to(to, (R, I), "all_reduce")
    call = on.call(group_of(on, None, "all_reduce"), to=to)
    if x.array.dtype.char in "?bBhHiIlLqQe":
        return _mean_in_floats(x, on, call)
    known = ALL_REDUCE.prepared(x, call)
    return (known.apply_counted(x, "mean") if known.sums and modes.limit else known.apply(x)) / on.size


def _mean_in_floats(x: Tensor, on: Axis, call: Call) -> Tensor:
    """The mean of integers, in float64, or of float16, in float32: their sum might be too large for them."""
    ALL_REDUCE.check(x, on)  # its errors name the variable that holds `x`
    if x.array.dtype == np.float16:
        wide = x.astype(np.float32)  # transports add it in float32, too
        known = ALL_REDUCE.prepared(wide, call)
        return (known.apply_counted(wide, "mean") / on.size).astype(np.float16)
    with no_grad():  # floats, but without a derivative
        wide = converted(x, np.float64)
        return ALL_REDUCE.prepared(wide, call).apply(wide) / on.size


def _mean_of_copies(x: Tensor, axis: str) -> str:
    """The text of the error for the mean of a value that is the same on all ranks."""
    assert x.layout is not None
    name = name_of(x)
    more = ": it is the sum over the ranks already; divide the loss by the global number of rows"
    return (
        f"mean({name}: {describe(x, x.shape, x.layout)}, axis {axis!r})\n  axis {axis!r}: {name} is "
        f"{x.layout[axis].word}, the same on all ranks; mean takes Varying, a value of each rank\n"
        f"  fix: leave mean out{more if name.endswith('.grad') else f', since the mean is {name} itself'}"
    )


def _mean_of_addends(x: Tensor, axis: str, size: int) -> str:
    """The text of the error for the mean of a Partial value."""
    name = name_of(x)
    return (
        f"mean({name}: {describe(x, x.shape, x.layout)}, axis {axis!r})\n  axis {axis!r}: {name} is Partial, one value "
        f"that is the sum over the ranks; mean takes Varying, a value of each rank, and divides by {size}\n"
        f"  fix: all_reduce({name}, {axis!r})   (the value; divide a sum over rows by their global number)"
    )
