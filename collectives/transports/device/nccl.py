"""NCCL carries the device arrays of a group whose ranks have a GPU each. MPI carries control, and all else.

A call is put on a stream of the group's own, after the work that the current stream was given, and returns at once;
`wait` lets the current stream wait for it. NCCL calls of a group run in the order of its starts on all ranks.

- Reductions, `all_gather` and `broadcast` are NCCL's calls. It has none for uneven parts: `all_gather` is then a group
  of broadcasts, and `reduce_scatter` a group of reductions. `all_to_all` and `gather` are groups of sends and receives.
- Sums of float16 are made in float32 and rounded once, as on all transports: NCCL would round after each addition.
- `scan`, `get` and `accumulate`, which NCCL has not, and reductions of dtypes that it does not reduce, are staged.
- `send`, `lend` and `recv` are staged: a send returns before its receive is called, and is matched by a number; a send
  of NCCL keeps its stream until the receive is called.
- `broadcast`, `reduce` and `gather` may have an array of the host on some ranks. The ranks first agree, by a control
  message, whether all have device arrays; else the call is staged. So are started calls with a root, which must not
  wait for the other ranks, and `scatter`, for which only the root has an array.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from autograd.arrays.runtime import Event, Runtime
from autograd.errors import CommunicationError, RankFailed

from ..protocol import Communicator, Pending, Request, quietly
from ..request import REDUCTIONS, answer

__all__ = ["LIMIT_S", "ROOTED", "Nccl"]

LIMIT_S = 60.0
"""How long NCCL may take to make a communicator, and to complete the last calls before it is freed."""

ROOTED = frozenset(("broadcast", "reduce", "gather"))
"""The calls before which the ranks agree that all have device arrays."""
_CALLS = ROOTED | {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)

_REDUCED = {"|i1": "INT8", "|u1": "UINT8", "<i4": "INT32", "<u4": "UINT32", "<i8": "INT64", "<u8": "UINT64",
            "<f4": "FLOAT32", "<f8": "FLOAT64"}  # fmt: skip
"""The dtypes that NCCL reduces."""
_PARTS = {"<c8": "FLOAT32", "<c16": "FLOAT64"}  # as two numbers, for sums only


class Nccl:
    """Carries the device arrays of a group through NCCL; see the module. All ranks of the group make it together.

    NCCL's calls wait on the device for all ranks. If one of them will never come, the monitor calls `end`: then their
    results have no meaning, and the next call of this object raises the reason.

    Parameters
    ----------
    group : Communicator
        Carries the unique id of the communicator, and the agreements.
    runtime : Runtime
    library : module
        ``cupy.cuda.nccl``

    Raises
    ------
    CommunicationError
        On all ranks, if one of them cannot make the communicator.
    """

    name = "nccl"

    def __init__(self, group: Communicator, runtime: Runtime, library: Any):
        self._index, self._size = int(group.index), group.size
        self._runtime, self._library = runtime, library
        self._stream = runtime.new_stream()
        self._kept: deque[tuple[Event, Any, int, Any]] = deque()  # arrays, thread and wait of each call
        self.noted: Any = None  # the monitor's wait for the next call
        self._problem = ""
        self._comm = self._made(group)

    def _made(self, group: Communicator) -> Any:
        """The communicator. All ranks have one in the end, or all raise the error of those that have none."""
        mine, problem, made = b"", "", [None]
        try:
            mine = self._library.get_unique_id() if self._index == 0 else b""
        except Exception as error:
            problem = _text(error)
        first = quietly(lambda: group.exchange(mine))[0]

        def make() -> None:
            try:
                made[0] = self._library.NcclCommunicator(self._size, first, self._index)
            except Exception as error:
                problems.append(_text(error))

        problems = [problem] if problem else []
        if first:
            # In a thread of its own: if one rank has an error, NCCL lets the others wait for it.
            thread = threading.Thread(target=self._runtime.on_this_device(make), name="ringtape NCCL", daemon=True)
            thread.start()
            thread.join(LIMIT_S)
            if thread.is_alive():
                problems.append(f"the communicator was not made within {LIMIT_S:g} s")
        found = quietly(lambda: group.exchange("; ".join(problems).encode()))
        if any(found):
            if made[0] is not None:
                made[0].abort()
            shown = [f"rank {r}: {text.decode()}" for r, text in zip(group.ranks, found, strict=True) if text]
            raise CommunicationError(f"'{group.name}' cannot make an NCCL communicator: {'; '.join(shown)}")
        return made[0]

    def carries(self, request: Request, started: bool) -> bool:
        """Whether a call is one of NCCL's: the same on all ranks of the group."""
        call, op = request.call, request.op
        if call not in _CALLS or started and call in ROOTED:
            return False
        if call not in REDUCTIONS:
            return True
        dtype = request.x.dtype
        return dtype.str in _REDUCED or dtype.kind == "b" or dtype == _HALF or (dtype.str in _PARTS and op == "sum")

    def run(self, request: Request) -> Any:
        """Make a call. The host does not wait."""
        return self._begin(request, request.call == "broadcast").wait()  # the root's result is a copy

    def start(self, request: Request) -> Pending[Any]:
        """Start a call. `wait` lets the current stream wait for it."""
        return self._begin(request, True)

    def _begin(self, request: Request, owns: bool) -> Pending[Any]:
        """Start a call, which owns its operand if the current stream may write to it before it waits for the call."""
        runtime = self._runtime
        self._check(request.call)
        while self._kept and self._kept[0][0].done:
            self._kept.popleft()
        call, x, out = request.call, request.x, request.out
        rounds = call in REDUCTIONS and x.dtype == _HALF
        if rounds:
            x = x.astype(_SINGLE)
        elif owns and x is not None and out is not x:
            x = x.copy()
        found = answer(request, self._index)
        if call == "broadcast" and x is not None:
            y = x
        elif out is not None and not rounds:
            y = out
        else:
            like = out if x is None else x
            y = None if found is None else np.empty_like(like, shape=(found[0],), dtype=_SINGLE if rounds else found[1])
        before, after, stream = runtime.new_event(), runtime.new_event(), runtime.current_stream()
        before.record(stream)
        self._stream.wait_event(before)
        getattr(self, f"_{call}")(request, x, y)
        after.record(self._stream)
        kept = [x, y]
        self._kept.append((after, kept, threading.get_ident(), self.noted))
        self.noted = None

        def finish() -> Any:
            if self._problem:
                self._check(call)
            current = runtime.current_stream()
            current.wait_event(after)
            if current == stream:
                kept.clear()  # memory that this stream is given back is used by its later work only
            if not rounds or y is None:
                return y
            half = y.astype(_HALF)
            if out is None:
                return half
            out[...] = half
            return out

        return Pending(None, finish)

    def incomplete(self) -> tuple[int, Any] | None:
        """The thread that made the oldest incomplete call, and the monitor's wait for it."""
        if not self._problem:
            for event, _, thread, wait in tuple(self._kept):
                if wait is not None and not event.done:
                    return thread, wait
        return None

    def end(self, why: str) -> None:
        """End the calls, because one of them will never be complete."""
        self._problem = why
        self._comm.abort()

    def _check(self, call: str) -> None:
        """Raise the reason why NCCL's calls were ended, or an error that NCCL has met since the last call."""
        if self._problem:
            raise RankFailed(self._problem)
        try:
            self._comm.check_async_error()
        except self._library.NcclError as error:
            self._comm.abort()
            self._problem = f"NCCL has met an error before {call} on rank {self._index} of {self._size}: {error}"
            fix = "RINGTAPE_DEVICE_TRANSPORT=staged; NCCL_DEBUG=WARN prints NCCL's own report"
            raise CommunicationError(f"{self._problem}\n  fix: {fix}") from error

    def close(self) -> None:
        """Free NCCL's communicator, after all of this rank's calls. All ranks call it.

        The monitor may have stopped. So calls whose partners do not come are ended here, after a limit.
        """
        wait = self._runtime.on_this_device(self._stream.synchronize)
        thread = threading.Thread(target=wait, name="ringtape NCCL", daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        if thread.is_alive():
            self.end(f"NCCL's calls on rank {self._index} of {self._size} were not complete within {LIMIT_S:g} s")
        if not self._problem:
            self._comm.destroy()

    # -- the calls ---------------------------------------------------------------------------------------------
    def _all_reduce(self, request: Request, x: Any, y: Any) -> None:
        count, kind, op = self._reduction(x, request.op)
        if count:
            self._comm.allReduce(self._at(x), self._at(y), count, kind, op, self._pointer)

    def _reduce(self, request: Request, x: Any, y: Any) -> None:
        count, kind, op = self._reduction(x, request.op)
        if count:
            self._comm.reduce(self._at(x), self._at(y), count, kind, op, request.root, self._pointer)

    def _reduce_scatter(self, request: Request, x: Any, y: Any) -> None:
        counts, (_, kind, op) = [int(count) for count in request.counts], self._reduction(x, request.op)
        per = 2 if x.dtype.kind == "c" else 1
        if len(set(counts)) == 1:
            if counts[0]:
                self._comm.reduceScatter(self._at(x), self._at(y), per * counts[0], kind, op, self._pointer)
            return
        with self._grouped():
            for rank, part in enumerate(_parts(x, counts)):
                if part.size:
                    into = self._at(y) if rank == self._index else 0
                    self._comm.reduce(self._at(part), into, per * part.size, kind, op, rank, self._pointer)

    def _broadcast(self, request: Request, x: Any, y: Any) -> None:
        if y.nbytes:
            self._comm.broadcast(self._at(y), self._at(y), y.nbytes, self._bytes, request.root, self._pointer)

    def _all_gather(self, request: Request, x: Any, y: Any) -> None:
        counts = [int(count) for count in request.counts]
        if len(set(counts)) == 1:
            if x.nbytes:
                self._comm.allGather(self._at(x), self._at(y), x.nbytes, self._bytes, self._pointer)
            return
        with self._grouped():
            for rank, part in enumerate(_parts(y, counts)):
                if part.nbytes:
                    given = self._at(x) if rank == self._index else 0
                    self._comm.broadcast(given, self._at(part), part.nbytes, self._bytes, rank, self._pointer)

    def _all_to_all(self, request: Request, x: Any, y: Any) -> None:
        with self._grouped():
            for rank, part in enumerate(_parts(x, request.counts)):
                self._send(part, rank)
            for rank, part in enumerate(_parts(y, request.receive_counts)):
                self._receive(part, rank)

    def _gather(self, request: Request, x: Any, y: Any) -> None:
        with self._grouped():
            self._send(x, request.root)
            if self._index == request.root:
                for rank, part in enumerate(_parts(y, request.counts)):
                    self._receive(part, rank)

    # -- the steps ---------------------------------------------------------------------------------------------
    def _send(self, part: Any, rank: int) -> None:
        if part.nbytes:
            self._comm.send(self._at(part), part.nbytes, self._bytes, rank, self._pointer)

    def _receive(self, part: Any, rank: int) -> None:
        if part.nbytes:
            self._comm.recv(self._at(part), part.nbytes, self._bytes, rank, self._pointer)

    @contextmanager
    def _grouped(self) -> Iterator[None]:
        self._library.groupStart()
        try:
            yield
        finally:
            self._library.groupEnd()

    def _reduction(self, x: Any, op: str) -> tuple[int, int, int]:
        """The count, the datatype and the operation of a reduction. Booleans are reduced as NumPy does: 0 or 1."""
        library = self._library
        if x.dtype.kind == "b":
            return x.size, library.NCCL_UINT8, library.NCCL_MIN if op == "prod" else library.NCCL_MAX
        operation = {"sum": library.NCCL_SUM, "max": library.NCCL_MAX, "prod": library.NCCL_PROD}[op]
        if x.dtype.kind == "c":
            return 2 * x.size, getattr(library, f"NCCL_{_PARTS[x.dtype.str]}"), operation
        return x.size, getattr(library, f"NCCL_{_REDUCED[x.dtype.str]}"), operation

    def _at(self, x: Any) -> int:
        return 0 if x is None else self._runtime.address(x)

    @property
    def _bytes(self) -> int:
        kind: int = self._library.NCCL_UINT8
        return kind

    @property
    def _pointer(self) -> Any:
        pointer: Any = self._stream
        return pointer.ptr


def _parts(x: Any, counts: Any) -> list[Any]:
    """The parts of an array, one for each rank."""
    ends = np.cumsum([0, *map(int, counts)]).tolist()
    return [x[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def _text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
