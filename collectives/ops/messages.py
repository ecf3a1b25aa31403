"""Messages from one rank to another: `permute`, `send` and `recv`.

==================================  ================  =====================================  ==================
forward                             layouts           adjoint                                cotangent
==================================  ================  =====================================  ==================
permute, send/recv                  V -> V            the inverse permutation                V -> V
==================================  ================  =====================================  ==================

Messages from one rank to another are numbered in order, and both ranks count them. The adjoint and the tangent of a
message have its number, and travel on channels of their own, the lanes ``sweeps`` and ``tangents``. So the ranks may
sweep their tapes in different orders: every cotangent arrives at the message that it belongs to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autograd.engine.recording import Node, Recording, options_of, parents_of, shapes_of, with_options, with_shapes
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import ArgumentError, GradientWarning, MeshError, ShapeError, find_site, short_site
from autograd.layouts.layout import I, Layout, Shard, V

from ..checks.reports import warn_once
from ..declaration.call import Call, Refusal, keep
from ..declaration.collective import Asked, Collective
from ..declaration.prepared import Prepared, arrived
from ..declaration.staging import InShape, back, buffer_like, flat, zeros_like
from ..mesh import Axis, current_mesh
from ..transports.protocol import Request
from ..transports.request import Control
from . import headers
from .arguments import AxisName, Use, check_other, check_rank, operand, sample, user_function
from .extents import extents_along

__all__ = ["permute", "recv", "send"]


def _leaving(x: Any, call: Call) -> list[Request]:
    me = call.group.index
    for source, to in call.pairs:
        if source == me:
            return [] if to == me else [Request("send", flat(x), peer=to)]
    return []


def _source(me: int, call: Call) -> int | None:
    for source, to in call.pairs:
        if to == me:
            return source
    return None


class _Permute(Collective):
    """A permutation. With ``like=``, each rank's call has the shape that it receives, and as options that it sends."""

    def fingerprint(self, x: Any, call: Call, recorded: bool | None) -> str:
        if not call.shape:
            return super().fingerprint(x, call, recorded)
        any_shape: Any = ("*",) * len(call.shape)
        return super().fingerprint(x, call.but(shape=any_shape, options=()), recorded)


PERMUTE = _Permute("permute", (V, Shard), V, alone=None, sends=_leaving,
                   shape=lambda shape, call: list(call.shape) or shape)  # fmt: skip


@PERMUTE.asks
def _(x: Any, call: Call) -> Asked:
    me = call.group.index
    source = _source(me, call)
    shape = call.shape or x.shape
    if source is None:
        return None, lambda _, x, call: zeros_like(x, shape)
    if source == me:
        kept = flat(x).copy()
        return None, lambda _, x, call: back(kept, x.shape, x)
    buffer = zeros_like(x, (math.prod(shape),)) if call.shape else np.empty_like(flat(x))
    return Request("recv", out=buffer, peer=source), InShape(shape)


@PERMUTE.adjoint
def _(ct: Any, call: Call) -> Any:
    pairs = tuple([(to, source) for source, to in call.pairs])
    if call.shape:
        return PERMUTE(ct, call, pairs=pairs, shape=call.options, options=call.shape)
    return PERMUTE(ct, call, pairs=pairs)


class _Message(Collective):
    """One end of a message. Its node holds the options that the requests of sweeps have: see `transports.request`."""

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        made, (place,) = options_of(node), parents_of(node)
        call = derived(made.call, "sweeps", shapes_of(node))
        if ct is None or sweep.record:
            ct = arrived(ct, made.out, made.result, call, sweep)
        self.hand_on(self._adjoint(ct, call), place, made.layout, made.operand, call, sweep)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        call = derived(options_of(node).call, "tangents", shapes_of(node))
        node = with_options(node, options_of(node).with_call(call))
        return super().push(node, carried, start, record, recording, at)


class _Receive(_Message):
    """A message without an operand. In forward mode it receives the tangent."""

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        if ct is None and shapes_of(node) is not None:  # a recv of the program, not one of a recorded sweep
            warn_of_no_influence(shapes_of(node)[1])
        super().pull(node, ct, sweep)

    def tangent(self, t: Any, call: Call, out: Layout | None, record: bool) -> Any:
        return received(call, out) if record else self.run(None, call)


def derived(call: Call, lane: str, options: Any) -> Call:
    """The call for the adjoint or the tangent of a message, which has the number of the message."""
    number, text = options or call.options
    return call.numbered(call.group.lane(lane), (number, f"the {_DERIVED[lane]} of {text}"))


_DERIVED = {"sweeps": "cotangent", "tangents": "tangent"}


SEND = _Message(
    "send", (V, Shard), V, shape=lambda shape, call: [0], alone=None, between_two=True,
    refuses={I: Refusal(
        "a value that this rank alone computes",
        "ag.Parameter(w, {{{a!r}: V}}) for the parameters that {x} is computed from, if they belong to this rank alone",
    )},
)  # fmt: skip
RECV = _Receive("recv", (V,), V, alone=None, between_two=True)


@SEND.asks
def _(x: Any, call: Call) -> Asked:
    # the result of a send is empty
    return Request("send", flat(x), peer=call.root, options=call.options), lambda _, x, call: np.zeros(0, x.dtype)


@SEND.adjoint
def _(ct: Any, call: Call) -> Any:
    if ct.__class__ in TENSORS:
        return received(call, ct.layout)
    return RECV.run_once(None, call)


@RECV.asks
def _(x: Any, call: Call) -> Asked:
    buffer = buffer_like(call.like, call.shape, call.dtype, call.group.dry)
    return Request("recv", out=buffer, peer=call.root, options=call.options), lambda y, x, call: y.reshape(call.shape)


@RECV.adjoint
def _(ct: Any, call: Call) -> Any:
    if ct.__class__ in TENSORS:  # the operand of a recv is on the other rank
        SEND(ct, call)
    else:
        SEND.run_once(ct, call)


def received(call: Call, layout: Layout | None) -> Tensor:
    """Receive a value, and record it."""
    assert layout is not None
    made = call.kept.get((RECV, layout)) or keep(
        call.kept, (RECV, layout), Prepared(RECV, call, layout, layout, None)
    )
    result: Tensor = made.apply(None)
    return result


def warn_of_no_influence(text: str) -> None:
    """Warn of a value that was received and does not reach the objective, by default once for each line."""
    without_number = re.sub(r"^message \d+", "a message", text)
    warn_once(
        f"{without_number}, has no influence on the objective of this backward pass, so its sender "
        "gets a cotangent of zeros\n"
        "  fix, if it should have: compute with the Tensor that recv returns; what is computed from its .numpy(), or "
        "from stop_gradient of it, has no gradient\n"
        "  or:  add the losses of several microbatches, total = total + loss; one that is overwritten has no influence",
        GradientWarning, find_site(),
    )  # fmt: skip


def next_number(on: Axis, name: str, peer: int) -> int:
    """The next number of a message to or from rank `peer`. Both ends count, each under a name of its own."""
    on.kept[name, peer] = number = on.kept.get((name, peer), 0) + 1
    return int(number)


def _keep_options(y: Tensor, options: tuple[int, str]) -> Tensor:
    """Add the options for sweeps to the node of a message, if it was recorded."""
    if y.tape is not None:
        node: Any = y.tape.nodes[y.node]
        y.tape.nodes[y.node] = with_shapes(node, options)
    return y


def _as_pairs(given: Any, size: int) -> str:
    """The text of `pairs` to write in place of a shift, a dictionary or something else."""
    if isinstance(given, Mapping):
        return "list(pairs.items())"
    shift = given if isinstance(given, int) and not isinstance(given, bool) else 1
    ring = f"[(r, (r + {shift}) % n) for r in range(n)]".replace("+ -", "- ")
    return f"{ring}, with n = {size}, to send to the rank {abs(shift)} {'below' if shift < 0 else 'above'}"


# -- public functions ------------------------------------------------------------------------------------------


@user_function
def permute(x: Any, axis: AxisName, pairs: Sequence[tuple[int, int]], *, like: Any = None) -> Use:
    """V -> V: for every pair (src, dst), send the value of rank src to rank dst.

    Formula: ``y_dst = x_src``; zeros on a rank that is no dst. Adjoint: the same with every pair reversed (V -> V).

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype, the same on all ranks; parts of a Shard with agreed extents may be uneven. A plain array is
        V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    pairs : sequence of (src, dst)
        The same on all ranks. A rank may be src at most once, and dst at most once.
    like : Tensor or array, optional
        A value of the shape that this rank receives, if the shapes of the ranks differ, as those of uneven chunks do,
        and no label knows them. All ranks give one.

    Returns
    -------
    Tensor
        V on the axis, with the dtype and shape of the value that this rank receives.

    Raises
    ------
    MeshError
        A rank is out of range, or is src or dst twice.
    LayoutError
        `x` is R, I or P on the axis.
    ShapeError
        A rank receives another shape than that of its `like`. Raised on all ranks, if the check mode compares calls.

    Notes
    -----
    One message of n bytes per pair. With `like` the ranks exchange their shapes where calls are compared. It
    corresponds to JAX's ppermute.

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
    try:
        given = tuple((s, t) for s, t in pairs)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"permute: pairs={pairs!r} was given; needed: a list of pairs of ranks, (source, destination)\n  fix: "
            f"{_as_pairs(pairs, on.group.size)}"
        ) from error
    for both in given:
        for rank in both:
            check_rank(rank, on, "permute", "a rank of pairs")
    for side, what in ((0, "source"), (1, "destination")):
        ranks = [both[side] for both in given]
        if len(set(ranks)) != len(ranks):
            raise MeshError(f"permute: a rank is a {what} twice in {list(given)}; needed: at most once")
    given = tuple((int(s), int(t)) for s, t in given)
    if like is None:
        shape = _shape_of_part(x, on, given)
        return Use(PERMUTE, x, on.call(pairs=given, shape=shape, options=tuple(x.array.shape) if shape else ()))
    PERMUTE.check(x, on)
    shape = _shape_received(x, on, given, like)
    return Use(PERMUTE, x, on.call(pairs=given, shape=shape, options=tuple(x.array.shape)), repeats=False)


def _shape_of_part(x: Tensor, on: Axis, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The shape that this rank receives, if the label of `x` knows that the parts are uneven; else ()."""
    assert x.layout is not None
    label = x.layout[on.names[0]]
    if not isinstance(label, Shard) or not label.is_agreed or len(on.names) > 1:
        return ()
    extents, _ = extents_along(x, on, label.dim, PERMUTE)
    if len(set(extents)) == 1:
        return ()
    shape, me = [int(n) for n in x.array.shape], on.group.index
    shape[label.dim] = next((extents[source] for source, to in pairs if to == me), shape[label.dim])
    return tuple(shape)


def _shape_received(x: Tensor, on: Axis, pairs: Sequence[tuple[int, int]], like: Any) -> tuple[int, ...]:
    """The shape of `like`, which the ranks compare with those that are sent, if the check mode compares calls."""
    shape = tuple(int(n) for n in np.shape(like.array if like.__class__ in TENSORS else like))
    mine = tuple(int(n) for n in x.array.shape)
    shapes = [(mine, shape)] * on.group.size
    if on.group.size > 1 and on.group.checking:
        on.group.agree(f"permute(axis={'*'.join(on.names)!r} pairs={list(pairs)} like=...)")
        shapes = [json.loads(each) for each in on.group.exchange(json.dumps((mine, shape)).encode())]
    elif len(shape) == len(mine):
        return shape
    for source, to in pairs:
        sent, wanted = tuple(shapes[source][0]), tuple(shapes[to][1])
        if sent != wanted:
            raise ShapeError(
                f"permute on axis {'*'.join(on.names)!r}: rank {source} sends the shape {sent}, and rank {to} was "
                f"given like= of shape {wanted}; needed: the shape that the rank receives\n"
                f"  fix: like= of shape {sent} on rank {to}"
            )
    return shape


def send(x: Any, axis: AxisName, dst: int) -> None:
    """V -> (on `dst`): send this rank's value to rank `dst`, which calls `recv`. It does not block.

    Formula: ``y_dst = x_r``. Adjoint: the backward sweep receives the cotangent from `dst`, even if the value did not
    reach the loss there. The two ranks may sweep their tapes in different orders.

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype. They are sent with the value, as are the labels on the other axes.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    dst : int
        The receiving rank along the axis.

    Raises
    ------
    MeshError
        `dst` is out of range, or this rank itself.
    LayoutError
        `x` is R, I or P on the axis.

    Notes
    -----
    A header of 1024 bytes and a message of n bytes; backward one message of n bytes in the other direction. It
    corresponds to MPI's Send (MPI standard 4.1, chapter 3). A message that is never received is a `CollectiveMismatch`
    when all programs have ended, and so is a cotangent that this rank never receives, because it does not call
    backward.

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
    dst, site = int(dst), short_site(*find_site())
    header = headers.write(x.array, others, state.recording is not None, "send/recv", site)
    number = next_number(on, "numbers of send", dst)
    text = f"message {number} to rank {on.group.ranks[dst]}, sent at {site}"
    current_mesh().ask(on.group)
    on.group.run(Control("send", header, peer=dst, options=(None, text)))
    _keep_options(SEND(x, on.call(root=dst, shape=tuple(x.array.shape), dtype=x.array.dtype)), (number, text))


def recv(axis: AxisName, src: int, *, like: Any = None) -> Tensor:
    """(on `src`) -> V: receive the value that rank `src` sends. It blocks until the value has arrived.

    Formula: ``y_r = x_src``. Adjoint: the backward sweep sends the cotangent to `src`, or zeros if the value did not
    reach the loss.

    Parameters
    ----------
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    src : int
        The sending rank along the axis.
    like : Tensor or array, optional
        The value arrives on the device of `like`. Shape, dtype and labels arrive with the value, except in a dry run,
        where they are those of `like`.

    Returns
    -------
    Tensor
        V on the axis, with the shape, dtype and other labels of the value that was sent.

    Raises
    ------
    MeshError
        `src` is out of range, or this rank itself.
    CollectiveMismatch
        One of the two ranks records and the other does not.
    AbsentError
        In a dry run, without `like`.

    Warns
    -----
    GradientWarning
        In backward: the value had no influence on the objective.

    Notes
    -----
    Messages and bytes as in `send`.

    Examples
    --------
    See `send`.
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    check_other(src, on, "recv", "src")
    src = int(src)
    mesh.ask(on.group)
    data = on.group.run(Control("recv", out=np.empty(headers.HEADER_BYTES, np.uint8), peer=src))
    if on.group.dry:
        shape, dtype, labels = headers.outline_of(like, "recv", f"rank {src}")
    else:
        shape, dtype, labels = headers.read(data, state.recording is not None, "send/recv", f"rank {src}")
    layout = mesh.grid.layout([labels.get(a, V) for a in mesh.names]).replace(on.names, V)
    call = on.call(root=src, shape=shape, dtype=dtype, like=sample(like))
    number, site = next_number(on, "numbers of recv", src), short_site(*find_site())
    text = f"message {number} from rank {on.group.ranks[src]}, received at {site}"
    return _keep_options(received(call, layout), (number, text))
