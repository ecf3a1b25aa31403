"""The protocol that every transport implements: a dozen calls on arrays, each blocking or as start/wait.

A communicator is a *channel*: an ordered group of ranks and a purpose. A transport knows nothing of tapes, layouts or
meshes. Its arrays are one-dimensional, C-contiguous host arrays of a numeric or boolean dtype; counts are numbers of
elements, one per rank of the group, and may be zero or differ. No call keeps or changes an array that it was given,
and every result is owned by the caller. Reductions are sums, but for the two that are named for what they are.
Sums and products of float16 are taken in float32 and rounded once.

======================  ==========================================  ==========================================
call                    arguments                                   result
======================  ==========================================  ==========================================
broadcast               x (written on other ranks: a buffer), root  x of the root
reduce                  x, root                                     the sum on root, None elsewhere
all_reduce              x                                           the sum
gather                  x, counts, root                             parts in order of rank on root, None elsewhere
all_gather              x, counts                                   parts in order of rank
scatter                 x (None off the root), counts, root, dtype  this rank's part
reduce_scatter          x, counts                                   this rank's part of the sum
all_to_all              x, send_counts, receive_counts              parts received, in order of rank
send                    x, dst                                      None; nonblocking inside, owns a copy
recv                    buffer, src                                 the buffer, filled
maximum                 x (of an ordered dtype)                     the largest, element by element
product                 x                                           the product
scan                    x, exclusive, backwards                     the sum over this rank and those before it
                                                                    (exclusive: without this rank; backwards: after)
get                     x, runs                                     what `runs` names of the ranks' arrays
accumulate              values, runs, count                         `count` zeros, with what the ranks add there
lend                    x, dst                                      Pending: a send without a copy, see there
exchange                data: bytes                                 list of every rank's bytes
barrier                 -                                           None
======================  ==========================================  ==========================================

The two one-sided calls are made by all ranks of the group, and each says for itself what it wants of whom: its runs are
``(source, offset, count)`` in elements of the source's array, in the order of the result or of `values`. Nobody is told
what is taken from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from .traffic import Traffic

__all__ = ["Array", "ByName", "Communicator", "Copy", "Pending", "Request", "Runs"]


T = TypeVar("T")
Array = np.ndarray[Any, Any]
Runs = Sequence[tuple[int, int, int]]
"""Parts of the ranks' arrays: source rank, offset there, count; in elements."""


class Request(NamedTuple):
    """One call of a communicator: everything that the transport is told.

    Attributes
    ----------
    call : str
        Its name: one of the module's table.
    x : array, bytes or None
        This rank's operand: flat and contiguous. None where this rank contributes nothing (`recv`, `scatter` and
        `broadcast` off the root, `barrier`). The bytes of `exchange`.
    op : {"sum", "max", "prod"}
        The reduction of `all_reduce`; the others are sums.
    counts, receive_counts : sequence of int
        Numbers of elements, one per rank: of the parts that are sent, and in `all_to_all` of those that arrive.
    root, peer : int
        The root, or the other rank of a message, as a place in the group.
    dtype : dtype
        The result's, where no operand tells it (`scatter`).
    out : array
        The buffer that receives, in `recv` and in `broadcast` off the root: the result is this array.
    options : tuple
        What one family needs: ``(exclusive, backwards)`` of `scan`, ``(runs,)`` of `get`, ``(runs, count)`` of
        `accumulate`.
    """

    call: str
    x: Any = None
    op: str = "sum"
    counts: Sequence[int] | None = None
    receive_counts: Sequence[int] | None = None
    root: int = 0
    peer: int = 0
    dtype: Any = None
    out: Any = None
    options: tuple[Any, ...] = ()


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


class Copy(NamedTuple):
    """A value that should be equal on all ranks of a group, as one of them saw it: where, what, and its digest."""

    place: str
    text: str
    digest: int


class Communicator:
    """A channel between the ranks of one group. See the module's table for the calls.

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
    texts : dict
        The fingerprints of calls that were made on it before.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    name: str
    algorithm: str = "native"
    traffic: Traffic
    copies: list[Copy]
    texts: dict[Any, str]
    dry = False
    """Whether nothing is sent and arrays have shapes only (`transports.dry`)."""
    library: Any = None
    """``mpi4py.MPI`` where the ranks are processes: shared memory is allocated through it."""

    # -- groups ------------------------------------------------------------------------------------------------
    def subgroup(self, members: Sequence[int], name: str) -> Communicator:
        """The channel of some of this group's ranks, in the order given. Only the members call it."""
        raise NotImplementedError

    def duplicate(self, purpose: str) -> Communicator:
        """The same ranks on a channel of their own, so that its order is independent of this one's."""
        return self.subgroup(range(self.size), f"{self.name}/{purpose}")

    def lane(self, purpose: str) -> Communicator:
        """The same ranks for `send` and `recv` alone, whose messages are not mixed up with this one's.

        Made without communication, since two ranks may be all that ever use it. Asked again, it is the same object.
        """
        return self.duplicate(purpose)

    @property
    def control(self) -> Communicator:
        """The channel of control messages: fingerprints, headers, extents, exchanges of bytes, subgroups.

        It takes host memory, whatever the data's channel takes. A transport that can carry both is its own.
        """
        return self

    # -- agreement ---------------------------------------------------------------------------------------------
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
        raise NotImplementedError

    def announce(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        """`agree` for a call that makes one call of this communicator, at once: a transport may join the two."""
        self.agree(call, layout, is_rooted)

    # -- calls, blocking; a transport overrides what it has -----------------------------------------------------
    def broadcast(self, x: Array, root: int) -> Array:
        raise NotImplementedError

    def reduce(self, x: Array, root: int) -> Array | None:
        raise NotImplementedError

    def all_reduce(self, x: Array) -> Array:
        raise NotImplementedError

    def gather(self, x: Array, counts: Sequence[int], root: int) -> Array | None:
        raise NotImplementedError

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        raise NotImplementedError

    def scatter(self, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Array:
        raise NotImplementedError

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        raise NotImplementedError

    def all_to_all(self, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        raise NotImplementedError

    def send(self, x: Array, dst: int) -> None:
        raise NotImplementedError

    def recv(self, buffer: Array, src: int) -> Array:
        raise NotImplementedError

    def maximum(self, x: Array) -> Array:
        raise NotImplementedError

    def product(self, x: Array) -> Array:
        raise NotImplementedError

    def scan(self, x: Array, exclusive: bool, backwards: bool) -> Array:
        raise NotImplementedError

    def get(self, x: Array, runs: Runs) -> Array:
        raise NotImplementedError

    def accumulate(self, values: Array, runs: Runs, count: int) -> Array:
        raise NotImplementedError

    def lend(self, x: Array, dst: int) -> Pending[None]:
        """Send without a copy: the array must not change until the pending call is complete.

        It is matched by `recv`, in one order with `send`. A transport that copies in any case completes it at once.
        """
        self.send(x, dst)
        return Pending.done(None)

    def exchange(self, data: bytes) -> list[bytes]:
        raise NotImplementedError

    def barrier(self) -> None:
        raise NotImplementedError

    poke: Callable[[], None] | None = None
    """Makes progress on sends that are under way, where the transport makes none by itself; the tape calls it."""

    # -- requests ----------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Any:
        """Make a call and return its result."""
        name, args = named(request)
        return getattr(self, name)(*args)

    def start(self, call: Any, *args: Any) -> Pending[Any]:
        """Start a call (a `Request`) and return at once. The order of starts is part of the channel's order.

        A transport without a nonblocking form completes the call before it returns.
        """
        if isinstance(call, Request):
            name, args = named(call)
            return self.start(name, *args)
        return Pending.done(getattr(self, call)(*args))


def named(request: Request) -> tuple[str, tuple[Any, ...]]:
    """A request as a method's name and its arguments, while the transports are not written in requests."""
    call, x, op, counts, receive_counts, root, peer, dtype, out, options = request
    arguments: dict[str, tuple[Any, ...]] = {
        "broadcast": (x if out is None else out, root), "reduce": (x, root), "all_reduce": (x,),
        "gather": (x, counts, root), "all_gather": (x, counts), "scatter": (x, counts, root, dtype),
        "reduce_scatter": (x, counts), "all_to_all": (x, counts, receive_counts), "send": (x, peer),
        "recv": (out, peer), "scan": (x, *options), "get": (x, *options), "accumulate": (x, *options),
        "lend": (x, peer), "exchange": (x,), "barrier": (),
    }  # fmt: skip
    return {"max": "maximum", "prod": "product"}.get(op, call), arguments[call]


class ByName(Communicator):
    """A communicator whose collectives are entries of one table. A transport overrides `_call`, and what is special."""

    def _call(self, name: str, *args: Any) -> Any:
        """The named call, blocking."""
        raise NotImplementedError

    def broadcast(self, x: Array, root: int) -> Array:
        return self._call("broadcast", x, root)

    def reduce(self, x: Array, root: int) -> Array | None:
        return self._call("reduce", x, root)

    def all_reduce(self, x: Array) -> Array:
        return self._call("all_reduce", x)

    def gather(self, x: Array, counts: Sequence[int], root: int) -> Array | None:
        return self._call("gather", x, counts, root)

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("all_gather", x, counts)

    def scatter(self, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Array:
        return self._call("scatter", x, counts, root, dtype)

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("reduce_scatter", x, counts)

    def all_to_all(self, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        return self._call("all_to_all", x, send_counts, receive_counts)

    def maximum(self, x: Array) -> Array:
        return self._call("maximum", x)

    def product(self, x: Array) -> Array:
        return self._call("product", x)

    def scan(self, x: Array, exclusive: bool, backwards: bool) -> Array:
        return self._call("scan", x, exclusive, backwards)

    def barrier(self) -> None:
        self._call("barrier")
