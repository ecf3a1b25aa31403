"""Prefix sums over the ranks of an axis. The adjoint is the sum in the other direction.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
scan, exscan                        V -> V            the sums in the other direction        V -> V
==================================  ================  =====================================  ==================
"""

from __future__ import annotations

from typing import Any, NamedTuple

from autograd.layouts.layout import Shard, V

from ..declaration.call import Call
from ..declaration.collective import Asked, Collective
from ..declaration.staging import InShape, flat, zeros_like
from ..transports.protocol import Request
from .arguments import AxisName, Use, addends, user_function

__all__ = ["exscan", "scan"]


class Direction(NamedTuple):
    """Whether the sum runs from the last rank to the first."""

    backwards: bool = False


SCAN = Collective("scan", (V, Shard), V)
EXSCAN = Collective("exscan", (V, Shard), V, alone=lambda x, call: zeros_like(x))


@SCAN.asks
def _(x: Any, call: Call) -> Asked:
    return Request("scan", flat(x), options=(False, call.options.backwards)), InShape(x.shape)


@SCAN.adjoint
def _(ct: Any, call: Call) -> Any:
    return SCAN(ct, call, options=Direction(not call.options.backwards))


@EXSCAN.asks
def _(x: Any, call: Call) -> Asked:
    return Request("scan", flat(x), options=(True, call.options.backwards)), InShape(x.shape)


@EXSCAN.adjoint
def _(ct: Any, call: Call) -> Any:
    return EXSCAN(ct, call, options=Direction(not call.options.backwards))


@user_function
def scan(x: Any, axis: AxisName) -> Use:
    """V -> V: the sum over this rank and the ranks before it (inclusive prefix sums).

    Formula: ``y_r = sum_{s <= r} x_s``. Adjoint: the suffix sums, ``ct_x_r = sum_{s >= r} ct_s`` (V -> V).

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype, the same on all ranks. A plain array is V. The sum of float16 is computed in float32 and
        rounded once.
    axis : str or tuple of str
        The mesh axis, or several flattened into one, in order of rank.

    Returns
    -------
    Tensor
        V on the axis, with the shape and dtype of `x`. As by ``numpy.cumsum``, booleans and integers of fewer than 64
        bits are added in 64 bits.

    Raises
    ------
    LayoutError
        `x` is R or I (equal copies), or P (the sum over the ranks must be taken first).

    Notes
    -----
    ``n log2 p`` bytes in ``log2 p`` messages per rank (Hillis & Steele 1986); over MPI, MPI's Scan.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(sp=3):
    ...         return cc.scan(ag.tensor([cc.world().rank + 1.0]), "sp").numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[1.0], [3.0], [6.0]]
    """
    x, on = addends(x, axis, SCAN)
    return Use(SCAN, x, on.call(options=Direction()))


@user_function
def exscan(x: Any, axis: AxisName) -> Use:
    """V -> V: the sum over the ranks before this one (exclusive prefix sums); zeros on the first rank.

    Formula: ``y_r = sum_{s < r} x_s``. Adjoint: the exclusive suffix sums, ``ct_x_r = sum_{s > r} ct_s`` (V -> V).

    Parameters
    ----------
    x : Tensor or array
        As in `scan`.
    axis : str or tuple of str
        As in `scan`.

    Returns
    -------
    Tensor
        V on the axis, with the shape of `x` and the dtype of `scan`.

    Raises
    ------
    LayoutError
        `x` is R, I or P on the axis.

    Notes
    -----
    Bytes and messages as in `scan`; over MPI, MPI's Exscan.

    Examples
    --------
    >>> import numpy as np
    >>> import autograd as ag, collectives as cc
    >>> def program():  # the index of this rank's first row in the whole
    ...     with cc.Mesh(dp=3):
    ...         return cc.exscan(ag.tensor([2 + cc.world().rank]), "dp").numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[0], [2], [5]]
    """
    x, on = addends(x, axis, EXSCAN)
    return Use(EXSCAN, x, on.call(options=Direction()))
