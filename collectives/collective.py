"""How a collective is declared: what it asks of the transport, the layouts it takes, and its adjoint.

    gathering = Collective("all_gather", takes=(V, Shard), gives=...)
    @gathering.asks
    def _(x, call):                                          # raw arrays
        return Request("all_gather", flat(x), counts=call.extents), InShape(shape)
    @gathering.adjoint
    def _(ct, call): return scattering(ct, call, to=V)       # other collectives, so that it can be recorded too

The layout of the adjoint follows by duality and is never written. On an active tape a collective is recorded whatever
its operand requires (DESIGN: the order of communications is the same on all ranks), and a sweep runs its adjoint even
where no cotangent arrived.

The forward direction is declared once, in one of two ways:

    asks      one `Request` of the transport, and a function that makes the result of the answer, the operand and the
              call. The blocking form runs the request, the nonblocking one starts it, the plan runs it on a stand-in
              for the group. None in the place of a request asks for nothing, and the answer is None. Everything in the
              request but its operand follows from the call and the operand's shape and dtype. Two words of the
              declaration go before: `alone`, the result on a single rank (the operand itself, unless said otherwise;
              None: it asks all the same), and `sends`, the messages that leave first
    forward   anything else: the work of one rank, or several requests. It has no nonblocking form

The `word` of a declaration says how the result depends on the operand, as for a local operation:

    a   linear, which is the default: forward mode is the collective itself, and the node keeps no array
    N   nonlinear: the node keeps the operand and the result, and two rules read them

    all_max = Collective("all_max", takes=(V, Shard), word="N")
    @all_max.adjoint
    def _(ct, call, x, y): ...                               # operations and collectives, so that it can be recorded
    @all_max.derivative
    def _(t, call, x, y): ...                                # forward mode: the tangent of the result

At first order the rules get raw arrays, in a recorded sweep Tensors with x and y at their places on the tape: so the
second derivative goes through what the rules read too. A nonlinear collective refuses Partial on every axis.

A repeated use of a collective is cheap: labels, checks, the text that ranks compare, the request and the node's facts
are settled once for a call and an operand's layout, shape and dtype, and kept as a `Prepared`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

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

from .call import Call, keep
from .checks import modes, sanitizer
from .staging import InShape
from .transports.protocol import Pending, Request
from .transports.request import answer

__all__ = ["Asked", "Collective", "Prepared", "Refusal", "absent_or_zeros", "arrived", "collectives", "compared_layout"]


Asked = tuple[Request | None, Callable[[Any, Any, Call], Any]]
"""A request of the transport, and ``finish(answer, operand, call)``, which makes the result."""


class Refusal(NamedTuple):
    """Why a collective does not take a label, and what to call instead, where that is not said for all of them."""

    why: str
    instead: str = ""


def itself(x: Any, call: Call) -> Any:
    """The result of most collectives where there is one rank."""
    return x


collectives: dict[str, Collective] = {}
"""Every collective by name: the test plan."""


class Collective:
    """An operation between ranks, with its adjoint; linear, unless its word is N.

    Parameters
    ----------
    name : str
    takes : tuple of labels and classes of labels
        The operand's, on each of the call's axes.
    gives : Label or callable, optional
        The result's label: one for all calls, or ``gives(call, layout, k, shape)`` for the k-th of the call's axes.
        Without it the label is ``call.to``.
    silent : bool
        The forward direction sends nothing.
    free : bool
        Neither direction sends anything.
    meets : bool
        It begins with one call of the group that all its ranks make, so that a transport may join the comparison of
        fingerprints to it.
    rooted : bool
        One rank has a part of its own, ``call.root``.
    between_two : bool
        It is one end of a message, so that the other ranks of the group know nothing of it; ``call.root`` is the other
        end. A header says what was sent, and no fingerprint is compared.
    shape : callable, optional
        ``shape(shape, call)``: the result's shape as a list, where it is not the operand's.
    word : {"a", "N"}
        Linear or nonlinear.
    alone : callable or None
        ``alone(x, call)``: the result on a single rank; None where the transport is asked all the same.
    sends : callable, optional
        ``sends(x, call)``: requests that are run before the one that `asks` gives.
    resizes : callable, optional
        ``resizes(call, labels)``: the dimensions whose extents change in a way that no label tells.
    refuses : mapping from Label to Refusal
        Reasons and fixes for labels that are not taken, where it has its own.
    """

    def __init__(
        self,
        name: str,
        takes: tuple[Any, ...],
        gives: Label | Callable[[Call, Layout, int, Any], Label] | None = None,
        *,
        silent: bool = False,
        free: bool = False,
        meets: bool = False,
        rooted: bool = False,
        between_two: bool = False,
        shape: Callable[[list[int], Call], Any] | None = None,
        word: str = "a",
        alone: Callable[[Any, Call], Any] | None = itself,
        sends: Callable[[Any, Call], Iterable[Request]] | None = None,
        resizes: Callable[[Call, list[Label]], Iterable[int]] | None = None,
        refuses: Mapping[Label, Refusal] | None = None,
    ):
        self.name = name
        self.takes = takes
        self.gives = gives
        self.silent = silent
        self.free = free
        self.communicates = not free
        self.meets = meets
        self.rooted = rooted
        self.between_two = between_two
        self.shape = shape
        self.nonlinear = word == "N"
        self.alone = alone
        self.sends = sends
        self.resizes = resizes
        self.refuses = refuses or {}
        self._asks: Callable[[Any, Call], Asked] | None = None
        self._forward: Callable[..., Any] = itself
        self._asking: Callable[..., Any] | None = None  # the forward direction that `asks` makes
        self._adjoint: Callable[..., Any] = itself
        self._derivative: Callable[..., Any] | None = None
        collectives[name] = self

    def __repr__(self) -> str:
        return f"<collective {self.name}>"

    # -- its rules ---------------------------------------------------------------------------------------------
    def asks(self, function: Callable[[Any, Call], Asked]) -> Callable[[Any, Call], Asked]:
        """Decorator: the request of the transport and the function that makes the result, on raw arrays."""

        def forward(x: Any, call: Call, keep: Any = None) -> Any:
            group = call.group
            if self.alone is not None and group.size == 1:
                return self.alone(x, call)
            if self.sends is not None:
                for message in self.sends(x, call):
                    group.run(message)
            request, finish = function(x, call)
            if keep is not None:
                keep(x, request, finish)
            return finish(None if request is None else group.run(request), x, call)

        self._asks, self._forward, self._asking = function, forward, forward
        return function

    def forward(self, function: Callable[[Any, Call], Any]) -> Callable[[Any, Call], Any]:
        """Decorator: the forward direction on raw arrays, where that is not one request."""
        self._asks, self._forward, self._asking = None, function, None
        return function

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

        `changes` make an adjoint's call of the forward one. They are kept with it, so that every sweep finds the same.
        """
        if changes:
            call = call.variant(**changes)
        if call.begin is not None:
            return call.begin(self, x, call)
        if x.__class__ not in TENSORS:
            if self._forward is itself:
                return x
            known = call.prepared.get((self, x.__class__, x.shape, x.dtype))  # `run`, one frame less
            return (known or self.prepare(x, None, call)).run(x, None)
        return self.prepared(x, call).apply(x)

    def prepared(self, x: Tensor, call: Call) -> Prepared:
        """The `Prepared` of a Tensor: the one that is kept with the call, or a new one."""
        layout = x.layout
        if layout is None:
            layout = x.labelled(state.grid)  # type: ignore[arg-type]
        array = x.array
        known = call.prepared.get((self, layout, array.__class__, array.shape, array.dtype))
        return known or self.prepare(array, layout, call, x.name)

    def prepare(self, x: Any, layout: Layout | None, call: Call, name: str = "") -> Prepared:
        """Check the labels and settle everything about a call that does not depend on the operand's values."""
        out = None if layout is None else self.label(x, layout, call, name)
        made = Prepared(self, call, layout, out, outline(x))
        if x.__class__ is not Shaped:  # two of them may differ in why they have no values
            key = (self, x.__class__, x.shape, x.dtype) if layout is None else (
                self, layout, x.__class__, x.shape, x.dtype)  # fmt: skip
            keep(call.prepared, key, made)
        return made

    def run(self, x: Any, call: Call) -> Any:
        """The forward direction on a raw array in a sweep, or on None where this rank has no operand."""
        if x is None:
            return Prepared(self, call, None, None, None).run(None, None)
        known = call.prepared.get((self, x.__class__, x.shape, x.dtype))
        return (known or self.prepare(x, None, call)).run(x, None)

    def starts(self, call: Call) -> bool:
        """Whether a call has anything to start: something is asked of the transport, and of other ranks."""
        return self._asks is not None and not call.elsewhere and (self.alone is None or call.group.size > 1)

    def start(self, x: Any, call: Call) -> tuple[Pending[Any], Callable[[Any], Any]]:
        """Start the request: the transport's pending answer, and the function that makes the result of it."""
        group = call.group
        assert self._asks is not None
        for message in () if self.sends is None else self.sends(x, call):
            group.run(message)
        request, finish = self._asks(x, call)
        pending = Pending.done(None) if request is None else group.start(request)
        return pending, lambda y: finish(y, x, call)

    def fingerprint(self, x: Any, call: Call, recorded: bool | None) -> str:
        """What must be the same on all ranks of the group, as one line."""
        shape: list[Any] = list(call.shape or x.shape)
        if call.extents and len(shape) > call.dim and not call.shape:
            shape[call.dim] = "*"
        if call.extents2 and len(shape) > call.dim2:
            shape[call.dim2] = "*"
        own = call.extents2 and call.dim == call.dim2  # what a rank sends and receives along one dimension is its own
        sizes = f" extents={list(call.extents)}" if call.extents and not own else ""
        root = f" root={call.root}" if self.rooted or isinstance(call.to, Rooted) else ""
        dtype = call.dtype if call.dtype is not None else x.dtype
        pairs = f" pairs={list(call.pairs)}" if call.pairs else ""
        options = "" if call.options == () else f" options={call.options!r}"
        return (
            f"{self.name}(axis={'*'.join(call.axes)!r} shape=[{','.join(map(str, shape))}] dtype={np.dtype(dtype)}"
            f"{sizes}{root}{pairs}{options} to={call.to!r}) {_HOW[recorded]}"
        )

    # -- labels ------------------------------------------------------------------------------------------------
    def takes_label(self, have: Label) -> bool:
        """Whether it takes an operand with this label."""
        return any(have is t or (isinstance(t, type) and type(have) is t) for t in self.takes)

    def check(self, x: Tensor, on: Any) -> None:
        """Refuse an operand whose label on one of the axes is not taken, before anything is sent."""
        assert x.layout is not None
        for axis in on.names:
            if not self.takes_label(x.layout[axis]):
                raise LayoutError(self._refusal(x.array, x.layout, axis, x.name))

    def label(self, x: Any, layout: Layout, call: Call, name: str = "") -> Layout:
        """The result's layout; LayoutError if an axis' label is not one that this collective takes."""
        result = layout
        if self.nonlinear:
            self._refuse_addends(x, layout, name or "x")
        for k, axis in enumerate(call.axes):
            if not self.takes_label(layout[axis]):
                raise LayoutError(self._refusal(x, layout, axis, name))
            gives = call.to if self.gives is None else self.gives
            label = gives if isinstance(gives, Label) else gives(call, layout, k, x.shape)
            result = result.replace((axis,), label)
        if self.resizes is not None and layout.special:
            resized = set(self.resizes(call, [layout[axis] for axis in call.axes]))
            stale = [a for a, x in layout.items() if a not in call.axes and type(x) is Shard and x.dim in resized]
            result = result.replace(stale, V) if stale else result
        return result

    def _refuse_addends(self, x: Any, layout: Layout, name: str) -> None:
        for axis, have in layout.items():
            if have is P:
                raise LayoutError(
                    f"{self.name}({name}: {describe(x, x.shape, layout)})\n  axis {axis!r}: {name} is "
                    f"Partial, and {self.name} is not linear: of addends it is not that of their sum\n  fix: "
                    f"all_reduce({name}, {axis!r}, to=R)   (an all-reduce in both directions)" + call_site()
                )

    def _refusal(self, x: Any, layout: Layout, axis: str, name: str) -> str:
        have, name = layout[axis], name or "x"
        words = " or ".join(dict.fromkeys(t.word if isinstance(t, Label) else t.__name__ for t in self.takes))
        own = self.refuses.get(have, Refusal(""))
        lines = [
            f"{self.name}({name}: {describe(x, x.shape, layout)}, axis {axis!r})",
            f"  axis {axis!r}: {name} is {have.word}; {self.name} takes {words}{': ' if own.why else ''}{own.why}",
        ]
        found = [(how, cost) for label, how, cost in fixes(have) if any(label is t for t in self.takes)]
        if self.nonlinear and (have is R or have is I or have is C):
            lines.append(f"  fix: leave {self.name} out, since {name} is the same on all ranks of the axis")
        elif found:
            how, cost = found[0]
            lines.append(f"  fix: {how.format(x=name, a=axis, d=getattr(have, 'dim', 0))}   ({cost})")
        else:
            lines.append(f"  fix: {own.instead or _instead(name, axis, have)}")
        return "\n".join(lines) + call_site()

    # -- the sweeps --------------------------------------------------------------------------------------------
    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """One step of the reverse sweep; without a cotangent the ranks still communicate, zeros."""
        made: Prepared = node[4]
        if ct is None or sweep.record:
            ct = arrived(ct, made.out, made.result, made.call, sweep)
        if self.nonlinear:
            g = self._adjoint(ct, made.call, *self.saved(node, sweep.record, sweep.recording, sweep.place))
        else:
            g = self._adjoint(ct, made.call)
        (place,) = node[3]
        if g.__class__ is ndarray:
            sweep.add(place, g)
        else:
            self.hand_on(g, place, made.layout, made.operand, made.call, sweep)

    def hand_on(self, g: Any, place: int, layout: Layout | None, operand: Any, call: Call, sweep: Sweep) -> None:
        """Add what the adjoint gave to the operand's cotangent."""
        if place < 0 or g is None:
            return
        assert layout is not None
        raw = g.array if g.__class__ in TENSORS else g
        if not operand[2] and is_absent(raw):  # dropped here: this rank's operand was not the root's
            g = zeros(operand[0], operand[1], call)
            g = Tensor(g, layout.dual) if sweep.record else g
        sweep.add(place, relabel(g, layout.dual) if sweep.record else g)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        """One step of forward mode: the same collective on the tangent, on zeros where there is none."""
        (place,), made = node[3], node[4]
        t = carried[place - start] if place >= start else None
        if t is None and made.operand is not None:
            t = absent_or_zeros(made.operand, made.call)
            t = Tensor(t, made.layout) if record else t
        if self.nonlinear:
            assert self._derivative is not None
            return self._derivative(t, made.call, *self.saved(node, record, recording, at))
        return self.tangent(t, made.call, made.out, record)

    def tangent(self, t: Any, call: Call, out: Layout | None, record: bool) -> Any:
        """Forward mode's step: linear, so the collective itself."""
        return self(t, call)

    def saved(self, node: Node, lifted: bool, recording: Recording | None = None, at: int = -1) -> tuple[Any, ...]:
        """What the rules of a nonlinear collective read: operand and result, on their tape if one is given."""
        if not self.nonlinear:
            return ()
        y, (x,), (place,), made = node[1:5]
        if not lifted:
            return x, y
        place = -1 if recording is None else place
        return Tensor(x, made.layout, recording if place >= 0 else None, place), Tensor(y, made.out, recording, at)


class Prepared:
    """A collective, its call, and everything about an operand but its values. It keeps no operand alive.

    Nodes hold it, so that a sweep finds in it all that it needs; the sweep's own calls are kept with `call`.

    Attributes
    ----------
    collective : Collective
    call : Call
    layout, out : Layout or None
        The operand's and the result's; None in a sweep at first order, where nothing has labels.
    operand, result : (shape, dtype, whether it is absent)
        Of the arrays; None for an operand that there is not, and for a result before the first one.
    """

    __slots__ = (
        "_answer", "_is_compared", "_is_flat", "_is_identity", "_is_inexact", "_request", "_result_dtype",
        "_result_shape", "_rule", "_texts", "call", "collective", "group", "layout", "operand", "out", "result",
    )  # fmt: skip

    def __init__(self, collective: Collective, call: Call, layout: Layout | None, out: Layout | None, operand: Any):
        if layout is not None and layout.rooted and layout.absent_beyond(call.axes):
            call = call.but(elsewhere=True)
        self.collective, self.call, self.group, self.layout, self.out = collective, call, call.group, layout, out
        self.operand = operand
        self.result: Any = None
        self._result_dtype: Any = None
        self._is_inexact = (call.dtype if operand is None else operand[1]).kind in "fc"
        self._is_compared = call.group.size > 1 and not (
            call.elsewhere or collective.between_two or (collective.silent and layout is None)
        )
        self._rule = rule = collective._forward
        is_alone = call.group.size == 1 and collective.alone is itself and rule is collective._asking
        self._is_identity = rule is itself or (is_alone and not call.elsewhere)
        self._texts: dict[bool | None, str] = {}
        # the last request without its operand, if another contiguous operand is all that changes; False if not
        self._request: Any = None
        self._is_flat = False  # whether the operand is the transport's as it is
        self._answer: Any = None  # the number of elements and the dtype of its result
        self._result_shape: tuple[int, ...] | None = None  # what a flat answer is brought to; None: it stays flat

    def apply(self, x: Tensor | None) -> Tensor:
        """Run it on a Tensor and record that; an operand that nothing depends on is recorded too."""
        array, recording, collective = None if x is None else x.array, state.recording, self.collective
        if recording is None or not self._is_inexact:
            return Tensor(self.run(array, False, x), self.out)
        y = self.run(array, True, x)
        if x is None:
            place = -1
        elif x.tape is recording:
            place = x.node
        else:
            known = recording.leaves.get(id(x))  # `enter` looks there first too; a leaf is found without its call
            place = recording.enter(x) if known is None else known
        told = self if y.dtype is self._result_dtype and y.shape == self.result[0] else self._giving(array, y)
        if collective.communicates:
            recording.communicates = True
        nodes = recording.nodes
        made = _new(Tensor)  # without the call that the class' own constructor costs
        made.array, made.layout, made.tape, made.node = y, self.out, recording, len(nodes)
        if collective.nonlinear:
            nodes.append((collective, y, (array,), (place,), told, None, None))
        else:
            nodes.append((collective, None, (), (place,), told, None, None))
        return made

    def run(self, x: Any, recorded: bool | None, operand: Tensor | None = None) -> Any:
        """Compare the call with the other ranks', where that is asked for, and run it on an array.

        `recorded` is None in a sweep at first order; `operand` is the Tensor of which `x` is the array.
        """
        if modes.limit and self._is_compared and self.group.checking:
            self.compare(x, recorded, operand)
        if listeners:
            return self._run_between_events(x, operand)
        if self.collective._forward is self._rule:  # and not one that a test has put there
            if self._is_identity:
                return x
            request = self._request
            if request and x.flags.c_contiguous:
                y = self.group.run_again(request, x if self._is_flat else x.reshape(-1), self._answer)
                return y if self._result_shape is None else y.reshape(self._result_shape)
        return self._run_rule(x)

    def _run_between_events(self, x: Any, operand: Tensor | None) -> Any:
        name = self.collective.name
        events.emit("begin", "forward", name)
        y = self._run_rule(x)
        events.emit("end", "forward", name, self.collective, () if operand is None else (operand,), y)
        return y

    def _run_rule(self, x: Any) -> Any:
        collective, call = self.collective, self.call
        if call.elsewhere:
            shape = list(call.shape if x is None else x.shape)
            shape = shape if collective.shape is None else collective.shape(shape, call)
            return Shaped(shape, call.dtype if x is None else x.dtype, "it is rooted elsewhere on another axis")
        if collective._forward is collective._asking and self._request is None:
            return collective._forward(x, call, self._keep)
        return collective._forward(x, call)

    def _keep(self, x: Any, request: Request | None, finish: Any) -> None:
        """Keep a request whose operand is the collective's own, as it lies, and whose answer only gets a shape."""
        if x.__class__ is not ndarray or request is None or finish.__class__ is not InShape:
            self._request = False
        elif x.flags.c_contiguous:
            flat = request.x
            same = flat.__class__ is ndarray and (flat.dtype, flat.size) == (x.dtype, x.size)
            same = same and flat.ctypes.data == x.ctypes.data and x.dtype != np.float16
            self._request = same and request.call != "send" and self.group.size > 1 and request._replace(x=None)
            self._is_flat = x.ndim == 1
            self._answer = answer(request, self.group.rank)
            self._result_shape = None if len(finish.shape) == 1 else finish.shape

    def compare(self, x: Any, recorded: bool | None, operand: Tensor | None) -> None:
        """Tell the other ranks of this call; under ``ranks`` mode with the operand's layout and its copies."""
        collective, call, layout = self.collective, self.call, ""
        if modes.watching and operand is not None:
            assert self.layout is not None
            sanitizer.witness(collective.name, operand)
            layout = compared_layout(self.layout, call.axes)
        if collective.free:
            return
        text = self._texts.get(recorded)
        if text is None:
            text = self._texts[recorded] = collective.fingerprint(x, call, recorded)
        tell = self.group.announce if collective.meets else self.group.agree
        tell(text, layout, collective.rooted)

    def _giving(self, array: Any, y: Any) -> Prepared:
        """This object once it has seen its first result; another one for a result of another shape or dtype."""
        made = self
        if self.result is not None:
            made = Prepared(self.collective, self.call, self.layout, self.out, self.operand)
        made.result, made._result_dtype = outline(y), y.dtype
        if state.dry:
            made.call = self.call.but(like=Shaped((0,), y.dtype, DRY))
        elif self.call.like is None and not (isinstance(y, _HOST) and isinstance(array, _HOST)):
            device = y if isinstance(array, _HOST) else array
            made.call = self.call.but(like=np.empty_like(device, shape=(0,)))  # what a sweep makes up lives there too
        return made


def outline(x: Any) -> tuple[tuple[int, ...], Any, bool]:
    """An array's shape and dtype, and whether another rank has its values."""
    return x.shape, x.dtype, x.__class__ is Shaped and x.absent


def zeros(shape: tuple[int, ...], dtype: Any, call: Call) -> Any:
    """Zeros in the place of what did not arrive, on the operand's device."""
    return np.zeros(shape, dtype) if call.like is None else np.zeros_like(call.like, shape=shape, dtype=dtype)


def absent_or_zeros(known: tuple[tuple[int, ...], Any, bool], call: Call) -> Any:
    """A cotangent or tangent that did not arrive, for a value with this outline."""
    shape, dtype, is_absent_here = known
    return Shaped(shape, dtype, "it is rooted elsewhere") if is_absent_here else zeros(shape, dtype, call)


def arrived(ct: Any, out: Layout | None, result: Any, call: Call, sweep: Sweep) -> Any:
    """The cotangent that an adjoint is given: zeros where none arrived, with labels where the sweep is recorded."""
    if ct is None:
        ct = absent_or_zeros(result, call)
    if sweep.record:
        assert out is not None
        ct = relabel(ct, out.dual) if ct.__class__ in TENSORS else Tensor(ct, out.dual)
    return ct


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


_new = object.__new__
_HOST = (np.ndarray, np.generic, Shaped)
_HOW = {None: "in a backward sweep", True: "recorded", False: "not recorded"}
