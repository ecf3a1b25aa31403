"""Streams, events, page-locked memory and copies of the simulated device, which do what a GPU may do.

Operations of `DeviceArray` are done at once, as if the default stream were always ahead. Copies and kernels on another
stream are queued. In the mode ``late`` a queue runs only when somebody waits for it, or has asked for an event often
enough: the latest that a GPU may do it. In the mode ``early`` it runs at once: the earliest. So

- whoever reads a result without waiting for its event finds what was there before, or NaN: page-locked memory is made
  of NaN;
- an array that is overwritten, or page-locked memory that is used again, before the copy that reads it is complete,
  is copied with its new values;
- an array that is dropped before its copy or kernel is complete is read as NaN: a pool would have given its memory to
  the next array.

In a block `tracked`, the ends of all operations are counted, and a copy or kernel of a stream that has not waited for
the operation that wrote its operand reads NaN, and is noted in `problems`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy

lock = threading.RLock()
problems: list[str] = []
_QUERIES = 2  # of an event, after which a queue runs one item at each further query


class _State:
    mode = "late"
    is_tracked = False
    waited: dict[int, int] = {}  # for each stream, the operations that the host has waited for
    written: dict[int, tuple[Any, FakeStream, int]] = {}  # memory by its id: a reference, the stream, the operation


state = _State()
_current = threading.local()


@contextmanager
def mode(name: str) -> Iterator[None]:
    """When queued work is done: ``late`` or ``early``."""
    before, state.mode = state.mode, name
    try:
        yield
    finally:
        state.mode = before


@contextmanager
def tracked() -> Iterator[None]:
    """Note copies and kernels that do not wait for the operations that they depend on, and fail at the end if any."""
    problems.clear()
    state.is_tracked = True
    try:
        yield
    finally:
        state.is_tracked = False
        state.written.clear()
        state.waited.clear()
    assert not problems, "\n".join(problems)


# -- memory --------------------------------------------------------------------------------------------------------


def root(values: numpy.ndarray) -> numpy.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(values.base, numpy.ndarray):
        values = values.base
    return values


class Place:
    """The memory of a contiguous array, which it does not keep alive."""

    def __init__(self, values: numpy.ndarray):
        assert values.flags.c_contiguous, "a copy or a kernel needs contiguous arrays"
        self._root = weakref.ref(root(values))
        self._address, self._nbytes = values.ctypes.data, values.nbytes
        self._dtype, self._shape = values.dtype, values.shape
        self._kept: numpy.ndarray | None = None

    def array(self, use: str) -> numpy.ndarray:
        """The array, or one of NaN if its memory was given back."""
        self._kept = self._root()  # from now on: work drops its places when it is done
        if self._kept is None:
            problems.append(f"memory of {self._nbytes} bytes was given back before it was {use}")
            return poisoned(self._nbytes).view(self._dtype).reshape(self._shape)
        if not self._nbytes:
            return numpy.empty(self._shape, self._dtype)
        raw = (ctypes.c_ubyte * self._nbytes).from_address(self._address)
        return numpy.frombuffer(raw, self._dtype).reshape(self._shape)


def poisoned(size_bytes: int) -> numpy.ndarray:
    """New memory, of NaN in every floating dtype."""
    return numpy.full(size_bytes, 0xFF, numpy.uint8)


def wrote(values: numpy.ndarray, stream: FakeStream, made: bool = False) -> None:
    """Note that the latest operation of a stream wrote an array, or made it: a view was made before."""
    memory = root(values)
    known = state.written.get(id(memory))
    if not (made and known is not None and known[0]() is memory):
        state.written[id(memory)] = (weakref.ref(memory), stream, stream.clock)


# -- streams and events --------------------------------------------------------------------------------------------


class FakeEvent:
    """A place in a stream's queue."""

    def __init__(self) -> None:
        self._stream: FakeStream | None = None
        self._position = 0
        self._queries = 0
        self.seen: dict[int, int] = {}

    def record(self, stream: Any = None) -> None:
        with lock:
            self._stream = current() if stream is None else stream
            self._position, self._queries = self._stream.queued, 0
            self.seen = self._stream.seen_now()

    @property
    def done(self) -> bool:
        with lock:
            stream = self._stream
            if stream is None or stream.done_count >= self._position:
                self._told()
                return True
            self._queries += 1
            if self._queries > _QUERIES:
                stream.step()
            return False

    def synchronize(self) -> None:
        with lock:
            self.finish()
            self._told()

    def finish(self) -> None:
        """Do the work before the event."""
        if self._stream is not None:
            self._stream.run_until(self._position)

    def at_present(self) -> FakeEvent:
        """This event, as it was recorded so far: a stream that waits for it does not wait for a later record."""
        same = FakeEvent()
        same._stream, same._position, same.seen = self._stream, self._position, self.seen
        return same

    def _told(self) -> None:
        """The host knows now that the work is done, and so does what it queues from now on."""
        if state.is_tracked:
            _merge(state.waited, self.seen)


def _merge(into: dict[int, int], seen: dict[int, int]) -> None:
    for stream, clock in seen.items():
        into[stream] = max(into.get(stream, 0), clock)


class FakeStream:
    """A queue of copies and kernels. In a ``with`` block it is the current one of the thread."""

    by_pointer: weakref.WeakValueDictionary[int, FakeStream] = weakref.WeakValueDictionary()

    def __init__(self, is_default: bool = False):
        self.is_default = is_default
        self.ptr = id(self)  # as CuPy's streams have
        self.by_pointer[self.ptr] = self
        self._queue: deque[Callable[[], None]] = deque()
        self.queued = self.done_count = 0
        self.clock = 0  # operations so far, done or not
        self.seen: dict[int, int] = {}  # for each other stream, the operations that this one has waited for

    def __enter__(self) -> FakeStream:
        _stack().append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        _stack().pop()

    def seen_now(self) -> dict[int, int]:
        found = {**self.seen, id(self): self.clock}
        _merge(found, state.waited)
        return found

    def queue(self, work: Callable[[], None], needs_others: bool = False) -> None:
        """Add work, which is done at once on the default stream, and in the mode ``early`` unless it `needs_others`."""
        if self.is_default:
            work()
            self.done_count += 1
            self.queued += 1
            return
        self._queue.append(work)
        self.queued += 1
        if state.mode == "early" and not needs_others:
            self.run_until(self.queued)

    def step(self) -> None:
        """Do the next piece of work."""
        if self._queue:
            work = self._queue[0]
            work()  # it may wait for other threads, which come here, too
            if self._queue and self._queue[0] is work:
                self._queue.popleft()
                self.done_count += 1

    def run_until(self, position: int) -> None:
        while self.done_count < position and self._queue:
            self.step()

    def wait_event(self, event: FakeEvent) -> None:
        with lock:
            event = event.at_present()
            _merge(self.seen, event.seen)
            self.queue(event.finish)

    def synchronize(self) -> None:
        with lock:
            self.run_until(self.queued)
            if state.is_tracked:
                _merge(state.waited, self.seen_now())

    @property
    def done(self) -> bool:
        with lock:
            return not self._queue

    # -- what a stream may not do ------------------------------------------------------------------------------
    def sees(self, values: numpy.ndarray, what: str) -> bool:
        """Whether the operation that wrote an array comes before the work that is queued next; notes if not."""
        if not state.is_tracked:
            return True
        known = state.written.get(id(root(values)))
        if known is None or known[0]() is not root(values) or known[1] is self:
            return True
        if self.seen_now().get(id(known[1]), 0) >= known[2]:
            return True
        problems.append(f"{what} {values.dtype}[{values.size}] does not wait for the operation that wrote it")
        return False


DEFAULT = FakeStream(is_default=True)
"""The default stream of all threads, as CUDA's legacy stream."""


def _stack() -> list[FakeStream]:
    if not hasattr(_current, "stack"):
        _current.stack = [DEFAULT]
    stack: list[FakeStream] = _current.stack
    return stack


def current() -> FakeStream:
    """The thread's current stream."""
    return _stack()[-1]


def before_operation() -> None:
    """An operation of arrays runs now: it comes after the work that the current stream was given."""
    stream = current()
    if not stream.is_default:
        with lock:
            stream.run_until(stream.queued)


def after_operation(*written: numpy.ndarray, made: bool = False) -> None:
    """An operation has written arrays, or made one."""
    if state.is_tracked:
        with lock:
            stream = current()
            stream.clock += 1
            for values in written:
                wrote(values, stream, made)


# -- copies and kernels --------------------------------------------------------------------------------------------


def copy(out: numpy.ndarray, x: numpy.ndarray, stream: FakeStream) -> None:
    """Queue a copy of bytes."""
    assert out.nbytes == x.nbytes, f"a copy of {x.nbytes} bytes to {out.nbytes}"
    with lock:
        is_ordered = stream.sees(x, "a copy of") & stream.sees(out, "a copy to")
        target, source = Place(out), Place(x)

        def work() -> None:
            values = source.array("copied")
            into = target.array("written to")
            if into.nbytes:
                raw = values.reshape(-1).view(numpy.uint8) if is_ordered else poisoned(values.nbytes)
                ctypes.memmove(into.ctypes.data, raw.ctypes.data, into.nbytes)

        stream.clock += 1
        wrote(out, stream)
        stream.queue(work)


def launch(run: Callable[[list[Any]], None], arguments: list[Any], stream: FakeStream) -> None:
    """Queue a kernel. `run` is called with the arguments, in which arrays stand for memory of the device."""
    with lock:
        arrays = [x for x in arguments if isinstance(x, numpy.ndarray)]
        is_ordered = min((stream.sees(x, "a kernel on") for x in arrays), default=True)
        given = [Place(x) if isinstance(x, numpy.ndarray) else x for x in arguments]

        def work() -> None:
            run([x.array("used by a kernel") if isinstance(x, Place) else x for x in given])
            if not is_ordered:
                for x in given:
                    if isinstance(x, Place):
                        values = x.array("used by a kernel")
                        ctypes.memset(values.ctypes.data, 0xFF, values.nbytes)

        stream.clock += 1
        for x in arrays:
            wrote(x, stream)
        stream.queue(work)


# -- memory that another process opens -----------------------------------------------------------------------------

_exported: dict[int, str] = {}  # by address
_opened: dict[int, mmap.mmap] = {}


def exportable(size_bytes: int) -> numpy.ndarray:
    """Memory in a file, which another process can map. It is NaN when it is given back."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    descriptor, path = tempfile.mkstemp(prefix="ringtape-fake-device-", dir=folder)
    try:
        os.ftruncate(descriptor, max(size_bytes, 1))
        mapped = mmap.mmap(descriptor, max(size_bytes, 1))
    finally:
        os.close(descriptor)
    ctypes.memset((ctypes.c_ubyte * len(mapped)).from_buffer(mapped), 0xFF, len(mapped))
    values = numpy.frombuffer(mapped, numpy.uint8, size_bytes)
    address = values.ctypes.data
    _exported[address] = path
    weakref.finalize(values, _give_back, address, path, size_bytes)
    return values


def _give_back(address: int, path: str, size_bytes: int) -> None:
    """Overwrite the file, so that whoever still reads the memory sees it."""
    _exported.pop(address, None)
    with open(path, "r+b") as file:  # it keeps its size: a process that reads beyond the end of a file dies
        file.write(b"\xff" * size_bytes)
    os.unlink(path)


def handle_of(values: numpy.ndarray) -> bytes:
    return _exported[values.ctypes.data].encode()


def opened(handle: bytes, size_bytes: int) -> numpy.ndarray:
    """The memory of another process. As on a GPU, the process that made it cannot open it."""
    path = handle.decode()
    if path in _exported.values():
        raise RuntimeError("memory was opened in the process that made it")
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), max(size_bytes, 1))
    values = numpy.frombuffer(mapped, numpy.uint8, size_bytes)
    _opened[values.ctypes.data] = mapped
    return values


def close(values: numpy.ndarray) -> None:
    _opened.pop(values.ctypes.data)
