"""Nonblocking forms: a collective is started, and its result waited for where it is used.

The handle that a start returns is a Tensor, whose array is filled when it is first asked for. See `started` for what
stands on the tape, and for the order in which adjoints start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.errors import MeshError
from autograd.layout import Label, R, V
from autograd.sites import call_site
from autograd.state import state
from autograd.tensor import TENSORS, Tensor

from . import headers, ops
from . import pairs as pair
from .mesh import Axis, current_mesh
from .primitive import Call
from .started import HEADER, await_header, begin_in_program, beginning, take_off

__all__ = [
    "all_gather_async", "all_reduce_async", "all_to_all_async", "broadcast_async", "irecv", "isend", "permute_async",
    "reduce_async", "reduce_scatter_async",
]  # fmt: skip

AxisName = str | Sequence[str]


def all_reduce_async(x: Any, axis: AxisName, to: Label = R, *, algorithm: str | None = None) -> Tensor:
    """P (or V) -> R or I: starts `all_reduce` and returns at once; the result is waited for where it is used.

    The handle is a Tensor: to use it as an operand waits for it, as ``handle.wait()`` does. ``handle.test()`` asks.
    Its adjoint is started where the result was first used and waited for where this call stood.

    Parameters
    ----------
    x, axis, to, algorithm
        As in `all_reduce`. `x` may be changed after the call: what is sent is a copy. The algorithm must come to
        ``native`` (which ``auto`` is for a call that is started): where the mesh has another one, say so here.

    Returns
    -------
    Deferred
        To be used or waited for, on every rank, before the tape's block or the mesh's block ends.

    Raises
    ------
    CommunicationError
        At the end of either block, naming this call, if nothing has waited for it.
    MeshError
        Another algorithm: it would go on only while its rank waits for it, and ranks may wait in different orders.

    Notes
    -----
    Started calls have a channel of their own on each axis, made at the first one. They are still compared with what the
    other ranks call next on this axis, so while calls are compared (see `check`) the start waits for all ranks to
    arrive, though never for the data. MPI makes little progress by itself: the tape pokes it after each operation.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         x, w = ag.tensor([1.0], requires_grad=True), ag.tensor([3.0], layout={"dp": cc.R})
    ...         with ag.Tape() as tape:
    ...             handle = cc.all_reduce_async(x, "dp")
    ...             scale = w * w                         # meanwhile
    ...             loss = cc.cast((handle * scale).sum(), "dp", to=cc.I)
    ...         tape.backward(loss)
    ...         return loss.item(), x.grad.item()
    >>> cc.run(program, ranks=2)
    [(18.0, 9.0), (18.0, 9.0)]
    """
    return beginning(begin_in_program, ops.all_reduce, x, axis, to, algorithm=algorithm)


def all_gather_async(
    x: Any, axis: AxisName, dim: int = 0, to: Label = R, *, algorithm: str | None = None
) -> Tensor:
    """V -> R or I: starts `all_gather`; see `all_reduce_async`.

    Where `x` is Varying the ranks first tell each other their extents, blocking; a Shard knows them.
    """
    return beginning(begin_in_program, ops.all_gather, x, axis, dim, to, algorithm=algorithm)


def reduce_scatter_async(x: Any, axis: AxisName, dim: int = 0, *, algorithm: str | None = None) -> Tensor:
    """P (or V) -> Shard(dim): starts `reduce_scatter`; see `all_reduce_async`."""
    return beginning(begin_in_program, ops.reduce_scatter, x, axis, dim, algorithm=algorithm)


def all_to_all_async(
    x: Any, axis: AxisName, split_dim: int = 0, concat_dim: int = 1, *, counts: Sequence[int] | None = None
) -> Tensor:
    """V -> V: starts `all_to_all`; see `all_reduce_async`, and `all_gather_async` for the extents."""
    return beginning(begin_in_program, ops.all_to_all, x, axis, split_dim, concat_dim, counts=counts)


def permute_async(x: Any, axis: AxisName, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """V -> V: starts `permute`; see `all_reduce_async`."""
    return beginning(begin_in_program, ops.permute, x, axis, pairs)


def broadcast_async(
    x: Any, axis: AxisName, root: int = 0, to: Label = R, *, like: Any = None, algorithm: str | None = None
) -> Tensor:
    """Rooted -> R or I: starts `broadcast`; see `all_reduce_async`.

    Without `like`, shape, dtype and labels are broadcast first, blocking.
    """
    return beginning(begin_in_program, ops.broadcast, x, axis, root, to, like=like, algorithm=algorithm)


def reduce_async(x: Any, axis: AxisName, root: int = 0, *, algorithm: str | None = None) -> Tensor:
    """P (or V) -> Rooted: starts `reduce`; see `all_reduce_async`."""
    return beginning(begin_in_program, ops.reduce, x, axis, root, algorithm=algorithm)


# -- one rank to another -----------------------------------------------------------------------------------------------


def isend(x: Any, axis: AxisName, dst: int) -> Tensor:
    """V -> (there): start to send this rank's value to rank `dst`, which calls `irecv`.

    Adjoint: the cotangent's receive is started where the handle was waited for, and waited for where this call stood.

    Returns
    -------
    Deferred
        Without a value; ``handle.wait()`` returns once the array may be changed, which is at once: a copy is sent.

    Notes
    -----
    Pairs with `irecv` only: their messages are told from those of `send` and `recv`.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(pp=2) as mesh:
    ...         other = 1 - mesh.axis("pp").rank
    ...         there, here = cc.isend(ag.tensor([float(other)]), "pp", other), cc.irecv("pp", other)
    ...         there.wait()
    ...         return here.numpy().tolist()
    >>> cc.run(program, ranks=2)
    [[0.0], [1.0]]
    """
    x, on, _ = ops._begin(x, axis, "isend")
    _check_other(dst, on, "isend", "dst")
    assert x.layout is not None
    pair.send.check(x, on)
    header = headers.write(x.array, x.layout.replace(on.names, V), state.recording is not None, HEADER)
    on.group.lane("headers").send(header, int(dst))
    group = on.group.lane("messages")
    return take_off(pair.send, x, Call(on.names, group, root=int(dst), shape=x.array.shape, dtype=x.array.dtype))


def irecv(axis: AxisName, src: int, *, like: Any = None) -> Tensor:
    """(there) -> V: start to receive the value that rank `src` sends by `isend`; see there.

    Parameters
    ----------
    like : Tensor or array, optional
        Shape, dtype and labels of what will come (an array is V), so that its data can be received meanwhile. Without
        it only the header is, and the data from the wait on.

    Raises
    ------
    CollectiveMismatch
        At the wait: what came is not what `like` says, or one of the two ranks records and the other does not.
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    _check_other(src, on, "irecv", "src")
    call, layout = Call(on.names, on.group.lane("messages"), root=int(src), like=ops._sample(like)), None
    if like is not None:
        known = like.layout if like.__class__ in TENSORS and like.layout is not None else mesh.grid.uniform(V)
        layout = known.replace(on.names, V)
        call = call.but(shape=tuple(map(int, like.shape)), dtype=np.dtype(like.dtype))
    return await_header(call, layout, on)


def _check_other(rank: Any, on: Axis, name: str, what: str) -> None:
    ops._check_rank(rank, on, name, what)
    if rank == on.group.rank:
        raise MeshError(f"{name}: {what}={rank} is this rank itself; needed: another rank" + call_site())
