"""Ranks as processes under mpiexec: the transport over mpi4py's upper-case (buffer) calls, for MPICH and Open MPI.

What each call is for MPI is in `calls` and `windows`, how a rank waits in `waiting`, and how communicators are made and
freed in `groups`. `world` makes the communicator of all ranks. Here every call is counted and every wait is recorded,
for the monitor of the `job`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograd.errors import CommunicationError, MeshError

from ...checks import modes, sanitizer
from ...checks.sanitizer import Statement
from ...job.activity import Channel
from ..arguments import checked_array, checked_rank
from ..protocol import Array, ByName, Pending, Request, Runs, named
from ..traffic import Traffic
from . import windows
from .calls import PLANS, Plan
from .groups import Groups, Handle, digest_of
from .library import MPI, kind_of

__all__ = ["MpiCommunicator"]


class MpiCommunicator(ByName):
    """A channel between processes. `MpiWorld` and `subgroup` make them.

    Parameters
    ----------
    handle : Handle or None
        MPI's communicator; None for a single rank, which makes no MPI calls.
    channel : Channel
        Name, world ranks and counts.
    rank : int
        This process's place.
    groups : Groups
        The communicators of the world.
    """

    library = MPI

    def __init__(self, handle: Handle | None, channel: Channel, rank: int, groups: Groups):
        self._handle = handle
        self._groups = groups
        self._waits = groups.waits
        self.rank = rank
        self.size = len(channel.ranks)
        self.ranks = channel.ranks
        self.name = channel.name
        self.traffic = Traffic()
        self._comm: Any = None if handle is None else handle.comm
        self._channel = channel
        self.copies = []
        self.texts = {}
        self._agreed = 0
        self._subgroups: dict[str, int] = {}  # how often a subgroup was made
        self._reversed: MpiCommunicator | None = None
        self._foreign: MpiCommunicator | None = None
        self._lanes: dict[str, MpiCommunicator] = {}
        self._tag = 0
        self._to_self: deque[Array] = deque()  # messages of a single rank to itself
        self._waits.activity.channels[channel.key] = channel

    def __repr__(self) -> str:
        return f"MpiCommunicator('{self.name}', rank {self.rank} of {self.size})"

    # -- groups ------------------------------------------------------------------------------------------------
    def poke(self) -> None:
        """Make progress on what is under way; MPI makes none while the program computes."""
        self._waits.reap()

    def subgroup(self, members: Sequence[int], name: str) -> MpiCommunicator:
        members = [checked_rank(self, "member", int(member)) for member in members]
        if self.rank not in members or len(set(members)) < len(members):
            raise MeshError(
                f"'{name}' of ranks {members} of '{self.name}' repeats a rank or leaves out rank {self.rank}"
            )
        ranks = tuple(self.ranks[member] for member in members)
        text = f"{self._channel.key}/{name}/{ranks}"
        self._subgroups[text] = ordinal = self._subgroups.get(text, 0) + 1
        digest = digest_of(f"{text}/{ordinal}")
        channel = Channel(f"{digest:016x}", name, ranks)
        if len(members) == 1:
            return MpiCommunicator(None, channel, 0, self._groups)
        handle = self._groups.create(self, self._comm, channel, members, digest)
        made = MpiCommunicator(handle, channel, members.index(self.rank), self._groups)
        self._groups.count_made(made)
        return made

    def lane(self, purpose: str) -> MpiCommunicator:
        found = self._lanes.get(purpose)
        if found is None:
            channel = Channel(f"{self._channel.key}/{purpose}", f"{self.name}/{purpose}", self.ranks)
            found = self._lanes[purpose] = MpiCommunicator(self._handle, channel, self.rank, self._groups)
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
        self._run(call, Plan("Allreduce", (both, most, MPI.MAX), most))
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
        return self._waits.block((channel, call, number, None), function, self._comm, kind, *args)

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
        sent, target = self._channel.sent, self.ranks[dst]
        number = sent.get(target, 0) + 1
        buffer = [content, kind_of(content.dtype).move]
        self._waits.send((self._channel, "lend", number, target), self._comm.Isend, buffer, dst, self._tag)
        sent[target] = number
        self.traffic.count(target, content.nbytes)

    def lend(self, x: Array, dst: int) -> Pending[None]:
        if self._comm is None:
            self.send(x, dst)
            return Pending.done(None)
        checked_rank(self, "dst", dst)
        sent, target = self._channel.sent, self.ranks[dst]
        number = sent.get(target, 0) + 1
        buffer = [checked_array(x), kind_of(x.dtype).move]
        request = self._waits.start((self._channel, "lend", number, target), self._comm.Isend, buffer, dst, self._tag)
        sent[target] = number
        self.traffic.count(target, x.nbytes)
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
        request = self._waits.start((channel, call, number, None), self._nonblocking(plan), *plan.arguments)

        def finish() -> Any:
            request.wait()
            return plan.result if plan.finish is None else plan.finish(plan.result)

        return Pending(request.test, finish)

    def _start_recv(self, buffer: Array, src: int) -> Pending[Array]:
        checked_rank(self, "src", src)
        checked_array(buffer)
        if self._comm is None:
            return Pending(None, lambda: self._from_self(buffer))
        self._waits.reap()
        received, source = self._channel.received, self.ranks[src]
        received[source] = number = received.get(source, 0) + 1
        datatype = kind_of(buffer.dtype).move
        request = self._waits.start(
            (self._channel, "recv", number, source), self._comm.Irecv, [buffer, datatype], src, self._tag
        )

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
            return function(x, MPI.COMM_SELF)
        if self._foreign is None:
            self._foreign = self.subgroup(range(self.size), f"{self.name}/raw")
        channel, comm = self._foreign._channel, self._foreign._comm
        channel.calls = number = channel.calls + 1
        return self._waits.block((channel, name, number, None), function, x, comm)

    # -- how calls run -----------------------------------------------------------------------------------------
    def _call(self, call: str, *args: Any) -> Any:
        plan = PLANS[call](self, *args)
        if self._comm is None:
            return args[0].copy() if args else None
        return self._run(call, plan)

    def _run(self, call: str, plan: Plan) -> Any:
        channel = self._channel
        channel.calls = number = channel.calls + 1
        wait = (channel, call, number, None)
        if (
            self._waits.is_polling
        ):  # so that it can raise an error instead of waiting for ever
            self._waits.start(wait, self._nonblocking(plan), *plan.arguments).wait()
        else:
            self._waits.block(wait, getattr(self._comm, plan.function), *plan.arguments)
        return plan.result if plan.finish is None else plan.finish(plan.result)

    def _nonblocking(self, plan: Plan) -> Callable[..., Any]:
        """MPI's nonblocking form of a call."""
        name = plan.function
        function: Callable[..., Any] = getattr(self._comm, f"I{name[0].lower()}{name[1:]}")
        return function
