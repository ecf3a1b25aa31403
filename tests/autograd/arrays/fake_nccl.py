"""NCCL's functions with the names and types of ``cupy.cuda.nccl``, for threads with streams of `fake_streams`.

A collective call, or a group of them, is put on a stream. It is done for all ranks together, when the first of them
needs it and all have made it, after the work before it on each rank's stream. So are messages, for two ranks. Whoever
does not wait finds old values. A group is either of collective calls or of messages.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict
from typing import Any

import numpy

from .cupy_interface import NCCL, typed
from .fake_streams import FakeStream, lock

_DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
_UFUNCS = (numpy.add, numpy.multiply, numpy.maximum, numpy.minimum)
_LIMIT_S = 20.0
_thread = threading.local()
_arrived = threading.Condition(lock)


class NcclError(RuntimeError):
    """A call that NCCL does not accept."""


class _World:
    """What the communicators of one unique id share."""

    def __init__(self) -> None:
        self.ranks: dict[int, NcclCommunicator] = {}
        self.calls: dict[int, dict[int, tuple[list[Any], FakeStream, int]]] = defaultdict(dict)
        self.done: set[int] = set()
        self.messages: dict[tuple[int, int, int], _Message] = defaultdict(_Message)  # source, destination, number


class _Message:
    """The two ends of a message: memory, stream and position, once the ranks have made their calls."""

    def __init__(self) -> None:
        self.ends: dict[str, tuple[numpy.ndarray, FakeStream, int]] = {}
        self.is_done = False

    def move(self) -> None:
        """Wait for both ends, and copy, unless it is done."""
        if self.is_done:
            return
        if not _arrived.wait_for(lambda: len(self.ends) == 2, _LIMIT_S):
            raise NcclError(f"a message has only a {next(iter(self.ends))}")
        if self.is_done:  # meanwhile
            return
        for _, stream, position in self.ends.values():
            stream.run_until(position)
        given, into = self.ends["send"][0], self.ends["recv"][0]
        if given.nbytes != into.nbytes:
            raise NcclError(f"{given.nbytes} bytes were sent, and {into.nbytes} received")
        into[...] = given
        self.is_done = True


_worlds: dict[bytes, _World] = defaultdict(_World)


def memory(address: int, count: int, kind: int) -> numpy.ndarray:
    if not address:
        raise NcclError("a null address")
    dtype = numpy.dtype(_DTYPES[kind])
    return numpy.frombuffer((ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address), dtype)


class NcclCommunicator:
    """One rank's end."""

    def __init__(self, ndev: int, commId: bytes, rank: int):
        if len(commId) != 128:
            raise NcclError("not a unique id: 128 bytes")
        self.size, self.rank, self.number = ndev, rank, 0
        self.is_aborted = False
        self.error: NcclError | None = None  # one that a test plants
        self.counts: dict[tuple[str, int], int] = defaultdict(int)  # messages to and from each rank
        with _arrived:
            self.world = _worlds[commId]
            self.world.ranks[rank] = self
            _arrived.notify_all()
            if not _arrived.wait_for(lambda: len(self.world.ranks) == ndev, _LIMIT_S):
                raise NcclError("not all ranks have come")

    def destroy(self) -> None:
        self.size = 0

    def abort(self) -> None:
        """End the calls of this rank that are under way; what they would have written is lost."""
        with _arrived:
            self.is_aborted = True
            _arrived.notify_all()

    def check_async_error(self) -> None:
        if self.error is not None:
            raise self.error

    def _call(self, name: str, *arguments: Any) -> None:
        group = getattr(_thread, "group", None)
        if group is not None:
            group.append((self, name, *arguments))
        else:
            self.put([(name, *arguments)])

    def put(self, calls: list[Any]) -> None:
        """Put calls on their stream, as one."""
        if calls[0][0] in ("send", "recv"):
            self._put_messages(calls)
            return
        with _arrived:
            self.number = number = self.number + 1
            stream = FakeStream.by_pointer[calls[0][-1]]
            self.world.calls[number][self.rank] = calls, stream, stream.queued
            stream.clock += 1
            _arrived.notify_all()
        with lock:
            stream.queue(lambda: self.world_does(number), needs_others=True)

    def _put_messages(self, calls: list[Any]) -> None:
        """Put a group of messages on their stream. Ranks without any make no call."""
        with _arrived:
            stream = FakeStream.by_pointer[calls[0][-1]]
            messages = []
            for name, address, count, kind, peer, _ in calls:
                self.counts[name, peer] = number = self.counts[name, peer] + 1
                pair = (self.rank, peer) if name == "send" else (peer, self.rank)
                message = self.world.messages[*pair, number]
                message.ends[name] = memory(address, count, kind), stream, stream.queued
                messages.append(message)
            _arrived.notify_all()

        def work() -> None:
            for message in messages:
                message.move()

        with lock:
            stream.queue(work, needs_others=True)

    def world_does(self, number: int) -> None:
        """Do a call for all ranks, unless it is done."""
        world = self.world
        if number in world.done:
            return
        calls = world.calls[number]
        if not _arrived.wait_for(lambda: len(calls) == len(world.ranks) or self.is_aborted, _LIMIT_S):
            raise NcclError(f"call {number} was made by ranks {sorted(calls)} of {len(world.ranks)}")
        if number in world.done or len(calls) < len(world.ranks):  # meanwhile, or it was aborted
            return
        for _, stream, position in calls.values():
            stream.run_until(position)
        world.done.add(number)
        _perform([calls[rank][0] for rank in sorted(calls)])

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._call("reduce", sendbuf, recvbuf, count, datatype, op, None, stream)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        self._call("reduce", sendbuf, recvbuf, count, datatype, op, root, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        self._call("scatter", sendbuf, recvbuf, recvcount, datatype, op, stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._call("broadcast", sendbuff, recvbuff, count, datatype, root, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._call("gather", sendbuf, recvbuf, count, datatype, stream)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("send", sendbuf, count, datatype, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("recv", recvbuf, count, datatype, peer, stream)


def _perform(of_ranks: list[list[Any]]) -> None:
    """Do the calls of all ranks that were grouped."""
    for calls in zip(*of_ranks, strict=True):
        if len({(call[0], *call[3:-1]) for call in calls}) > 1:
            raise NcclError(f"the ranks make different calls: {calls}")
        _together(calls)


def _together(calls: Any) -> None:
    name, _, _, count, kind = calls[0][:5]
    size = len(calls)
    if name == "broadcast":
        root = calls[0][5]
        value = memory(calls[root][1], count, kind).copy()
        for call in calls:
            memory(call[2], count, kind)[...] = value
        return
    if name == "gather":
        whole = numpy.concatenate([memory(call[1], count, kind) for call in calls])
        for call in calls:
            memory(call[2], count * size, kind)[...] = whole
        return
    parts = [memory(call[1], count * (size if name == "scatter" else 1), kind) for call in calls]
    total = parts[0].copy()
    for part in parts[1:]:
        _UFUNCS[calls[0][5]](total, part, out=total)
    for rank, call in enumerate(calls):
        if name == "scatter":
            memory(call[2], count, kind)[...] = total[rank * count : (rank + 1) * count]
        elif call[6] is None or call[6] == rank:
            memory(call[2], count, kind)[...] = total


for _name in NCCL:
    if _name.startswith("NcclCommunicator"):
        _method = _name.partition(".")[2] or "__init__"
        setattr(NcclCommunicator, _method, typed(_name, getattr(NcclCommunicator, _method)))


class Library:
    """The module."""

    available = True
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = range(4)
    NcclCommunicator = NcclCommunicator

    def get_version(self) -> int:
        return 22703

    NcclError = NcclError

    def get_unique_id(self) -> bytes:
        return os.urandom(128)

    def groupStart(self) -> None:
        assert getattr(_thread, "group", None) is None
        _thread.group = []

    def groupEnd(self) -> None:
        calls, _thread.group = _thread.group, None
        if calls:
            calls[0][0].put([call[1:] for call in calls])


for _kind, _name in enumerate(_DTYPES):
    setattr(Library, f"NCCL_{_name.upper()}", _kind)
LIBRARY = Library()
