"""Ranks as processes under mpiexec: the transport over mpi4py's upper-case (buffer) calls, for MPICH and Open MPI.

This is the one file that imports mpi4py, and only when `mpi_world` is called. What happens when a rank fails is in
`failure` and `farewell`; here every call is counted, and every wait is written down where their monitor reads it.

MPI knows about 2,000 communicators at a time, and freeing one is collective. One that its rank has dropped is therefore
kept until the same ranks make another: every so many times they tell each other what they have dropped, and free what
all of them have. When garbage is collected on a rank so decides nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any
from weakref import finalize

import numpy as np

from autograd.errors import CommunicationError, DeadlockError, MeshError
from collectives import checking, sanitizer
from collectives.backends import failure, mpi_windows
from collectives.backends.farewell import Channel, Farewell, Wait, Waiting, describe
from collectives.backends.mpi_plans import PLANS, Kind, Plan, checked_array, checked_rank, kind_of, kinds, operations
from collectives.communicator import Array, Communicator, Pending, Runs
from collectives.sanitizer import Statement
from collectives.traffic import Traffic

__all__ = ["MpiCommunicator", "mpi_world"]

# A test makes all of MPI go on, but by a bounded amount: over TCP four of them between operations of 3 ms finished an
# 8 MiB all-reduce in two thirds of the time that one did, for a microsecond each.
_TESTS = 4

MPI: Any = None  # mpi4py.MPI once `mpi_world` was called


class _Process:
    """What the communicators of this process share."""

    def __init__(self) -> None:
        self.waiting: Waiting = {}
        self.channels: dict[str, Channel] = {}
        # Requests own the copies that are being sent. They are kept here, as a communicator may be dropped earlier.
        self.sends: deque[Any] = deque()
        # So do those of started calls, which nobody may come to wait for.
        self.started: deque[_Request] = deque()
        self.made: dict[tuple[int, ...], int] = {}  # how many communicators there were of these ranks
        self.dropped: dict[tuple[int, ...], dict[str, Any]] = {}  # those that nothing refers to, by their keys
        self.freed = 0
        self.abandoned: list[Any] = []  # requests that nobody waits for any more; MPI may still write to their arrays
        self.world: MpiCommunicator | None = None

    def reap(self) -> None:
        """Forget the sends that are complete; the oldest first, so that a call costs one test at most."""
        while self.sends and self.sends[0].Test():
            self.sends.popleft()
        started = self.started
        if started:
            for _ in range(_TESTS):
                if started[0].advance():
                    started.popleft()
                    if not started:
                        break


_process = _Process()
_FREEING = 16  # so many communicators of the same ranks are made between two looks at what was dropped


class _Handle:
    """What the communicators share that are one for MPI; when the last of them is gone, it may be freed."""

    __slots__ = ("__weakref__", "comm")

    def __init__(self, comm: Any, channel: Channel):
        self.comm = comm
        finalize(self, _drop, comm, channel.ranks, channel.key).atexit = False


def _drop(comm: Any, ranks: tuple[int, ...], key: str) -> None:
    _process.dropped.setdefault(ranks, {})[key] = comm


def _free_dropped(group: MpiCommunicator) -> None:
    """Free the communicators of the group's ranks that all of them have dropped, on all of them in one order."""
    mine = _process.dropped.get(group.ranks, {})
    told = [set(data.decode().split()) for data in group.exchange(" ".join(mine.copy()).encode())]
    for key in sorted(set.intersection(*told)):
        mine.pop(key).Free()
        _process.freed += 1
        for known in [k for k in _process.channels.copy() if k.partition("/")[0] == key]:  # its lanes', too
            del _process.channels[known]


class MpiCommunicator(Communicator):
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

    def __init__(self, comm: Any, channel: Channel, rank: int, handle: _Handle | None = None):
        self._handle = _Handle(comm, channel) if handle is None and comm is not None else handle
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
        _process.channels[channel.key] = channel

    def __repr__(self) -> str:
        return f"MpiCommunicator('{self.name}', rank {self.rank} of {self.size})"

    # -- groups ------------------------------------------------------------------------------------------------
    def poke(self) -> None:
        """Make progress on what is under way; MPI makes none while the program computes."""
        _process.reap()

    def subgroup(self, members: Sequence[int], name: str) -> MpiCommunicator:
        members = [checked_rank(self, "member", int(member)) for member in members]
        if self.rank not in members or len(set(members)) < len(members):
            raise MeshError(
                f"'{name}' of ranks {members} of '{self.name}' repeats a rank or leaves out rank {self.rank}"
            )
        ranks = tuple(self.ranks[member] for member in members)
        text = f"{self._channel.key}/{name}/{ranks}"
        self._groups[text] = ordinal = self._groups.get(text, 0) + 1
        digest = _digest(f"{text}/{ordinal}")
        channel = Channel(f"{digest:016x}", name, ranks)
        comm = None
        if len(members) > 1:
            group = self._comm.Get_group()
            chosen = group.Incl(members)
            tag = digest % (MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) + 1)
            _process.channels[channel.key] = channel
            channel.calls = 1
            try:
                comm = _while_waiting((channel, "subgroup", 1, None), self._comm.Create_group, chosen, tag)
            except CommunicationError as error:
                _process.channels.pop(channel.key)
                raise CommunicationError(self._too_many(name, error)) from error
            finally:
                chosen.Free()
                group.Free()
        made = MpiCommunicator(comm, channel, members.index(self.rank))
        if comm is not None:
            _process.made[ranks] = count = _process.made.get(ranks, 0) + 1
            if count % _FREEING == 0:
                _free_dropped(made)
        return made

    def _too_many(self, name: str, error: Exception) -> str:
        """What to say when MPI makes no further communicator, which is mostly for want of room."""
        alive = sum(_process.made.values()) - sum(map(len, _process.dropped.values())) - _process.freed
        return (
            f"'{name}' could not be made on '{self.name}' ({error}). This rank holds {alive} communicators; MPI "
            f"libraries know about 2,000 at a time\n  needed: meshes that are made once and used again, or dropped "
            f"(a tape keeps the meshes of what it recorded)"
        )

    def lane(self, purpose: str) -> MpiCommunicator:
        found = self._lanes.get(purpose)
        if found is None:
            channel = Channel(f"{self._channel.key}/{purpose}", f"{self.name}/{purpose}", self.ranks)
            found = self._lanes[purpose] = MpiCommunicator(self._comm, channel, self.rank, self._handle)
            found._tag = 1 + _digest(purpose) % 32767  # MPI promises tags up to 32767
        return found

    # -- agreement ---------------------------------------------------------------------------------------------
    @property
    def checking(self) -> bool:
        return self._agreed < checking.limit and self.size > 1

    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        if not self.checking:
            return
        self._agreed += 1
        mine = sanitizer.statement(call, layout, is_rooted, self._channel.calls + 1, self.copies)
        digest = _digest(repr(mine if mine.compares_site else mine._replace(site="")))
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
        if self.size == 1:
            return np.zeros_like(x) if exclusive else x.copy()
        return (self._mirror() if backwards else self)._call("scan", x, exclusive, False)

    def _mirror(self) -> MpiCommunicator:
        """The same ranks in the other order, made when it is first needed: MPI's scans know one direction."""
        if self._reversed is None:
            self._reversed = self.subgroup(range(self.size)[::-1], f"{self.name}/reversed")
        return self._reversed

    def get(self, x: Array, runs: Runs) -> Array:
        return self._window("get", mpi_windows.get, checked_array(x), runs)

    def accumulate(self, values: Array, runs: Runs, count: int) -> Array:
        return self._window("accumulate", mpi_windows.accumulate, checked_array(values), runs, count)

    def _window(self, call: str, function: Callable[..., Any], *args: Any) -> Array:
        kind = kind_of(args[0].dtype)
        if self._comm is None:
            return function(None, kind, *args)
        channel = self._channel
        channel.calls = number = channel.calls + 1
        return _while_waiting((channel, call, number, None), function, self._comm, kind, *args)

    def barrier(self) -> None:
        self._call("barrier")

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
        _process.reap()
        sent, target = self._channel.sent, self.ranks[dst]
        _process.sends.append(self._comm.Isend([content, kind_of(content.dtype).move], dst, self._tag))
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
        request = _Request(started, (self._channel, "lend", number, target))
        return Pending(request.test, request.wait)

    def recv(self, buffer: Array, src: int) -> Array:
        return self._start_recv(buffer, src).wait()

    # -- start/wait --------------------------------------------------------------------------------------------
    def start(self, call: str, *args: Any) -> Pending[Any]:
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
        request = _Request(started, (channel, call, number, None))

        def finish() -> Any:
            request.wait()
            return plan.result if plan.finish is None else plan.finish(plan.result)

        return Pending(request.test, finish)

    def _start_recv(self, buffer: Array, src: int) -> Pending[Array]:
        checked_rank(self, "src", src)
        checked_array(buffer)
        if self._comm is None:
            return Pending(None, lambda: self._from_self(buffer))
        _process.reap()
        received, source = self._channel.received, self.ranks[src]
        received[source] = number = received.get(source, 0) + 1
        datatype = kind_of(buffer.dtype).move
        started = self._comm.Irecv([buffer, datatype], src, self._tag)
        request = _Request(started, (self._channel, "recv", number, source))

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
            from mpi4py import MPI as loaded

            return function(x, loaded.COMM_SELF)
        if self._foreign is None:
            self._foreign = self.subgroup(range(self.size), f"{self.name}/raw")
        channel, comm = self._foreign._channel, self._foreign._comm
        channel.calls = number = channel.calls + 1
        return _while_waiting((channel, name, number, None), function, x, comm)

    # -- how calls run -----------------------------------------------------------------------------------------
    def _call(self, call: str, *args: Any) -> Any:
        plan = PLANS[call](self, *args)
        if self._comm is None:
            return args[0].copy() if args else None
        return self._run(call, plan)

    def _run(self, call: str, plan: Plan) -> Any:
        channel = self._channel
        channel.calls = number = channel.calls + 1
        if checking.watching:  # polled, so that this rank can be told that another one never comes
            if channel.broken is not None:
                raise DeadlockError(channel.broken)
            function = plan.function
            started = getattr(self._comm, f"I{function[0].lower()}{function[1:]}")(*plan.arguments)
            _Request(started, (channel, call, number, None)).wait()
        else:
            _while_waiting((channel, call, number, None), getattr(self._comm, plan.function), *plan.arguments)
        return plan.result if plan.finish is None else plan.finish(plan.result)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _while_waiting(wait: Wait, function: Callable[..., Any], *args: Any) -> Any:
    """Run a blocking call of mpi4py, with what it waits for written down for the monitor."""
    thread = get_ident()
    _process.waiting.pop(-thread, None)  # what it has tested before, it does not wait for now
    _process.waiting[thread] = wait
    try:
        return function(*args)
    except MPI.Exception as error:
        raise CommunicationError(f"{describe(wait)}: {error}") from error
    finally:
        _process.waiting.pop(thread, None)


_PATIENT_S = 3e-4  # of yielding, before a waiting rank sleeps between tests: a long message comes no sooner by looking
_NAP_S = 5e-5
_SPINS = 20  # tests before a waiting rank lets others have its core
_let_others_run = getattr(os, "sched_yield", lambda: None)  # not everywhere


class _Request:
    """A started call."""

    __slots__ = ("_is_done", "_request", "_wait", "status")

    def __init__(self, request: Any, wait: Wait):
        self._request = request
        self._wait = wait
        self._is_done = False  # once done, the request is null and a further test would empty the status
        self.status = MPI.Status()
        _process.started.append(self)

    def advance(self) -> bool:
        """Make progress without waiting: True once it is done."""
        self._is_done = self._is_done or self._request.Test(self.status)
        return self._is_done

    def test(self) -> bool:
        if not self._is_done:
            thread = get_ident()
            if self.advance():
                _process.waiting.pop(-thread, None)
            else:
                _process.waiting[-thread] = self._wait  # a loop over `test` waits as well
        return self._is_done

    def wait(self) -> None:
        if not self._is_done:
            _while_waiting(self._wait, self._poll if checking.watching else self._yielding_wait)
            self._is_done = True

    def _yielding_wait(self) -> None:
        """MPI's own wait keeps the core; the one waited for, or the system that moves the data, may need it."""
        test, status = self._request.Test, self.status
        for _ in range(_SPINS):
            if test(status):
                return
        patient = time.perf_counter() + _PATIENT_S
        while not test(status):
            if time.perf_counter() < patient:
                _let_others_run()
            else:
                time.sleep(_NAP_S)

    def _poll(self) -> None:
        """Wait, and raise if this rank is told that it waits in vain."""
        channel, polls = self._wait[0], 0
        while not self._request.Test(self.status):
            if channel.broken is not None:
                _process.abandoned.append(self._request)
                raise DeadlockError(channel.broken)
            polls += 1
            if polls > _SPINS:
                time.sleep(0.0 if polls < 50 * _SPINS else 0.0005)


# -- the world -------------------------------------------------------------------------------------------------
def mpi_world(is_leaving: bool = False) -> MpiCommunicator:
    """The communicator of all ranks that mpiexec started: the same object at every call.

    It is a duplicate of ``COMM_WORLD``, so that the program's own MPI calls cannot be mistaken for ringtape's.
    Collective at its first call. `is_leaving` is for the exit handler, when no thread can be started any more.
    """
    if _process.world is not None:
        return _process.world
    failure.guard()
    global MPI
    from mpi4py import MPI as loaded

    MPI = loaded
    _fill_kinds()
    size, rank = MPI.COMM_WORLD.Get_size(), MPI.COMM_WORLD.Get_rank()
    channel = Channel("world", "world", tuple(range(size)))
    if size == 1:
        _process.world = MpiCommunicator(None, channel, 0)
        return _process.world
    control = MPI.COMM_WORLD.Dup()
    farewell = Farewell(control, MPI.BYTE, _process.waiting, _process.channels, failure.end_job, failure.say_doing)
    failure.attach(farewell, MPI.COMM_WORLD.Abort, _process.reap)
    _link_hosts(control)
    _process.world = MpiCommunicator(MPI.COMM_WORLD.Dup(), channel, rank)
    if not is_leaving and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        farewell.start_monitor()
    _leave_before_finalize()
    return _process.world


def _link_hosts(control: Any) -> None:
    """Make the referees of several hosts known to one another. No rank leaves the next collective call before."""
    here = control.Split_type(MPI.COMM_TYPE_SHARED)
    is_spread = here.Get_size() < control.Get_size()  # the same on all ranks
    here.Free()
    if not is_spread:
        return
    where = bytearray(4096)
    if control.Get_rank() == 0:
        text = failure.open_to_hosts().encode()
        where[: len(text)] = text[: len(where)]
    control.Bcast([where, MPI.BYTE], 0)
    failure.join_hosts(where.rstrip(b"\0").decode())


def _fill_kinds() -> None:
    for char in "bBhHiIlLqQfdgFDG":
        datatype = MPI._typedict.get(char, MPI.DATATYPE_NULL)
        if datatype != MPI.DATATYPE_NULL:
            kinds[np.dtype(char)] = Kind(datatype, datatype, MPI.SUM)
    kinds[np.dtype(np.bool_)] = Kind(MPI.C_BOOL, MPI.C_BOOL, MPI.LOR)  # as numpy adds booleans
    operations.update(maximum=MPI.MAX, product=MPI.PROD)
    # MPI has no sum of float16: it is taken in float32 and rounded once
    kinds[np.dtype(np.float16)] = Kind(MPI.UINT16_T, MPI.FLOAT, MPI.SUM, np.dtype(np.float32))


def _leave_before_finalize() -> None:
    """A program that calls ``MPI.Finalize`` itself leaves there: the attributes of COMM_SELF go first."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: failure.leave())
    MPI.COMM_SELF.Set_attr(keyval, True)
