"""Nonblocking collectives, which start at one place of the tape and are waited for at another.

A started call has two nodes on the tape: START at the call, and WAIT at the first use of its result. A backward sweep
reaches WAIT first. It *starts* the adjoint there, runs the adjoints of the nodes in between, and *waits* at START. So
the same computation overlaps with the communication in both directions.

Order. Started calls have their own channel, separate from blocking calls. Ranks may wait in different orders. Therefore
the adjoints of a channel start in the reverse order of the starts, which is the same on all ranks, and not in the order
in which cotangents arrive. If its turn has not come at WAIT, an adjoint starts as soon as it comes, at the latest
at START.

Ownership. A transport copies the operand of a started call, so the program may change the operand as soon as the tape
allows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from inspect import signature
from threading import get_ident, local
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import dtype_name, is_inexact
from autograd.arrays.shape_only import Shaped
from autograd.doors import door, is_there
from autograd.engine import events
from autograd.engine.deferred import Deferred
from autograd.engine.events import listeners
from autograd.engine.recording import OUTSIDE, Node, Recording, options_of, parents_of
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import TENSORS, Tensor, place_off_tape
from autograd.errors import CollectiveMismatch, MeshError, TapeError, find_site, short_site, typed_errors
from autograd.layouts.layout import Layout, V

from ..checks import modes
from ..declaration.call import Call
from ..declaration.collective import Collective
from ..declaration.prepared import absent_or_zeros, arrived
from ..mesh import Axis, current_mesh
from ..transports.protocol import Communicator, Pending
from ..transports.request import Control
from . import headers
from .arguments import Arguments, AxisName, Use, as_typed, check_other, operand, sample
from .messages import RECV, SEND, derived, next_number, permute, warn_of_no_influence
from .parts import all_gather, all_to_all, reduce_scatter
from .rooted import broadcast, reduce
from .sums import all_reduce

__all__ = [
    "all_gather_async", "all_reduce_async", "all_to_all_async", "broadcast_async", "irecv", "isend", "permute_async",
    "reduce_async", "reduce_scatter_async",
]  # fmt: skip


_WHAT = "isend/irecv"  # in headers; distinguishes these messages from those of `send` and `recv`


class Started:
    """A started collective on raw arrays; `wait` returns its result."""

    __slots__ = ("_finish", "_pending", "_result", "name")

    def __init__(
        self, name: str, pending: Pending[Any] | None, finish: Callable[[Any], Any] | None, result: Any = None
    ):
        self.name = name
        self._pending = pending
        self._finish = finish
        self._result = result

    def test(self) -> bool:
        return self._pending is None or self._pending.test()

    def wait(self) -> Any:
        if self._pending is not None:
            heard = len(listeners) > _thread.is_poking  # by others than the one that pokes
            if heard:
                events.emit("begin", "forward", f"wait for {self.name}", WAIT, (self,), ())
            try:
                found = self._pending.wait()
                self._result = found if self._finish is None else self._finish(found)
            except BaseException as error:
                events.tell("failed", "forward", f"wait for {self.name}", error)
                raise
            self._pending = self._finish = None
            if heard:
                events.emit("end", "forward", f"wait for {self.name}", WAIT, (), self._result)
        return self._result


def _start_array(collective: Collective, x: Any, call: Call) -> Started:
    """Start a collective on a raw array. One that needs no communication is computed at once."""
    if not collective.starts(call):
        return Started(collective.name, None, None, collective.run(x, call))
    if len(listeners) <= _thread.is_poking:
        return Started(collective.name, *collective.start(x, call))
    with events.emitting("forward", f"start of {collective.name}", START, (x,), call):
        started = Started(collective.name, *collective.start(x, call))
    events.emit("end", "forward", f"start of {collective.name}", START, (), ())
    return started


# -- on the tape -------------------------------------------------------------------------------------------------------


class _Adjoint:
    """The adjoint of a started call. It holds the cotangent until its turn, and then the started communication."""

    __slots__ = ("call", "collective", "ct", "started")

    def __init__(self, collective: Collective, ct: Any, call: Call):
        self.collective = collective
        self.ct = ct
        self.call = call
        self.started: Any = None  # a Started, a Deferred, or the result itself

    def start(self) -> None:
        if self.started is None:
            self.started = _start_adjoint(self.collective, self.ct, self.call)
            self.ct = None

    def wait(self) -> Any:
        self.start()
        return self.started.wait() if hasattr(self.started, "wait") else self.started

    def __add__(self, other: _Adjoint) -> _Adjoint:
        # from two sweeps of an inner tape; neither adjoint starts before the sweep of the tape with START
        return _Adjoint(self.collective, self.ct + other.ct, self.call)


def _start_adjoint(collective: Collective, ct: Any, call: Call) -> Any:
    """Start the adjoint. Its fingerprint is not compared: it follows from the forward start, which was compared."""
    lifted = ct.__class__ in TENSORS
    if collective is SEND:
        call = derived(call, "sweeps", ())
        return _start_recv(call, ct.layout) if lifted else _start_array(RECV, None, call)
    if collective is RECV:
        call = derived(call, "sweeps", ())
        return _start_tensor(SEND, ct, call) if lifted else _start_array(SEND, ct, call)
    return collective._adjoint(ct, call.but(begin=_begin_in_sweep))


class _Start:
    """The node at which a communication starts. A sweep waits here for the adjoint that WAIT has started."""

    name = "start"
    communicates = True

    def pull(self, node: Node, entry: Any, sweep: Sweep) -> None:
        if entry is not None:  # it is None only if WAIT is outside the swept interval, on every rank
            (place,), (collective, call, layout, operand, _) = parents_of(node), options_of(node)
            collective.hand_on(entry.wait(), place, layout, operand, call, sweep)

    def push(self, node: Node, carried: list[Any], start: int, record: bool, recording: Recording, at: int) -> Any:
        (place,), (collective, call, layout, operand, _) = parents_of(node), options_of(node)
        if collective is SEND or collective is RECV:
            call = derived(call, "tangents", ())
        if collective is RECV:
            return _start_recv(call, layout) if record else _start_array(RECV, None, call)
        t = carried[place - start] if place >= start else None
        if t is None:
            t = absent_or_zeros(operand, call)
            t = Tensor(t, layout) if record else t
        return collective.tangent(t, call.but(begin=_begin_in_sweep), None, record)


class _Wait:
    """The node at which a communication is waited for. A sweep starts the adjoint here, if it is its turn."""

    name = "wait"
    communicates = True

    def pull(self, node: Node, ct: Any, sweep: Sweep) -> None:
        (place,), (collective, call, out, result, lane) = parents_of(node), options_of(node)
        if ct is None and collective is RECV and call.group.name.endswith("/messages"):
            warn_of_no_influence(call.options[1])
        sweep.add(place, _Adjoint(collective, arrived(ct, out, result, call, sweep), call))
        at = bisect_left(lane, sweep.place)  # the starts that this sweep has not reached yet
        while at:
            at -= 1
            i = lane[at] - sweep.start
            if i < 0:
                return  # started before the interval: the sweep of the outer tape starts its adjoint
            entry = sweep.cts[i]
            if entry is not None:
                entry.start()
            elif sweep.recording.nodes[lane[at]] is not None:
                return  # its cotangent is not known yet, and the adjoints of earlier starts must follow it

    def push(self, node: Node, carried: list[Any], start: int, *context: Any) -> Any:
        (place,) = parents_of(node)
        entry: Any = carried[place - start] if place >= start else None
        return entry.wait() if hasattr(entry, "wait") else entry


START, WAIT = _Start(), _Wait()


class _Described(NamedTuple):
    """The text of a started call, which only an error needs."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} of {dtype_name(self.dtype)}{list(self.shape)} on axis {'*'.join(self.axes)!r}"


class _Finisher:
    """Finishes a `Deferred`: it waits for the result, and appends WAIT to the tape."""

    def __init__(self, what: object, started: Any, collective: Collective, call: Call, out: Layout | None,
                 recording: Recording | None, place: int, lane: list[int]):  # fmt: skip
        file, line = find_site()
        self.what, self.site = what, f"{file}:{line}"
        self.started, self.collective, self.call, self.out = started, collective, call, out
        self.recording, self.place, self.lane = recording, place, lane
        self.mesh = state.mesh
        _keep_poking()

    def test(self) -> bool:
        return self.started.test()

    def finish(self) -> tuple[Any, Layout | None, int]:
        y = self.started.wait()
        recording, call = self.recording, self.call
        if recording is None:
            return y, self.out, min(self.place, OUTSIDE)  # received integers have the place of their start
        if recording.released(self.place):
            raise TapeError(
                f"{self.what}, started at {self.site}, is waited for after a backward pass over the tape that recorded "
                "its start. Needed: the wait before tape.backward(...)"
            )
        result = (y.shape, y.dtype, type(y) is Shaped)
        options = (self.collective, call, self.out, result, self.lane)
        return y, self.out, recording.append((WAIT, None, (), (self.place,), options, None, None))


def _record(collective: Collective, x: Tensor | None, layout: Layout | None, call: Call) -> tuple[Any, int, list[int]]:
    """Append START. Return the recording, the place of START, and the list of starts on its channel."""
    recording = state.recording
    assert recording is not None
    place = -1 if x is None else x.node if x.tape is recording else recording.enter(x)
    key: tuple[Any, ...] = (id(call.group),)
    if collective is SEND or collective is RECV:
        key = (id(call.group), collective.name, call.root)  # the order of messages is separate for each rank
    lane = recording.lanes.setdefault(key, [])
    operand = None if x is None else (x.array.shape, x.array.dtype, type(x.array) is Shaped)
    recording.communicates = call if not collective.between_two else recording.communicates or True
    at = recording.append((START, None, (), (place,), (collective, call, layout, operand, lane), None, None))
    lane.append(at)
    return recording, at, lane


def _start_tensor(collective: Collective, x: Tensor, call: Call, agree: bool = False) -> Deferred:
    """Start a collective on a Tensor: check the labels, start the request, and record it."""
    layout = x.labelled(state.grid) if x.layout is None else x.layout  # type: ignore[arg-type]  # a call has a mesh
    array = x.array
    prepared = collective.prepared(x, call)
    out = prepared.out
    assert out is not None
    recorded = state.recording is not None and is_inexact(array.dtype)
    if layout.rooted and layout.absent_beyond(call.axes):
        call = call.but(elsewhere=True)
    examined = None
    if agree:
        group, checks = call.group, call.group.checks
        if checks is not None and checks.count_call() and not call.elsewhere:
            text = "start of " + collective.fingerprint(array, call, recorded)
            if modes.limit and prepared.is_examined() and is_there("addends"):
                examined = door("addends").Examined(prepared, x, collective.name)
                group.agree(text, addend=examined.addend)
            else:
                group.agree(text)
        prepared.note_start(array, recorded)
        call = call.variant(group=_started_channel(current_mesh().axis(call.axes), collective, call.group.algorithm))
    if call.like is None and not isinstance(array, np.ndarray | np.generic | Shaped):
        call = call.but(like=np.empty_like(array, shape=(0,)))
    shape = list(call.shape or array.shape)
    shape = shape if collective.shape is None else collective.shape(shape, call)
    recording, place, lane = _record(collective, x, layout, call) if recorded else (None, OUTSIDE, [])
    if examined is not None:
        examined.tell(place)
    if state.recording is None:
        place = place_off_tape(array, (x,))
    what = _Described(collective.name, array.dtype, array.shape, call.axes)
    maker = _Finisher(what, _start_array(collective, array, call), collective, call, out, recording, place, lane)
    return Deferred(maker, Shaped(shape, array.dtype), out, recording)


def _begin_in_sweep(collective: Collective, x: Any, call: Call) -> Any:
    """Start the collective that an adjoint or a tangent calls, instead of running it."""
    call = call.but(begin=None)
    if x.__class__ not in TENSORS:
        return _start_array(collective, x, call)
    return collective(x, call) if collective._asks is None else _start_tensor(collective, x, call)


def _started_channel(axis: Axis, collective: Collective, algorithm: str) -> Communicator:
    """The channel of the started calls on an axis. All ranks of the axis make it at their first start.

    It uses the transport's own operations. An algorithm over messages progresses only while its rank waits for it, so
    ranks that wait in different orders would deadlock; and shared memory synchronizes the ranks.
    """
    is_own = algorithm in ("native", "auto") or axis.size == 1
    if not is_own and collective.name in door("algorithms").OPERATIONS:
        raise MeshError(
            f"{collective.name}_async on axis {'*'.join(axis.names)!r} with algorithm={algorithm!r}: it progresses "
            "only while all ranks wait for it, so it cannot run in the background. Needed: the transport's own "
            "algorithm\n  fix: "
            f"{collective.name}_async(..., algorithm='native'), or the blocking "
            f"{collective.name}"
        )
    group = axis.kept.get("started")
    if group is None:
        native = axis.using("native")
        group = axis.kept["started"] = native.duplicate("started") if axis.size > 1 else native
    return group


# -- progress ----------------------------------------------------------------------------------------------------------


def _keep_poking() -> None:
    """While a communication is pending, poke the transport after each operation of the forward pass too.

    Sweeps poke the transport themselves. Operations have no extra cost while nothing is pending.
    """
    poke = state.distribution.progress
    if poke is None or _thread.is_poking:
        return

    def listener(phase: str, direction: str, name: str) -> None:
        pending = state.pending
        if not pending or (pending[-1].handle() is None and all(x.is_lost for x in pending)):
            _thread.is_poking = False
            listeners.remove(entry)
        elif phase == "end" and direction == "forward":
            poke()

    entry = (get_ident(), listener)
    listeners.append(entry)
    _thread.is_poking = True


class _ThreadState(local):
    is_poking = False


_thread = _ThreadState()


# -- receives ---------------------------------------------------------------------------------------------------------


def _start_recv(call: Call, layout: Layout | None) -> Deferred:
    """Start a receive in a recorded sweep, where shape, dtype and labels are known."""
    assert layout is not None
    call = call.but(elsewhere=layout.absent_beyond(call.axes))
    recording, place, lane = _record(RECV, None, layout, call) if state.recording is not None else (None, -1, [])
    what = f"cotangent from rank {call.root} of axis {'*'.join(call.axes)!r}"
    maker = _Finisher(what, _start_array(RECV, None, call), RECV, call, layout, recording, place, lane)
    return Deferred(maker, Shaped(call.shape, call.dtype), layout, recording)


def _start_recv_of_header(call: Call, layout: Layout | None, on: Axis) -> Deferred:
    """Start a receive in the forward pass: the header arrives on a separate lane, the data on the lane of `call`."""
    recorded = state.recording is not None and (call.dtype is None or is_inexact(call.dtype))
    outline = None
    if layout is not None:
        call = call.but(elsewhere=layout.absent_beyond(call.axes))
        outline = Shaped(call.shape, call.dtype)
    header = on.group.lane("headers").start(
        Control("recv", out=np.empty(headers.HEADER_BYTES, np.uint8), peer=call.root)
    )
    recording, place, lane = _record(RECV, None, layout, call) if recorded else (None, -1, [])
    queue = on.kept.setdefault(("irecv", call.root), deque())
    maker = _Receiver(header, queue, call, layout, recording, place, lane)
    return Deferred(maker, outline, layout, recording)


class _Receiver(_Finisher):
    """Finishes a receive, whose shape, dtype and labels may be known only from the header.

    Data arrives in the order in which it was sent. A receive of unknown shape therefore delays the receives after it,
    which wait in `queue`.
    """

    def __init__(self, header: Pending[Any], queue: deque[_Receiver], call: Call, out: Layout | None, *where: Any):
        what = f"irecv from rank {call.root} of axis {'*'.join(call.axes)!r}"
        super().__init__(what, None, RECV, call, out, *where)
        self.header = header
        self.queue = queue
        self.is_read = False
        self.recorded = state.recording is not None
        while queue and queue[0].header.test():  # nobody may wait for these, and their data must be received as well
            self._advance()
        queue.append(self)
        if out is not None and queue[0] is self:
            self._post()

    def test(self) -> bool:
        while self.started is None:  # first the header arrives, then the data
            if not self.queue[0].header.test():
                return False
            self._advance()
        return self.header.test() and self.started.test()

    def finish(self) -> tuple[Any, Layout | None, int]:
        while self.started is None:
            self._advance()
        self._read()
        if self.recording is not None and not is_inexact(self.call.dtype):  # known only from the header
            if not self.recording.released(self.place):
                self.recording.nodes[self.place] = None
            self.recording = None
        return super().finish()

    def _advance(self) -> None:
        """Wait for the header of the first receive in the queue, and start to receive its data."""
        first = self.queue[0]
        first._read()
        first._post()

    def _post(self) -> None:
        """Start to receive the data, and then the data of the next receives whose shape is known."""
        self.started = _start_array(RECV, None, self.call)
        self.queue.popleft()
        if self.queue and self.queue[0].out is not None:
            self.queue[0]._post()

    def _read(self) -> None:
        """Wait for the header."""
        if self.is_read:
            return
        call = self.call
        sender = f"rank {call.root}"
        shape, dtype, labels = headers.read(self.header.wait(), self.recorded, _WHAT, sender)
        grid = self.mesh.grid
        layout = grid.layout([labels.get(a, V) for a in grid.names]).replace(call.axes, V)
        if self.out is None:
            self.out = layout
            self.call = call = call.but(shape=shape, dtype=dtype, elsewhere=layout.absent_beyond(call.axes))
            if self.recording is not None and not self.recording.released(self.place):
                options = (RECV, call, layout, None, self.lane)
                self.recording.nodes[self.place] = (START, None, (), (-1,), options, None, None)
        elif (shape, dtype, layout) != (call.shape, call.dtype, self.out):
            raise CollectiveMismatch(
                f"{self.what}, started at {self.site}, was given like={np.dtype(call.dtype)}{list(call.shape)} "
                f"{self.out!r}; {sender} sent {dtype}{list(shape)} {layout!r}\n  fix: pass like= with the "
                "shape, dtype and labels of the value that is sent, or omit it"
            )
        self.is_read = True


# -- the nonblocking forms ---------------------------------------------------------------------------------------------


def nonblocking(
    blocking: Callable[Arguments, Tensor], note: str = "", example: str = ""
) -> Callable[Arguments, Tensor]:
    """The nonblocking form of a public function: it has the same arguments and returns a handle.

    Parameters
    ----------
    blocking : callable
        A function made by `user_function`.
    note, example : str
        Text that is added to the docstring of the nonblocking form.
    """
    resolve: Callable[..., Use] = blocking.__wrapped__  # type: ignore[attr-defined]  # `user_function` sets it
    name = blocking.__name__

    def function(*args: Arguments.args, **options: Arguments.kwargs) -> Tensor:
        try:
            use = resolve(*args, **options)
        except TypeError as error:
            raise as_typed(error, resolve, args, options) from error.__cause__
        return _start_tensor(use.collective, use.x, use.call, agree=True)

    labels = (blocking.__doc__ or "").partition(":")[0]
    function.__name__ = function.__qualname__ = f"{name}_async"
    function.__module__ = __name__
    function.__signature__ = signature(blocking)  # type: ignore[attr-defined]  # inspect reads it
    function.__annotations__ = dict(blocking.__annotations__)
    function.__doc__ = f"""{labels}: start `{name}` and return at once; the first use of the result waits for it.

    The parameters, formula, bytes and messages are those of `{name}`. The handle is a Tensor. Using it as an operand
    waits for it, as ``handle.wait()`` does; ``handle.test()`` is True if that would return at once. Adjoint: that of
    `{name}`. It starts at the first use of the result, and is waited for at this call.{note and f" {note}"}

    Returns
    -------
    Deferred
        Every rank must use it or wait for it before the block of the tape or the mesh ends. The operand may be changed
        after the call, because a copy of it is sent.

    Raises
    ------
    CommunicationError
        At the end of either block, if the handle was not waited for. The error names this call.
    MeshError
        The algorithm is neither ``native`` nor ``auto`` (which selects ``native`` for started calls). It would progress
        only while its rank waits for it, and ranks may wait in different orders. If the mesh has another algorithm,
        pass ``algorithm="native"``.

    Notes
    -----
    Started calls have a separate channel on each axis, which is made at the first of them. They are compared with the
    calls of the other ranks on the axis. So if the check mode compares calls (see `check`), a start waits until all
    ranks have made the call, but not for the data. MPI makes little progress by itself, so the tape pokes it after each
    operation. Source: the nonblocking collectives of the MPI standard 4.1, chapter 6.
{example}
    """
    return function


_EXTENTS = "Where the label of `x` has no agreed extents, the ranks first exchange them, which blocks."
_HEADER = "Without `like`, shape, dtype and labels are broadcast first, which blocks."

_EXAMPLE = """
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
    [(18.0, 9.0), (18.0, 9.0)]"""

all_gather_async = nonblocking(all_gather, _EXTENTS)
all_reduce_async = nonblocking(all_reduce, example=_EXAMPLE)
all_to_all_async = nonblocking(all_to_all, _EXTENTS)
broadcast_async = nonblocking(broadcast, _HEADER)
permute_async = nonblocking(permute)
reduce_async = nonblocking(reduce)
reduce_scatter_async = nonblocking(reduce_scatter)


# -- one rank to another -----------------------------------------------------------------------------------------------


def isend(x: Any, axis: AxisName, dst: int) -> Tensor:
    """V -> (on `dst`): start to send this rank's value to rank `dst`, which calls `irecv`.

    Formula: ``y_dst = x_r``. Adjoint: a receive of the cotangent, which starts where the handle was waited for and is
    waited for at this call.

    Parameters
    ----------
    x : Tensor or array
        Any shape and dtype. They are sent with the value, as are the labels on the other axes.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    dst : int
        The receiving rank along the axis.

    Returns
    -------
    Deferred
        A handle without a value. ``handle.wait()`` returns once the array may be changed; because a copy is sent, that
        is at once.

    Raises
    ------
    MeshError
        `dst` is out of range, or this rank itself.
    LayoutError
        `x` is R, I or P on the axis.

    Notes
    -----
    It pairs only with `irecv`, not with `recv`. Messages and bytes as in `send`. It corresponds to MPI's Isend.

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
    x, on = operand(x, axis, "isend")
    check_other(dst, on, "isend", "dst")
    assert x.layout is not None
    SEND.check(x, on)
    dst, site = int(dst), short_site(*find_site())
    header = headers.write(x.array, x.layout.replace(on.names, V), state.recording is not None, _WHAT, site)
    on.group.lane("headers").send(header, dst)
    number = next_number(on, "numbers of isend", dst)
    options = number, f"message {number} to rank {on.group.ranks[dst]}, sent at {site}"
    shape, dtype = x.array.shape, x.array.dtype
    call = Call(on.names, on.group.lane("messages"), root=dst, shape=shape, dtype=dtype, options=options)
    return _start_tensor(SEND, x, call)


@typed_errors
def irecv(axis: AxisName, src: int, *, like: Any = None) -> Tensor:
    """(on `src`) -> V: start to receive the value that rank `src` sends by `isend`.

    Formula: ``y_r = x_src``. Adjoint: a send of the cotangent, which starts at the first use of the result and is
    waited for at this call.

    Parameters
    ----------
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    src : int
        The sending rank along the axis.
    like : Tensor or array, optional
        The shape, dtype and labels of the value (an array is V), so that its data can arrive in the background. Without
        it the header arrives in the background, and the data once ``handle.test()`` has found the header, or at the
        wait.

    Returns
    -------
    Deferred
        A handle, which is the value at its first use.

    Raises
    ------
    MeshError
        `src` is out of range, or this rank itself.
    CollectiveMismatch
        At the wait: the value does not match `like`, or one of the two ranks records and the other does not.

    Notes
    -----
    Messages and bytes as in `send`. It corresponds to MPI's Irecv.

    Examples
    --------
    See `isend`.
    """
    mesh = current_mesh()
    on = mesh.axis(axis)
    check_other(src, on, "irecv", "src")
    src, layout = int(src), None
    number = next_number(on, "numbers of irecv", src)
    text = f"message {number} from rank {on.group.ranks[src]}, received at {short_site(*find_site())}"
    call = Call(on.names, on.group.lane("messages"), root=src, like=sample(like), options=(number, text))
    if like is not None:
        known = like.layout if like.__class__ in TENSORS and like.layout is not None else mesh.grid.uniform(V)
        layout = known.replace(on.names, V)
        call = call.but(shape=tuple(map(int, like.shape)), dtype=np.dtype(like.dtype))
    return _start_recv_of_header(call, layout, on)
