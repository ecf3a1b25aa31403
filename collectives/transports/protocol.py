"""The protocol that every transport implements: requests on arrays, run or started.

A communicator is a *channel*: an ordered group of ranks and a purpose. It does not depend on tapes, layouts or meshes.
A `Request` describes one call, and `transports.request` has the table of calls.

`Communicator` implements the parts that all transports share: validation, the result of a group of one rank, float16,
the copy that a started call owns, counters of messages, observers, and a method for each call. `host_transport` has
what a transport adds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy import empty, ndarray

from autograd.arrays import half
from autograd.arrays.device import is_array
from autograd.arrays.shape_only import Shaped
from autograd.errors import CollectiveMismatch, CommunicationError, DtypeError, MeshError, short
from autograd.layouts.rank_values import EVERY_AXIS, RankInt

from ..checks.channel import Checks
from ..checks.sanitizer import Addend
from .request import (
    DTYPES,
    REDUCTIONS,
    Array,
    Bfloat16,
    Request,
    Runs,
    alone,
    answer,
    check,
    check_members,
    check_message,
)
from .traffic import Traffic

if TYPE_CHECKING:
    from .arrivals import Arrivals
    from .windows import Clocks, Window

__all__ = [
    "Array", "Communicator", "Observer", "Pending", "Request", "Runs", "Text", "Wrapper", "observed", "observers",
    "quietly", "with_words",
]  # fmt: skip


T = TypeVar("T")
Text = str | Callable[[], str]
"""A fingerprint, or a function that returns it."""


class Pending(Generic[T]):
    """A communication that was started. `wait` returns its result and can be repeated; `test` makes progress."""

    __slots__ = ("_finish", "_out", "_result", "_test")

    def __init__(self, test: Callable[[], bool] | None, finish: Callable[[], T] | None, result: T | None = None):
        self._test = test
        self._finish = finish
        self._result = result
        self._out: Any = None

    @classmethod
    def done(cls, result: T) -> Pending[T]:
        """A communication that was complete when it started."""
        return cls(None, None, result)

    def test(self) -> bool:
        """True once `wait` would return at once; makes progress, never blocks."""
        return self._finish is None or self._test is None or self._test()

    def wait(self) -> T:
        """Block until the communication is complete and return its result."""
        if self._finish is not None:
            self._result = self._finish()
            if self._result is not self._out and self._out is not None:
                self._result = landed(self._result, self._out)
            self._finish = self._test = self._out = None
        return self._result  # type: ignore[return-value]  # complete: it is of type T

    def into(self, out: T) -> Pending[T]:
        """Return this object, with `out` as its result: another array is copied there by `wait`."""
        if self._finish is not None:
            self._out = out
        elif self._result is not out:
            self._result = landed(self._result, out)
        return self


def landed(y: Any, out: Any) -> Any:
    """The array that a call was given for its result, filled from the one that it has returned instead."""
    if not is_array(out) or getattr(y, "shape", None) != out.shape or y.dtype != out.dtype:
        raise CommunicationError(
            f"a transport or an algorithm returned {short(y)} for a result of {short(out)}; needed: the "
            "array `out` that it was given, filled, or one like it"
        )
    out[...] = y
    return out


# -- observers ---------------------------------------------------------------------------------------------------------

Observer = Callable[["Communicator", Request, bool, Callable[[], Any]], Any]
"""``observer(group, request, started, run)`` calls `run` once and returns its value: a result, or the `Pending` of a
started call. An agreement is observed as a request ``agree`` whose operand is the fingerprint, and the making of a
window, of clocks and of arrivals as ``window``, ``clocks`` and ``arrivals``."""

observers: dict[int, Observer] = {}
"""The observers by thread number (`inspect.observing`). Calls inside an observed call are not observed: the messages of
an all-reduce, or the two gathers of an exchange."""


def quietly(run: Callable[[], T]) -> T:
    """Call `run` with this thread's observer switched off."""
    thread = get_ident()
    observer = observers.pop(thread, None)
    try:
        return run()
    finally:
        if observer is not None:
            observers[thread] = observer


def observed(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
    """Make a call through this thread's observer, if it has one."""
    thread = get_ident()
    observer = observers.get(thread)
    if observer is None:
        return run()

    def unobserved() -> Any:  # `quietly`, without a call: a record of an all-reduce takes 5 us
        del observers[thread]
        try:
            return run()
        finally:
            observers[thread] = observer

    return observer(group, request, started, unobserved)


def with_words(call: Text, words: str) -> Text:
    """A fingerprint with further words at its end."""
    if isinstance(call, str):
        return f"{call} {words}"
    return lambda: f"{call()} {words}"


# -- communicators -----------------------------------------------------------------------------------------------------

_DIRECT = DTYPES - {np.dtype(np.float16)}
_HALF, _SINGLE, _BITS = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.uint16)
_ON_HOST = (ndarray, Shaped, bytes, type(None))  # operands of these types need no staging
_MESSAGES = frozenset(("send", "lend", "recv"))
_WITH_ROOT = frozenset(("broadcast", "reduce", "gather"))
_SUM = Request("all_reduce")


class Communicator:
    """A channel between the ranks of one group.

    Parameters
    ----------
    index : int
        This rank's place in the group.
    ranks : tuple of int
        The world rank of every member, in order.
    name : str
        The name in error messages: ``world``, or the axis and the purpose.
    key : str
        The same on the ranks of the channel, and on no other one.

    Attributes
    ----------
    index, ranks, name, key
        As given.
    size : int
        The number of ranks.
    axes : tuple of str
        The mesh axes along which `rank` differs: those of the group's axis, else every axis.
    algorithm : str
        The algorithm of its collectives: ``native`` for the transport's own.
    traffic : Traffic
        Messages and payload bytes sent to each peer by `send` and `lend`.
    checks : Checks or None
        What its ranks compare; None for a single rank.
    """

    axes: tuple[str, ...] = (EVERY_AXIS,)
    algorithm: str = "native"
    dry = False
    """Whether nothing is sent and arrays have shapes only (`transports.dry`)."""
    are_processes = False
    """Whether the ranks are processes, or a replay of processes."""
    recorded_choices: Mapping[str, Any] | None = None
    """In a replay, the tables of ``auto`` that were recorded, by channel."""
    is_broken = False
    """Whether a call has failed, or copies differed. Its ranks may be at different calls since then."""
    library: Any = None
    """``mpi4py.MPI`` where the ranks are processes. Shared memory is allocated through it."""
    pools: dict[tuple[int, ...], Any] | None = None
    """What shared memory keeps for each set of ranks of the world, for the groups that these ranks make one after
    another. None: every group has memory of its own."""
    shared: weakref.ref[Any] | None = None
    """The memory that its ranks share (`shared_memory`), while an axis uses it."""
    repeats = False
    """Whether `_run` reads the operand from `x` only and returns `out`, so that a request can be run again with another
    operand, and without the checks of the request and of its result."""
    history: list[int] | None = None
    """The marks of the calls (`job.history`), which monitors compare; None where no monitor does."""
    before_root: Callable[[], object] | None = None
    """Called before a blocking `broadcast`, `reduce` or `gather` of host arrays, where device arrays do not travel with
    them: the ranks agree which of the two it is (`device.nccl`)."""
    unsent: Callable[[bool], None] | None = None
    """Called before each call: it hands over the started calls on device arrays, which would lose their place in the
    order. None where all were passed to the transport."""
    adds_float16 = False
    """Whether `_run` receives float16 operands of reductions unconverted, and rounds the sum once itself."""

    def __init__(self, index: int, ranks: tuple[int, ...], name: str, key: str = "world"):
        self.index, self.size, self.ranks, self.name, self.key = index, len(ranks), ranks, name, key
        self.traffic = Traffic()
        self.checks = None if self.size == 1 else Checks()
        self._subgroups: dict[tuple[int, ...], int] = {}  # how many were made of the same ranks
        self._lanes: dict[str, Communicator] = {}
        self._repeated: dict[Hashable, Callable[[Array], Any]] = {}

    @property
    def rank(self) -> int:
        """`index` as a number that remembers that it differs between the ranks (a `RankInt`), for programs."""
        return RankInt(self.index, self.axes)

    @rank.setter
    def rank(self, value: int) -> None:
        self.index = int(value)

    @property
    def identity(self) -> str:
        """The name and the world ranks, by which a record knows a channel."""
        return f"{self.name} of {','.join(map(str, self.ranks))}"

    # -- groups ------------------------------------------------------------------------------------------------
    @property
    def hosts(self) -> tuple[int, ...]:
        """For each rank, the lowest world rank on its host. Ranks that can share memory are on one host."""
        return (0,) * self.size

    @property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        """Outside hosts, as far as the launcher tells: for each level, from the inside, a number for each rank.

        Ranks with one number are in one rack, one row and so on; 0 is unknown.
        """
        return ()

    def subgroup(self, members: Sequence[int], name: str) -> Communicator:
        """A channel of some of this group's ranks, in the order given. Only its members call this."""
        places = check_members(members, self.index, self.size, name, self.name)
        ranks = tuple([self.ranks[place] for place in places])
        self._subgroups[ranks] = nth = self._subgroups.get(ranks, 0) + 1
        return self._channel_of(ranks, name, f"{self.key}/{name}/{list(ranks)}/{nth}")

    def _channel_of(self, ranks: tuple[int, ...], name: str, key: str) -> Communicator:
        """This rank's end of the channel with a key, between ranks of this group, which are given as world ranks."""
        raise NotImplementedError

    def duplicate(self, purpose: str) -> Communicator:
        """A new channel of the same ranks. The order of its calls is independent of this one's."""
        return self.subgroup(range(self.size), f"{self.name}/{purpose}")

    def lane(self, purpose: str) -> Communicator:
        """A channel of the same ranks for `send` and `recv` only. Its messages do not match this channel's.

        It is made without communication, because possibly only two of the ranks use it. Repeated calls return the same
        object.
        """
        found = self._lanes.get(purpose)
        if found is None:
            found = self._lanes[purpose] = self._lane_of(f"{self.name}/{purpose}", f"{self.key}/{purpose}")
        return found

    def _lane_of(self, name: str, key: str) -> Communicator:
        """`_channel_of` for a lane, whose other ranks perhaps make none."""
        return self._channel_of(self.ranks, name, key)

    # -- control -----------------------------------------------------------------------------------------------
    @property
    def control(self) -> Communicator:
        """The channel of control messages, which carry information about the program instead of its data.

        Control messages are the fingerprints of `agree`, headers, extents, `exchange`, and the messages that make a
        subgroup. They are short, lie in host memory, and are sent at the same places of the program on all ranks, in
        one order with the calls that they precede. So a channel for host data carries its own control messages and
        needs no second communicator. A transport whose data is not in host memory returns another channel.
        """
        return self

    @property
    def checking(self) -> bool:
        """Whether the next `agree` compares fingerprints. The same on all ranks of the group."""
        checks = self.checks
        return checks is not None and checks.is_due

    def agree(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        """Compare a fingerprint (one line of text) with those of the other ranks, while checking is on.

        `call` may be a function that returns the text. It is called only if the text is compared.

        ``ranks`` mode also compares the `layout`, the `copies` and, unless the call `is_rooted`, the call sites: see
        `sanitizer`. The ranks set whether their values of `addend` are equal.

        Raises
        ------
        CollectiveMismatch
            On every rank. The message names the ranks that differ, the call of each and its call site.
        ReplicaMismatch
            On every rank, under ``ranks`` mode, if copies that should be equal differ.
        """
        if isinstance(call, str):
            text = call
        elif self.checks is None or not self.checks.is_due:
            return
        else:
            text = call()
        if observers:
            observed(self, Request("agree", text), False, lambda: self._agree(text, layout, is_rooted, addend))
        else:
            self._agree(text, layout, is_rooted, addend)

    def _agree(self, call: str, layout: str, is_rooted: bool, addend: Addend | None) -> None:
        raise NotImplementedError

    def announce(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        """`agree` before a call of this communicator that follows immediately; a transport can combine the two."""
        self.agree(call, layout, is_rooted, addend)

    def explain(self, request: Request) -> tuple[str, str]:
        """The algorithm that runs a call, and why that one: ``given`` by the program, or the ``default``."""
        return self.algorithm, "default" if self.algorithm == "native" else "given"

    # -- the data method ---------------------------------------------------------------------------------------
    def run(self, request: Request) -> Any:
        """Make a call and return its result."""
        if observers and get_ident() in observers:
            return observed(self, request, False, lambda: self.run(request))
        return (self._prepared_message if request.call in _MESSAGES else self._prepared)(request, False)

    def sender(self, request: Request, x: Array, result: tuple[int, np.dtype[Any]] | None) -> Callable[[Array], Any]:
        """``send(x)``, which runs a request that was run before on another operand of the same size and dtype.

        `x` is the operand of the request, a flat host array whose dtype is not one of 16 bits; `result` is the value of
        `request.answer`. The group has several ranks, and the call is not a message. `send` skips the checks where the
        transport allows it.
        """
        is_broadcast, repeats = request.call == "broadcast", self.repeats
        receives = is_broadcast and request.root != self.index

        def send(x: Array) -> Any:
            if observers and get_ident() in observers:
                whole = request._replace(out=x) if receives else Request(request.call, x, *request[2:])
                return observed(self, whole, False, lambda: send(x))
            if not repeats or self.before_root is not None or self.unsent is not None:
                return self.run(request._replace(out=x) if receives else request._replace(x=x))
            if is_broadcast:
                return self._run(request, None, x if receives else x.copy())
            return self._run(request, x, None if result is None else empty(*result))

        return send

    def repeat(self, key: Hashable, request: Request) -> Any:
        """`run` for a request that this group makes again and again, as operations do before they move data.

        Requests with equal keys may only differ in the values of their operands, which are flat host arrays.
        """
        x = request.out if request.x is None else request.x
        send = self._repeated.get(key)
        if send is not None:
            return send(x)
        y = self.run(request)
        if self.size > 1 and not self.dry:
            self._repeated[key] = self.sender(request._replace(x=None, out=None), x, answer(request, self.index))
        return y

    def start(self, request: Request) -> Pending[Any]:
        """Start a call and return at once. The order of starts is part of the channel's order."""
        if observers and get_ident() in observers:
            started: Pending[Any] = observed(self, request, True, lambda: self.start(request))
            return started
        pending: Pending[Any] = (self._prepared_message if request.call in _MESSAGES else self._prepared)(request, True)
        return pending

    def _prepared(self, request: Request, started: bool) -> Any:
        """Check a request that is no message, prepare its operand and result, and run or start it."""
        call, x, given = request.call, request.x, request.out
        try:
            check(request, self.index, self.size, self.name)
        except Bfloat16:
            return self._of_bfloat16(self._prepared, request, started)
        if self.size == 1 and not self.dry:
            return Pending.done(alone(request)) if started else alone(request)
        if not isinstance(given if x is None else x, _ON_HOST):
            return self._given_back(self._on_device(request, started), given, started)
        if call in REDUCTIONS and x.dtype == _HALF and not self.adds_float16:
            return self._in_float32(request, started)
        if self.unsent is not None:
            self.unsent(True)
        if self.before_root is not None and not started and call in _WITH_ROOT:
            self.before_root()
        out = given
        if call == "broadcast":
            x, out = None, out if x is None else x.copy()
        elif out is None:
            found = answer(request, self.index)
            out = None if found is None else self._empty(*found)
            if started and isinstance(x, ndarray):  # else the result takes the place of the operand
                x = x.copy()
        if started:
            pending = self._start(request, x, out)
            return pending if given is None or self.dry else pending.into(given)
        y = self._run(request, x, out)
        return y if given is None or y is given or self.dry else landed(y, given)

    def _in_float32(self, request: Request, started: bool) -> Any:
        """Make a reduction of 16 bits in float32, and round its result once."""
        x, dtype = request.x.astype(_SINGLE), request.x.dtype
        y = self._prepared(request._replace(x=x, out=None if request.out is None else x), started)
        rounded = Pending(y.test, lambda: half.rounded(y.wait(), dtype)) if started else half.rounded(y, dtype)
        return self._given_back(rounded, request.out, started)

    def _of_bfloat16(self, prepared: Callable[[Request, bool], Any], request: Request, started: bool) -> Any:
        """Make a call on bfloat16, which no transport knows: move its bits, or add in float32."""
        if request.call in REDUCTIONS and not self.dry:
            return self._in_float32(request, started)
        x, out = request.x, request.out
        dtype = request.dtype if x is None and out is None else (out if x is None else x).dtype
        kind = _HALF if self.dry else _BITS  # a dry world counts bytes
        bits = request._replace(
            x=None if x is None else x.view(kind), out=None if out is None else out.view(kind),
            dtype=None if request.dtype is None else kind,
        )  # fmt: skip
        y = prepared(bits, started)

        def back(y: Any) -> Any:
            return out if out is not None else None if y is None else y.view(dtype)

        return Pending(y.test, lambda: back(y.wait())) if started else back(y)

    def _given_back(self, y: Any, out: Any, started: bool) -> Any:
        """A result, or the `Pending` of one, in the array that the caller gave for it, if any."""
        if out is None or y is out:
            return y
        return y.into(out) if started else landed(y, out)

    def _prepared_message(self, request: Request, started: bool) -> Any:
        """Check a message, and send, lend or receive it."""
        x, given = request.x, request.out
        array = given if request.call == "recv" else x
        if not (  # the usual case, without calls, which would take 0.5 us
            array.__class__ is ndarray and array.ndim == 1 and array.dtype in DTYPES and 0 <= request.peer < self.size
            and (flags := array.flags).c_contiguous and (array is x or flags.writeable)
        ):  # fmt: skip
            try:
                check_message(request, self.index, self.size, self.name)
            except Bfloat16:
                return self._of_bfloat16(self._prepared_message, request, started)
            if not isinstance(given if x is None else x, _ON_HOST):
                return self._given_back(self._on_device(request, started), given, started)
        if self.unsent is not None:
            self.unsent(True)
        if request.call == "send" and isinstance(x, ndarray):
            x = x.copy()
        if x is not None:
            self.traffic.count(self.ranks[request.peer], x.nbytes)
        if started:
            pending = self._start(request, x, given)
            return pending if given is None or self.dry else pending.into(given)
        y = self._run(request, x, given)
        return y if given is None or y is given or self.dry else landed(y, given)

    def _empty(self, count: int, dtype: np.dtype[Any]) -> Any:
        """An array for a result."""
        return empty(count, dtype)

    def _on_device(self, request: Request, started: bool) -> Any:
        """Make a call whose arrays are not on the host; see `transports.device`."""
        kind = type(request.out if request.x is None else request.x).__name__
        raise DtypeError(f"{request.call} on '{self.name}' of a {kind}; needed: an array of the host")

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        """Make a prepared call; see `HostTransport`."""
        return self._start(request, x, out).wait()

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        """Start a prepared call; see `HostTransport`. By default the call is complete when this returns."""
        return Pending.done(self._run(request, x, out))

    # -- memory that the ranks use at different times -----------------------------------------------------------
    def window(self, x: Array) -> Window:
        """A window whose memory on this rank is a copy of `x`; see `windows`. All ranks of the group call it.

        `x` is flat, on the host, and has the same dtype on all ranks. Its size may differ between them.

        Raises
        ------
        ShapeError, DtypeError
            `x` is not flat and contiguous, or it is boolean or float16.
        CollectiveMismatch
            The ranks give arrays of different dtypes.
        MeshError
            The transport has no windows: nothing is sent in a dry world.
        """
        from .windows import LocalWindow, check_memory  # loaded with the first one-sided call

        check_memory(x, self.name)
        if observers and get_ident() in observers:
            seen: Window = observed(self, Request("window", x), False, lambda: self.window(x))
            return seen
        if self.size == 1:
            return LocalWindow(self.index, self.ranks, [x.copy()], [Lock()], self.name)
        self._refuse_dry("window")
        given = [each.decode().split() for each in self.exchange(f"{x.dtype.str} {x.size}".encode())]
        if len({dtype for dtype, _ in given}) > 1:
            found = [np.dtype(dtype) for dtype, _ in given]
            dtypes = ", ".join(f"rank {rank}: {dtype}" for rank, dtype in zip(self.ranks, found, strict=True))
            raise CollectiveMismatch(f"window on '{self.name}': {dtypes}; needed: the same dtype on all ranks")
        return self._window_of(x, [int(count) for _, count in given])

    def clocks(self) -> Clocks:
        """Counters of the ranks, all at 0; see `windows`. All ranks of the group call it."""
        if observers and get_ident() in observers:
            seen: Clocks = observed(self, Request("clocks"), False, self.clocks)
            return seen
        if self.size == 1:
            from .windows import AloneClocks

            return AloneClocks()
        self._refuse_dry("clocks")
        return self._clocks_of()

    def arrivals(self, count: int, steps: int) -> Arrivals:
        """A record of the first `count` ranks at each of some steps; see `arrivals`. All ranks of the group call it.

        Raises
        ------
        ArgumentError
            `count` is not from 1 to the number of ranks, or there is no step.
        MeshError
            The world is dry.
        """
        if observers and get_ident() in observers:
            seen: Arrivals = observed(self, Request("arrivals"), False, lambda: self.arrivals(count, steps))
            return seen
        if self.size == 1:
            from .arrivals import AloneArrivals

            return AloneArrivals(steps, count)
        self._refuse_dry("arrivals")
        return self._arrivals_of(count, steps)

    def _refuse_dry(self, what: str) -> None:
        if self.dry:
            raise MeshError(
                f"{what} on '{self.name}': a dry world of {self.size} ranks has no memory of the other ranks; needed: "
                "ranks that run"
            )

    def _window_of(self, x: Array, counts: Sequence[int]) -> Window:
        raise self._without_memory("window")

    def _clocks_of(self) -> Clocks:
        raise self._without_memory("clocks")

    def _arrivals_of(self, count: int, steps: int) -> Arrivals:
        raise self._without_memory("arrivals")

    def _without_memory(self, what: str) -> MeshError:
        return MeshError(
            f"{what} on '{self.name}': {type(self).__name__} has no memory that ranks read and write at different "
            "times\n  fix: World('threads'), or World('mpi') under mpiexec"
        )

    foreign: Callable[..., Any] | None = None
    """``foreign(name, function, x)`` runs ``function(x, comm)`` with mpi4py's communicator; None without MPI."""
    poke: Callable[[], None] | None = None
    """Makes progress on incomplete sends, for transports that make none by themselves. The tape calls it."""
    in_flight: tuple[Any, ...] = (True,)
    """Containers that are all empty while `poke` has nothing to do."""

    # -- the calls, blocking -----------------------------------------------------------------------------------
    def all_reduce(self, x: Array, op: str = "sum") -> Array:
        """The reduction of all ranks' arrays, in their dtype.

        A sum of small integers wraps, and that of booleans is "or". `collectives.all_reduce` adds in 64 bits.
        """
        if (  # the most frequent call: where nothing has to be done before it, `run` and `_prepared` are left out
            self.repeats and op == "sum" and x.__class__ is ndarray and x.ndim == 1 and x.dtype in _DIRECT
            and x.flags.c_contiguous and self.size > 1 and self.unsent is None and not observers
        ):  # fmt: skip
            return self._run(_SUM, x, empty(x.size, x.dtype))
        return self.run(Request("all_reduce", x, op))

    def reduce(self, x: Array, root: int) -> Array | None:
        """The sum of all ranks' arrays on the root."""
        return self.run(Request("reduce", x, root=root))

    def broadcast(self, x: Array, root: int) -> Array:
        """The root's array. On the other ranks `x` is the buffer for it."""
        is_root = root == self.index
        return self.run(Request("broadcast", x if is_root else None, root=root, out=None if is_root else x))

    def gather(self, x: Array, counts: Sequence[int], root: int) -> Array | None:
        """All ranks' parts on the root."""
        return self.run(Request("gather", x, counts=counts, root=root))

    def all_gather(self, x: Array, counts: Sequence[int] | None = None) -> Array:
        """All ranks' parts, of `counts` elements. Raises ArgumentError without counts."""
        return self.run(Request("all_gather", x, counts=counts))

    def scatter(self, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Array:
        """This rank's part of the root's array."""
        return self.run(Request("scatter", x if root == self.index else None, counts=counts, root=root, dtype=dtype))

    def reduce_scatter(self, x: Array, counts: Sequence[int] | None = None) -> Array:
        """This rank's part of the sum, in parts of `counts` elements. Raises ArgumentError without counts."""
        return self.run(Request("reduce_scatter", x, counts=counts))

    def all_to_all(self, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        """The parts that all ranks send to this one."""
        return self.run(Request("all_to_all", x, counts=send_counts, receive_counts=receive_counts))

    def scan(self, x: Array, exclusive: bool = False, backwards: bool = False) -> Array:
        """The sum over the ranks up to this one."""
        return self.run(Request("scan", x, options=(exclusive, backwards)))

    def get(self, x: Array, runs: Runs) -> Array:
        """The elements of the ranks' arrays that `runs` select."""
        return self.run(Request("get", x, options=(runs,)))

    def accumulate(self, values: Array, runs: Runs, count: int) -> Array:
        """`count` zeros, plus the values that all ranks' runs add to them."""
        return self.run(Request("accumulate", values, options=(runs, count)))

    def send(self, x: Array, dst: int) -> None:
        """Send a copy, and return at once."""
        self.run(Request("send", x, peer=dst))

    def lend(self, x: Array, dst: int) -> Pending[None]:
        """Send without a copy: the array must not change until the pending call is complete.

        A `recv` receives it. `lend` and `send` share one order.
        """
        return self.start(Request("lend", x, peer=dst))

    def recv(self, buffer: Array, src: int) -> Array:
        """Receive into a buffer."""
        return self.run(Request("recv", out=buffer, peer=src))

    def exchange(self, data: bytes, of: str = "") -> list[bytes]:
        """Every rank's bytes, sent as control messages. Reports name the call `of` that the exchange is a part of."""
        return self.control.run(Request("exchange", data, options=(of,) if of else ()))

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.run(Request("barrier"))


class Wrapper(Communicator):
    """A communicator that wraps another one, `base`. A subclass implements the calls; the rest delegates to `base`."""

    def __init__(self, base: Communicator):
        self.base = base
        self.index, self.size, self.ranks, self.name, self.key = base.index, base.size, base.ranks, base.name, base.key
        self._repeated = {}
        self.traffic, self.checks, self.dry = base.traffic, base.checks, base.dry
        self.poke, self.in_flight, self.foreign, self.library = base.poke, base.in_flight, base.foreign, base.library
        self.history = base.history
        self.are_processes, self.recorded_choices = base.are_processes, base.recorded_choices

    @property
    def control(self) -> Communicator:
        return self.base.control

    @property
    def is_broken(self) -> bool:  # the attribute of the wrapped group
        return self.base.is_broken

    @is_broken.setter
    def is_broken(self, value: bool) -> None:
        self.base.is_broken = value

    @property
    def checking(self) -> bool:
        return self.base.checking

    @property
    def hosts(self) -> tuple[int, ...]:
        return self.base.hosts

    @property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        return self.base.domains

    def subgroup(self, members: Sequence[int], name: str) -> Communicator:
        return self.base.subgroup(members, name)

    def duplicate(self, purpose: str) -> Communicator:
        return self.base.duplicate(purpose)

    def lane(self, purpose: str) -> Communicator:
        return self.base.lane(purpose)

    def window(self, x: Array) -> Window:
        return self.base.window(x)

    def clocks(self) -> Clocks:
        return self.base.clocks()

    def arrivals(self, count: int, steps: int) -> Arrivals:
        return self.base.arrivals(count, steps)

    def agree(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        self.base.agree(call, layout, is_rooted, addend)
