"""`wrap`: make a collective from a function written with NumPy and raw mpi4py, and its adjoint.

The functions receive a plain array and an mpi4py communicator of the axis. It is a duplicate, so their messages do not
mix with those of ringtape. `collectives.testing.check` checks the pair, under mpiexec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import move, to_host
from autograd.engine.tensor import Tensor
from autograd.errors import LayoutError, MeshError, ShapeError, typed_errors
from autograd.layouts.layout import I, Label, P, R, V, dual_label

from ..declaration.call import Call
from ..declaration.collective import Collective
from ..transports.protocol import Communicator
from .arguments import to_tensor
from .custom import call

__all__ = ["wrap"]

Function = Callable[[Any, Any], Any]


@typed_errors
def wrap(forward: Function, adjoint: Function, *, takes: Label, gives: Label, name: str = "") -> Wrapped:
    """`takes` -> `gives`: a differentiable operation from a linear function with raw mpi4py, and its adjoint.

    Parameters
    ----------
    forward : callable
        ``forward(x, comm) -> y``. x is this rank's part, a read-only NumPy array, and comm the axis'
        ``mpi4py.MPI.Comm``. It must be linear. All ranks of the axis call it.
    adjoint : callable
        ``adjoint(ct, comm) -> cotangent of x``, with the shape of x. All ranks call it in every sweep.
    takes, gives : R, I, V or P
        The labels of operand and result along the axis. Cotangents have the dual labels.
    name : str
        The name in error messages. The default is the name of `forward`.

    Returns
    -------
    Wrapped
        ``wrapped(x, axis) -> Tensor``. The operand has the same shape on all ranks, and the result its dtype.

    Raises
    ------
    LayoutError
        `takes` or `gives` is not one of the four labels.
    MeshError
        At a call of the result, if the ranks are threads, which have no mpi4py communicator.
    ShapeError
        In a sweep, if `adjoint` returns an array that does not have the shape of x.

    Notes
    -----
    Formula, adjoint, bytes and messages are those of the two functions.

    Examples
    --------
    >>> import collectives as cc
    >>> def total(x, comm):
    ...     return comm.allreduce(x)                  # any linear function; here the sum
    >>> all_sum = cc.wrap(total, total, takes=cc.P, gives=cc.R)
    >>> all_sum
    <wrapped total: P -> R>
    """
    return Wrapped(forward, adjoint, takes, gives, name or getattr(forward, "__name__", "wrapped"))


class Wrapped:
    """The result of `wrap`; call it as ``wrapped(x, axis)``."""

    needs_processes = True

    def __init__(self, forward: Function, adjoint: Function, takes: Label, gives: Label, name: str):
        for label, what in ((takes, "takes"), (gives, "gives")):
            if not any(label is known for known in (R, I, V, P)):
                raise LayoutError(f"wrap({name}): {what}={label!r} was given; needed: R, I, V or P")
        self.name = name
        self.takes = (takes,)
        self._labels = (takes, gives)
        duals = dual_label(takes), dual_label(gives)
        there = Collective(name, (takes,), lambda *_: gives, registered=False)
        back = Collective(f"adjoint of {name}", (duals[1],), lambda *_: duals[0], registered=False)
        there.forward(lambda x, call: _run(name, forward, x, call))
        back.forward(lambda ct, call: _run_adjoint(f"adjoint of {name}", adjoint, ct, call))
        there.adjoint(lambda ct, call: back(ct, call))
        back.adjoint(lambda ct, call: there(ct, call))
        self.collective = there

    def __repr__(self) -> str:
        return f"<wrapped {self.name}: {self._labels[0]!r} -> {self._labels[1]!r}>"

    def __call__(self, x: Any, axis: str | Sequence[str]) -> Tensor:
        x = to_tensor(x, self.name)
        result: Tensor = self.collective(x, call(axis, shape=x.array.shape))
        return result

    def use(self, x: Any, axis: Any) -> Tensor:
        """Call it as the check does."""
        return self(x, axis)


def _run(name: str, function: Function, x: Any, call: Call) -> Any:
    """Call the function with a read-only array and the raw communicator, and return its result as a separate array."""
    given = np.ascontiguousarray(to_host(x)).reshape(x.shape).view()
    given.flags.writeable = False
    y = _among(call.group, name, function, given)
    y = np.asarray(y)
    y = y.copy() if np.may_share_memory(y, given) else y
    y = y if y.dtype == x.dtype else y.astype(x.dtype)
    return move(y, x)


def _run_adjoint(name: str, function: Function, ct: Any, call: Call) -> Any:
    g = _run(name, function, ct, call)
    if g.shape != call.shape:
        raise ShapeError(f"{name} returned shape {g.shape}; needed: {call.shape}, the operand's")
    return g


def _among(group: Communicator, name: str, function: Function, given: Any) -> Any:
    """Run a function with the group's own mpi4py communicator."""
    foreign = group.foreign
    if foreign is not None:
        return foreign(name, function, given)
    if len(group.ranks) > 1 or getattr(getattr(group.control, "_world", None), "size", 1) > 1:
        raise MeshError(
            f"{name}: its function needs an mpi4py communicator, and the ranks of '{group.name}' are threads of one "
            "process, which have none. Needed: ranks that are processes\n  fix: mpiexec -n N python ..., without "
            "collectives.run"
        )
    from mpi4py import MPI  # there is only one process

    return function(given, MPI.COMM_SELF)
