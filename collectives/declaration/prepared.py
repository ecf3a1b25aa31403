"""Prepared: a collective, its call, and all facts of an operand but its values.

The labels, the checks, the text that ranks compare, the request and the facts of the node are computed once per call
and per layout, shape and dtype of the operand. A later call looks them up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from autograd.arrays.capture import Whole, recorded
from autograd.arrays.half import is_half
from autograd.arrays.shape_only import DRY, Shaped
from autograd.doors import door, is_there
from autograd.engine import events
from autograd.engine.events import listeners
from autograd.engine.promotion import dtype_to_round_to
from autograd.engine.recording import OUTSIDE
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import TENSORS, Tensor, place_off_tape, relabel
from autograd.layouts.layout import Layout, P, V

from ..checks import modes
from ..transports.protocol import Request
from ..transports.request import answer
from .call import Call
from .compared import ComparedCall
from .staging import Elsewhere, InShape

__all__ = ["Prepared", "absent_or_zeros", "arrived", "copied", "itself", "outline", "zeros"]


def itself(x: Any, call: Call) -> Any:
    """Return the operand: the result of a cast, which is a view on any number of ranks."""
    return x


def copied(x: Any, call: Call) -> Any:
    """Return a copy of the operand: the result of most collectives on a single rank.

    It owns its memory, as on several ranks, so a program may use the buffer of the operand again.
    """
    return x if x.__class__ is Shaped else x.copy()


_IMMUTABLE = frozenset((np.float16, np.float32, np.float64, np.complex64, np.complex128))  # scalars need no copy


class Prepared:
    """A collective, its call, and everything about an operand except its values. It keeps no operand alive.

    Nodes refer to it, and sweeps read it. The calls that a sweep makes are cached with `call`.

    Attributes
    ----------
    collective : Collective
    call : Call
    layout, out : Layout or None
        The operand's and the result's. None in a sweep at first order, where arrays have no labels.
    operand, result : (shape, dtype, whether it is absent)
        Facts of the arrays. `operand` is None without an operand, `result` is None before the first result.
    is_identity_alone : bool
        Whether the result equals the operand because the group has one rank. Then the adjoint is the identity.
    sums : int
        The number of the program's next sum, or gather, of Varying or Partial values, counted from 1; 0 for other
        calls, and once nothing is compared any more.
    adjoint : callable
        The collective's adjoint, unless a test has replaced it since.
    """

    __slots__ = (
        "_compared", "_is_copy", "_is_flat", "_is_identity", "_is_inexact", "_is_scalar", "_is_uncompared_move",
        "_receive", "_result_dtype", "_result_shape", "_rule", "_send", "adjoint", "call", "collective", "group",
        "is_identity_alone", "layout", "operand", "out", "result", "sums",
    )  # fmt: skip

    def __init__(self, collective: Any, call: Call, layout: Layout | None, out: Layout | None, operand: Any):
        if layout is not None and layout.rooted and layout.absent_beyond(call.axes):
            call = call.but(elsewhere=True)
        self.collective, self.call, self.group, self.layout, self.out = collective, call, call.group, layout, out
        self.operand = operand
        self.result: Any = None
        self._result_dtype: Any = None
        self._is_inexact = (call.dtype if operand is None else operand[1]).kind in "fcV"
        is_compared = _is_compared(collective, call, layout)
        self._compared = ComparedCall(collective, call, layout) if is_compared else None
        self._rule = rule = collective._forward
        is_alone = call.group.size == 1
        self._is_identity = rule is itself
        self._is_copy = is_alone and collective.alone is copied and rule is collective._asking and not call.elsewhere
        self._is_uncompared_move = (self._is_identity or self._is_copy) and not is_compared
        self.is_identity_alone = is_alone and (self._is_identity or self._is_copy)
        self.adjoint = collective._adjoint
        is_sum = (collective.adds or collective.gathers) and is_compared and self._is_inexact
        self.sums = int(is_sum and layout is not None and all(layout[name] in _ADDENDS for name in call.axes))
        # the transport's function of the operand, if later calls differ only in another contiguous operand; else False
        self._send: Any = None
        self._receive: Any = None  # where the operand is not sent: a function that receives the result
        self._is_scalar = False  # whether operand and result are NumPy scalars, which lie in no array
        self._is_flat = False  # whether the operand needs no reshaping for the transport
        self._result_shape: tuple[int, ...] | None = None  # the shape that a flat answer gets; None: it stays flat

    @property
    def axes(self) -> tuple[str, ...]:
        axes: tuple[str, ...] = self.call.axes
        return axes

    def apply(self, x: Tensor | None) -> Tensor:
        """Run the collective on a Tensor and record it, even if the operand requires no gradient."""
        array: Any = None if x is None else x.array
        recording, collective = state.recording, self.collective
        is_recorded = recording is not None and self._is_inexact
        # `run` does nothing more for a cast, or for a copy on one rank, that is not compared; this saves its call
        moved = self._is_uncompared_move and not listeners and collective._forward is self._rule
        if not moved:
            y = self.run(array, is_recorded, x)
        elif self._is_identity:
            y = array
        elif array.__class__ is ndarray:
            y = array.copy()
        else:
            y = array if array.__class__ in _IMMUTABLE else copied(array, self.call)
        if recording is None or not is_recorded:
            place = OUTSIDE if recording is not None or x is None else place_off_tape(y, (x,))
            return Tensor(y, self.out, None, place)
        if (moved and self.result is not None) or (y.dtype is self._result_dtype and y.shape == self.result[0]):
            prepared = self
        else:
            prepared = self._giving(array, y)
        if x is None:
            place = -1
        elif x.tape is recording:
            place = x.node
        else:
            known = recording.leaves.get(id(x))  # as `enter` does first; this saves its call
            place = recording.enter(x) if known is None else known
        # the objective is compared along the axes of the last collective, which a message of two ranks does not change
        if collective.communicates and not (collective.between_two and recording.communicates):
            recording.communicates = self
        nodes = recording.nodes
        made = _new(Tensor)  # faster than a call of the constructor
        made.array, made.layout, made.tape, made.node = y, self.out, recording, len(nodes)
        if collective.nonlinear:
            nodes.append((collective, y, (array,), (place,), prepared, None, None))
        else:
            nodes.append((collective, None, (), (place,), prepared, None, None))
        return made

    def apply_counted(self, x: Tensor, name: str = "") -> Tensor:
        """`apply` for a sum whose addends the ranks compare, or a gather, if it is examined: see `scale.addends`.

        `name` is that of the function if it is not the collective's: "mean", which is right for equal values.
        """
        if not self.is_examined() or not is_there("addends"):
            return self.apply(x)
        assert self._compared is not None
        examined = door("addends").Examined(self, x, name or self.collective.name)
        self._compared.addend = examined.addend
        try:
            y = self.apply(x)
        finally:
            self._compared.addend = None
        examined.tell(y.node)
        return y

    def is_examined(self) -> bool:
        """Count a sum or a gather, and whether its operands are compared: those of a tape that is examined, and of sums
        off a tape the 1st, 2nd, 4th.

        The count ends with the comparison of calls.
        """
        nth = self.sums
        if not nth:
            return False
        self.sums = nth + 1 if nth < modes.FIRST_CALLS or self.group.checking else 0
        recording = state.recording
        if recording is None or recording.scale is None:
            if recording is None:
                return self.collective.adds and not nth & (nth - 1)
            state.mesh.begin_walk(recording)
        walk = recording.scale
        if walk is False:
            return False
        if self.collective.adds:
            walk.count = n = walk.count + 1
        else:
            walk.gathers = n = walk.gathers + 1
        return n <= _FIRST or not n & (n - 1)  # so that a loop of many sums on one tape costs little

    def run(self, x: Any, recorded: bool | None, operand: Tensor | None = None, announced: bool = False) -> Any:
        """Compare the call with those of the other ranks, if the check mode requires it, and run it on an array.

        `recorded` is None in a sweep at first order; `operand` is the Tensor whose array is `x`.
        """
        if listeners and not announced:
            return self._announce(x, recorded, operand)
        compared = self._compared
        if compared is not None:
            sampling = compared.sampling  # as `Checks.is_due`, without a call
            calls = sampling.calls = sampling.calls + 1
            if calls > sampling.opens or sampling.agreed < modes.limit:
                compared.before(x, recorded, operand)
            history = compared.history
            if history is not None:
                history.append(compared.mark if recorded is compared.marked else compared.make_mark(x, recorded))
        if self.collective._forward is self._rule:  # unless a test has replaced the rule
            if self._is_identity:
                return x
            send = self._send
            if send and x.flags.c_contiguous:
                y = send(x if self._is_flat else x.reshape(-1))
                if self._is_scalar:
                    return y[0]
                return y if self._result_shape is None else y.reshape(self._result_shape)
            if self._receive:
                return self._receive()
            if self._is_copy:
                return copied(x, self.call)
        return self._run_rule(x)

    def _announce(self, x: Any, is_recorded: bool | None, operand: Tensor | None) -> Any:
        collective, given = self.collective, () if operand is None else (operand,)
        with events.emitting("forward", collective.name, collective, given or (x,), self):
            if state.recorder is not None and self._is_identity:  # a captured step knows the result: its operand
                recorded(_compare, Whole(self), x, is_recorded, changes="messages", name=collective.name)
                y = x
            elif state.recorder is not None:
                y = recorded(_run, Whole(self), x, is_recorded, changes="messages", name=collective.name)
            else:
                y = self.run(x, is_recorded, operand, True)
        events.emit("end", "forward", collective.name, collective, given, y)
        return y

    def _run_rule(self, x: Any) -> Any:
        collective, call = self.collective, self.call
        if call.elsewhere:
            shape = list(call.shape if x is None else x.shape)
            shape = shape if collective.shape is None else collective.shape(shape, call)
            return Shaped(shape, call.dtype if x is None else x.dtype, "it is rooted elsewhere on another axis")
        if collective._forward is collective._asking and self._send is None:
            return collective._forward(x, call, self._keep)
        return collective._forward(x, call)

    def _keep(self, x: Any, request: Request | None, finish: Any) -> None:
        """Let the transport bind a request that sends the operand in place and whose answer only needs a shape."""
        self._send = False
        if request is not None and request.x is None:
            self._receive = self._receiver(request, finish)
            return
        scalar = isinstance(x, np.generic)
        if scalar:  # a copy, and an array in its place tells whether the request sends the operand itself
            x = np.asarray(x)
            request, finish = self.collective._asks(x, self.call)
        if x.__class__ is not ndarray or request is None or not isinstance(finish, InShape | Elsewhere):
            return
        if not x.flags.c_contiguous:
            self._send = None  # a later operand may be
            return
        if not _is_of(request.x, x) or request.call == "send" or self.group.size == 1:
            return
        result = answer(request, self.group.index)
        if scalar and isinstance(finish, InShape) and (result is None or finish.shape != ()):
            return
        send = self.group.sender(request._replace(x=None), x.reshape(-1), result)
        self._is_flat = x.ndim == 1
        if isinstance(finish, Elsewhere):
            self._send = _then(send, finish.result)
        else:
            self._send, self._is_scalar = send, scalar
            self._result_shape = None if len(finish.shape) == 1 else finish.shape

    def _receiver(self, request: Request, finish: Any) -> Callable[[], Any] | None:
        """A function that receives a broadcast in new memory; None for other requests."""
        out, group = request.out, self.group
        is_bound = request.call == "broadcast" and isinstance(finish, InShape) and group.size > 1
        if not is_bound or out.__class__ is not ndarray or is_half(out.dtype):
            return None
        size, dtype, shape = out.size, out.dtype, finish.shape
        receive = group.sender(request._replace(out=None), out, (size, dtype))
        return lambda: receive(np.empty(size, dtype)).reshape(shape)

    def note_start(self, x: Any, recorded: bool) -> None:
        """Append the start of a nonblocking call to the history of the channel."""
        if self._compared is not None:
            self._compared.note_start(x, recorded)

    def with_call(self, call: Call) -> Prepared:
        """The same operand and result, for another call."""
        made = Prepared(self.collective, call, self.layout, self.out, self.operand)
        made.result, made._result_dtype = self.result, self._result_dtype
        return made

    def _giving(self, array: Any, y: Any) -> Prepared:
        """Set the shape and dtype of the result: in this object the first time, then in a new one."""
        made = self
        if self.result is not None:
            made = Prepared(self.collective, self.call, self.layout, self.out, self.operand)
        made.result, made._result_dtype = outline(y), y.dtype
        if state.dry:
            made.call = self.call.but(like=Shaped((0,), y.dtype, DRY))
        elif self.call.like is None and not (isinstance(y, _HOST) and isinstance(array, _HOST)):
            device = y if isinstance(array, _HOST) else array
            # a sweep makes its zeros on the same device
            made.call = self.call.but(like=np.empty_like(device, shape=(0,)))
        return made


def _is_of(flat: Any, x: ndarray) -> bool:
    """Whether a request sends an operand itself, and not in 16 bits."""
    is_same = flat.__class__ is ndarray and (flat.dtype, flat.size) == (x.dtype, x.size)
    return is_same and flat.ctypes.data == x.ctypes.data and not is_half(x.dtype)


def _then(send: Callable[[Any], Any], result: Any) -> Callable[[Any], Any]:
    """A function that sends an operand and returns a result that is the same each time."""

    def sent(x: Any) -> Any:
        send(x)
        return result

    return sent


def _run(prepared: Prepared, x: Any, is_recorded: bool | None) -> Any:
    """One call of a captured step."""
    return prepared.run(x, is_recorded, None, True)


def _compare(prepared: Prepared, x: Any, is_recorded: bool | None) -> tuple[()]:
    """The call of a collective that returns its operand."""
    prepared.run(x, is_recorded, None, True)
    return ()


def _is_compared(collective: Any, call: Call, layout: Layout | None) -> bool:
    """Whether the ranks compare a call: not on one rank, between two ranks, or where no data is on this axis."""
    is_cast_of_arrays = collective.silent and layout is None
    return call.group.checks is not None and not (call.elsewhere or collective.between_two or is_cast_of_arrays)


def outline(x: Any) -> tuple[tuple[int, ...], Any, bool]:
    """An array's shape and dtype, and whether its values are absent (on another rank)."""
    return x.shape, x.dtype, x.__class__ is Shaped and x.absent


def zeros(shape: tuple[int, ...], dtype: Any, call: Call) -> Any:
    """Zeros on the operand's device, for a cotangent or tangent that did not arrive."""
    if call.like is None:
        made: Any = recorded(np.zeros, shape, dtype, name="zeros")
        return made
    return np.zeros_like(call.like, shape=shape, dtype=dtype)


def absent_or_zeros(known: tuple[tuple[int, ...], Any, bool], call: Call) -> Any:
    """The cotangent or tangent to use for a value with this outline if none arrived: zeros, or an absent array."""
    shape, dtype, is_absent_here = known
    return Shaped(shape, dtype, "it is rooted elsewhere") if is_absent_here else zeros(shape, dtype, call)


def arrived(ct: Any, out: Layout | None, result: Any, call: Call, sweep: Sweep) -> Any:
    """The cotangent passed to an adjoint: zeros if none arrived, with labels if the sweep is recorded."""
    if ct is None:
        ct = absent_or_zeros(result, call)
        sweep.general = sweep.general or dtype_to_round_to(ct) is not None
    if sweep.record:
        assert out is not None
        ct = relabel(ct, out.dual) if ct.__class__ in TENSORS else Tensor(ct, out.dual)
    return ct


_new = object.__new__
_FIRST = 4  # sums of a tape that is examined, and gathers
_ADDENDS = frozenset((V, P))
_HOST = (np.ndarray, np.generic, Shaped)
