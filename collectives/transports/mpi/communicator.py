"""Ranks as processes under mpiexec: the transport over mpi4py's upper-case (buffer) calls, for MPICH and Open MPI.

Nothing imports mpi4py before `mpi_world` is called. What each call is for MPI is in `mpi_plans` and `mpi_windows`, how
a rank waits in `mpi_waiting`, and how communicators are made and freed in `mpi_groups`. What happens when a rank fails
is in `failure` and `farewell`; here every call is counted, and every wait is written down where their monitor reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograd.errors import CommunicationError, DeadlockError, MeshError

from ...checks import modes, sanitizer
from ...checks.sanitizer import Statement
from ...job import failure
from ...job.shutdown import Channel, Farewell
from ..arguments import checked_array, checked_rank
from ..protocol import Array, ByName, Pending, Request, Runs, named
from ..traffic import Traffic
from . import library, windows
from .calls import PLANS, Plan, kind_of
from .groups import Handle, count_made, create, digest_of
from .waiting import Request as Started
from .waiting import process, while_waiting

__all__ = ["MpiCommunicator", "mpi_world"]


class MpiCommunicator(ByName):
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
        self.texts = {}
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

    def subgroup(self, members: Sequence[int], name: str) -> MpiCommunicator:
        members = [checked_rank(self, "member", int(member)) for member in members]
        if self.rank not in members or len(set(members)) < len(members):
            raise MeshError(
                f"'{name}' of ranks {members} of '{self.name}' repeats a rank or leaves out rank {self.rank}"
            )
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

    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        if not self.checking:
            return
        self._agreed += 1
        mine = sanitizer.statement(call, layout, is_rooted, self._channel.calls + 1, self.copies)
        digest = digest_of(repr(mine if mine.compares_site else mine._replace(site="")))
        # max(~h) is ~min(h): one reduction tells both
        both = np.array([digest, digest ^ 0xFFFFFFFFFFFFFFFF], np.uint64)
        most = np.empty_like(both)
        self._run(call, Plan("Allreduce", (both, most, library.MPI.MAX), most))
        if most[0] != ~most[1]:
            told = [Statement.decode(each) for each in self.exchange(mine.encode())]
            error = sanitizer.compare(self.name, self.ranks, told)
            if error is not None:
                raise error

    # -- calls -------------------------------------------------------------------------------------------------
    def scan(self, x: Array, exclusive: bool, backwards: bool) -> Array:
        if self.size == 1:
            return np.zeros_like(x) if exclusive else x.copy()
        return (self._mirror() if backwards else self)._call("scan", x, exclusive, False)

    def _mirror(self) -> MpiCommunicator:
        """The same ranks in the other order, made when it is first needed: MPI's scans know one direction."""
        if self._reversed is None:
            self._reversed = self.subgroup(range(self.size)[::-1], f"{self.name}/reversed")
        return self._reversed

    def get(self, x: Array, runs: Runs) -> Array:
        return self._window("get", windows.get, checked_array(x), runs)

    def accumulate(self, values: Array, runs: Runs, count: int) -> Array:
        return self._window("accumulate", windows.accumulate, checked_array(values), runs, count)

    def _window(self, call: str, function: Callable[..., Any], *args: Any) -> Array:
        kind = kind_of(args[0].dtype)
        if self._comm is None:
            return function(None, kind, *args)
        channel = self._channel
        channel.calls = number = channel.calls + 1
        return while_waiting((channel, call, number, None), function, self._comm, kind, *args)

    def exchange(self, data: bytes) -> list[bytes]:
        if self.size == 1:
            return [bytes(data)]
        counts = np.empty(self.size, np.int64)
        self._run("exchange", Plan("Allgather", (np.array([len(data)], np.int64), counts), counts))
        sizes = counts.tolist()
        parts = self.all_gather(np.frombuffer(data, np.uint8), sizes).tobytes()
        ends = np.cumsum(counts).tolist()
        return [parts[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def send(self, x: Array, dst: int) -> None:
        checked_rank(self, "dst", dst)
        content = checked_array(x).copy()
        if self._comm is None:
            self._to_self.append(content)
            return
        process.reap()
        sent, target = self._channel.sent, self.ranks[dst]
        process.sends.append(self._comm.Isend([content, kind_of(content.dtype).move], dst, self._tag))
        sent[target] = sent.get(target, 0) + 1
        self.traffic.count(target, content.nbytes)

    def lend(self, x: Array, dst: int) -> Pending[None]:
        if self._comm is None:
            self.send(x, dst)
            return Pending.done(None)
        checked_rank(self, "dst", dst)
        sent, target = self._channel.sent, self.ranks[dst]
        started = self._comm.Isend([checked_array(x), kind_of(x.dtype).move], dst, self._tag)
        sent[target] = number = sent.get(target, 0) + 1
        self.traffic.count(target, x.nbytes)
        request = Started(started, (self._channel, "lend", number, target))
        return Pending(request.test, request.wait)

    def recv(self, buffer: Array, src: int) -> Array:
        return self._start_recv(buffer, src).wait()

    # -- start/wait --------------------------------------------------------------------------------------------
    def start(self, call: Any, *args: Any) -> Pending[Any]:
        if isinstance(call, Request):
            call, args = named(call)
        if call == "recv":
            return self._start_recv(*args)
        plan_of = PLANS.get(call)
        if call == "scan" and args[2] and self.size > 1:
            return self._mirror().start("scan", args[0], args[1], False)
        # send, which is nonblocking; exchange, which is two calls; the one-sided ones, which are several
        if plan_of is None or self.size == 1:
            return Pending.done(getattr(self, call)(*args))
        # The caller may write to its array before the end: the pending call works on a copy.
        plan = plan_of(self, *(checked_array(arg).copy() if isinstance(arg, np.ndarray) else arg for arg in args))
        channel = self._channel
        channel.calls = number = channel.calls + 1
        function = plan.function
        started = getattr(self._comm, f"I{function[0].lower()}{function[1:]}")(*plan.arguments)
        request = Started(started, (channel, call, number, None))

        def finish() -> Any:
            request.wait()
            return plan.result if plan.finish is None else plan.finish(plan.result)

        return Pending(request.test, finish)

    def _start_recv(self, buffer: Array, src: int) -> Pending[Array]:
        checked_rank(self, "src", src)
        checked_array(buffer)
        if self._comm is None:
            return Pending(None, lambda: self._from_self(buffer))
        process.reap()
        received, source = self._channel.received, self.ranks[src]
        received[source] = number = received.get(source, 0) + 1
        datatype = kind_of(buffer.dtype).move
        started = self._comm.Irecv([buffer, datatype], src, self._tag)
        request = Started(started, (self._channel, "recv", number, source))

        def finish() -> Array:
            request.wait()
            count = request.status.Get_count(datatype)
            if count != buffer.size:
                raise CommunicationError(
                    f"recv #{number} from rank {source} on '{self.name}': {count} elements came, needed {buffer.size}"
                )
            return buffer

        return Pending(request.test, finish)

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
            self._foreign = self.subgroup(range(self.size), f"{self.name}/raw")
        channel, comm = self._foreign._channel, self._foreign._comm
        channel.calls = number = channel.calls + 1
        return while_waiting((channel, name, number, None), function, x, comm)

    # -- how calls run -----------------------------------------------------------------------------------------
    def _call(self, call: str, *args: Any) -> Any:
        plan = PLANS[call](self, *args)
        if self._comm is None:
            return args[0].copy() if args else None
        return self._run(call, plan)

    def _run(self, call: str, plan: Plan) -> Any:
        channel = self._channel
        channel.calls = number = channel.calls + 1
        if modes.watching:  # polled, so that this rank can be told that another one never comes
            if channel.broken is not None:
                raise DeadlockError(channel.broken)
            function = plan.function
            started = getattr(self._comm, f"I{function[0].lower()}{function[1:]}")(*plan.arguments)
            Started(started, (channel, call, number, None)).wait()
        else:
            while_waiting((channel, call, number, None), getattr(self._comm, plan.function), *plan.arguments)
        return plan.result if plan.finish is None else plan.finish(plan.result)


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
