"""Prefix sums over the ranks of an axis, each beside its adjoint: the sum in the other direction."""

from __future__ import annotations

from typing import Any, NamedTuple

from autograd.engine.tensor import Tensor
from autograd.layouts.layout import Shard, V

from ..call import Call
from ..collective import Asked, Collective, in_shape
from ..staging import host_flat
from .basic import AxisName, _begin
from .pairs import _varying, _zeros

__all__ = ["exscan", "scan"]


class Direction(NamedTuple):
    """Whether the sum runs from the last rank to the first."""

    backwards: bool = False


inclusive = Collective("scan", (V, Shard), _varying)
exclusive = Collective("exscan", (V, Shard), _varying, alone=lambda x, call: _zeros(x))


@inclusive.asks
def _(x: Any, call: Call) -> Asked:
    return "scan", (host_flat(x), False, call.options.backwards), in_shape


@inclusive.adjoint
def _(ct: Any, call: Call) -> Any:
    return inclusive(ct, call, options=Direction(not call.options.backwards))


@exclusive.asks
def _(x: Any, call: Call) -> Asked:
    return "scan", (host_flat(x), True, call.options.backwards), in_shape


@exclusive.adjoint
def _(ct: Any, call: Call) -> Any:
    return exclusive(ct, call, options=Direction(not call.options.backwards))


def scan(x: Any, axis: AxisName) -> Tensor:
    """V -> V: the sum over this rank and those before it (inclusive prefix sums).

    Formula: ``y_r = sum_{s <= r} x_s``. Adjoint: the suffix sums, ``ct_x_r = sum_{s >= r} ct_s`` (V -> V).

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype, the same on all ranks; an array is V. The sum of float16 is taken in float32 and rounded
        once.
    axis : str or tuple of str
        The mesh axis, or several flattened into one, in order of rank.

    Raises
    ------
    LayoutError
        `x` is R or I (equal copies), or P (the sum over the ranks is not taken).

    Notes
    -----
    ``n log2 p`` bytes in ``log2 p`` messages a rank (Hillis & Steele 1986); over MPI its own Scan.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(sp=3):
    ...         return cc.scan(ag.tensor([cc.world().rank + 1.0]), "sp").numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[1.0], [3.0], [6.0]]
    """
    x, on, _ = _begin(x, axis, "scan")
    return inclusive(x, Call(on.names, on.group, options=Direction()))


def exscan(x: Any, axis: AxisName) -> Tensor:
    """V -> V: the sum over the ranks before this one (exclusive prefix sums); zeros on the first.

    Formula: ``y_r = sum_{s < r} x_s``. Adjoint: the exclusive suffix sums, ``ct_x_r = sum_{s > r} ct_s`` (V -> V).
    Parameters, errors and costs are those of `scan`.

    Examples
    --------
    >>> import numpy as np
    >>> import autograd as ag, collectives as cc
    >>> def program():  # where this rank's rows begin in the whole
    ...     with cc.Mesh(dp=3):
    ...         return cc.exscan(ag.tensor([2 + cc.world().rank]), "dp").numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[0], [2], [5]]
    """
    x, on, _ = _begin(x, axis, "exscan")
    return exclusive(x, Call(on.names, on.group, options=Direction()))
