"""Values that go from one rank to another: `permute`, `send` and `recv`.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
permute, send/recv                  V -> V            the inverse permutation                V -> V
==================================  ================  =====================================  ==================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.engine.state import state
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import MeshError, call_site
from autograd.layouts.layout import Layout, Shard, V

from ..call import Call
from ..collective import Asked, Collective, Prepared
from ..mesh import current_mesh
from ..staging import InShape, back, buffer_like, flat, zeros_like
from ..transports.protocol import Request
from . import headers
from .arguments import AxisName, Use, check_other, check_rank, operand, sample, user_function

__all__ = ["permute", "recv", "send"]


def _leaving(x: Any, call: Call) -> list[Request]:
    me = call.group.rank
    return [Request("send", flat(x), peer=to) for source, to in call.pairs if source == me != to]


PERMUTE = Collective("permute", (V, Shard), V, alone=None, sends=_leaving)


@PERMUTE.asks
def _(x: Any, call: Call) -> Asked:
    me = call.group.rank
    source = next((s for s, to in call.pairs if to == me), None)
    if source is None:
        return None, lambda _, x, call: zeros_like(x)
    if source == me:
        kept = flat(x).copy()
        return None, lambda _, x, call: back(kept, x.shape, x)
    return Request("recv", out=np.empty_like(flat(x)), peer=source), InShape(x.shape)


@PERMUTE.adjoint
def _(ct: Any, call: Call) -> Any:
    return PERMUTE(ct, call, pairs=tuple([(to, source) for source, to in call.pairs]))


class _Receive(Collective):
    """The only collective without an operand: forward mode receives again."""

    def tangent(self, t: Any, call: Call, out: Layout | None, record: bool) -> Any:
        return received(call, out) if record else self.run(None, call)


SEND = Collective("send", (V, Shard), V, shape=lambda shape, call: [0], alone=None, between_two=True)
RECV = _Receive("recv", (V,), V, alone=None, between_two=True)


@SEND.asks
def _(x: Any, call: Call) -> Asked:
    # a send has no result; nothing can depend on it
    return Request("send", flat(x), peer=call.root), lambda _, x, call: np.zeros(0, x.dtype)


@SEND.adjoint
def _(ct: Any, call: Call) -> Any:
    if ct.__class__ in TENSORS:
        return received(call, ct.layout)
    return RECV.run(None, call)


@RECV.asks
def _(x: Any, call: Call) -> Asked:
    buffer = buffer_like(call.like, call.shape, call.dtype, call.group.dry)
    return Request("recv", out=buffer, peer=call.root), lambda y, x, call: y.reshape(call.shape)


@RECV.adjoint
def _(ct: Any, call: Call) -> Any:
    SEND(ct, call)  # the operand of a recv is on the other rank


def received(call: Call, layout: Layout | None) -> Tensor:
    """Receive, and record that."""
    assert layout is not None
    return Prepared(RECV, call, layout, layout, None).apply(None)


# -- what users call -------------------------------------------------------------------------------------------


@user_function
def permute(x: Any, axis: AxisName, pairs: Sequence[tuple[int, int]]) -> Use:
    """V -> V: for every (src, dst), rank dst gets rank src's value; who gets none gets zeros.

    Adjoint: the same with every pair reversed.

    Parameters
    ----------
    pairs : sequence of (src, dst)
        The same on all ranks; each rank at most once as src and once as dst.

    Raises
    ------
    MeshError
        A rank out of range, or named twice.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(pp=3):
    ...         x = ag.tensor([float(cc.world().rank)])
    ...         return cc.permute(x, "pp", [(0, 1), (1, 2), (2, 0)]).numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[2.0], [0.0], [1.0]]
    """
    x, on = operand(x, axis, "permute")
    given = tuple((s, t) for s, t in pairs)
    for both in given:
        for rank in both:
            check_rank(rank, on, "permute", "a rank of pairs")
    for side, what in ((0, "source"), (1, "destination")):
        ranks = [both[side] for both in given]
        if len(set(ranks)) != len(ranks):
            raise MeshError(f"permute: a rank is a {what} twice in {list(given)}; needed: at most once" + call_site())
    given = tuple((int(s), int(t)) for s, t in given)
    return Use(PERMUTE, x, on.call(pairs=given))


def send(x: Any, axis: AxisName, dst: int) -> None:
    """V -> (there): send this rank's value to rank `dst`, which calls `recv`. Returns nothing, and does not block.

    Adjoint: receives the cotangent from `dst` in the backward sweep, whether or not the value reached the loss there.
    Shape, dtype and the labels on the other axes travel with it.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(pp=2) as mesh:
    ...         if mesh.axis("pp").rank == 0:
    ...             cc.send(ag.tensor([1.0, 2.0]), "pp", 1)
    ...         else:
    ...             return cc.recv("pp", 0).numpy().tolist()
    >>> cc.run(program, ranks=2)
    [None, [1.0, 2.0]]
    """
    x, on = operand(x, axis, "send")
    check_other(dst, on, "send", "dst")
    assert x.layout is not None
    SEND.check(x, on)
    others = x.layout.replace(on.names, V)
    on.group.send(headers.write(x.array, others, state.recording is not None, "send/recv"), int(dst))
    SEND(x, on.call(root=int(dst), shape=tuple(x.array.shape), dtype=x.array.dtype))


def recv(axis: AxisName, src: int, *, like: Any = None) -> Tensor:
    """(there) -> V: receive the value that rank `src` sends; blocks until it is here.

    The value arrives on the device of `like`, if one is given; shape, dtype and labels come with it, but in a dry run,
    where nothing comes: there they are those of `like`. Adjoint: sends the cotangent to `src`, zeros where the value
    did not reach the loss. See `send` for an example.

    Raises
    ------
    CollectiveMismatch
        One of the two ranks records and the other does not.
    AbsentError
        In a dry run, without `like`.
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    check_other(src, on, "recv", "src")
    data = on.group.recv(np.empty(headers.HEADER_BYTES, np.uint8), int(src))
    if on.group.dry:
        shape, dtype, labels = headers.told_by(like, "recv", f"rank {src}")
    else:
        shape, dtype, labels = headers.read(data, state.recording is not None, "send/recv", f"rank {src}")
    layout = mesh.grid.layout([labels.get(a, V) for a in mesh.names]).replace(on.names, V)
    return received(Call(on.names, on.group, root=int(src), shape=shape, dtype=dtype, like=sample(like)), layout)
