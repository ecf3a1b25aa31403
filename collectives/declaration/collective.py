"""Declaration of a collective: its request to the transport, the layouts that it takes, and its adjoint.

    gathering = Collective("all_gather", takes=(V, Shard), gives=...)
    @gathering.asks
    def _(x, call):                                          # raw arrays
        return Request("all_gather", flat(x), counts=call.extents), InShape(shape)
    @gathering.adjoint
    def _(ct, call): return scattering(ct, call, to=V)       # other collectives, so that it can be recorded too

==========  ========================================================================================================
function    gets raw arrays, and Tensors in a recorded sweep; it returns
==========  ========================================================================================================
asks        one `Request` to the transport, and ``finish(answer, operand, call)``, which computes the result
forward     the result of any other computation: local work, or several requests. It has no nonblocking form
adjoint     the cotangent of the operand; its layout follows by duality and is never declared
derivative  of a nonlinear collective (``word="N"``): the tangent of the result
==========  ========================================================================================================

A collective on an active tape is always recorded, and a sweep runs its adjoint even if no cotangent arrived: so all
ranks communicate in the same order. The whole grammar: "How a collective is declared" in `docs/guides/collectives.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from numpy import float32, float64, ndarray

from autograd.arrays.capture import Whole, recorded
from autograd.arrays.device import dtype_name
from autograd.arrays.shape_only import Shaped, is_absent
from autograd.engine.events import listeners
from autograd.engine.primitive import Declared
from autograd.engine.recording import Node, Recording, arrays_of, options_of, parents_of, result_of
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import TENSORS, Tensor, relabel
from autograd.errors import ArgumentError, DtypeError, LayoutError, OptionError, short
from autograd.layouts.layout import Label, Layout, P, Rooted, Shard, V, may_relabel
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of

from ..transports.protocol import Communicator, Pending, Request
from ..transports.request import is_communicated, not_communicated
from .call import Call, Refusal, keep
from .prepared import Prepared, absent_or_zeros, arrived, copied, itself, outline, zeros

__all__ = ["Asked", "Collective", "collectives"]


Asked = tuple[Request | None, Callable[[Any, Any, Call], Any]]
"""A request to the transport, and ``finish(answer, operand, call)``, which computes the result."""


collectives: dict[str, Collective] = {}
"""Every collective by name. The tests run over all of them."""


def _refusals() -> Any:
    """The texts of the errors about labels, which are loaded when the first one is told."""
    from . import refusals

    return refusals


def _is_label(label: Any) -> bool:
    return isinstance(label, Label) or (isinstance(label, type) and issubclass(label, Label))


class Collective:
    """An operation between ranks, with its adjoint. It is linear unless `word` is "N".

    A collective of your own has two functions, set with `forward` and `adjoint`. ``forward(x, call)`` gets this rank's
    part as a plain array of any shape and returns an array. ``adjoint(ct, call)`` gets the cotangent and calls another
    collective on it, so that it can be recorded. The calls of the transport, ``call.group``, take and return flat
    arrays, so ``x.ravel()`` goes in and ``.reshape(...)`` follows:

    - ``group.size`` and ``group.index``: the number of ranks along the axis, and this rank's index among them;
    - ``group.all_reduce(x)``: the sum (``op="max"`` or ``"prod"``: the maximum or the product);
    - ``group.all_gather(x, counts)``: all parts in order of the ranks, with one number of elements per rank;
      ``group.reduce_scatter(x, counts)``: this rank's part of the sum;
    - ``group.all_to_all(x, send_counts, receive_counts)``, ``group.broadcast(x, root)`` (`x` is the buffer on other
      ranks), ``group.send(x, dst)``, ``group.recv(buffer, src)``.

    ``cc.apply(collective, x, axis)`` calls it on a Tensor, and ``cc.testing.check(collective)`` compares both functions
    on several numbers of ranks.

    Parameters
    ----------
    name : str
    takes : tuple of labels and classes of labels
        The labels that the operand may have on each axis of the call.
    gives : Label or callable, optional
        The result's label: one label for all calls, or ``gives(call, layout, k, shape)`` for the k-th axis of the call.
        The default is ``call.to``.
    silent : bool
        The forward direction sends nothing.
    free : bool
        Neither direction sends anything.
    meets : bool
        It begins with one transport call that all ranks of the group make, so a transport may combine the comparison of
        fingerprints with that call.
    adds : bool
        It sums its operand over the ranks, so equal operands are probably a mistake: see `scale.addends`.
    gathers : bool
        It puts the operands of the ranks beside each other. The program may sum them later, so the ranks compare what
        they have counted, as before a sum.
    rooted : bool
        One rank, ``call.root``, has a special role.
    between_two : bool
        It is one end of a message between two ranks; the other end is ``call.root``. The other ranks of the group do
        not take part, so a header describes what is sent, and no fingerprint is compared.
    shape : callable, optional
        ``shape(shape, call)``: the result's shape as a list. The default is the operand's shape.
    word : {"a", "N"}
        Linear or nonlinear.
    alone : callable or None
        ``alone(x, call)``: the result on a single rank, by default a copy of the operand. With None the request is made
        there too.
    sends : callable, optional
        ``sends(x, call)``: requests that are run before the request of `asks`.
    resizes : callable, optional
        ``resizes(call, labels)``: dimensions of the result whose extents no label describes.
    refuses : mapping from Label or class of labels to Refusal
        Reasons and fixes for labels that are not taken, where they differ from the usual ones.
    replace : bool
        Whether the collective may take the name of another one.
    registered : bool
        Whether the collective is entered in the registry under its name, which then must be its own.

    Raises
    ------
    ArgumentError
        The name is no text, or `takes` no tuple of labels.
    OptionError
        The name is taken by another collective. A declaration that is executed again, as by running the cell of a
        notebook twice, replaces the earlier one.

    Examples
    --------
    >>> import collectives as cc
    >>> def moved(x, call, by):
    ...     n = call.group.size
    ...     every = call.group.all_gather(x.ravel(), [x.size] * n).reshape((n, *x.shape))
    ...     return every[(call.group.index - by) % n]
    >>> shift = cc.Collective("shift", takes=(cc.V,), gives=cc.V, registered=False)
    >>> shift_back = cc.Collective("shift back", takes=(cc.V,), gives=cc.V, registered=False)
    >>> _ = shift.forward(lambda x, call: moved(x, call, 1))
    >>> _ = shift_back.forward(lambda x, call: moved(x, call, -1))
    >>> _ = shift.adjoint(lambda ct, call: shift_back(ct, call))
    >>> _ = shift_back.adjoint(lambda ct, call: shift(ct, call))
    >>> cc.testing.check(shift, ranks=[2, 3]).ok
    True
    """

    makes_rows = True
    """Whether a captured step repeats its calls (`transforms.recorder`)."""

    def __init__(
        self,
        name: str,
        takes: tuple[Any, ...],
        gives: Label | Callable[[Call, Layout, int, Any], Label] | None = None,
        *,
        silent: bool = False,
        free: bool = False,
        meets: bool = False,
        adds: bool = False,
        gathers: bool = False,
        rooted: bool = False,
        between_two: bool = False,
        shape: Callable[[list[int], Call], Any] | None = None,
        word: str = "a",
        alone: Callable[[Any, Call], Any] | None = copied,
        sends: Callable[[Any, Call], Iterable[Request]] | None = None,
        resizes: Callable[[Call, list[Label]], Iterable[int]] | None = None,
        refuses: Mapping[Label | type[Label], Refusal] | None = None,
        replace: bool = False,
        registered: bool = True,
    ):
        if not isinstance(name, str) or not isinstance(takes, tuple) or not all(map(_is_label, takes)):
            raise ArgumentError(
                f"Collective({name!r}, takes={takes!r}) was given; needed: a name, and a tuple of labels\n"
                "  fix: cc.Collective('total', takes=(V,), gives=R)"
            )
        if not isinstance(refuses, Mapping | None):
            raise ArgumentError(
                f"Collective({name!r}): refuses={short(refuses)} was given; needed: a mapping from labels"
            )
        flags = {"silent": silent, "free": free, "meets": meets, "adds": adds, "gathers": gathers, "rooted": rooted,
                 "between_two": between_two, "replace": replace, "registered": registered}  # fmt: skip
        for flag, value in flags.items():
            if value is not True and value is not False:
                raise ArgumentError(f"Collective({name!r}): {flag}={short(value)} was given; needed: True or False")
        self.declared = Declared.by(self, self)
        known = collectives.get(name) if registered else None
        if known is not None and not replace and not self.declared.repeats(known.declared):
            raise OptionError(
                f"Collective: the name {name!r} was given; it is the name of the collective that {known.declared} "
                "declares; needed: a name of its own. Fix: another name, or replace=True"
            )
        self.unchecked = not self.declared.is_own  # whether the adjoint's labels are compared at first use
        self._checked: WeakKeyDictionary[Communicator, set[Any]] = WeakKeyDictionary()
        self.name = name
        self.takes = takes
        self.gives = gives
        self.silent = silent
        self.free = free
        self.communicates = not free
        self.meets = meets
        self.adds = adds
        self.gathers = gathers
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
        self._asking: Callable[..., Any] | None = None  # the forward direction that `asks` builds
        self._adjoint: Callable[..., Any] = itself
        self._derivative: Callable[..., Any] | None = None
        if registered:
            collectives[name] = self

    def __repr__(self) -> str:
        return f"<collective {self.name}>"

    # -- its rules ---------------------------------------------------------------------------------------------
    def asks(self, function: Callable[[Any, Call], Asked]) -> Callable[[Any, Call], Asked]:
        """Decorator: the request to the transport and the function that computes the result, on raw arrays."""

        def forward(x: Any, call: Call, keep: Any = None) -> Any:
            group = call.group
            if self.alone is not None and group.size == 1:
                return self.alone(x, call)
            if self.sends is not None:
                for message in self.sends(x, call):
                    group.run(message)
            request, finish = function(x, call)
            found = None if request is None else group.run(request)
            if keep is not None:  # a request that was refused is not kept: a repeated one is not checked again
                keep(x, request, finish)
            return finish(found, x, call)

        self._asks, self._forward, self._asking = function, forward, forward
        return function

    def forward(self, function: Callable[[Any, Call], Any]) -> Callable[[Any, Call], Any]:
        """Decorator: the forward direction on raw arrays, if it is not a single request."""
        self._asks, self._forward, self._asking = None, function, None
        if self._adjoint is itself:  # the identity is the adjoint of the identity only
            self._adjoint = self._missing
        return function

    def _missing(self, *_: Any) -> Any:
        """The adjoint of a collective for which none is declared."""
        raise _refusals().without_adjoint(self)

    def adjoint(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the adjoint, made of collectives. That of a nonlinear collective also receives x and y."""
        self._adjoint = function
        return function

    def derivative(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the tangent of a nonlinear collective's result."""
        self._derivative = function
        return function

    # -- the call ----------------------------------------------------------------------------------------------
    def __call__(self, x: Any, call: Call, **changes: Any) -> Any:
        """Run the collective on a raw array (a sweep at first order, no labels) or a Tensor (with labels, recorded).

        `changes` derive the call of an adjoint from the forward call. The derived call is cached, so every sweep uses
        the same object.
        """
        try:
            begin, kept = call.begin, call.kept
        except AttributeError:
            raise ArgumentError(
                f"{self.name}(x, {call!r}) was given; needed: a Call\n"
                f"  fix: cc.apply({self.name}, x, 'dp'), or {self.name}(x, cc.call('dp')), for axis 'dp'"
            ) from None
        if begin is None and x.__class__ not in TENSORS:
            if self._forward is itself:
                return x
            key = self, x.__class__, x.shape, x.dtype, *changes.items()
            known = kept.get(key)
            if known is None:
                known = self.prepare(x, None, call.variant(**changes) if changes else call)
                if changes and x.__class__ is not Shaped:
                    keep(kept, key, known)
            return known.run(x, None)
        if changes:
            call = call.variant(**changes)
        return self.prepared(x, call).apply(x) if begin is None else begin(self, x, call)

    def prepared(self, x: Tensor, call: Call) -> Prepared:
        """The `Prepared` for a Tensor: the one cached with the call, or a new one."""
        layout = x.layout
        if layout is None:
            layout = x.labelled(state.grid)  # type: ignore[arg-type]  # a call has a mesh
        array = x.array
        kind = array.why if array.__class__ is Shaped else array.__class__
        known = call.kept.get((self, layout, kind, array.shape, array.dtype))
        return known or self.prepare(array, layout, call, x.name, x)

    def prepare(
        self, x: Any, layout: Layout | None, call: Call, name: str = "", operand: Tensor | None = None
    ) -> Prepared:
        """Check the operand and compute everything about a call that does not depend on the operand's values."""
        if not (is_communicated(x.dtype) or self.silent or self.free or self.unchecked):  # on one rank, too
            shown = f"{self.name}({name or 'x'}: {describe(x, x.shape, layout)}, axis {'*'.join(call.axes)!r})"
            raise DtypeError(f"{shown}: {not_communicated(x.dtype)}")
        if layout is not None and state.recording is not None and self._adjoint == self._missing:
            raise _refusals().without_adjoint(self)
        try:
            out = None if layout is None else self.label(x, layout, call, name)
        except LayoutError as error:
            if operand is None:
                raise
            text = self._with_name_of(operand, x, layout, call, name) or str(error)
            raise LayoutError(self._about_origin(text, operand, call.axes)) from None
        made = Prepared(self, call, layout, out, outline(x))
        kind = x.why if x.__class__ is Shaped else x.__class__  # absent here, or in a dry run
        key = (self, kind, x.shape, x.dtype) if layout is None else (self, layout, kind, x.shape, x.dtype)
        keep(call.kept, key, made)
        return made

    def run(self, x: Any, call: Call) -> Any:
        """Run the forward direction on a raw array in a sweep, or on None if this rank has no operand."""
        if x is None:
            return Prepared(self, call, None, None, None).run(None, None)
        kind = x.why if x.__class__ is Shaped else x.__class__
        known = call.kept.get((self, kind, x.shape, x.dtype))
        return (known or self.prepare(x, None, call)).run(x, None)

    def run_once(self, x: Any, call: Call) -> Any:
        """`run` for a call that is not repeated: nothing is prepared."""
        if listeners or call.elsewhere:
            return self.run(x, call)
        return self._forward(x, call)

    def starts(self, call: Call) -> bool:
        """Whether a call can be started: it makes a request to the transport that involves other ranks."""
        return self._asks is not None and not call.elsewhere and (self.alone is None or call.group.size > 1)

    def start(self, x: Any, call: Call) -> tuple[Pending[Any], Callable[[Any], Any]]:
        """Start the request. Return the pending answer, and the function that computes the result from the answer."""
        group = call.group
        assert self._asks is not None
        for message in () if self.sends is None else self.sends(x, call):
            group.run(message)
        request, finish = self._asks(x, call)
        pending = Pending.done(None) if request is None else group.start(request)
        return pending, lambda y: finish(y, x, call)

    def fingerprint(self, x: Any, call: Call, recorded: bool | None) -> str:
        """Everything that must be the same on all ranks of the group, as one line."""
        shape: list[Any] = list(call.shape or x.shape)
        if call.extents and len(shape) > call.dim and not call.shape:
            shape[call.dim] = "*"
        if call.extents2 and len(shape) > call.dim2:
            shape[call.dim2] = "*"
        own = call.extents2 and call.dim == call.dim2  # along one dimension, amounts differ by rank
        sizes = f" extents={list(call.extents)}" if call.extents and not own else ""
        root = f" root={call.root}" if self.rooted or isinstance(call.to, Rooted) else ""
        dtype = call.dtype if call.dtype is not None else x.dtype
        pairs = f" pairs={list(call.pairs)}" if call.pairs else ""
        options = "" if call.options == () else f" options={call.options!r}"
        return (
            f"{self.name}(axis={'*'.join(call.axes)!r} shape=[{','.join(map(str, shape))}] dtype={dtype_name(dtype)}"
            f"{sizes}{root}{pairs}{options} to={call.to!r}) {_HOW[recorded]}"
        )

    # -- labels ------------------------------------------------------------------------------------------------
    def takes_label(self, have: Label) -> bool:
        """Whether the operand may have this label."""
        return any(have is t or (isinstance(t, type) and type(have) is t) for t in self.takes)

    def check(self, x: Tensor, on: Any) -> None:
        """Raise LayoutError, before anything is sent, if a label of the operand on one of the axes is not taken."""
        assert x.layout is not None
        for axis in on.names:
            if not self.takes_label(x.layout[axis]):
                text = _refusals().label_text(self, x.array, x.layout, axis, name_of(x))
                raise LayoutError(self._about_origin(text, x, on.names))

    def label(self, x: Any, layout: Layout, call: Call, name: str = "") -> Layout:
        """The result's layout; LayoutError if the collective does not take the operand's label on an axis."""
        result = layout
        if self.nonlinear:
            for axis, have in layout.items():
                if have is P:
                    raise _refusals().partial_operand(self, x, layout, axis, name or "x")
        for k, axis in enumerate(call.axes):
            if not self.takes_label(layout[axis]):
                raise LayoutError(_refusals().label_text(self, x, layout, axis, name))
            gives = call.to if self.gives is None else self.gives
            label = gives if isinstance(gives, Label) else gives(call, layout, k, x.shape)
            result = result.replace((axis,), label)
        if self.resizes is not None and layout.special:
            resized = set(self.resizes(call, [layout[axis] for axis in call.axes]))
            stale = [a for a, x in layout.items() if a not in call.axes and type(x) is Shard and x.dim in resized]
            result = result.replace(stale, V) if stale else result
        return result

    def _with_name_of(self, operand: Tensor, x: Any, layout: Any, call: Call, name: str) -> str:
        """The text of the error with the name of the caller's variable, which is looked up for an error only."""
        found = name_of(operand)
        try:
            if found != name:
                self.label(x, layout, call, found)
        except LayoutError as error:
            return str(error)
        return ""

    def _about_origin(self, text: str, x: Tensor, axes: tuple[str, ...]) -> str:
        """The text of an error about the operand; if it is V by default, with the label that says it is not."""
        from autograd.layouts.texts import about_origin  # loaded when it is told

        return about_origin(text, x, name_of(x), axes, self.takes_label)

    # -- the sweeps --------------------------------------------------------------------------------------------
    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        """One step of the reverse sweep; if no cotangent arrived, zeros are communicated."""
        made: Prepared = options_of(node)
        if ct is None or sweep.record:
            ct = arrived(ct, made.out, made.result, made.call, sweep)
        if self.unchecked and not sweep.record and self._is_first(made):
            g = self._checked_adjoint(ct, node, made)
        elif self.nonlinear:
            saved = self.saved(node, sweep.record, sweep.recording, sweep.place)
            if state.recorder is not None and not sweep.record:  # what it computes besides is no operation
                g = recorded(_adjoint, Whole(made), ct, *saved, changes="messages", name=f"{self.name}, backward")
            else:
                g = self._adjoint(ct, made.call, *saved)
        elif made.is_identity_alone and self._adjoint is made.adjoint and not (sweep.record or listeners):
            g = ct  # the adjoint of the identity
        else:
            g = self._adjoint(ct, made.call)
        (place,) = parents_of(node)
        if g.__class__ in _USUAL:  # without a call
            sweep.add(place, g)
        else:
            self.hand_on(g, place, made.layout, made.operand, made.call, sweep)

    def _is_first(self, made: Prepared) -> bool:
        """Whether this is the first sweep through a call of its kind: the same answer on all ranks of the group."""
        if made.layout is None or self.between_two:
            return False
        seen = self._checked.setdefault(made.group, set())
        if made.call.to in seen:
            return False
        seen.add(made.call.to)
        return True

    def _checked_adjoint(self, ct: Any, node: Node, made: Prepared) -> Any:
        """Run the adjoint on a Tensor with labels; LayoutError if they do not fit those of the declaration.

        The adjoint communicates, so it does not run twice.
        """
        assert made.layout is not None and made.out is not None
        given, needed = made.out.dual, made.layout.dual
        active, inside = state.recording, state.in_rules
        state.recording, state.in_rules = None, True
        try:
            g = self._adjoint(Tensor(ct, given), made.call, *self.saved(node, True))
        except LayoutError as error:
            raise _refusals().unfit_adjoint(
                self, made.layout, made.out, f"its adjoint refuses the cotangent, which is {given}", error
            ) from error
        finally:
            state.recording, state.in_rules = active, inside
        if g.__class__ not in TENSORS:
            return g
        for axis, have, need in zip(needed.grid.names, g.layout.labels, needed.labels, strict=True):
            if not may_relabel(have, need):
                raise _refusals().unfit_adjoint(
                    self, made.layout, made.out, f"axis {axis!r}: its adjoint gives {have.word}; needed: {need.word}"
                )
        if made.operand is not None and g.shape != made.operand[0] and not is_absent(g.array):
            raise _refusals().unfit_adjoint(
                self, made.layout, made.out, f"its adjoint gives the shape {g.shape}; needed: {made.operand[0]}"
            )
        return g.array

    def hand_on(self, g: Any, place: int, layout: Layout | None, operand: Any, call: Call, sweep: Sweep) -> None:
        """Add the adjoint's result to the operand's cotangent."""
        if place < 0 or g is None:
            return
        assert layout is not None
        raw = g.array if g.__class__ in TENSORS else g
        if not operand[2] and is_absent(raw):  # this rank is not the root, so its operand has no influence
            g = zeros(operand[0], operand[1], call)
            g = Tensor(g, layout.dual) if sweep.record else g
        sweep.add(place, relabel(g, layout.dual) if sweep.record else g)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        """One step of forward mode: the same collective on the tangent, or on zeros without one."""
        (place,), made = parents_of(node), options_of(node)
        t = carried[place - start] if place >= start else None
        if t is None and made.operand is not None:
            t = absent_or_zeros(made.operand, made.call)
            t = Tensor(t, made.layout) if record else t
        if self.nonlinear:
            assert self._derivative is not None
            return self._derivative(t, made.call, *self.saved(node, record, recording, at))
        return self.tangent(t, made.call, made.out, record)

    def tangent(self, t: Any, call: Call, out: Layout | None, record: bool) -> Any:
        """One step of forward mode for a linear collective: the collective itself."""
        return self(t, call)

    def saved(self, node: Node, lifted: bool, recording: Recording | None = None, at: int = -1) -> tuple[Any, ...]:
        """The operand and result that a nonlinear collective's rules read, on `recording` if it is given."""
        if not self.nonlinear:
            return ()
        y, (x,), (place,), made = result_of(node), arrays_of(node), parents_of(node), options_of(node)
        if not lifted:
            return x, y
        place = -1 if recording is None else place
        return Tensor(x, made.layout, recording if place >= 0 else None, place), Tensor(y, made.out, recording, at)


def _adjoint(made: Prepared, ct: Any, *saved: Any) -> Any:
    """The adjoint of a nonlinear collective, as one call of a captured step."""
    return made.collective._adjoint(ct, made.call, *saved)


_USUAL = frozenset((ndarray, float32, float64))  # the classes of most cotangents
_HOW = {None: "in a backward sweep", True: "recorded", False: "not recorded"}
