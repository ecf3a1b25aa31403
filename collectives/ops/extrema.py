"""Maximum, minimum and product over the ranks: the nonlinear collectives.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
all_max, all_min                    V -> R, I         to the winners, in equal shares        P -> V, I -> V
all_prod                            V -> R, I         times the product of the others        P -> V, I -> V
==================================  ================  =====================================  ==================

If several ranks hold the extreme value of an element, they share its cotangent equally, as the winners of a local `max`
do. The adjoint of a product multiplies by the product of the *other* ranks' values. It is computed without a division,
so zeros are allowed. It is made of permutes and products, so it has derivatives of every order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autograd.arrays.half import is_half
from autograd.engine.promotion import dtype_to_round_to, rounded_to, wide
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import DtypeError
from autograd.layouts.layout import I, Label, P, R, Shard, V

from ..declaration.call import Call
from ..declaration.collective import Asked, Collective
from ..declaration.staging import InShape, back, host_flat
from ..transports.protocol import Request
from .arguments import AxisName, Use, addends, check_to, operand, user_function
from .messages import PERMUTE
from .sums import ALL_REDUCE, CAST_I_TO_R

__all__ = ["all_max", "all_min", "all_prod"]


# -- the declarations -------------------------------------------------------------------------------------------------


def _separately(ct: Any, call: Call) -> Any:
    """The result's cotangent on each rank: the sum of the cotangents with ``to=R``, or the one with ``to=I``."""
    if call.to is R:
        return ALL_REDUCE(ct, call, source=P, to=R)
    return CAST_I_TO_R(ct, call, source=I, to=R)


def _share(x: Any, y: Any, call: Call) -> Any:
    """The share of each element's cotangent: 1 / (number of winners) on a rank that won, else 0. A constant."""
    a, b = (x.array, y.array) if x.__class__ in TENSORS else (x, y)
    won = (a == b).astype(a.dtype)
    winners = ALL_REDUCE(won, call, to=R)
    with np.errstate(invalid="ignore"):  # nan != nan, so there is no winner, and the cotangent is nan
        share = won / winners
    return Tensor(share, x.layout.replace(call.axes, V)) if x.__class__ in TENSORS else share


ALL_MAX = Collective("all_max", (V, Shard), word="N")
ALL_MIN = Collective("all_min", (V, Shard), word="N")


for _extremum in (ALL_MAX, ALL_MIN):

    @_extremum.asks
    def _(x: Any, call: Call, is_largest: bool = _extremum is ALL_MAX) -> Asked:
        return _extreme(x, call, is_largest)

    @_extremum.adjoint
    def _(ct: Any, call: Call, x: Any, y: Any) -> Any:
        return _separately(ct, call) * _share(x, y, call)

    @_extremum.derivative
    def _(t: Any, call: Call, x: Any, y: Any) -> Any:
        return ALL_REDUCE(t * _share(x, y, call), call)


def _extreme(x: Any, call: Call, is_largest: bool) -> Asked:
    """The request: a maximum of integers in the order of the operand, or in the opposite order for a minimum."""
    flat = host_flat(x)
    if call.group.dry:
        return Request("all_reduce", flat, op="max"), InShape(x.shape)
    dtype = flat.dtype
    if (dtype.kind == "f" and dtype.itemsize <= 8) or is_half(dtype):
        there = _ordered(flat, is_largest)
        return Request("all_reduce", there, op="max"), (
            lambda y, x, call: back(_from_ordered(y, dtype, is_largest), x.shape, x)
        )
    turn = np.negative if dtype.kind == "f" else np.invert
    there = flat if is_largest else turn(flat)
    if dtype.kind == "f":  # no integer is as wide as a long double, and MPI's maximum may lose a nan
        is_nan = np.isnan(there)
        there = np.concatenate([np.where(is_nan, -np.inf, there), is_nan])

    def finish(y: np.ndarray, x: Any, call: Call) -> Any:
        y = y.view(dtype)
        if dtype.kind == "f":
            y = np.where(y[x.size :] > 0, np.nan, y[: x.size])
        return back(y if is_largest else turn(y), x.shape, x)

    return Request("all_reduce", _as_bytes(there), op="max"), finish


def _as_bytes(x: np.ndarray) -> np.ndarray:
    """Booleans as the integers 0 and 1."""
    return x.view(np.uint8) if x.dtype.kind == "b" else x


def _ordered(x: np.ndarray, is_largest: bool) -> np.ndarray:
    """Integers in the order of the floats, or in the opposite order, with nan the largest in either case.

    The bits of an IEEE float have the order of an integer once all bits of negative numbers but the sign are inverted.
    So every transport can reduce numbers of 16 bits, and nan wins as it does in NumPy.
    """
    kind = np.dtype(f"i{x.dtype.itemsize}")
    most = np.iinfo(kind).max
    bits = x.view(kind)
    keys = bits ^ ((bits >> (8 * kind.itemsize - 1)) & most)
    if not is_largest:
        keys = ~keys
    keys[np.isnan(x)] = most
    return keys


def _from_ordered(keys: np.ndarray, dtype: np.dtype, is_largest: bool) -> np.ndarray:
    most = np.iinfo(keys.dtype).max
    is_nan = keys == most
    keys = keys if is_largest else ~keys
    found = (keys ^ ((keys >> (8 * keys.dtype.itemsize - 1)) & most)).view(dtype)
    found[is_nan] = np.nan
    return found


ALL_PROD = Collective("all_prod", (V, Shard), word="N")


@ALL_PROD.asks
def _(x: Any, call: Call) -> Asked:
    request = Request("all_reduce", _as_bytes(host_flat(x)), op="prod")
    return request, lambda y, x, call: back(y.view(x.dtype), x.shape, x)


@ALL_PROD.adjoint
def _(ct: Any, call: Call, x: Any, y: Any) -> Any:
    dtype = dtype_to_round_to(ct)
    return rounded_to(dtype, wide(_separately(ct, call)) * _others(wide(x), call))


@ALL_PROD.derivative
def _(t: Any, call: Call, x: Any, y: Any) -> Any:
    return rounded_to(dtype_to_round_to(t), ALL_REDUCE(wide(t) * _others(wide(x), call), call))


def _others(x: Any, call: Call) -> Any:
    """The product over the other ranks: that over the ranks before this one, times that over the ranks after it."""
    return _running(x, call, 1) * _running(x, call, -1)


def _running(x: Any, call: Call, step: int) -> Any:
    """The product over all ranks before this one (step 1) or after it (step -1), in log2 p rounds."""
    y, reach = _shifted(x, call, step), 1
    while reach < call.group.size - 1:  # y is the product over `reach` ranks, or fewer near the first or last rank
        y = y * _shifted(y, call, step * reach)
        reach *= 2
    return y


def _shifted(x: Any, call: Call, by: int) -> Any:
    """The value of the rank `by` places before this one; ones if there is no such rank."""
    size, at = call.group.size, call.group.index
    there = PERMUTE(x, call, to=V, pairs=tuple([(r, r + by) for r in range(size) if 0 <= r + by < size]))
    return there if 0 <= at - by < size else there + 1


# -- public functions ------------------------------------------------------------------------------------------


def _extremum_of(collective: Collective, x: Any, axis: AxisName, to: Label) -> Use:
    check_to(to, (R, I), collective.name)
    x, on = operand(x, axis, collective.name)
    if x.array.dtype.kind == "c":
        raise DtypeError(
            f"{collective.name}: x has dtype {x.array.dtype}, and complex numbers have no order. Needed: real numbers. "
            "Fix: apply it to the absolute value, or to the real part"
        )
    return Use(collective, x, on.call(to=to))


@user_function
def all_max(x: Any, axis: AxisName, to: Label = R) -> Use:
    """V -> R or I: the maximum over the ranks of an axis, elementwise.

    Formula: ``y = max_r x_r``. Adjoint: the cotangent goes to the ranks that hold the maximum, in equal shares if there
    are several (as for a local `max`). With ``to=R`` the cotangents are summed first (P -> V); with ``to=I`` there is
    only one (I -> V). The second derivative is zero. If a value is nan, the result and the cotangent are nan.

    Parameters
    ----------
    x : Tensor or array
        Real, any shape, the same on all ranks. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    to : R or I
        R if the ranks use the result separately, I if they all repeat one computation with it.

    Returns
    -------
    Tensor
        R or I on the axis, with the shape and dtype of `x`.

    Raises
    ------
    LayoutError
        `x` is R or I (it is the maximum already), or P on any axis (the sum must be taken first).
    DtypeError
        `x` is complex.

    Notes
    -----
    One all-reduce forward; backward one to count the winners and, with ``to=R``, one of the cotangents (bytes and
    messages: see `all_reduce`). Floats are reduced as integers of the same order, so float16 and nan behave equally on
    every transport. It corresponds to JAX's pmax.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3):
    ...         x = ag.tensor([1.0, float(cc.world().rank)], requires_grad=True)
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_max(x, "dp", to=cc.I).sum()
    ...         tape.backward(loss)
    ...         return x.grad.numpy().round(3).tolist()
    >>> cc.run(program, ranks=3)
    [[0.333, 0.0], [0.333, 0.0], [0.333, 1.0]]
    """
    return _extremum_of(ALL_MAX, x, axis, to)


@user_function
def all_min(x: Any, axis: AxisName, to: Label = R) -> Use:
    """V -> R or I: the minimum over the ranks of an axis, elementwise.

    Formula: ``y = min_r x_r``. Adjoint: the cotangent goes to the ranks that hold the minimum, in equal shares if there
    are several, as in `all_max`.

    Parameters
    ----------
    x : Tensor or array
        Real, any shape, the same on all ranks. A plain array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    to : R or I
        As in `all_max`.

    Returns
    -------
    Tensor
        R or I on the axis, with the shape and dtype of `x`.

    Raises
    ------
    LayoutError
        `x` is R or I (it is the minimum already), or P on any axis (the sum must be taken first).
    DtypeError
        `x` is complex.

    Notes
    -----
    Bytes and messages as in `all_max`. It corresponds to JAX's pmin.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         return cc.all_min(ag.tensor([2.0 - cc.world().rank]), "dp").numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[1.0], [1.0]]
    """
    return _extremum_of(ALL_MIN, x, axis, to)


@user_function
def all_prod(x: Any, axis: AxisName, to: Label = R) -> Use:
    """V -> R or I: the product over the ranks of an axis, elementwise.

    Formula: ``y = prod_r x_r``. Adjoint: ``ct_x_r = ct * prod_{s != r} x_s``. With ``to=R`` the cotangents are summed
    first (P -> V); with ``to=I`` there is only one (I -> V). The product of the other ranks' values is that of the
    ranks before times that of the ranks after. It uses no division, so zeros are allowed, and it is differentiable, so
    all higher derivatives are exact.

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype, the same on all ranks. A plain array is V. Products of float16 are computed in float32 and
        rounded once; those of the adjoint are rounded at every step.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    to : R or I
        As in `all_max`.

    Returns
    -------
    Tensor
        R or I on the axis, with the shape and dtype of `x`. As by ``numpy.prod``, booleans and integers of fewer than
        64 bits are multiplied in 64 bits.

    Raises
    ------
    LayoutError
        `x` is R or I, or P on any axis (the sum must be taken first).

    Notes
    -----
    One all-reduce forward; backward ``2 log2 p`` messages of n elements per rank (Hillis & Steele 1986, in both
    directions) and, with ``to=R``, one all-reduce.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3):
    ...         x = ag.tensor([float(cc.world().rank), 2.0], requires_grad=True)
    ...         with ag.Tape() as tape:
    ...             loss = cc.all_prod(x, "dp", to=cc.I).sum()
    ...         tape.backward(loss)
    ...         return float(loss), x.grad.numpy().tolist()
    >>> cc.run(program, ranks=3)
    [(8.0, [2.0, 4.0]), (8.0, [0.0, 4.0]), (8.0, [0.0, 4.0])]
    """
    check_to(to, (R, I), "all_prod")
    x, on = addends(x, axis, ALL_PROD)
    return Use(ALL_PROD, x, on.call(to=to))
