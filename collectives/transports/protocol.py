"""The protocol that every transport implements: requests on arrays, run or started.

A communicator is a *channel*: an ordered group of ranks and a purpose. It knows nothing of tapes, layouts or meshes.
`Request` says what one call asks, and `transports.request` has the table of calls.

What all transports have in common stands here, once: validation, the result of a group of one rank, float16, the copy
that a started call owns, counters of messages, observers, and a method for each call. A transport implements `_run` or
`_start`, on operands that are checked and ready; see `Communicator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Generic, TypeVar

import numpy as np
from numpy import empty, ndarray

from autograd.arrays.shape_only import Shaped
from autograd.errors import DtypeError

from ..checks.sanitizer import Copy
from .request import DTYPES, REDUCTIONS, Array, Request, Runs, alone, answer, check, check_members
from .traffic import Traffic

__all__ = ["Array", "Communicator", "Observer", "Pending", "Request", "Runs", "Wrapper", "observers", "quietly"]


T = TypeVar("T")


class Pending(Generic[T]):
    """A communication that was started. `wait` returns its result (once or many times); `test` makes progress."""

    __slots__ = ("_finish", "_result", "_test")

    def __init__(self, test: Callable[[], bool] | None, finish: Callable[[], T] | None, result: T | None = None):
        self._test = test
        self._finish = finish
        self._result = result

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
            self._finish = self._test = None
        return self._result  # type: ignore[return-value]


# -- observers ---------------------------------------------------------------------------------------------------------

Observer = Callable[["Communicator", Request, bool, Callable[[], Any]], Any]
"""``observer(group, request, started, run)`` calls `run` once and returns what that returns: a result, or the Pending
of a call that was started. An agreement is told as a request ``agree`` whose operand is the fingerprint."""

observers: dict[int, Observer] = {}
"""The observer of each thread that has one, by the thread's number (`inspect.observing`). Calls inside a call that is
told (an all-reduce made of messages, an exchange made of two gathers) are not told."""


def quietly(run: Callable[[], T]) -> T:
    """Call `run` without telling this thread's observer of the calls in it."""
    thread = get_ident()
    observer = observers.pop(thread, None)
    try:
        return run()
    finally:
        if observer is not None:
            observers[thread] = observer


def _told(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
    """Make a call and tell this thread's observer, if it has one."""
    observer = observers.get(get_ident())
    return run() if observer is None else observer(group, request, started, lambda: quietly(run))


# -- communicators -----------------------------------------------------------------------------------------------------

_QUICK = DTYPES - {np.dtype(np.float16)}
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)
_HERE = (ndarray, Shaped, bytes, type(None))  # what needs no staging
_MESSAGES = frozenset(("send", "lend", "recv"))
_SUM = Request("all_reduce")


class Communicator:
    """A channel between the ranks of one group.

    A transport implements `_run` for calls that block, `_start` for calls that are started, or one of the two: each is
    made of the other where it is missing. Both get ``(request, x, out)``:

    - `request` as it was made, found right.
    - `x`: the operand, on the host, flat and contiguous. It is the call's own where the call is started. Of a float16
      reduction it is in float32. In a `broadcast` it is None.
    - `out`: an array for the result, not initialised, or the caller's buffer; None where this rank gets no array. In a
      `broadcast` it holds the root's value on the root. The transport fills it and returns it.

    A group of one rank makes no such call, except for messages to itself.

    Attributes
    ----------
    rank, size : int
        This rank's place in the group and the number of ranks in it.
    ranks : tuple of int
        The world rank of every member, in order.
    name : str
        What error messages call it: ``world``, or the axis and the purpose.
    algorithm : str
        Which algorithm takes sums and copies: ``native`` for the transport's own.
    traffic : Traffic
        Messages and payload bytes sent to each peer by `send` and `lend`.
    copies : list of Copy
        What the next statement on it tells of values that should be equal on its ranks (see `sanitizer`).
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    name: str
    algorithm: str = "native"
    traffic: Traffic
    copies: list[Copy]
    dry = False
    """Whether nothing is sent and arrays have shapes only (`transports.dry`)."""
    library: Any = None
    """``mpi4py.MPI`` where the ranks are processes: shared memory is allocated through it."""
    repeats = False
    """Whether `_run` takes the operand from `x` alone, so that a request can be run again with another one."""
    adds_float16 = False
    """Whether it is given float16 operands of reductions as they are, and rounds their sums once itself."""

    # -- groups ------------------------------------------------------------------------------------------------
    def subgroup(self, members: Sequence[int], name: str) -> Communicator:
        """The channel of some of this group's ranks, in the order given. Only the members call it."""
        return self._subgroup(check_members(members, self.rank, self.size, name, self.name), name)

    def _subgroup(self, members: list[int], name: str) -> Communicator:
        raise NotImplementedError

    def duplicate(self, purpose: str) -> Communicator:
        """The same ranks on a channel of their own, so that its order is independent of this one's."""
        return self.subgroup(range(self.size), f"{self.name}/{purpose}")

    def lane(self, purpose: str) -> Communicator:
        """The same ranks for `send` and `recv` alone, whose messages are not mixed up with this one's.

        Made without communication, since two ranks may be all that ever use it. Asked again, it is the same object.
        """
        return self.duplicate(purpose)

    # -- control -----------------------------------------------------------------------------------------------
    @property
    def control(self) -> Communicator:
        """The channel of control messages: what ranks tell each other about the program, not the program's data.

        These are the fingerprints of `agree`, headers, extents, `exchange`, and what making a subgroup takes. They are
        short, lie in host memory, and are made at the same places of the program on all ranks, in one order with the
        calls that they precede. So a channel that carries data of the host carries its own control too: no second
        communicator is needed to keep the two apart. A transport whose data lives elsewhere returns another one.
        """
        return self

    @property
    def checking(self) -> bool:
        """Whether the next `agree` would compare. The same on all ranks of the group."""
        raise NotImplementedError

    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        """Compare a fingerprint (one line of text) with the other ranks', while checking is on.

        `layout` is compared with it under ``ranks`` mode, and so are copies and, unless the call `is_rooted`, call
        sites: see `sanitizer`.

        Raises
        ------
        CollectiveMismatch
            On every rank, naming the ranks that differ, what each of them called and where.
        ReplicaMismatch
            On every rank, under ``ranks`` mode: copies that should be equal are not.
        """
        if observers:
            _told(self, Request("agree", call), False, lambda: self._agree(call, layout, is_rooted))
        else:
            self._agree(call, layout, is_rooted)

    def _agree(self, call: str, layout: str, is_rooted: bool) -> None:
        raise NotImplementedError

    def announce(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        """`agree` for a call that makes one call of this communicator, at once: a transport may join the two."""
        self.agree(call, layout, is_rooted)

    # -- the data method ---------------------------------------------------------------------------------------
    def run(self, request: Request) -> Any:
        """Make a call and return its result."""
        if observers and get_ident() in observers:
            return _told(self, request, False, lambda: self.run(request))
        return self._prepared(request, False)

    def run_again(self, request: Request, x: Array, result: tuple[int, np.dtype[Any]] | None) -> Any:
        """`run` for a request that was run before with another operand of the same size and dtype.

        The operand is `x`, an array of the host and not of float16; `result` is what `request.answer` gives. The group
        has several ranks, and the call is no message. Where the transport allows it nothing is checked again.
        """
        if not self.repeats or (observers and get_ident() in observers):
            return self.run(request._replace(x=x))
        if request[0] == "broadcast":
            return self._run(request, None, x.copy())
        return self._run(request, x, None if result is None else empty(*result))

    def start(self, request: Request) -> Pending[Any]:
        """Start a call and return at once. The order of starts is part of the channel's order."""
        if observers and get_ident() in observers:
            started: Pending[Any] = _told(self, request, True, lambda: self.start(request))
            return started
        pending: Pending[Any] = self._prepared(request, True)
        return pending

    def _prepared(self, request: Request, started: bool) -> Any:
        """Check a request, make operand and result ready, and run or start it."""
        call, x = request.call, request.x
        check(request, self.rank, self.size, self.name)
        if self.size == 1 and call not in _MESSAGES and not self.dry:
            return Pending.done(alone(request)) if started else alone(request)
        if not isinstance(request.out if x is None else x, _HERE):
            return self._on_device(request, started)
        is_half = call in REDUCTIONS and x.dtype == _HALF and not self.adds_float16
        out = request.out
        if call == "broadcast":
            x, out = None, out if x is None else x.copy()
        elif out is None:
            found = answer(request, self.rank)
            if found is not None:
                out = self._empty(found[0], _SINGLE if is_half else found[1])
        if is_half:
            x = x.astype(_SINGLE)
        elif (started or call == "send") and call != "lend" and isinstance(x, ndarray):
            x = x.copy()
        if call == "send" or call == "lend":
            self.traffic.count(self.ranks[request.peer], x.nbytes)
        if not started:
            y = self._run(request, x, out)
            return y.astype(_HALF) if is_half and y is not None else y
        pending = self._start(request, x, out)
        if not is_half:
            return pending

        def rounded() -> Any:
            y = pending.wait()
            return None if y is None else y.astype(_HALF)

        return Pending(pending.test, rounded)

    def _empty(self, count: int, dtype: np.dtype[Any]) -> Any:
        """An array for a result."""
        return empty(count, dtype)

    def _on_device(self, request: Request, started: bool) -> Any:
        """A call whose arrays are not on the host; see `transports.staged`."""
        kind = type(request.out if request.x is None else request.x).__name__
        raise DtypeError(f"{request.call} on '{self.name}' of a {kind}; needed: an array of the host")

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        """Make a call that is ready; see the class."""
        return self._start(request, x, out).wait()

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        """Start a call that is ready; see the class. Without a nonblocking form it is complete when this returns."""
        return Pending.done(self._run(request, x, out))

    foreign: Callable[..., Any] | None = None
    """``foreign(name, function, x)`` runs ``function(x, comm)`` with mpi4py's communicator, where there is one."""
    poke: Callable[[], None] | None = None
    """Makes progress on sends that are under way, where the transport makes none by itself; the tape calls it."""

    # -- the calls, blocking -----------------------------------------------------------------------------------
    def all_reduce(self, x: Array, op: str = "sum") -> Array:
        """The reduction of all ranks' arrays."""
        if (  # the most frequent call: where nothing has to be done before it, `run` and `_prepared` are left out
            self.repeats and op == "sum" and x.__class__ is ndarray and x.ndim == 1 and x.dtype in _QUICK
            and x.flags.c_contiguous and self.size > 1 and not observers
        ):  # fmt: skip
            return self._run(_SUM, x, empty(x.size, x.dtype))
        return self.run(Request("all_reduce", x, op))

    def reduce(self, x: Array, root: int) -> Array | None:
        """The sum of all ranks' arrays on the root."""
        return self.run(Request("reduce", x, root=root))

    def broadcast(self, x: Array, root: int) -> Array:
        """The root's array; on the other ranks `x` is the buffer that it is written to."""
        is_root = root == self.rank
        return self.run(Request("broadcast", x if is_root else None, root=root, out=None if is_root else x))

    def gather(self, x: Array, counts: Sequence[int], root: int) -> Array | None:
        """All ranks' parts on the root."""
        return self.run(Request("gather", x, counts=counts, root=root))

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        """All ranks' parts."""
        return self.run(Request("all_gather", x, counts=counts))

    def scatter(self, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Array:
        """This rank's part of the root's array."""
        return self.run(Request("scatter", x if root == self.rank else None, counts=counts, root=root, dtype=dtype))

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        """This rank's part of the sum."""
        return self.run(Request("reduce_scatter", x, counts=counts))

    def all_to_all(self, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        """The parts that all ranks have for this one."""
        return self.run(Request("all_to_all", x, counts=send_counts, receive_counts=receive_counts))

    def scan(self, x: Array, exclusive: bool = False, backwards: bool = False) -> Array:
        """The sum over the ranks up to this one."""
        return self.run(Request("scan", x, options=(exclusive, backwards)))

    def get(self, x: Array, runs: Runs) -> Array:
        """What `runs` name of the ranks' arrays."""
        return self.run(Request("get", x, options=(runs,)))

    def accumulate(self, values: Array, runs: Runs, count: int) -> Array:
        """`count` zeros, plus what all ranks' runs add to them."""
        return self.run(Request("accumulate", values, options=(runs, count)))

    def send(self, x: Array, dst: int) -> None:
        """Send a copy; returns at once."""
        self.run(Request("send", x, peer=dst))

    def lend(self, x: Array, dst: int) -> Pending[None]:
        """Send without a copy: the array must not change until the pending call is complete.

        It is matched by `recv`, in one order with `send`.
        """
        return self.start(Request("lend", x, peer=dst))

    def recv(self, buffer: Array, src: int) -> Array:
        """Receive into a buffer."""
        return self.run(Request("recv", out=buffer, peer=src))

    def exchange(self, data: bytes) -> list[bytes]:
        """Every rank's bytes; a control message."""
        return self.control.run(Request("exchange", data))

    def barrier(self) -> None:
        """Return when all ranks have come."""
        self.run(Request("barrier"))


class Wrapper(Communicator):
    """A communicator in the place of another one, `base`. A subclass takes the calls; the rest is the base's."""

    def __init__(self, base: Communicator):
        self.base = base
        self.rank, self.size, self.ranks, self.name = base.rank, base.size, base.ranks, base.name
        self.traffic, self.copies, self.dry = base.traffic, base.copies, base.dry
        self.poke, self.foreign, self.library = base.poke, base.foreign, base.library

    @property
    def control(self) -> Communicator:
        return self.base.control

    @property
    def checking(self) -> bool:
        return self.base.checking

    def subgroup(self, members: Sequence[int], name: str) -> Communicator:
        return self.base.subgroup(members, name)

    def duplicate(self, purpose: str) -> Communicator:
        return self.base.duplicate(purpose)

    def lane(self, purpose: str) -> Communicator:
        return self.base.lane(purpose)

    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        self.base.agree(call, layout, is_rooted)
