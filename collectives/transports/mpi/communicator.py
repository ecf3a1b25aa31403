"""Ranks as processes under mpiexec: the transport over mpi4py's upper-case (buffer) calls, for MPICH and Open MPI.

`calls` maps each call to mpi4py, `windows` implements the one-sided calls, `waiting` implements waits, `groups` makes
and frees communicators, and `world` makes the communicator of all ranks. This module counts every call and records
every wait, for the monitor of the `job`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from threading import get_ident
from typing import Any

import numpy as np
from numpy import empty

from autograd.errors import CommunicationError

from ...checks import modes
from ...job.activity import Channel, DeviceCalls, Numbers
from ...job.marks import digest_of, mark
from .. import unsent
from ..host_transport import HostTransport
from ..protocol import Array, Communicator, Pending, Request, observed, observers
from ..request import shown
from . import windows
from .calls import CALLS, mpi_call, nonblocking
from .groups import Groups, Handle
from .library import KINDS, MPI

__all__ = ["MpiCommunicator"]


class MpiCommunicator(HostTransport):
    """A channel between processes. `MpiWorld` and `subgroup` create it.

    Parameters
    ----------
    handle : Handle or None
        MPI's communicator; None for a single rank, which calls no MPI function.
    channel : Channel
        Name, world ranks and counts.
    rank : int
        This process's index in the group.
    groups : Groups
        The communicators of the world.
    """

    library = MPI
    are_processes = True
    repeats = True

    def __init__(self, handle: Handle | None, channel: Channel, rank: int, groups: Groups):
        super().__init__(rank, channel.ranks, channel.name, channel.key)
        self._handle = handle
        self._groups = groups
        self._waits = groups.waits
        self._raises = groups.waits.activity.raises
        self._comm: Any = None if handle is None else handle.comm
        self._channel = channel
        self._groups_of_all: dict[str, MpiCommunicator] = {}  # further ones of the same ranks, by purpose
        self.in_flight = unsent.unsent, groups.waits.sends, groups.waits.started
        self._tag = 0
        self._made: Counter[str] = Counter()  # clocks and arrivals
        self._to_self: deque[Array] = deque()  # messages of a single rank to itself
        self.pools = groups.pools
        if handle is not None:  # nobody waits for a channel of a single rank
            # A message that has a number has it in the higher digits of its tag, and the lane in the lower ones. MPI
            # promises tags up to 32767, so that there are 127 numbers at least; MPI libraries allow millions.
            limit: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
            self._numbers = int(limit) // _LANES - 1
            if self._waits.activity.keeps_histories:
                self.history = channel.history = []
            self._waits.activity.channels[channel.key] = channel

    def __repr__(self) -> str:
        return f"MpiCommunicator('{self.name}', rank {self.index} of {self.size})"

    # -- groups ------------------------------------------------------------------------------------------------
    @property
    def comm(self) -> Any:
        """MPI's communicator; None for a single rank."""
        return self._comm

    @property
    def hosts(self) -> tuple[int, ...]:
        return tuple(self._groups.hosts[rank] for rank in self.ranks)

    @property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(level[rank] for rank in self.ranks) for level in self._groups.domains)

    @property
    def device_state(self) -> dict[Any, Any]:
        return self._groups.devices

    def on_close(self, release: Callable[[], None]) -> None:
        self._groups.on_close.append(release)

    def watch(self, calls: DeviceCalls) -> None:
        self._waits.activity.device_calls.append(calls)

    def note(self, request: Request) -> Any:
        channel = self._channel
        channel.calls += 1
        if self.history is not None:
            self.history.append(_mark_of(request, request.x, request.out))
        return channel, request.call, channel.calls, None

    def device_buffers(self, runtime: Any) -> Any:
        from .device_buffers import DeviceBuffers  # only for arrays of a GPU

        return DeviceBuffers(self, runtime)

    def poke(self) -> None:
        """Make progress on incomplete calls: MPI makes none while the program computes."""
        if unsent.unsent:
            unsent.advance()
        if self._waits.sends or self._waits.started:
            self._waits.reap()

    def _channel_of(self, ranks: tuple[int, ...], name: str, key: str) -> MpiCommunicator:
        digest = digest_of(key)
        channel = Channel(f"{digest:016x}", name, ranks, self._channel.epoch)
        if len(ranks) == 1:
            return MpiCommunicator(None, channel, 0, self._groups)
        places = [self.ranks.index(rank) for rank in ranks]
        handle = self._groups.create(self, self._comm, channel, places, digest)
        made = MpiCommunicator(handle, channel, places.index(self.index), self._groups)
        self._groups.count_made(made)
        return made

    def _lane_of(self, name: str, key: str) -> MpiCommunicator:
        """A lane sends on the communicator of its group, with a tag of its own."""
        channel = Channel(key, name, self.ranks, self._channel.epoch)
        made = MpiCommunicator(self._handle, channel, self.index, self._groups)
        made.history = channel.history = None  # it carries messages only
        made._tag = _lane_tag(key)
        return made

    def _own_channel(self, purpose: str) -> Channel:
        """The counts of the accesses to a window of the same ranks, the waits for which the monitor reads."""
        self._made[purpose] += 1
        key, name = f"{self.key}/{purpose} {self._made[purpose]}", f"{self.name}/{purpose}"
        channel = self._waits.activity.channels[key] = Channel(key, name, self.ranks, self._channel.epoch)
        return channel

    # -- agreement ---------------------------------------------------------------------------------------------
    announce = Communicator.agree  # no MPI call could carry an agreement

    def _largest(self, digests: Array, call: str) -> Array:
        # Data and agreements share MPI's communicator. MPI matches the collective calls of a communicator by their
        # order, and every call directly follows its agreement on all ranks, so an agreement is always matched with an
        # agreement, even if the ranks make different calls. A communicator for control alone would double the number
        # of communicators, which MPI libraries limit to about 2,000.
        largest = digests.copy()
        self._run(_AGREE, digests, largest, call)
        return largest

    def _calls_made(self) -> int:
        return self._channel.calls

    # -- calls -------------------------------------------------------------------------------------------------
    def sender(self, request: Request, x: Array, result: tuple[int, np.dtype[Any]] | None) -> Callable[[Array], Any]:
        """As for every transport; mpi4py's function, the datatype and the mark of the call are looked up once."""
        call, is_broadcast = request.call, request.call == "broadcast"
        marked = _mark_of(request, None if is_broadcast else x, x)
        receives = is_broadcast and request.root != self.index
        request = request._replace(mark=marked)
        general = super().sender(request, x, result)
        if call not in _BLOCKING:
            return general
        name, arguments = CALLS[call]
        function, kind, block, channel = getattr(self._comm, name), KINDS[x.dtype], self._waits.block, self._channel
        datatype, operation = kind.datatype, kind.operations.get(request.op)
        is_sum = call == "all_reduce"

        def send(x: Array) -> Any:
            if observers and get_ident() in observers:
                whole = request._replace(out=x) if receives else Request(call, x, *request[2:])
                return observed(self, whole, False, lambda: send(x))
            if modes.watching or self._raises or self.before_root is not None or self.unsent is not None:
                return general(x)
            given: Array | None = x
            out: Array | None
            if is_broadcast:  # the root's value lies in the buffer, and there is no operand
                given, out = None, x if receives else x.copy()
            else:
                out = None if result is None else empty(*result)
            channel.calls = number = channel.calls + 1
            if self.history is not None:
                self.history.append(marked)
            if is_sum:  # the most frequent call, without that of its row of the table
                block((channel, call, number, None), function, (x, datatype), (out, datatype), operation)
            else:
                block((channel, call, number, None), function, *arguments(request, given, out, kind))
            return out

        return send

    def _run(self, request: Request, x: Any, out: Any, name: str = "") -> Any:
        """Make a call; `name` describes it in reports of waiting ranks (default: the name of the call)."""
        call = request[0]
        if call == "all_reduce":  # the most frequent call: its row of the table, without a function call
            datatype, operations = KINDS[x.dtype]
            given = MPI.IN_PLACE if out is x else (x, datatype)
            function, arguments = "Allreduce", (given, (out, datatype), operations[request[2]])
            marked = request[10] or _mark(call, request[2], 0, x.dtype, x.size, None)
        elif call in _BLOCKING:
            function, arguments = mpi_call(call, request, x, out)
            marked = request[10]
            if not marked:  # as `_mark_of`, without a call
                given = out if x is None else x
                size = given.size if call in _UNIFORM else None
                counts = tuple(request[3] or ()) if call in _COUNTED else None
                marked = _mark(call, request[2], request[5], None if given is None else given.dtype, size, counts)
        elif call == "send":
            self._start_send(x, request[6], False, *request[9])
            return None
        elif call == "exchange":
            return self._exchanged(bytes(x), shown(request))
        else:
            return self._start(request, x, out).wait()
        channel = self._channel
        channel.calls = number = channel.calls + 1
        if self.history is not None:
            self.history.append(marked)
        wait = (channel, name or call, number, None)
        if modes.watching or self._raises:  # poll, so that this rank can raise an error instead of waiting for ever
            try:
                self._waits.start(wait, getattr(self._comm, nonblocking(function)), *arguments).wait()
            except CommunicationError:
                self.is_broken = True
                raise
        else:
            self._waits.block(wait, getattr(self._comm, function), *arguments)
        return out

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        call = request.call
        if call == "recv":
            return self._start_recv(out, request.peer, *request.options)
        if call == "send" or call == "lend":
            return self._start_send(x, request.peer, call == "lend", *request.options)
        if call == "exchange":
            return Pending.done(self._exchanged(bytes(x), shown(request)))
        if call in ("get", "accumulate"):
            return Pending.done(self._window(request, x, out))
        if call == "scan":
            exclusive, backwards = request.options
            if exclusive:
                out[...] = 0  # Exscan leaves the first rank's result undefined
                call = "exscan"
            if backwards:
                there = self._group_of_all("reversed", range(self.size)[::-1])  # MPI's scans run in one direction only
                return there._started(call, request, x, out)
        return self._started(call, request, x, out)

    def _started(self, call: str, request: Request, x: Any, out: Any) -> Pending[Any]:
        function, arguments = mpi_call(call, request, x, out)
        channel = self._channel
        channel.calls = number = channel.calls + 1
        if self.history is not None:
            self.history.append(request.mark or _mark_of(request, x, out))
        wait = (channel, request.call, number, None)
        waited = self._waits.start(wait, getattr(self._comm, nonblocking(function)), *arguments)

        def finish() -> Any:
            waited.wait()
            return out

        return Pending(waited.test, finish)

    def _group_of_all(self, purpose: str, places: Sequence[int]) -> MpiCommunicator:
        """A group of the same ranks, in this order, made at first use."""
        if purpose not in self._groups_of_all:
            found = self.subgroup(places, f"{self.name}/{purpose}")
            assert isinstance(found, MpiCommunicator)
            self._groups_of_all[purpose] = found
        return self._groups_of_all[purpose]

    def _window(self, request: Request, x: Array, out: Array) -> Array:
        function = windows.get if request.call == "get" else windows.accumulate
        args = (self._comm, KINDS[x.dtype], x, request.options[0], out)
        filled: Array = self.block(request.call, function, *args, of=_mark_of(request, x, out))
        return filled

    def block(self, name: str, function: Callable[..., Any], *args: Any, of: int | None = None) -> Any:
        """Run a blocking function that all ranks of the group call and that calls MPI itself. It counts as one call.

        `of` is the mark of the call, by default that of its name.
        """
        if self.unsent is not None:
            self.unsent(True)
        channel = self._channel
        channel.calls = number = channel.calls + 1
        if self.history is not None:
            self.history.append(mark(name, is_message=True) if of is None else of)
        return self._waits.block_apart((channel, name, number, None), function, *args)

    def _exchanged(self, data: bytes, of: str = "exchange") -> list[bytes]:
        """Gather every rank's bytes: first their lengths, then the bytes. `of` names the call in reports."""
        ones, counts = [1] * len(self.ranks), np.empty(self.size, np.int64)
        marked = 0 if of == "exchange" else mark(of, is_message=True)
        self._run(Request("all_gather", counts=ones, mark=marked), np.array([len(data)], np.int64), counts, of)
        sizes = counts.tolist()
        parts = np.empty(sum(sizes), np.uint8)
        self._run(Request("all_gather", counts=sizes), np.frombuffer(data, np.uint8), parts, of)
        return [parts[end - size : end].tobytes() for size, end in zip(sizes, accumulate(sizes), strict=True)]

    # -- windows and clocks ------------------------------------------------------------------------------------
    @property
    def _is_served(self) -> bool:
        return len(set(self.hosts)) > 1

    def _window_of(self, x: Array, counts: Sequence[int]) -> windows.MpiWindow:
        return windows.MpiWindow(self._comm, x, counts, self._channel, self._groups, self.block, self._is_served)

    def _clocks_of(self) -> windows.MpiClocks:
        channel = self._own_channel("clocks")
        counts = [self.size] + [0] * (self.size - 1)
        mine = np.zeros(counts[self.index], np.int64)
        window = windows.MpiWindow(self._comm, mine, counts, channel, self._groups, self.block, self._is_served)
        return windows.MpiClocks(window, channel, self._waits, self.index)

    def _arrivals_of(self, count: int, steps: int) -> windows.MpiArrivals:
        channel = self._own_channel("arrivals")
        channel.count = count
        counts = [windows.record_size(self.size) * len(range(rank, steps, self.size)) for rank in range(self.size)]
        mine = np.zeros(counts[self.index], np.int64)
        window = windows.MpiWindow(self._comm, mine, counts, channel, self._groups, self.block, self._is_served)
        return windows.MpiArrivals(window, channel, self._waits, self.index, count, steps)

    # -- messages ----------------------------------------------------------------------------------------------
    def _start_send(
        self, x: Array, dst: int, is_lent: bool, number: int | None = None, text: str = ""
    ) -> Pending[None]:
        if self._comm is None:
            self._to_self.append(x.copy() if is_lent else x)
            return Pending.done(None)
        channel, target, tag = self._channel, self.ranks[dst], self._tag
        sent = channel.sent
        if number is None:
            wait = (channel, "lend", sent.get(target, 0) + 1, target)
        else:
            wait, tag = (channel, "lend", number, target), tag + _LANES * (1 + number % self._numbers)
        start = self._waits.start if is_lent else self._waits.send
        waited = start(wait, self._comm.Isend, (x, KINDS[x.dtype].datatype), dst, tag)
        if number is None:
            sent[target] = wait[2]
        else:
            (sent.get(target) or _numbers(sent, target)).note(number)
        if text:
            if target not in channel.texts:
                channel.texts[target] = deque(maxlen=_MOST_TEXTS)
            channel.texts[target].append((wait[2], text))
        return _SENT if waited is None else Pending(waited.test, waited.wait)

    def _start_recv(self, buffer: Array, src: int, number: int | None = None, text: str = "") -> Pending[Array]:
        if self._comm is None:
            return Pending(None, lambda: self._from_self(buffer))
        self._waits.reap()
        received, source, tag = self._channel.received, self.ranks[src], self._tag
        if number is None:
            received[source] = number = received.get(source, 0) + 1
        else:
            (received.get(source) or _numbers(received, source)).note(number)
            tag += _LANES * (1 + number % self._numbers)
        datatype = KINDS[buffer.dtype].datatype
        wait = (self._channel, f"recv ({text})" if text else "recv", number, source)
        waited = self._waits.start(wait, self._comm.Irecv, (buffer, datatype), src, tag)

        def finish() -> Array:
            waited.wait()
            count = waited.status.Get_count(datatype)
            if count != buffer.size:
                raise CommunicationError(
                    f"recv #{number} from rank {source} on '{self.name}': {count} elements arrived; needed: "
                    f"{buffer.size}, the size of the buffer"
                )
            return buffer

        return Pending(waited.test, finish)

    def _from_self(self, buffer: Array) -> Array:
        if not self._to_self:
            raise CommunicationError(
                f"recv on '{self.name}': its single rank has sent no message to itself. Fix: send before recv"
            )
        buffer[...] = self._to_self.popleft()
        return buffer

    # -- foreign code ------------------------------------------------------------------------------------------
    def foreign(self, name: str, function: Callable[[Any, Any], Any], x: Any) -> Any:
        """Run ``function(x, comm)``, which calls MPI itself, on a communicator of its own; it counts as one call."""
        if self._comm is None:
            return function(x, MPI.COMM_SELF)
        own = self._group_of_all("raw", range(self.size))
        return own.block(name, function, x, own._comm)


_AGREE = Request("all_reduce", op="max", mark=mark("a comparison of fingerprints", is_message=True))
_SENT: Pending[None] = Pending.done(None)
_LANES = 256  # tags below it are those of lanes
_MOST_TEXTS = 64  # descriptions that are kept of the messages to a rank
_BLOCKING = frozenset(CALLS) - {"scan", "exscan"}
_ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
_UNIFORM = frozenset(("all_reduce", "broadcast", "reduce", "scan"))  # their operands have one size on all ranks
_COUNTED = frozenset(("all_gather", "reduce_scatter"))  # all ranks pass the same counts


def _lane_tag(key: str) -> int:
    """The tag of a lane: a digest of the path of its purposes, which stands after the key of its group."""
    return 1 + digest_of(key.partition("/")[2]) % (_LANES - 1)


def _numbers(of: dict[int, Any], rank: int) -> Any:
    """The numbers of the messages to or from a rank, before the first."""
    of[rank] = made = Numbers()
    return made


def _mark_of(request: Request, x: Any, out: Any) -> int:
    """The mark of a call: what MPI needs to be the same on all ranks."""
    call = request[0]
    given = out if x is None else x
    counts = tuple(request[3] or ()) if call in _COUNTED else request[9] if call == "scan" else None
    size = given.size if call in _UNIFORM else None
    return _mark(call, request[2], request[5], None if given is None else given.dtype, size, counts)


@lru_cache(maxsize=4096)  # by what MPI needs to be the same, in each call: 15 us without it
def _mark(call: str, op: str, root: int, dtype: Any, size: int | None, counts: Any) -> int:
    """`counts` are the options of a scan."""
    sizes = "" if size is None else f"[{size}]"
    if counts is not None and call != "scan":
        sizes = f"{list(map(int, counts))}"
    given = "" if dtype is None else f"({np.dtype(dtype)}{sizes})"
    options = f" exclusive={counts[0]} backwards={counts[1]}" if call == "scan" else ""
    root_text = f" root={root}" if call in _ROOTED else ""
    return mark(f"{shown(Request(call, op=op))}{given}{root_text}{options}", is_message=True)
