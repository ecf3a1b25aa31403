"""Gradient buckets: the gradients of many parameters are summed over the ranks in few large buffers.

A bucket is a flat buffer with the gradients of some parameters, and one flag per parameter that tells whether this rank
has used it. It is summed as a whole, flags included. The parameters are laid out in reverse order of their first use,
so the first bucket is complete early in a backward sweep. The ranks agree on this order in their first sweep: it is
that of the first rank.

How a bucket is summed depends on where the ranks are:

- Ranks of one host (processes): the buffers lie in memory that they share. They add the buffers in place, without
  copies, when the sweep arrives at the entry. Nothing would be gained earlier, because the same cores compute.
- Otherwise: the sum of a bucket is started when its last gradient is complete, while the sweep goes on, on a channel of
  its own. Buckets start in their agreed order, so a rank that completes them in another order waits with the start.

A gradient is a view of its bucket. A buffer that is still in use when the next sweep begins, because the program has
kept a gradient, is not overwritten: that sweep takes another one.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import le
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from autograd.arrays.capture import Whole, recorded
from autograd.arrays.device import move, to_host
from autograd.arrays.shape_only import Shaped
from autograd.doors import door, is_there
from autograd.engine import events
from autograd.engine.events import listeners
from autograd.engine.recording import op_of, parents_of
from autograd.engine.state import state
from autograd.engine.sweep import Sweep
from autograd.engine.tensor import Tensor
from autograd.errors import CommunicationError, RingtapeError
from collectives.mesh import Axis
from collectives.transports.probe import Probe
from collectives.transports.protocol import Communicator, Request, observed, observers
from collectives.transports.queue import Queue
from collectives.transports.steps import Steps

from .settings import Bucketing

if TYPE_CHECKING:
    from collectives.transports.shared_memory.communicator import SharedMemory

    from .bucket_plan import Measuring

__all__ = ["Bucket", "Buckets", "Reduction", "lay_out"]

_ALIGNMENT_BYTES = 64
"""Gradients begin on a cache line of their own."""
_WHILE_MEASURING = 1 << 20


class Place(NamedTuple):
    """The content of a bucket: for each of its parameters the index, the name, the shape and the offset in elements."""

    indices: tuple[int, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    elements: int
    like: Any
    """An empty array of the dtype, on the device of the parameters."""

    @property
    def size(self) -> int:
        """The number of elements of the buffer, with the flags."""
        return self.elements + len(self.indices)


class Bucket:
    """A flat buffer with gradients, and one flag for each of them.

    Attributes
    ----------
    index : int
        Its number in the order in which the buckets are summed.
    flat : array
        One-dimensional: the elements of the gradients, each beginning on a cache line, with zeros between them; then
        one flag per parameter, 1 where this rank has used it, else 0.
    elements : int
        The number of elements before the flags.
    names, shapes, offsets : tuple
        The names and shapes of the parameters, and where their gradients begin.
    """

    __slots__ = ("_parts", "elements", "flat", "index", "indices", "names", "offsets", "shapes")

    def __init__(self, index: int, place: Place, flat: Any, parts: list[Any] | None = None):
        self.index, self.flat, self._parts = index, flat, parts
        self.indices, self.names, self.shapes, self.offsets, self.elements, _ = place

    def __repr__(self) -> str:
        return f"<bucket {self.index}, {len(self.names)} parameters, {self.flat.nbytes} bytes>"

    @property
    def values(self) -> Any:
        """The gradients, as one flat array."""
        return self.flat[: self.elements]

    @property
    def flags(self) -> Any:
        """The flags of the parameters."""
        return self.flat[self.elements :]

    def parts(self) -> list[Any]:
        """The gradients, as views in the shapes of the parameters."""
        if self._parts is None:
            self._parts = _views(self.flat, self.shapes, self.offsets)
        return self._parts


def _views(flat: Any, shapes: Sequence[tuple[int, ...]], offsets: Sequence[int]) -> list[Any]:
    return [flat[a : a + math.prod(s)].reshape(s) for s, a in zip(shapes, offsets, strict=True)]


class Reduction(Protocol):
    """A way to sum a bucket over the ranks: exactly by default, or compressed."""

    def reduce(self, bucket: Bucket, group: Communicator) -> Steps[None]:
        """Replace the content of ``bucket.flat`` by its sum over the ranks, the same on every rank.

        A generator: it starts calls on `group`, and yields each `Pending` that must complete before it goes on. The
        flags are summed exactly.
        """


def lay_out(
    parameters: Sequence[Tensor], order: Sequence[int], bucket_bytes: int, first_bucket_bytes: int
) -> list[Place]:
    """Divide parameters into buckets of one dtype each, in the given order.

    A bucket is full once it has `bucket_bytes` (the first one `first_bucket_bytes`); a larger parameter has a bucket of
    its own. With 0 every parameter has one.
    """
    found: list[Place] = []
    open_buckets: dict[Any, list[int]] = {}
    sizes: dict[Any, int] = {}

    def close(dtype: Any) -> None:
        found.append(_place_of(parameters, open_buckets.pop(dtype)))
        sizes.pop(dtype)

    for i in order:
        array = parameters[i].array
        dtype, size = array.dtype, array.size * array.dtype.itemsize
        limit = bucket_bytes if found else min(first_bucket_bytes, bucket_bytes)
        if dtype in sizes and sizes[dtype] + size > limit:
            close(dtype)
        open_buckets.setdefault(dtype, []).append(i)
        sizes[dtype] = sizes.get(dtype, 0) + size
        if sizes[dtype] >= (bucket_bytes if found else min(first_bucket_bytes, bucket_bytes)):
            close(dtype)
    for dtype in list(open_buckets):
        close(dtype)
    return found


def _place_of(parameters: Sequence[Tensor], indices: list[int]) -> Place:
    arrays = [parameters[i].array for i in indices]
    unit = max(1, _ALIGNMENT_BYTES // arrays[0].dtype.itemsize)
    offsets, end = [], 0
    for array in arrays:
        offsets.append(end)
        end += -(-int(array.size) // unit) * unit
    names = tuple(getattr(parameters[i], "name", "") or f"parameter {i}" for i in indices)
    shapes = tuple(tuple(map(int, array.shape)) for array in arrays)
    return Place(tuple(indices), names, shapes, tuple(offsets), end, np.empty_like(arrays[0], shape=(0,)))


class _Buffer:
    """A buffer that is used again in every sweep, unless somebody still refers to it or to a view of it."""

    __slots__ = ("_base", "_references", "flat", "parts")

    def __init__(self, flat: Any, place: Place, keeps_parts: bool):
        self.flat = flat
        self.parts = _views(flat, place.shapes, place.offsets) if keeps_parts else [None]
        self._base = flat if getattr(flat, "base", None) is None else flat.base  # every view refers to it
        self._references: tuple[int, int, int] | None = None  # those of this object, counted at the first use

    def is_free(self) -> bool:
        """Whether nobody refers to the buffer. The first call, before its first use, counts the usual references."""
        parts = 0 if self.parts[0] is None else max(map(getrefcount, self.parts))
        count = getrefcount(self._base), getrefcount(self.flat), parts
        if self._references is None:
            self._references = count
        return all(map(le, count, self._references))


class Buckets:
    """The sums of an entry's gradients, in buckets; see the module. It is the `Runs` of a joint step.

    Parameters
    ----------
    parameters : sequence of Tensor
        Their shapes, dtypes and names are used.
    on : Axis
    bucket_bytes, first_bucket_bytes : int
        The sizes of the buckets. With 0 each parameter has one of its own. With ``bucket_bytes="measured"`` they are
        chosen after the first sweeps (`bucket_plan`).
    buffers : int
        The number of buffers of a bucket. With 2, a program that keeps the gradients of a step during the next one
        costs no new buffers.
    reduction : Reduction, optional
        How a bucket is summed; exactly by default.
    own_channel : bool
        Whether the requests have a channel of their own, so that they can start while the sweep goes on.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        on: Axis,
        *,
        bucket_bytes: int | Literal["measured"],
        first_bucket_bytes: int,
        buffers: int = 1,
        reduction: Reduction | None = None,
        own_channel: bool = True,
    ):
        self.on, self.axes = on, on.names
        self.group: Communicator = on.group.duplicate("gradients") if own_channel and on.group.size > 1 else on.group
        self.own_channel = own_channel
        self.reduction = reduction
        self._parameters = parameters
        size = _WHILE_MEASURING if bucket_bytes == "measured" else bucket_bytes
        self.bucketing = Bucketing(size, first_bucket_bytes, buffers)
        self.measuring: Measuring | None = None
        if bucket_bytes == "measured":
            from .bucket_plan import Measuring  # loaded on first use, with its model of the link

            self.measuring = Measuring(self.bucketing)
        self.places: list[Place] | None = None
        self._at: dict[int, tuple[int, int]] = {}  # index of the parameter -> bucket, index in it
        self._kept: list[list[_Buffer]] = []
        self.memory: SharedMemory | None = None
        self.is_early = False  # whether a bucket is started when it is complete
        self.reductions = Queue()  # one after another, so that all ranks start their calls in one order
        # The buckets that a captured step has started: each with the flags of this rank, and what waits for its sum.
        self.flying: deque[tuple[Bucket, list[float], Callable[[], Any] | None]] = deque()

    def forward(self, arrays: list[Any]) -> list[Any]:
        return arrays

    # -- layout ----------------------------------------------------------------------------------------------------
    def settle_places(self, order: list[int] | None) -> list[Place]:
        """Settle the buckets at the first sweep. All ranks of the axis call it."""
        if self.places is not None:
            return self.places
        n, group = len(self._parameters), self.group
        order = list(range(n))[::-1] if order is None else order
        if self.own_channel:
            order = self._agreed_order(order)
        on_host = all(isinstance(p.array, np.ndarray | np.generic) for p in self._parameters)
        is_shared = (
            self.own_channel and on_host and self.reduction is None and group.are_processes
            and group.algorithm in ("native", "shared", "auto") and is_there("shared memory") and is_on_one_host(group)
        )  # fmt: skip
        if is_shared:
            self.memory = door("shared memory").shared_memory(group)
        self.is_early = self.own_channel and not is_shared
        if not self.is_early or group.dry or group.size == 1:
            self.measuring = None  # nothing overlaps, or no time passes
        limits = self._limits
        # Where nothing overlaps, several buckets would only wait for the other ranks more often.
        limits = (sys.maxsize, sys.maxsize) if is_shared and limits[0] and self.keeps_gradients else limits
        return self._settle_order(order, *limits)

    @property
    def _limits(self) -> tuple[int, int]:
        return int(self.bucketing.bucket_bytes), self.bucketing.first_bucket_bytes

    def _settle_order(self, order: Sequence[int], bucket_bytes: int, first_bucket_bytes: int) -> list[Place]:
        self.places = lay_out(self._parameters, order, bucket_bytes, first_bucket_bytes)
        self._at = {i: (b, j) for b, place in enumerate(self.places) for j, i in enumerate(place.indices)}
        self._settle()
        self._kept = [[] for _ in self.places]
        for _ in range(self.bucketing.buffers if self.keeps_gradients and not self.group.dry else 0):
            for b, kept in enumerate(self._kept):
                kept.append(_Buffer(self._new_buffer(b, is_first=True), self.places[b], self.keeps_parts))
        return self.places

    def _choose_sizes(self, measured: Measuring) -> None:
        """Divide the parameters anew, by the times of the first sweeps. All ranks of the axis call it."""
        assert self.places is not None
        order = [i for place in self.places for i in place.indices]
        self.measuring = None
        self.bucketing = measured.choose(partial(lay_out, self._parameters, order), self.group)
        self._settle_order(order, *self._limits)

    def _agreed_order(self, order: list[int]) -> list[int]:
        """The order of the first rank. All ranks of the axis call it.

        Raises
        ------
        CommunicationError
            What this rank has received is no order.
        """
        n, group = len(self._parameters), self.group
        call = f"order of the gradients of {n} parameters (axis={'*'.join(self.on.names)!r})"
        group.agree(lambda: call)
        mine = np.array(order, np.int64)
        order = group.run(Request("broadcast", mine if group.index == 0 else None, out=mine)).tolist()
        if sorted(order) != list(range(n)):
            wrong = [i for i in order if order.count(i) > 1 or not 0 <= i < n][:3]
            raise CommunicationError(
                f"{call}: rank {group.ranks[group.index]} has received one from rank {group.ranks[0]} that is none: it "
                f"has {', '.join(map(str, wrong))}; needed: each number from 0 to {n - 1} once\n  A fault of a memory, "
                "a processor or the network has changed it on its way\n  fix: start again from the last checkpoint, "
                "and test the hosts of these ranks if it occurs again"
            )
        return order

    def _settle(self) -> None:
        """Compute what depends on the buckets, once they are known."""

    def _new_buffer(self, b: int, is_first: bool = False) -> Any:
        """A buffer for a bucket, filled with zeros."""
        assert self.places is not None
        like, size = self.places[b].like, self.size_of(b)
        if is_first and self.memory is not None:
            flat = self.memory.empty(size, like.dtype)
            flat[...] = 0
            return flat
        if self.reduction is not None and self.group.dry:  # it computes on values; zeros do
            return np.zeros(size, like.dtype)
        return np.zeros_like(like, shape=size)

    def kept_buffers(self) -> list[Any]:
        """The buffers that are used again in every sweep."""
        return [buffer.flat for kept in self._kept for buffer in kept]

    def bucket(self, index: int) -> Bucket:
        """A bucket whose buffer nobody uses."""
        assert self.places is not None
        place = self.places[index]
        for buffer in self._kept[index]:
            if buffer.is_free():
                return Bucket(index, place, buffer.flat, buffer.parts)
        return Bucket(index, place, self._new_buffer(index))

    # -- what a bucket holds, and how it is summed -----------------------------------------------------------------
    keeps_gradients = True
    """Whether the buffers are kept from one sweep to the next."""
    keeps_parts = True
    """Whether the gradients lie in a buffer one after another."""

    def size_of(self, b: int) -> int:
        """The number of elements of a bucket's buffer."""
        assert self.places is not None
        return self.places[b].size

    def write(self, bucket: Bucket, j: int, ct: Any) -> None:
        """Copy the cotangent of the j-th parameter of a bucket into its buffer; None stands for zeros."""
        part = bucket.parts()[j]
        if ct is not part:  # else an operation has written it there
            part[...] = 0 if ct is None else ct

    def start(self, bucket: Bucket, used: list[float]) -> Callable[[], Any] | None:
        """Start the sum of a complete bucket. Return a function that waits for it, or None if it is done."""
        flat = bucket.flat
        if flat.__class__ is np.ndarray:
            flat[bucket.elements :] = used
        elif flat.__class__ is not Shaped:
            bucket.flags[...] = move(np.array(used, flat.dtype), flat)
        if self.reduction is not None:
            return self.reductions.start(self.reduction.reduce(bucket, self.group)).finish
        if self.memory is not None:
            memory = self.memory
            if observers:
                in_place = Request("all_reduce", flat, out=flat)
                observed(memory, in_place, False, lambda: memory.all_reduce_in_place(flat))
            else:
                memory.all_reduce_in_place(flat)
            return None
        return self.group.start(Request("all_reduce", flat, out=flat)).wait

    def results(self, bucket: Bucket, used: list[float], answer: Any) -> Iterable[tuple[int, Any]]:
        """The index and the gradient of each parameter that some rank has used. `answer` is that of the wait."""
        used = used if self.group.dry else to_host(bucket.flags).tolist()
        return [
            (i, part if part.shape else part[()])
            for i, part, is_used in zip(bucket.indices, bucket.parts(), used, strict=True) if is_used
        ]  # fmt: skip

    # -- sweeps ----------------------------------------------------------------------------------------------------
    def announce(self) -> None:
        """Compare with the other ranks which gradients are summed."""
        places, checks = self.places, self.on.group.checks
        if places is not None and not (checks is not None and checks.is_quiet):
            self.group.agree(
                lambda: f"gradients of {len(self._parameters)} parameters (axis={'*'.join(self.axes)!r} "
                f"buckets={len(places)}) in a backward sweep"
            )

    def begin(self, sweep: Sweep, first: int, step: int) -> None:
        uses = _first_uses(sweep, first, step)
        if self.places is None:
            places = range(step - first)
            self.settle_places(sorted(places, key=lambda i: -uses[first + i][0] if first + i in uses else 1))
        elif self.measuring is not None and self.measuring.is_complete and self not in sweep.begun:
            self._choose_sizes(self.measuring)
        self.announce()
        filling = sweep.begun[step] = self._filling(sweep, first)
        writes = self.keeps_parts and not self.group.dry and state.recorder is None
        into = sweep.into = {} if sweep.into is None else sweep.into
        stops: list[tuple[int, Callable[[], None]]] = []
        for k, (place, operand, is_only) in uses.items():
            stops.append((place, partial(filling.arrived, k - first)))
            node: Any = sweep.recording.nodes[place]
            if writes and is_only and operand in getattr(op_of(node), "write_adjoint", ()):
                b, j = self._at[k - first]
                into[place] = operand, filling.buckets[b].parts()[j]
        sweep.stop_at(stops)
        for k in range(first, step):
            if k not in uses:
                filling.arrived(k - first)

    def adjoint(self, cotangents: list[Any], sweep: Sweep, step: int) -> Iterable[tuple[int, Any]]:
        filling = sweep.begun.pop(step, None)
        if filling is None:  # a sweep that returns cotangents
            self.settle_places(None)
            self.announce()
            filling = self._filling(sweep, step - len(cotangents))
        return filling.results(cotangents)

    def by_rows(self, cotangents: list[Any], sweep: Sweep, step: int) -> list[tuple[int, Any]]:
        return list(self.adjoint(cotangents, sweep, step))

    def _filling(self, sweep: Sweep, first: int) -> _Filling:
        return (_Filling if state.recorder is None else _RecordedFilling)(self, sweep, first)

    def sent(self, group: Probe) -> None:
        order = list(range(len(self._parameters)))[::-1]
        for place in self.places or lay_out(self._parameters, order, *self._limits):
            group.run(Request("all_reduce", np.zeros(place.size, place.like.dtype)))


class _Times:
    """When the gradients of a sweep were complete, in seconds from its begin."""

    def __init__(self, count: int):
        self.begin, self.ready_s = time.perf_counter(), [0.0] * count


class _Filling:
    """The buckets of one entry in one sweep."""

    has_buckets = True

    def __init__(self, runs: Buckets, sweep: Sweep, first: int):
        places = runs.places
        assert places is not None
        self._runs, self._sweep, self._offset = runs, sweep, first - sweep.start
        self.buckets: list[Bucket] = []
        self._missing: list[int] = []
        self._used: list[list[float]] = []
        self._taken: set[int] = set()
        # The entries of a sweep that share a channel start their buckets in one order: the last entry first.
        self.queue: deque[tuple[_Filling, int]] = sweep.begun.setdefault(runs, deque())
        for b, place in enumerate(places):
            if self.has_buckets:
                self.buckets.append(runs.bucket(b))
            self._missing.append(len(place.indices))
            self._used.append([0.0] * len(place.indices))
            self.queue.append((self, b))
        self._wait: dict[int, Callable[[], Any] | None] = {}
        is_measured = runs.measuring is not None and state.recorder is None
        self._times = _Times(len(runs._parameters)) if is_measured else None

    def arrived(self, i: int) -> None:
        """Take the cotangent of the i-th parameter, which is complete, from the sweep."""
        cts, at = self._sweep.cts, self._offset + i
        ct, cts[at] = cts[at], None
        self._take(i, ct)

    def _take(self, i: int, ct: Any) -> None:
        b, j = self._runs._at[i]
        self._taken.add(i)
        if self._times is not None:
            self._times.ready_s[i] = time.perf_counter() - self._times.begin
        if not self._runs.group.dry:  # a dry run has no values
            self._runs.write(self.buckets[b], j, ct)
        self._used[b][j] = 0.0 if ct is None else 1.0
        self._missing[b] -= 1
        if not self._missing[b] and self._runs.is_early:
            self._advance()

    def _advance(self) -> None:
        """Start the buckets that are complete, in order."""
        queue = self.queue
        while queue and not queue[0][0]._missing[queue[0][1]]:
            filling, b = queue.popleft()
            filling._start(b)
        jobs = self._runs.reductions.jobs
        if jobs:
            jobs[0].test()

    def _start(self, b: int) -> None:
        if not listeners:
            self._wait[b] = self._runs.start(self.buckets[b], self._used[b])
            return
        step = self._sweep.start + self._offset + len(self._runs._parameters)
        facts = step, self.buckets[b].flat, self._sweep
        with events.emitting("backward", "gradient bucket", *facts):
            self._wait[b] = self._runs.start(self.buckets[b], self._used[b])
        events.emit("end", "backward", "gradient bucket", *facts)

    def results(self, cotangents: list[Any]) -> list[tuple[int, Any]]:
        """Sum what has not been summed, and return the index and the gradient of each parameter that was used."""
        self._take_all(cotangents)
        found: list[tuple[int, Any]] = []
        for b, bucket in enumerate(self.buckets):
            wait = self._wait.pop(b)
            found += self._runs.results(bucket, self._used[b], None if wait is None else wait())
        return found

    def _take_all(self, cotangents: list[Any]) -> None:
        """Take the cotangents that have not arrived before, and start all buckets."""
        for i, ct in enumerate(cotangents):
            if i not in self._taken:
                self._take(i, ct)
            elif ct is not None:
                raise RingtapeError(
                    f"the gradient of {self._runs._parameters[i].name or f'parameter {i}'} was changed after its last "
                    "use on the tape. This is an error of ringtape: an operation adds to the cotangent of a value that "
                    "is not among its operands"
                )
        cotangents.clear()
        if self._times is not None and self._runs.measuring is not None:
            self._runs.measuring.take(self._times.ready_s, time.perf_counter() - self._times.begin)
        self._advance()


class _RecordedFilling(_Filling):
    """The buckets of one entry in a sweep of a captured step. Their starts, and the wait, are calls that it repeats."""

    has_buckets = False  # the calls make them

    def __init__(self, runs: Buckets, sweep: Sweep, first: int):
        super().__init__(runs, sweep, first)
        self._cts: list[list[Any]] = [[None] * len(used) for used in self._used]

    def _take(self, i: int, ct: Any) -> None:
        b, j = self._runs._at[i]
        self._taken.add(i)
        self._cts[b][j] = ct
        self._missing[b] -= 1
        if not self._missing[b] and self._runs.is_early:
            self._advance()
        elif self._sweep.begun.get((_start, self._runs)):
            recorded(_progress, Whole(self._runs), changes="messages", name="progress of buckets")

    def _start(self, b: int) -> None:
        begun = self._sweep.begun
        is_first = not begun.get((_start, self._runs))
        begun[_start, self._runs] = True
        recorded(_start, Whole(self._runs), b, is_first, *self._cts[b], changes="messages", name="start of a bucket")
        self._cts[b].clear()

    def results(self, cotangents: list[Any]) -> list[tuple[int, Any]]:
        self._take_all(cotangents)
        found: list[tuple[int, Any]] = recorded(
            _finish, Whole(self._runs), len(self._missing), changes="messages", name="sums of buckets"
        )
        return found


def _start(runs: Buckets, b: int, is_first: bool, *cotangents: Any) -> int:
    """Start a bucket, as a call of a captured step; `is_first` in its sweep."""
    if is_first:
        runs.flying.clear()  # a step that has failed may have left some
    bucket = runs.bucket(b)
    for j, ct in enumerate(cotangents):
        runs.write(bucket, j, ct)
    used = [0.0 if ct is None else 1.0 for ct in cotangents]
    runs.flying.append((bucket, used, runs.start(bucket, used)))
    if runs.reductions.jobs:
        runs.reductions.jobs[0].test()
    return b


def _progress(runs: Buckets) -> bool:
    """Make progress on the buckets that have started, as a sweep does after each of its nodes."""
    progress = state.distribution.progress
    if progress is not None:
        progress()
    return True


def _finish(runs: Buckets, count: int) -> list[tuple[int, Any]]:
    """Wait for the buckets of an entry, as a call of a captured step, and return their gradients by index."""
    found: list[tuple[int, Any]] = []
    for _ in range(count):
        bucket, used, wait = runs.flying.popleft()
        found += runs.results(bucket, used, None if wait is None else wait())
    return found


def is_on_one_host(group: Communicator) -> bool:
    """Whether the ranks of a group can share memory."""
    return len(set(group.hosts)) == 1


def _first_uses(sweep: Sweep, first: int, step: int) -> dict[int, tuple[int, int, bool]]:
    """The places `first` to `step` - 1 that later nodes use.

    Each with the place of the first of these nodes, which operand it is there, and whether the node is the only one.
    """
    nodes, found = sweep.recording.nodes, dict[int, tuple[int, int, bool]]()
    for place in range(sweep.start + len(sweep.cts) - 1, step, -1):
        node = nodes[place]
        if node is None:
            continue
        for i, parent in enumerate(parents_of(node)):
            if first <= parent < step:
                found[parent] = place, i, parent not in found
        reads = getattr(op_of(node), "reads", None)
        if reads is not None:
            found.update((parent, (place, -1, False)) for parent in reads(node) if first <= parent < step)
    return found
