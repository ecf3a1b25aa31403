"""Staging through page-locked host memory, in chunks, on streams of its own.

The operand is copied to page-locked memory, the transport makes the call there, and the result is copied back. An
`all_reduce` and a `scan` are made in chunks of `CHUNK_BYTES`, so that three things overlap: copying a chunk down, the
transport's call on the chunk before it, and copying the one before that up. Any other call is made as a whole, so that
its messages are those of a host array: `broadcast`, `scatter`, `send` and their adjoints may have arrays of the host
on the other ranks.

What waits for what:

- The copies down wait, on the device, for the operations that the current stream was given before the call.
- The host waits for a copy down before it passes the chunk to the transport. A started call does not wait: `test`
  passes on the chunks that have arrived. So do the tape, after each operation, and all later calls of this channel; and
  before this rank waits for another one, it passes on all of them (`unsent`). So the calls of a channel reach the
  transport in the order in which they were started.
- `run` and `wait` let the current stream wait for the copies up, and return. The host does not wait for these copies.

Page-locked memory is used again once its last copy is complete. The result is allocated when the call starts, because
memory that a stream's pool hands out may still be in use by earlier work of that stream, for which the copies wait.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from autograd.arrays.runtime import Event, Runtime

from ..protocol import Pending, Request, Wrapper, quietly
from ..request import REDUCTIONS, answer
from ..unsent import forget, wait_for

__all__ = ["CHUNK_BYTES", "Buffers", "PinnedStaging"]

CHUNK_BYTES = 4 << 20
"""Long enough that the microseconds of starting a copy and a call do not count beside 80 us of copying (at 50 GB/s),
and short enough that the first copy down and the last copy up, which nothing overlaps, are a small part of a bucket."""
WINDOW = 4
"""Chunks of a blocking call that are in page-locked memory at a time. A started call has all of its chunks there,
because this rank may not come back to it before the other ranks need it."""
KEPT_BYTES = 256 << 20
"""Page-locked memory that is kept for later calls. What exceeds it is given back when a call ends."""

_IN_CHUNKS = ("all_reduce", "scan")
_MESSAGES = ("send", "lend", "recv")
_AT_ONCE = (*_MESSAGES, "get", "accumulate")
"""Started calls that `start` passes on: a send owns its operand then, and transports block in one-sided calls."""
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)


class Buffers:
    """Page-locked memory of a process. Buffers have sizes of powers of two, and are used again.

    Parameters
    ----------
    runtime : Runtime
    """

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._lock = Lock()
        self._free: deque[tuple[np.ndarray, Event | None]] = deque()
        self._free_bytes = 0

    def take(self, size_bytes: int) -> np.ndarray:
        """A buffer of at least this size that no copy uses."""
        size = max(512, 1 << (max(size_bytes, 1) - 1).bit_length())
        with self._lock:
            for at, (buffer, event) in enumerate(self._free):
                if buffer.nbytes == size and (event is None or event.done):
                    del self._free[at]
                    self._free_bytes -= size
                    return buffer
        return self._runtime.pinned(size)

    def give(self, buffer: np.ndarray, event: Event | None) -> None:
        """Give a buffer back. It is used again after the event."""
        with self._lock:
            self._free.append((buffer, event))
            self._free_bytes += buffer.nbytes
            while self._free_bytes > KEPT_BYTES:
                oldest, until = self._free[0]
                if until is not None and not until.done:
                    break
                self._free.popleft()
                self._free_bytes -= oldest.nbytes


class _Chunk:
    """A part of a call: its request in page-locked memory, and how far it is."""

    __slots__ = ("buffers", "down", "is_up", "out", "pending", "request", "start", "stop", "x")

    def __init__(self, request: Request, start: int, stop: int, x: Any, out: Any, buffers: list[np.ndarray]):
        self.request = request
        self.start, self.stop = start, stop  # in the operand, if the call is made in chunks
        self.x, self.out = x, out  # page-locked
        self.buffers = buffers
        self.down: Event | None = None
        self.pending: Pending[Any] | None = None
        self.is_up = False


class _Call:
    """A call on device arrays. `x` and `y` are its operand and its result on the device, which it keeps."""

    def __init__(self, request: Request, x: Any, y: Any, rounds: bool, statement: Any):
        self.request = request
        self.x, self.y = x, y
        self.rounds = rounds
        self.statement = statement
        self.chunks: list[_Chunk] = []
        self.next = 0  # the first chunk that was not passed to the transport
        self.last: Event | None = None  # of the last copy up
        self.error: BaseException | None = None


class PinnedStaging(Wrapper):
    """Wraps a host transport, `base`, so that it accepts arrays of a device that has a runtime; see the module.

    Parameters
    ----------
    base : HostTransport
    runtime : Runtime
        Of the device.
    buffers : Buffers
    """

    base: Any

    def __init__(self, base: Any, runtime: Runtime, buffers: Buffers):
        super().__init__(base)
        self._runtime, self._buffers = runtime, buffers
        self._down, self._up = runtime.new_stream(), runtime.new_stream()
        self._queue: deque[_Call] = deque()  # started, and not yet passed to the transport
        self._uploads: deque[tuple[Event, Any, _Call]] = deque()  # results that are being copied up, and must be kept
        self._is_busy = False

    # -- calls -------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Any:
        """Make a call. Its result is on the device; its last copies may be still under way there."""
        self.hand_over(True)
        call = self._begin(request, started=False)
        chunks, free = call.chunks, []
        for at in range(min(WINDOW, len(chunks))):
            self._copy_down(call, chunks[at], None)
        for at, chunk in enumerate(chunks):
            if chunk.down is not None:
                chunk.down.synchronize()
            y = self._made(chunk)
            event = self._copy_up(call, chunk, y)
            if at + WINDOW < len(chunks):
                later = chunks[at + WINDOW]
                later.buffers, chunk.buffers = chunk.buffers, []
                self._copy_down(call, later, event)
            free.append((chunk.buffers, event))
        for buffers, event in free:
            self._give(buffers, event)
        return self._finished(call)

    def start(self, request: Request) -> Pending[Any]:
        """Start a call. The host does not wait, except for the operand of a message, or of a one-sided call."""
        self.hand_over(request.call in _AT_ONCE)
        call = self._begin(request, started=True)
        for chunk in call.chunks:
            self._copy_down(call, chunk, None)
        if not self._queue:
            wait_for(self.hand_over)
            self.base.unsent = self.hand_over
        self._queue.append(call)
        if request.call in _AT_ONCE:
            self.hand_over(True)
        result: list[Any] = []

        def finish() -> Any:
            if not result:
                result.append(self._wait(call))
            return result[0]

        return Pending(lambda: bool(result) or self._test(call), finish)

    # -- progress ----------------------------------------------------------------------------------------------
    def hand_over(self, waits: bool) -> None:
        """Pass the started calls to the transport, in order: all of them, or those whose copies have arrived."""
        if not self._queue or self._is_busy:
            return
        self._is_busy, self.base.unsent = True, None
        try:
            while self._queue:
                if not self._handed_over(self._queue[0], waits):
                    return
                self._queue.popleft()
        except BaseException as error:
            self._queue.popleft().error = error
            raise
        finally:
            self._is_busy = False
            if self._queue:
                self.base.unsent = self.hand_over
            else:
                forget(self.hand_over)

    def _handed_over(self, call: _Call, waits: bool) -> bool:
        while call.next < len(call.chunks):
            chunk = call.chunks[call.next]
            if chunk.down is not None:
                if waits:
                    chunk.down.synchronize()
                elif not chunk.down.done:
                    return False
            statement, self.base._statement = self.base._statement, call.statement  # of a later call; of this one
            try:
                chunk.pending = quietly(partial(self._started, chunk))
            finally:
                self.base._statement, call.statement = statement, None
            call.next += 1
        call.x = None  # copied
        return True

    def _test(self, call: _Call) -> bool:
        self.hand_over(False)
        if call.error is not None:
            return True
        for chunk in call.chunks[: call.next]:
            if not chunk.is_up:
                assert chunk.pending is not None
                if not chunk.pending.test():
                    return False
                self._end(call, chunk)
        return call.next == len(call.chunks)

    def _wait(self, call: _Call) -> Any:
        self.hand_over(True)
        if call.error is not None:
            raise call.error
        for chunk in call.chunks:
            if not chunk.is_up:
                self._end(call, chunk)
        return self._finished(call)

    def _end(self, call: _Call, chunk: _Chunk) -> None:
        """Copy the result of a chunk up. Blocks until the transport has it."""
        assert chunk.pending is not None
        event = self._copy_up(call, chunk, chunk.pending.wait())
        self._give(chunk.buffers, event)
        chunk.pending, chunk.x, chunk.out = None, None, None

    # -- the steps of a call -----------------------------------------------------------------------------------
    def _begin(self, request: Request, started: bool) -> _Call:
        """Make the result and the chunks. The streams wait for what was computed so far."""
        while self._uploads and self._uploads[0][0].done:
            self._uploads.popleft()
        call, x, out = request.call, request.x, request.out
        in_place = call == "all_reduce" and out is x
        rounds = call in REDUCTIONS and x.dtype == _HALF
        found = answer(request, self.index)
        if rounds:
            x = x.astype(_SINGLE)  # twice the bytes, and the host need not convert
        elif started and x is not None and not in_place and call != "lend":
            x = x.copy()
        if call == "broadcast" and x is not None:
            y = request.x.copy()  # the root's own result, which needs no copy up
        elif rounds:
            y = None if found is None else np.empty_like(x, shape=(found[0],))
        elif out is not None:
            y = out
        else:
            y = None if found is None else np.empty_like(x, shape=(found[0],), dtype=found[1])
        made = _Call(request, x, y, rounds, self.base._statement)
        if started:
            self.base._statement = None  # it describes this call, which is passed on later
        made.chunks = self._cut(request._replace(x=None, out=None), made)
        now = self._runtime.new_event()
        now.record(self._runtime.current_stream())
        self._down.wait_event(now)
        self._up.wait_event(now)
        return made

    def _cut(self, request: Request, made: _Call) -> list[_Chunk]:
        x, y = made.x, made.y
        if request.call in _IN_CHUNKS and x.nbytes > CHUNK_BYTES:
            step = CHUNK_BYTES // x.itemsize
            bounds = [(at, min(at + step, x.size)) for at in range(0, x.size, step)]
            return [_Chunk(request, a, b, None, None, []) for a, b in bounds]
        size = 0 if x is None else x.size
        return [_Chunk(request, 0, max(size, 0 if y is None else y.size), None, None, [])]

    def _copy_down(self, call: _Call, chunk: _Chunk, after: Event | None) -> None:
        """Start to copy a chunk of the operand, into the buffers of another chunk if it has some, `after` their use."""
        x, y, name = call.x, call.y, chunk.request.call
        if x is not None:
            x = x[chunk.start : chunk.stop] if len(call.chunks) > 1 else x
        if y is not None and len(call.chunks) > 1:
            y = y[chunk.start : chunk.stop]
        in_place = name == "all_reduce"
        needed = [] if x is None else [x.nbytes]
        needed += [] if y is None or in_place or (name == "broadcast" and x is not None) else [y.nbytes]
        if not chunk.buffers:
            chunk.buffers = [self._buffers.take(size) for size in needed]
        views = iter(chunk.buffers)
        if x is not None:
            chunk.x = next(views)[: x.nbytes].view(x.dtype)
            if after is not None:
                self._down.wait_event(after)
            if x.nbytes:
                self._runtime.copy(chunk.x, x, self._down)
                chunk.down = self._runtime.new_event()
                chunk.down.record(self._down)
        if in_place or (name == "broadcast" and x is not None):
            chunk.out = chunk.x
        elif y is not None:
            chunk.out = next(views)[: y.nbytes].view(y.dtype)

    def _on_host(self, chunk: _Chunk) -> tuple[Request, Any, Any]:
        """The request of a chunk, its operand and the array for its result, as a transport takes them."""
        request, x, out = chunk.request, chunk.x, chunk.out
        if request.call == "broadcast":
            return request._replace(x=x, out=None if x is not None else out), None, out
        return request._replace(x=x, out=out if request.call in ("all_reduce", "recv") else None), x, out

    def _made(self, chunk: _Chunk) -> Any:
        request, x, out = self._on_host(chunk)
        return self.base.run(request) if request.call in _MESSAGES else self.base._run(request, x, out)

    def _started(self, chunk: _Chunk) -> Pending[Any]:
        request, x, out = self._on_host(chunk)
        return self.base.start(request) if request.call in _MESSAGES else self.base._start(request, x, out)

    def _copy_up(self, call: _Call, chunk: _Chunk, found: Any) -> Event | None:
        """Start to copy the result of a chunk to the device. Returns the event of the copy."""
        chunk.is_up = True
        y = call.y
        if y is None or chunk.request.call == "broadcast" and chunk.out is chunk.x:
            return None
        if found is not chunk.out:
            chunk.out[...] = found
        into = y[chunk.start : chunk.stop] if len(call.chunks) > 1 else y
        if into.nbytes:
            self._runtime.copy(into, chunk.out, self._up)
        event = self._runtime.new_event()
        event.record(self._up)
        self._uploads.append((event, into, call))
        call.last = event
        return event

    def _give(self, buffers: list[np.ndarray], event: Event | None) -> None:
        for buffer in buffers:
            self._buffers.give(buffer, event)

    def _finished(self, call: _Call) -> Any:
        """The result, for which the current stream waits."""
        if call.last is not None:
            self._runtime.current_stream().wait_event(call.last)
            # memory that this stream is given back is used by its later work only
            self._uploads = deque(upload for upload in self._uploads if upload[2] is not call)
        call.chunks = []
        if call.y is None:
            return None
        if not call.rounds:
            return call.y
        half = call.y.astype(_HALF)
        if call.request.out is None:
            return half
        call.request.out[...] = half
        return call.request.out
