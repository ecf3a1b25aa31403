"""Ranks as processes under mpiexec: the transport over mpi4py's upper-case (buffer) calls, for MPICH and Open MPI.

Nothing imports mpi4py before `mpi_world` is called. `calls` says what each call is for mpi4py, `windows` has the
one-sided ones, `waiting` says how a rank waits, and `groups` makes and frees communicators. The room `job` has what
happens when a rank fails; here every call is counted, and every wait is noted where its monitor reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from autograd.errors import CommunicationError, DeadlockError

from ...checks import modes, sanitizer
from ...checks.sanitizer import Statement
from ...job import failure
from ...job.shutdown import Channel, Farewell
from ..protocol import Array, Pending, Request
from ..staged import HostTransport
from ..traffic import Traffic
from . import library, windows
from .calls import CALLS, asked, kinds, nonblocking
from .groups import Handle, count_made, create, digest_of
from .waiting import Request as Started
from .waiting import process, while_waiting

__all__ = ["MpiCommunicator", "mpi_world"]


class MpiCommunicator(HostTransport):
    """A channel between processes. `mpi_world` and `subgroup` make them.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or None
        A communicator of its own; None for a single rank, which makes no MPI calls.
    channel : Channel
        Name, world ranks and counts.
    rank : int
        This process's place.
    """

    repeats = True

    def __init__(self, comm: Any, channel: Channel, rank: int, handle: Handle | None = None):
        self._handle = Handle(comm, channel) if handle is None and comm is not None else handle
        self.rank = rank
        self.size = len(channel.ranks)
        self.ranks = channel.ranks
        self.name = channel.name
        self.traffic = Traffic()
        self._comm = comm
        self._channel = channel
        self.copies = []
        self._agreed = 0
        self._groups: dict[str, int] = {}  # how often a subgroup was made
        self._reversed: MpiCommunicator | None = None
        self._foreign: MpiCommunicator | None = None
        self._lanes: dict[str, MpiCommunicator] = {}
        self._tag = 0
        self._to_self: deque[Array] = deque()  # messages of a single rank to itself
        process.channels[channel.key] = channel

    def __repr__(self) -> str:
        return f"MpiCommunicator('{self.name}', rank {self.rank} of {self.size})"

    # -- groups ------------------------------------------------------------------------------------------------
    def poke(self) -> None:
        """Make progress on what is under way; MPI makes none while the program computes."""
        process.reap()

    def _subgroup(self, members: list[int], name: str) -> MpiCommunicator:
        ranks = tuple(self.ranks[member] for member in members)
        text = f"{self._channel.key}/{name}/{ranks}"
        self._groups[text] = ordinal = self._groups.get(text, 0) + 1
        digest = digest_of(f"{text}/{ordinal}")
        channel = Channel(f"{digest:016x}", name, ranks)
        if len(members) == 1:
            return MpiCommunicator(None, channel, 0)
        made = MpiCommunicator(create(self, self._comm, channel, members, digest), channel, members.index(self.rank))
        count_made(made)
        return made

    def lane(self, purpose: str) -> MpiCommunicator:
        found = self._lanes.get(purpose)
        if found is None:
            channel = Channel(f"{self._channel.key}/{purpose}", f"{self.name}/{purpose}", self.ranks)
            found = self._lanes[purpose] = MpiCommunicator(self._comm, channel, self.rank, self._handle)
            found._tag = 1 + digest_of(purpose) % 32767  # MPI promises tags up to 32767
        return found

    # -- agreement ---------------------------------------------------------------------------------------------
    @property
    def checking(self) -> bool:
        return self._agreed < modes.limit and self.size > 1

    announce = HostTransport.agree  # it has no call to travel with

    def _agree(self, call: str, layout: str, is_rooted: bool) -> None:
        if self._agreed >= modes.limit or self.size == 1:
            return
        self._agreed += 1
        mine = None
        if modes.watching:
            mine = sanitizer.statement(call, layout, is_rooted, self._channel.calls + 1, self.copies)
            both = _two_ways(repr(mine if mine.compares_site else mine._replace(site="")))
        else:
            both = _two_ways(call)
        most = both.copy()
        # Data and agreements share MPI's communicator. MPI matches the collective calls of a communicator by their
        # order, and the agreement stands directly before its call on all ranks: a rank that makes another call meets
        # theirs with its own agreement. A communicator for control alone would double their number, of which MPI
        # libraries know about 2,000.
        self._run(_AGREE, both, most, call)
        if most[0] != ~most[1]:
            mine = sanitizer.statement(call, layout, is_rooted, 0, self.copies) if mine is None else mine
            told = [Statement.decode(each) for each in self._exchanged(mine.encode())]
            error = sanitizer.compare(self.name, self.ranks, told)
            if error is not None:
                raise error

    # -- calls -------------------------------------------------------------------------------------------------
    def _run(self, request: Request, x: Any, out: Any, said: str = "") -> Any:
        """Make a call; `said` is what a rank that waits for it is told to do, if not the name of the call."""
        call = request[0]
        if call == "all_reduce":  # made most: its row of the table, without another frame
            datatype, operations = kinds[x.dtype]
            function, arguments = "Allreduce", ((x, datatype), (out, datatype), operations[request[2]])
        elif call in _BLOCKING:
            function, arguments = asked(call, request, x, out)
        else:
            return self._start(request, x, out).wait()
        channel = self._channel
        channel.calls = number = channel.calls + 1
        if modes.watching:  # polled, so that this rank can be told that another one never comes
            if channel.broken is not None:
                raise DeadlockError(channel.broken)
            started = getattr(self._comm, nonblocking(function))(*arguments)
            Started(started, (channel, said or call, number, None)).wait()
        else:
            while_waiting((channel, said or call, number, None), getattr(self._comm, function), *arguments)
        return out

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        call = request.call
        if call == "recv":
            return self._start_recv(out, request.peer)
        if call == "send" or call == "lend":
            return self._start_send(x, request.peer, call == "lend")
        if call == "exchange":
            return Pending.done(self._exchanged(bytes(x)))
        if call in ("get", "accumulate"):
            return Pending.done(self._window(request, x, out))
        if call == "scan":
            exclusive, backwards = request.options
            if exclusive:
                out[...] = 0  # Exscan leaves the first rank's as it is
                call = "exscan"
            if backwards:
                return self._mirror()._started(call, request, x, out)
        return self._started(call, request, x, out)

    def _started(self, call: str, request: Request, x: Any, out: Any) -> Pending[Any]:
        function, arguments = asked(call, request, x, out)
        channel = self._channel
        channel.calls = number = channel.calls + 1
        started = getattr(self._comm, nonblocking(function))(*arguments)
        waited = Started(started, (channel, request.call, number, None))

        def finish() -> Any:
            waited.wait()
            return out

        return Pending(waited.test, finish)

    def _mirror(self) -> MpiCommunicator:
        """The same ranks in the other order, made when it is first needed: MPI's scans know one direction."""
        if self._reversed is None:
            self._reversed = self._subgroup(list(range(self.size)[::-1]), f"{self.name}/reversed")
        return self._reversed

    def _window(self, request: Request, x: Array, out: Array) -> Array:
        function = windows.get if request.call == "get" else windows.accumulate
        channel = self._channel
        channel.calls = number = channel.calls + 1
        wait = (channel, request.call, number, None)
        filled: Array = while_waiting(wait, function, self._comm, kinds[x.dtype], x, request.options[0], out)
        return filled

    def _exchanged(self, data: bytes) -> list[bytes]:
        """Every rank's bytes: first their numbers, then all of them."""
        if self.size == 1:
            return [data]
        ones, counts = [1] * self.size, np.empty(self.size, np.int64)
        self._run(Request("all_gather", counts=ones), np.array([len(data)], np.int64), counts, "exchange")
        sizes = counts.tolist()
        parts = np.empty(sum(sizes), np.uint8)
        self._run(Request("all_gather", counts=sizes), np.frombuffer(data, np.uint8), parts, "exchange")
        ends = np.cumsum(counts).tolist()
        return [parts[end - size : end].tobytes() for size, end in zip(sizes, ends, strict=True)]

    # -- messages ----------------------------------------------------------------------------------------------
    def _start_send(self, x: Array, dst: int, is_lent: bool) -> Pending[None]:
        if self._comm is None:
            self._to_self.append(x.copy() if is_lent else x)
            return Pending.done(None)
        if not is_lent:
            process.reap()
        sent, target = self._channel.sent, self.ranks[dst]
        started = self._comm.Isend((x, kinds[x.dtype].datatype), dst, self._tag)
        sent[target] = number = sent.get(target, 0) + 1
        if not is_lent:
            process.sends.append(started)
            return Pending.done(None)
        waited = Started(started, (self._channel, "lend", number, target))
        return Pending(waited.test, waited.wait)

    def _start_recv(self, buffer: Array, src: int) -> Pending[Array]:
        if self._comm is None:
            return Pending(None, lambda: self._from_self(buffer))
        process.reap()
        received, source = self._channel.received, self.ranks[src]
        received[source] = number = received.get(source, 0) + 1
        datatype = kinds[buffer.dtype].datatype
        waited = Started(self._comm.Irecv((buffer, datatype), src, self._tag), (self._channel, "recv", number, source))

        def finish() -> Array:
            waited.wait()
            count = waited.status.Get_count(datatype)
            if count != buffer.size:
                raise CommunicationError(
                    f"recv #{number} from rank {source} on '{self.name}': {count} elements came, needed {buffer.size}"
                )
            return buffer

        return Pending(waited.test, finish)

    def _from_self(self, buffer: Array) -> Array:
        if not self._to_self:
            raise CommunicationError(f"recv on '{self.name}': its single rank has sent itself nothing")
        buffer[...] = self._to_self.popleft()
        return buffer

    # -- code of others ----------------------------------------------------------------------------------------
    def foreign(self, name: str, function: Callable[[Any, Any], Any], x: Any) -> Any:
        """Run ``function(x, comm)``, which makes raw MPI calls: on a communicator of its own, counted as one call."""
        if self._comm is None:
            return function(x, library.MPI.COMM_SELF)
        if self._foreign is None:
            self._foreign = self._subgroup(list(range(self.size)), f"{self.name}/raw")
        channel, comm = self._foreign._channel, self._foreign._comm
        channel.calls = number = channel.calls + 1
        return while_waiting((channel, name, number, None), function, x, comm)


_AGREE = Request("all_reduce", op="max")
_BLOCKING = frozenset(CALLS) - {"scan", "exscan"}


@lru_cache(maxsize=4096)
def _two_ways(text: str) -> Array:
    """The digest h of a text and its complement: max(~h) is ~min(h), so that one reduction finds both extremes."""
    digest = digest_of(text)
    return np.array([digest, digest ^ 0xFFFFFFFFFFFFFFFF], np.uint64)


# -- the world -------------------------------------------------------------------------------------------------
_world: MpiCommunicator | None = None


def mpi_world(is_leaving: bool = False) -> MpiCommunicator:
    """The communicator of all ranks that mpiexec started: the same object at every call.

    It is a duplicate of ``COMM_WORLD``, so that the program's own MPI calls cannot be mistaken for ringtape's.
    Collective at its first call. `is_leaving` is for the exit handler, when no thread can be started any more.
    """
    global _world
    if _world is not None:
        return _world
    failure.guard()
    MPI = library.load()
    size, rank = MPI.COMM_WORLD.Get_size(), MPI.COMM_WORLD.Get_rank()
    channel = Channel("world", "world", tuple(range(size)))
    if size == 1:
        _world = MpiCommunicator(None, channel, 0)
        return _world
    control = MPI.COMM_WORLD.Dup()
    farewell = Farewell(control, MPI.BYTE, process.waiting, process.channels, failure.end_job, failure.say_doing)
    failure.attach(farewell, MPI.COMM_WORLD.Abort, process.reap)
    library.link_hosts(control)
    _world = MpiCommunicator(MPI.COMM_WORLD.Dup(), channel, rank)
    if not is_leaving and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        farewell.start_monitor()
    library.leave_before_finalize()
    return _world
