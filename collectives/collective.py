"""How a collective is declared: what it does with this rank's array, the layouts it takes, and its adjoint.

    all_gather = Collective("all_gather", takes=(V, Shard), gives=...)
    @all_gather.asks
    def _(x, call):                                          # raw arrays
        return "all_gather", (host_flat(x), counts), lambda y, x, call: back(y, shape, x)
    @all_gather.adjoint
    def _(ct, call): return reduce_scatter(ct, call)         # other collectives, so that it can be recorded too

The layout of the adjoint follows by duality and is never written. On an active tape a collective is recorded whatever
its operand requires (DESIGN: the order of communications is the same on all ranks), and a sweep runs its adjoint even
where no cotangent arrived.

What it does is declared once, in one of two ways:

    asks      one call of the transport, its arguments, and what is left to do: a function of the answer, the operand
              and the call. The blocking form makes the call, the nonblocking one starts it. A call "" is none: nothing
              comes, and the answer is None. Two words of the declaration go before: `alone`, what a single rank makes
              of its operand (itself, unless said otherwise; None: it asks all the same), and `sends`, the messages
              that leave first. Where the call takes the operand flat and gives the result flat, of the same shape,
              the word `flat` with the call's name says all of it
    forward   anything else: the work of one rank, or several calls. It has no nonblocking form

Its word says how the result depends on the operand, as the word of a local operation does:

    a   linear, which is the default: forward mode is the collective itself, and the node keeps no array
    N   nonlinear: the node keeps the operand and the result, and two rules read them

    all_max = Collective("all_max", takes=(V, Shard), word="N")
    @all_max.adjoint
    def _(ct, call, x, y): ...                               # operations and collectives, so that it can be recorded
    @all_max.derivative
    def _(t, call, x, y): ...                                # forward mode: the tangent of the result

At first order the rules get raw arrays, in a recorded sweep Tensors with x and y at their places on the tape: so the
second derivative goes through what the rules read too. A nonlinear collective refuses Partial on every axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy import generic, ndarray

from autograd.arrays.shape_only import DRY, Shaped, is_absent
from autograd.engine import events
from autograd.engine.events import listeners
from autograd.engine.recording import Node, Recording
from autograd.engine.state import state
from autograd.engine.tape import Sweep
from autograd.engine.tensor import TENSORS, Tensor, relabel
from autograd.errors import LayoutError, call_site
from autograd.layouts.layout import C, I, Label, Layout, P, R, Rooted, Shard, V
from autograd.layouts.messages import describe, fixes

from .call import Call
from .checks import modes, sanitizer
from .staging import back, host_flat
from .transports.protocol import Communicator, Pending, Request

__all__ = ["Collective", "Repeated", "collectives"]


Asked = tuple[str, tuple[Any, ...], Callable[[Any, Any, Call], Any]]
"""A call of the transport, its arguments, and what is left to do: ``finish(answer, operand, call)``."""


starting: list[Any] = []
"""Holds something while any thread begins a collective in the place of making it, see `state.begin`."""


def itself(x: Any, call: Call) -> Any:
    """What most collectives make of their operand where there is one rank."""
    return x


collectives: dict[str, Collective] = {}
"""Every collective by name: the test plan."""


class Collective:
    """An operation between ranks, with its adjoint; linear, unless its word is N."""

    def __init__(
        self,
        name: str,
        takes: tuple[Any, ...],
        gives: Callable[[Call, Layout, int, Any], Label] | None = None,
        *,
        silent: bool = False,
        free: bool = False,
        meets: bool = False,
        shape: Callable[[list[int], Call], Any] | None = None,
        word: str = "a",
        alone: Callable[[Any, Call], Any] | None = itself,
        sends: Callable[[Any, Call], Iterable[tuple[Any, int]]] | None = None,
        resizes: Callable[[Call, list[Label]], Iterable[int]] | None = None,
        flat: str = "",
    ):
        self.name = name
        self.nonlinear = word == "N"
        self.free = free  # whether neither direction sends anything
        self.communicates = not free
        self._labels: dict[Any, Layout] = {}
        self.meets = meets  # whether `run` begins with one call of the group that all its ranks make
        self.takes = takes
        self.gives = told if gives is None else gives
        self.shape = shape  # the result's shape, where it is not the operand's
        self.silent = silent  # whether the forward direction sends nothing
        self.alone = alone  # what one rank makes of its operand; None where the transport is asked all the same
        # the dimensions whose extents change in a way that no label tells, from the call and the operand's labels there
        self.resizes = resizes
        self.sends = sends  # the messages, each with its receiver, that leave before the transport is asked
        self._asks: Callable[[Any, Call], Asked] | None = None
        self._forward: Callable[[Any, Call], Any] = unchanged
        self._adjoint: Callable[..., Any] = lambda ct, call: ct
        self._derivative: Callable[..., Any] | None = None
        collectives[name] = self
        self.plain: Callable[[Any, Call], Any] | None = None  # the rule that `flat` stands for, see `repeated`
        if flat:  # what is asked is this call of the transport: the operand in, the result of its shape out
            self._asks = lambda x, call: (flat, (host_flat(x),), in_shape)
            self._forward = self.plain = _flat_forward(flat)

    def __repr__(self) -> str:
        return f"<collective {self.name}>"

    def asks(self, function: Callable[[Any, Call], Asked]) -> Callable[[Any, Call], Asked]:
        """Decorator: what it asks of the transport, and what is left to do with the answer, on raw arrays."""
        alone, sends = self.alone, self.sends

        def forward(x: Any, call: Call) -> Any:
            group = call.group
            if alone is not None and group.size == 1:
                return alone(x, call)
            if sends is not None:
                for message, receiver in sends(x, call):
                    group.send(message, receiver)
            name, arguments, finish = function(x, call)
            return finish(group.run(_request(group, name, arguments)) if name else None, x, call)

        self._asks, self._forward = function, forward
        return function

    def forward(self, function: Callable[[Any, Call], Any]) -> Callable[[Any, Call], Any]:
        """Decorator: what it does with raw arrays, where that is not one call of the transport."""
        self._asks, self._forward = None, function
        return function

    def starts(self, call: Call) -> bool:
        """Whether a call has anything to start: something is asked of the transport, and of other ranks."""
        return self._asks is not None and not call.elsewhere and (self.alone is None or call.group.size > 1)

    def start(self, x: Any, call: Call) -> tuple[Pending[Any], Callable[[Any], Any]]:
        """What `asks` declares, started: the transport's pending answer, and what is left to do with it."""
        group = call.group
        assert self._asks is not None
        for message, receiver in () if self.sends is None else self.sends(x, call):
            group.send(message, receiver)
        name, arguments, finish = self._asks(x, call)
        pending = group.start(_request(group, name, arguments)) if name else Pending.done(None)
        return pending, lambda y: finish(y, x, call)

    def adjoint(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: its adjoint, in collectives; of a nonlinear one also of the operand and the result."""
        self._adjoint = function
        return function

    def derivative(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the tangent of a nonlinear collective's result."""
        self._derivative = function
        return function

    # -- the call ----------------------------------------------------------------------------------------------
    def __call__(self, x: Any, call: Call, **changes: Any) -> Any:
        """Run it: on a raw array (a sweep at first order) without labels, on a Tensor with labels and record.

        `changes` make an adjoint's call of the forward one.
        """
        if self._forward is unchanged and x.__class__ not in TENSORS and not starting:
            return x
        if changes:
            call = call._replace(**changes)
        if starting and state.begin is not None:  # to be started, not made: see `nonblocking`
            return state.begin(self, x, call)
        if x.__class__ not in TENSORS:
            return x if self._forward is unchanged else self.run(x, call, None)
        layout = x.layout
        if layout is None:
            layout = x.labelled(state.grid)
        out = self._labels.get((layout, call[0], call[2]))  # axes, to
        if out is None:
            out = self.label(x, layout, call)
        if layout.rooted and layout.absent_beyond(call.axes):
            call = call.but(elsewhere=True)
        array, recording = x.array, state.recording
        if recording is None or array.dtype.kind not in "fc":
            return Tensor(self.run(array, call, False, x), out)
        if modes.limit or listeners or call.elsewhere:
            y = self.run(array, call, True, x)
        else:
            y = self._forward(array, call)
        return self.record(x, layout, y, out, call, recording)

    def run(self, x: Any, call: Call, recorded: bool | None, operand: Any = None) -> Any:
        """The transport's part, with the fingerprint before it and events around it.

        `operand` is the Tensor of which `x` is the array, where there is one.
        """
        group = call.group
        if call.elsewhere:
            shape = list(call.shape if x is None else x.shape)
            shape = shape if self.shape is None else self.shape(shape, call)
            return Shaped(shape, call.dtype if x is None else x.dtype, "it is rooted elsewhere on another axis")
        if group.size > 1 and not (self.silent and recorded is None) and group.checking:
            self.compare(x, call, recorded, operand)
        if listeners:
            events.emit("begin", "forward", self.name)
            y = self._forward(x, call)
            events.emit("end", "forward", self.name, self, () if operand is None else (operand,), y)
            return y
        return self._forward(x, call)

    def compare(self, x: Any, call: Call, recorded: bool | None, operand: Any) -> None:
        """Tell the other ranks of this call; under ``ranks`` mode with the operand's layout and its copies."""
        layout = ""
        if modes.watching and operand is not None:
            sanitizer.witness(self.name, operand)
            layout = compared_layout(operand.layout, call.axes)
        if self.free:
            return
        # a text costs twenty times what looking it up does; everything that it is made of is in the key
        texts = call.group.texts
        plain = call._replace(group=None, like=None)  # type: ignore[arg-type]  # a key that keeps nothing alive
        key = (self.name, recorded, None if x is None else (x.shape, x.dtype), plain)
        text = texts.get(key)
        if text is None:
            if len(texts) >= _MOST_TEXTS:
                texts.clear()
            text = texts[key] = self.fingerprint(x, call, recorded)
        tell = call.group.announce if self.meets else call.group.agree
        tell(text, layout, self.name in _ROOTED)

    def fingerprint(self, x: Any, call: Call, recorded: bool | None) -> str:
        """What must be the same on all ranks of the group, as one line."""
        shape: list[Any] = list(call.shape or x.shape)
        if call.extents and len(shape) > call.dim and not call.shape:
            shape[call.dim] = "*"
        if call.extents2 and len(shape) > call.dim2:
            shape[call.dim2] = "*"
        own = call.extents2 and call.dim == call.dim2  # what a rank sends and receives along one dimension is its own
        sizes = f" extents={list(call.extents)}" if call.extents and not own else ""
        root = f" root={call.root}" if call.to is not V and isinstance(call.to, Rooted) or self.name in _ROOTED else ""
        dtype = call.dtype if call.dtype is not None else x.dtype
        how = "in a backward sweep" if recorded is None else "recorded" if recorded else "not recorded"
        pairs = f" pairs={list(call.pairs)}" if call.pairs else ""
        more = "".join(
            f" {field}={value!r}"
            for field, value in zip(Call._fields, call, strict=True)
            if field not in _TOLD and value != Call._field_defaults[field]
        )
        return (
            f"{self.name}(axis={'*'.join(call.axes)!r} shape=[{','.join(map(str, shape))}] dtype={np.dtype(dtype)}"
            f"{sizes}{root}{pairs}{more} to={call.to!r}) {how}"
        )

    def record(
        self, x: Any, layout: Layout | None, y: Any, out: Layout, call: Call, recording: Recording
    ) -> Tensor:
        """Append the node; an operand that nothing depends on is recorded too."""
        if x is None:
            place, array = -1, y
        else:
            place, array = x.node if x.tape is recording else recording.enter(x), x.array
        if y.__class__ is ndarray is array.__class__:
            result = y.shape, y.dtype, False
            operand = None if x is None else (array.shape, array.dtype, False)
        else:
            result = y.shape, y.dtype, y.__class__ is Shaped and y.absent
            operand = None if x is None else (array.shape, array.dtype, array.__class__ is Shaped and array.absent)
            call = self._with_sample(call, array, y)
        if self.communicates:
            recording.communicates = True
        nodes = recording.nodes
        options = call, layout, out, result, operand
        if self.nonlinear:
            nodes.append((self, y, (array,), (place,), options, None, None))
        else:
            nodes.append((self, None, (), (place,), options, None, None))
        made = _new(Tensor)  # as `interior` does, one call less
        made.array, made.layout, made.tape, made.node = y, out, recording, len(nodes) - 1
        return made

    def _with_sample(self, call: Call, array: Any, y: Any) -> Call:
        """The call, with an array of the operand's device or kind where that is not the host's."""
        if state.dry:
            return call.but(like=Shaped((0,), y.dtype, DRY))
        if call.like is None and not (isinstance(y, _PLAIN) and (array is y or isinstance(array, _PLAIN))):
            device = y if isinstance(array, _PLAIN) else array
            return call.but(like=np.empty_like(device, shape=(0,)))  # what a sweep makes up lives there too
        return call

    def saved(self, node: Node, lifted: bool, recording: Recording | None = None, at: int = -1) -> tuple[Any, ...]:
        """What the rules of a nonlinear collective read: operand and result, on their tape if one is given."""
        if not self.nonlinear:
            return ()
        y, (x,), (place,), (_, layout, out, _, _) = node[1:5]
        if not lifted:
            return x, y
        place = -1 if recording is None else place
        return Tensor(x, layout, recording if place >= 0 else None, place), Tensor(y, out, recording, at)

    def check(self, x: Tensor, on: Any) -> None:
        """Refuse an operand whose label on one of the axes is not taken, before anything is sent."""
        assert x.layout is not None
        for axis in on.names:
            have = x.layout[axis]
            if not any(have is t or (isinstance(t, type) and type(have) is t) for t in self.takes):
                raise LayoutError(self._refusal(x, x.layout, axis, have))

    def label(self, x: Any, layout: Layout, call: Call) -> Layout:
        """The result's layout; LayoutError if an axis' label is not one that this collective takes."""
        key = (layout, call.axes, call.to) if self.gives is told else None
        known = self._labels.get(key) if key is not None else None
        if known is not None:
            return known
        result = layout
        if self.nonlinear:
            self._refuse_addends(x, layout)
        for k, axis in enumerate(call.axes):
            have = layout[axis]
            if not any(have is t or (isinstance(t, type) and type(have) is t) for t in self.takes):
                raise LayoutError(self._refusal(x, layout, axis, have))
            result = result.replace((axis,), self.gives(call, layout, k, x.array.shape))
        if self.resizes is not None and layout.special:
            key = None  # the dimensions are not part of it
            resized = set(self.resizes(call, [layout[axis] for axis in call.axes]))
            stale = [a for a, x in layout.items() if a not in call.axes and type(x) is Shard and x.dim in resized]
            result = result.replace(stale, V) if stale else result
        if key is not None and not isinstance(call.to, Shard):
            self._labels[key] = result
        return result

    def _refuse_addends(self, x: Any, layout: Layout) -> None:
        for axis, have in layout.items():
            if have is P:
                name = x.name or "x"
                raise LayoutError(
                    f"{self.name}({name}: {describe(x.array, x.array.shape, layout)})\n  axis {axis!r}: {name} is "
                    f"Partial, and {self.name} is not linear: of addends it is not that of their sum\n  fix: "
                    f"all_reduce({name}, {axis!r}, to=R)   (an all-reduce in both directions)" + call_site()
                )

    def _refusal(self, x: Any, layout: Layout, axis: str, have: Label) -> str:
        words = " or ".join(dict.fromkeys(t.word if isinstance(t, Label) else t.__name__ for t in self.takes))
        name = x.name or "x"
        lines = [
            f"{self.name}({name}: {describe(x.array, x.array.shape, layout)}, axis {axis!r})",
            f"  axis {axis!r}: {name} is {have.word}; {self.name} takes "
            f"{words}{_WHY.get((self.name, have.letter), '')}",
        ]
        found = [(how, cost) for label, how, cost in fixes(have) if any(label is t for t in self.takes)]
        if self.nonlinear and (have is R or have is I or have is C):
            lines.append(f"  fix: leave {self.name} out, since {name} is the same on all ranks of the axis")
        elif found:
            how, cost = found[0]
            lines.append(f"  fix: {how.format(x=name, a=axis, d=getattr(have, 'dim', 0))}   ({cost})")
        else:
            lines.append(f"  fix: {_INSTEAD.get((self.name, have.letter), _instead(name, axis, have))}")
        return "\n".join(lines) + call_site()

    # -- the sweeps --------------------------------------------------------------------------------------------
    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """One step of the reverse sweep; without a cotangent the ranks still communicate, zeros."""
        (place,), (call, layout, out, result, operand) = node[3], node[4]
        ct = arrived(ct, out, result, call, sweep)
        if self.nonlinear:
            g = self._adjoint(ct, call, *self.saved(node, sweep.record, sweep.recording, sweep.place))
        else:
            g = self._adjoint(ct, call)
        self.hand_on(g, place, layout, operand, call, sweep)

    def hand_on(self, g: Any, place: int, layout: Layout, operand: Any, call: Call, sweep: Sweep) -> None:
        """Add what the adjoint gave to the operand's cotangent."""
        if place < 0 or g is None:
            return
        raw = g.array if g.__class__ in TENSORS else g
        if not operand[2] and is_absent(raw):  # dropped here: this rank's operand was not the root's
            g = made_up(operand[0], operand[1], call)
            g = Tensor(g, layout.dual) if sweep.record else g
        sweep.add(place, relabel(g, layout.dual) if sweep.record else g)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        """One step of forward mode: the same collective on the tangent, on zeros where there is none."""
        (place,), (call, layout, out, _, operand) = node[3], node[4]
        t = carried[place - start] if place >= start else None
        if t is None and operand is not None:
            shape, dtype, absent = operand
            t = Shaped(shape, dtype, "it is rooted elsewhere") if absent else made_up(shape, dtype, call)
            t = Tensor(t, layout) if record else t
        if self.nonlinear:
            assert self._derivative is not None
            return self._derivative(t, call, *self.saved(node, record, recording, at))
        return self.tangent(t, call, out, record)

    def tangent(self, t: Any, call: Call, out: Layout, record: bool) -> Any:
        """Forward mode's step: linear, so the collective itself."""
        return self(t, call)


def _request(group: Communicator, name: str, arguments: tuple[Any, ...]) -> Request:
    """The request of a call that is asked by name."""
    x, *more = arguments or (None,)
    if name in ("maximum", "product"):
        return Request("all_reduce", x, op="max" if name == "maximum" else "prod")
    if name == "broadcast" and more[0] != group.rank:
        return Request(name, out=x, root=more[0])
    if name == "recv":
        return Request(name, out=x, peer=more[0])
    words = {"broadcast": ("root",), "reduce": ("root",), "gather": ("counts", "root"), "all_gather": ("counts",),
             "scatter": ("counts", "root", "dtype"), "reduce_scatter": ("counts",), "send": ("peer",),
             "all_to_all": ("counts", "receive_counts")}  # fmt: skip
    if name in ("scan", "get", "accumulate"):
        return Request(name, x, options=tuple(more))
    return Request(name, x, **dict(zip(words.get(name, ()), more, strict=True)))


def unchanged(x: Any, call: Call) -> Any:
    """What a relabel does with raw arrays."""
    return x


def arrived(ct: Any, out: Layout, result: Any, call: Call, sweep: Sweep) -> Any:
    """The cotangent that an adjoint is given: zeros where none arrived, with labels where the sweep is recorded."""
    if ct is None:
        shape, dtype, absent = result
        ct = Shaped(shape, dtype, "it is rooted elsewhere") if absent else made_up(shape, dtype, call)
    if sweep.record:
        ct = relabel(ct, out.dual) if ct.__class__ in TENSORS else Tensor(ct, out.dual)
    return ct


def made_up(shape: tuple[int, ...], dtype: Any, call: Call) -> Any:
    """Zeros in the place of what did not arrive, on the operand's device."""
    return np.zeros(shape, dtype) if call.like is None else np.zeros_like(call.like, shape=shape, dtype=dtype)


def compared_layout(layout: Layout, axes: tuple[str, ...]) -> str:
    """The labels that must be the same on all ranks of a call along `axes`, as text.

    Along these axes V, P, Shard and Rooted are not told apart: where a collective takes several of them it makes the
    same of each, a rank that contributes nothing has a plain zero (V) where others have addends (P), and off the root
    there may be no operand at all.
    """
    shown = [
        f"{name}: {x!r}"
        for name, x in layout.items()
        if name not in axes or not (x is V or x is P or isinstance(x, Shard | Rooted))
    ]
    return "{" + ", ".join(shown) + "}" if shown else ""


def told(call: Call, layout: Layout, k: int, shape: Any) -> Label:
    """The result's label is the one that the call asks for."""
    return call.to


_new = object.__new__
_PLAIN = (np.ndarray, np.generic, Shaped)
_MOST_TEXTS = 1000
# what a fingerprint tells in its own way, or leaves out: the operand's label (V and P may meet) and what is local
_TOLD = {"axes", "group", "to", "source", "root", "dim", "extents", "dim2", "extents2", "pairs", "shape", "dtype",
         "like", "elsewhere"}  # fmt: skip
_ROOTED = {"broadcast", "reduce", "scatter", "gather"}
_WHY = {
    ("all_reduce", "R"): ": the sum over ranks of equal copies is the value times the number of ranks",
    ("all_reduce", "I"): ": the sum over ranks of equal copies is the value times the number of ranks",
    ("shard", "P"): ": a slice of an addend is not a slice of the sum",
    ("all_gather", "P"): ": the ranks hold addends, not parts",
}
_INSTEAD = {
    ("shard", "P"): "reduce_scatter(x, axis, dim=...)   (takes the sum and keeps this rank's part of it)",
}


def _instead(name: str, axis: str, have: Label) -> str:
    if have is R or have is I or have is C:
        return (
            f"leave the collective out, since {name} is the same on all ranks; or say what is meant: "
            f"cast({name}, {axis!r}, to=P)   (one copy, kept on the first rank)"
        )
    if have is P:
        return f"reduce_scatter({name}, {axis!r}) or all_reduce({name}, {axis!r}, to=R) first"
    if type(have) is Shard:
        return f"cast({name}, {axis!r}, to=V)   (free; says that the parts are values of their own)"
    return f"bring {name} to a layout that it takes"


def _flat_forward(name: str) -> Callable[[Any, Call], Any]:
    """The blocking form of a call that takes the operand flat and gives the result flat, with no frame too many."""
    def forward(x: Any, call: Call) -> Any:
        group = call.group
        if group.size == 1:
            return x
        if x.__class__ is ndarray and x.flags.c_contiguous:
            return getattr(group, name)(x) if x.ndim == 1 else getattr(group, name)(x.reshape(-1)).reshape(x.shape)
        return back(getattr(group, name)(host_flat(x)), x.shape, x)

    return forward


def in_shape(flat: np.ndarray, x: Any, call: Call) -> Any:
    """A transport's result in the operand's shape: what is left to do after a sum."""
    return back(flat, x.shape, x)


_new = object.__new__


class Repeated:
    """A call of `all_reduce` for operands of one layout. It keeps no operand alive.

    Parameters
    ----------
    collective : Collective
        It asks for the transport's `all_reduce` of the operand, and nothing else.
    call : Call
        As it was made before, and found right.
    layout, out : Layout
        The operand's and the result's.
    """

    __slots__ = (
        "call", "collective", "dtype", "group", "is_alone", "is_flat", "kind", "layout", "options", "out", "shape"
    )  # fmt: skip

    def __init__(self, collective: Collective, call: Call, layout: Layout, out: Layout):
        self.collective, self.call, self.group, self.layout, self.out = collective, call, call.group, layout, out
        self.is_alone = call.group.size == 1  # nothing is sent
        self.kind: Any = None  # the last operand's class
        self.shape: tuple[int, ...] = ()
        self.dtype: Any = None
        self.is_flat = False  # whether the transport takes it as it is
        self.options: tuple[Any, ...] = ()  # what its node tells of the call: nodes of equal calls share one tuple

    def again(self, x: Tensor) -> Any:
        """What ``collective(x, call)`` makes."""
        array, recording = x.array, state.recording
        if (
            recording is None
            or not (
                array.__class__ is self.kind and array.dtype is self.dtype and array.shape == self.shape
                or self._fits(array)
            )
            or not array.flags.c_contiguous
            or listeners
            or starting
            or self.collective._forward is not self.collective.plain
            or (modes.limit and not self.is_alone and self.group.checking)
        ):
            return self.collective(x, self.call)
        y = self.group.all_reduce(array) if self.is_flat else self._in_shape(array)
        recording.communicates = True
        place = x.node if x.tape is recording else recording.enter(x)
        nodes = recording.nodes
        made = _new(Tensor)  # as `interior` does, one call less
        made.array, made.layout, made.tape, made.node = y, self.out, recording, len(nodes)
        nodes.append((self.collective, None, (), (place,), self.options, None, None))
        return made

    def _fits(self, array: Any) -> bool:
        """Whether an array is here, on the host, and differentiable; if so the next one is compared with it."""
        if not (array.__class__ is ndarray or isinstance(array, generic)) or array.dtype.kind not in "fc":
            return False
        self.kind = array.__class__
        self.shape, self.dtype = array.shape, array.dtype
        self.is_flat = array.ndim == 1 and not self.is_alone
        told = self.shape, self.dtype, False
        self.options = self.call, self.layout, self.out, told, told
        return True

    def _in_shape(self, array: Any) -> Any:
        return array if self.is_alone else back(self.group.all_reduce(host_flat(array)), array.shape, array)
