"""Shared memory: the ranks of one host reduce arrays in a common window, without messages.

`SharedMemory` is the algorithm "shared" of a group on one host. Every rank can access the memory of every other rank in
a window (MPI-3, `windows`), and the ranks synchronize by flags in the window (`flags`). `empty` makes an array in the
window, which needs no copies. Any other operand is copied into the window and back, one slot at a time.

- Up to the size of a slot, every rank copies its operand into its slot, synchronizes, and adds all operands. Each rank
  has two slots and alternates between them, so that a second synchronization is not needed.
- Larger operands in the window are added without copies. In place, every rank adds one slice of all operands and writes
  the sum to every rank's buffer, in blocks that stay in the cache, between two synchronizations.
- Larger operands outside the window are copied through the slots. With more than two ranks, each rank adds one slice of
  a slot, and all ranks copy the sums.

All of these add in order of rank and give the same bits on every rank. 16 bits are added in float32 and rounded once.
The model is Sistare, vandeVaart, Loh: Optimization of MPI Collectives on Clusters of Large-Scale SMPs
(SC 1999), sections 3 and 4: slices of one shared buffer, reduced by their owners.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.half import is_half
from autograd.errors import ShapeError

from ...checks.sanitizer import Addend
from ..host_transport import HostTransport
from ..protocol import Array, Communicator, Request, Text, Wrapper, observers, with_words
from ..request import Bfloat16, check
from .buffers import CODES
from .flags import PLACE
from .region import OPERATIONS, SLOT_BYTES, region_of

__all__ = ["SharedMemory", "shared_memory"]


BLOCK_BYTES = 512 << 10  # of one addition: large enough to hide the cost of the call, small enough for the caches
IN_PLACE_BYTES = 4 << 10  # up to it, one synchronization and a copy cost less than the two of adding in place
EVERYONE_BYTES = 16 << 10  # up to it, every rank adds whole operands, for any number of ranks; two ranks always do
_LINE_BYTES = 64  # slices begin on a cache line
_KEPT = 128  # how many prepared calls are kept


# -- arithmetic -------------------------------------------------------------------------------------------------------
def add_up(parts: Sequence[Array], out: Array) -> None:
    """Write the sum of equally long parts, in their order, to `out`, which may be one of the first two parts."""
    if is_half(out.dtype):
        total = parts[0].astype(np.float32)
        for part in parts[1:]:
            np.add(total, part, out=total)
        out[...] = total
        return
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)


def slices(count: int, ranks: int, item_bytes: int) -> list[tuple[int, int]]:
    """Every rank's slice of `count` elements, as even as cache lines allow. Slices may be empty.

    Examples
    --------
    >>> slices(100, 3, 4)
    [(0, 48), (48, 80), (80, 100)]
    """
    unit = max(1, _LINE_BYTES // item_bytes)
    units = -(-count // unit)
    ends = [min(count, -(-units * (r + 1) // ranks) * unit) for r in range(ranks)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def pieces(start: int, stop: int, step: int) -> list[tuple[int, int]]:
    """Split an interval into pieces of at most `step`; an empty interval gives one empty piece."""
    return [(a, min(a + step, stop)) for a in range(start, stop, step)] or [(start, start)]


class _Small(NamedTuple):
    """A prepared call whose operand fits a slot: this rank's and all ranks' slots, by the parity of the number."""

    call: int
    call_in_place: int
    is_pair: bool  # two operands that need no conversion
    mine: tuple[Array, Array]
    parts: tuple[tuple[Array, ...], tuple[Array, ...]]


_Plan = list[tuple[list[Array], Array, list[Array]]]
"""Blocks: the parts that are added, the array for the sum, and the arrays that the sum is copied to."""


class _Known(NamedTuple):
    """The cached analysis of an operand in the window. Repeating the analysis would take longer than the addition."""

    array: weakref.ref[Array]
    size: int
    dtype: np.dtype[Any]
    call: int
    place: int
    plans: dict[tuple[int, ...], _Plan]  # by the places of all ranks' operands


class SharedMemory(Wrapper, HostTransport):
    """The collectives of a group whose ranks share a host; see the module.

    It wraps a group and is used in its place. The wrapped group makes the other calls, and all started calls. All ranks
    of the group create it together, because the first one makes the group's memory (see `region`). `shared_memory`
    returns the same one while it exists.

    Parameters
    ----------
    base : Communicator
        A group of processes on one host. For threads of one process, which share memory anyway, and for a single rank,
        every call is delegated to the group.

    Raises
    ------
    MeshError
        The group's ranks are on several hosts.

    Examples
    --------
    >>> import collectives as cc
    >>> import numpy as np
    >>> def program():
    ...     memory = SharedMemory(cc.world())
    ...     x = memory.empty((3,), np.float32)
    ...     x[:] = cc.world().rank + 1
    ...     memory.all_reduce_in_place(x)
    ...     return x.tolist()
    >>> cc.run(program, 2)
    [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    """

    algorithm = "shared"
    repeats = True
    adds_float16 = True
    is_plain: bool
    """Whether there is no window: for one rank, or threads of one process."""

    def __init__(self, base: Communicator):
        super().__init__(base)
        self._small: dict[Any, _Small] = {}
        self._known: dict[int, _Known] = {}  # operands of all_reduce_in_place, by their id
        self._region = region = region_of(base)
        self.is_plain = region is None
        if region is not None:
            self._small, self._known = region.small, region.known
            self._flags, self._slots, self._sums = region.flags, region.slots, region.sums
            self._buffers = region.buffers

    def __repr__(self) -> str:
        return f"SharedMemory('{self.name}', rank {self.index} of {self.size})"

    # -- buffers -------------------------------------------------------------------------------------------------------
    def empty(self, shape: int | Sequence[int], dtype: Any = np.float64) -> Array:
        """An array in the window, uninitialised. All ranks of the group call it; shapes may differ.

        Its memory is reused after every rank has dropped the array and all views of it, at the next `empty` or `trim`.
        Nothing has to be freed by hand.
        """
        dtype = np.dtype(dtype)
        self._compare(f"empty(dtype={dtype}) in shared memory")
        return np.empty(shape, dtype) if self.is_plain else self._buffers.empty(shape, dtype)

    def trim(self) -> None:
        """Free the windows in which no rank has an array left. All ranks of the group call it."""
        self._compare("trim of shared memory")
        if not self.is_plain:
            self._buffers.agree(0, keep=0)

    @property
    def buffer_bytes(self) -> int:
        """The bytes of buffers in this rank's segments, as of the last `empty` or `trim`."""
        return 0 if self.is_plain else self._buffers.arena.taken_bytes

    def holds(self, x: Array) -> bool:
        """Whether an array is in this group's window, so that calls do not copy it."""
        return self.is_plain or self._buffers.place(x) != 0

    def close(self) -> None:
        """Free all windows. All ranks call it. Arrays in the windows must not be used afterwards."""
        self._compare("close of shared memory")
        if self._region is not None:
            del self._slots, self._sums
            self._region.close()
            self._region = None
        self.is_plain = True

    # -- agreement -----------------------------------------------------------------------------------------------------
    def agree(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        """Compare the call with those of the other ranks, including the algorithm."""
        self.base.agree(with_words(call, "algorithm=shared"), layout, is_rooted, addend)

    def _compare(self, call: str) -> None:
        self.base.agree(lambda: call)

    # -- synchronization -----------------------------------------------------------------------------------------------
    def _word(self, operation: str, x: Array, count: int, more: int = 0) -> int:
        """Encode a call as one word, which must be the same on all ranks."""
        return count << 22 | (more & 0xFFF) << 10 | CODES[x.dtype] << 4 | OPERATIONS.index(operation)

    def _places(self, n: int) -> tuple[int, ...]:
        return self._flags.words_of(n, PLACE)

    def _slot(self, n: int, rank: int, dtype: np.dtype[Any], count: int) -> Array:
        return self._slots[n & 1][rank][: count * dtype.itemsize].view(dtype)

    # -- calls ---------------------------------------------------------------------------------------------------------
    def _prepared(self, request: Request, started: bool) -> Any:
        """Delegate started calls to the wrapped group: synchronization by flags makes no progress in the background."""
        if started:
            return self.base.start(request)
        if self.is_plain or request.op != "sum" or request.call not in _CALLS and request.call != "all_reduce":
            return self.base.run(request)
        return super()._prepared(request, False)

    def _prepared_message(self, request: Request, started: bool) -> Any:
        """Delegate messages to the wrapped group, as started calls."""
        return self.base.start(request) if started else self.base.run(request)

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        call = request[0]
        if self.is_plain or request[2] != "sum" or (call != "all_reduce" and call not in _CALLS):
            return self.base._run(request, x, out)
        if call == "all_reduce":
            small = self._small.get((x.dtype, x.size)) or self._prepare_small(x)
            if small is None:
                return self._all_reduce(x, out)
            return self._sum_small(small, x, out)
        return _CALLS[call](self, request, x, out)

    def all_reduce(self, x: Array, op: str = "sum") -> Array:
        """The reduction of all ranks' arrays."""
        # A small sum takes two microseconds, so this one call goes straight to the slots that are known already.
        small = self._small.get((x.dtype, x.size)) if op == "sum" else None
        if small is None or x.ndim != 1 or observers:
            return super().all_reduce(x, op)
        return self._sum_small(small, x)

    def sender(self, request: Request, x: Array, result: tuple[int, np.dtype[Any]] | None) -> Callable[[Array], Any]:
        """As for every transport; whether a sum is small is decided once."""
        send = super().sender(request, x, result)
        if self.is_plain or request.call != "all_reduce" or request.op != "sum":
            return send
        small = self._small.get((x.dtype, x.size)) or self._prepare_small(x)

        def add(x: Array) -> Any:
            if observers or self.is_plain:
                return send(x)
            if small is None:
                return self._all_reduce(x, np.empty(x.size, x.dtype))
            return self._sum_small(small, x)

        return add

    def _sum_small(self, small: _Small, x: Array, out: Array | None = None) -> Array:
        word, _, is_pair, mine, parts = small
        odd = (self._flags.number + 1) & 1
        mine[odd][...] = x
        self._flags.synchronize(word)
        if is_pair:
            a, b = parts[odd]
            return np.add(a, b, out)
        out = np.empty(x.size, x.dtype) if out is None else out
        add_up(parts[odd], out)
        return out

    def _barrier(self, request: Request, x: Any, out: Any) -> None:
        self._flags.synchronize(0)

    # -- sums ----------------------------------------------------------------------------------------------------------
    def _prepare_small(self, x: Array) -> _Small | None:
        if x.nbytes > (SLOT_BYTES if self.size == 2 else EVERYONE_BYTES):
            return None
        slots = [tuple(self._slot(n, r, x.dtype, x.size) for r in range(self.size)) for n in (0, 1)]
        found = _Small(
            self._word("all_reduce", x, x.size),
            self._word("all_reduce_in_place", x, x.size),
            self.size == 2 and not is_half(x.dtype),
            (slots[0][self.index], slots[1][self.index]),
            (slots[0], slots[1]),
        )
        if len(self._small) >= _KEPT:
            self._small.clear()
        self._small[x.dtype, x.size] = found
        return found

    def _all_reduce(self, x: Array, out: Array) -> Array:
        """Add operands larger than a slot: without a copy those in the window, others one slot at a time."""
        call = self._word("all_reduce", x, x.size)
        # an operand that other ranks read must not be overwritten
        place = 0 if out is x else self._buffers.place(x)
        places: tuple[int, ...] = ()
        for start, stop in pieces(0, x.size, SLOT_BYTES // x.itemsize):
            if not place:
                self._slot(self._flags.number + 1, self.index, x.dtype, stop - start)[...] = x[start:stop]
            n = self._flags.synchronize(call, place)
            places = places or self._places(n)
            if self.size == 2 and all(places):
                for a, b in pieces(0, x.size, BLOCK_BYTES // x.itemsize):
                    add_up([self._buffers.at(at, r, x.dtype, a, b) for r, at in enumerate(places)], out[a:b])
                break
            parts = [
                self._buffers.at(at, r, x.dtype, start, stop) if at else self._slot(n, r, x.dtype, stop - start)
                for r, at in enumerate(places)
            ]
            parts[self.index] = x[start:stop]
            self._add_together(call, parts, out[start:stop])
        if any(places):
            self._flags.synchronize(call)  # until then no rank may write to an operand that others read
        return out

    def _add_together(self, call: int, parts: list[Array], out: Array) -> None:
        """Add parts that all ranks can access: whole parts on each of two ranks, one slice on each of more ranks."""
        if self.size == 2:
            add_up(parts, out)
            return
        a, b = slices(out.size, self.size, out.itemsize)[self.index]
        total = self._sums[(self._flags.number + 1) & 1][: out.nbytes].view(out.dtype)
        add_up([part[a:b] for part in parts], total[a:b])
        self._flags.synchronize(call)
        out[...] = total

    def all_reduce_in_place(self, x: Array) -> Array:
        """Replace each rank's array by the sum of all ranks' arrays, without copies if all are in the window.

        Unlike the other calls it accepts any contiguous shape, and changes its operand.
        """
        if not (x.flags.c_contiguous and x.flags.writeable):
            raise ShapeError(
                f"all_reduce_in_place on '{self.name}': the array is read-only or not contiguous; needed: a writeable "
                "C-contiguous array"
            )
        known = self._known.get(id(x))
        if known is None or known.array() is not x or known.size != x.size or known.dtype is not x.dtype:
            flat = x if x.ndim == 1 else x.reshape(-1)
            if self.is_plain:
                flat[...] = self.base.all_reduce(flat)
                return x
            is_small = x.nbytes <= IN_PLACE_BYTES
            small = self._small.get((x.dtype, x.size)) if is_small else None
            if small is None:
                with suppress(Bfloat16):  # `add_up` adds it in float32
                    check(Request("all_reduce", flat), self.index, self.size, self.name)
                small = self._prepare_small(flat) if is_small else None
            if small is not None:
                return self._small_in_place(small, x, flat)
            known = self._know(x, flat)
        call = known.call
        places = self._flags.words_of(self._flags.synchronize(call, known.place), PLACE)
        plan = known.plans.get(places)
        if plan is None:
            flat = x if x.ndim == 1 else x.reshape(-1)
            if not all(places):
                self._all_reduce(flat, flat)
                return x
            plan = known.plans[places] = self._prepare_direct(flat, places)
        for parts, out, copies in plan:
            add_up(parts, out)
            for copy in copies:
                copy[...] = out
        plan.reverse()  # the last block is still in the cache, and the next call begins with it
        self._flags.synchronize(call)
        return x

    def _small_in_place(self, small: _Small, x: Array, flat: Array) -> Array:
        odd = (self._flags.number + 1) & 1
        small.mine[odd][...] = flat
        self._flags.synchronize(small.call_in_place)
        if small.is_pair:
            a, b = small.parts[odd]
            np.add(a, b, out=flat)
        else:
            add_up(small.parts[odd], flat)
        return x

    def _know(self, x: Array, flat: Array) -> _Known:
        """Analyse an operand once: its place is the same during the lifetime of the array."""
        if len(self._known) >= _KEPT:
            self._known.clear()
        call = self._word("all_reduce_in_place", flat, flat.size)
        known = self._known[id(x)] = _Known(weakref.ref(x), x.size, x.dtype, call, self._buffers.place(x), {})
        return known

    def _prepare_direct(self, x: Array, places: Sequence[int]) -> _Plan:
        """The blocks of this rank's slice: parts, array for the sum, and arrays that it is copied to."""
        whole = [self._buffers.at(place, r, x.dtype, 0, x.size) for r, place in enumerate(places)]
        into = min(self.index, 1)  # the sum may overwrite either of the first two
        plan = []
        for a, b in pieces(*slices(x.size, self.size, x.itemsize)[self.index], BLOCK_BYTES // x.itemsize):
            parts = [array[a:b] for array in whole]
            plan.append((parts, parts[into], parts[:into] + parts[into + 1 :]))
        return plan

    def _reduce_scatter(self, request: Request, x: Array, out: Array) -> Array:
        counts = request.counts or ()
        offsets = _offsets(counts)
        call, place = self._word("reduce_scatter", x, x.size, hash(tuple(counts))), self._buffers.place(x)
        step = SLOT_BYTES // self.size // x.itemsize  # a slot has room for a piece of every rank's part
        places: tuple[int, ...] = ()
        for start, stop in pieces(0, max(counts), step):
            if not place:
                slot = self._slot(self._flags.number + 1, self.index, x.dtype, step * self.size)
                for r, (count, offset) in enumerate(zip(counts, offsets, strict=True)):
                    part = x[offset + min(start, count) : offset + min(stop, count)]
                    if r != self.index:
                        slot[r * step : r * step + part.size] = part
            n = self._flags.synchronize(call, place)
            places = places or self._places(n)
            a, b = min(start, out.size), min(stop, out.size)
            mine = offsets[self.index]
            parts = [
                self._buffers.at(at, r, x.dtype, mine + a, mine + b) if at
                else self._slot(n, r, x.dtype, step * self.size)[self.index * step : self.index * step + b - a]
                for r, at in enumerate(places)
            ]  # fmt: skip
            parts[self.index] = x[mine + a : mine + b]
            add_up(parts, out[a:b])
        if any(places):
            self._flags.synchronize(call)
        return out

    # -- copies --------------------------------------------------------------------------------------------------------
    def _all_gather(self, request: Request, x: Array, out: Array) -> Array:
        counts = request.counts or ()
        offsets = _offsets(counts)
        call, place = self._word("all_gather", x, sum(counts), hash(tuple(counts))), self._buffers.place(x)
        places: tuple[int, ...] = ()
        for start, stop in pieces(0, max(counts), SLOT_BYTES // x.itemsize):
            mine = x[start:stop]
            if not place:
                self._slot(self._flags.number + 1, self.index, x.dtype, mine.size)[...] = mine
            n = self._flags.synchronize(call, place)
            places = places or self._places(n)
            for r, (count, offset, at) in enumerate(zip(counts, offsets, places, strict=True)):
                a, b = min(start, count), min(stop, count)
                if r == self.index:
                    part = mine
                elif at:
                    part = self._buffers.at(at, r, x.dtype, a, b)
                else:
                    part = self._slot(n, r, x.dtype, b - a)
                out[offset + a : offset + b] = part
        if any(places):
            self._flags.synchronize(call)
        return out

    def _broadcast(self, request: Request, x: Any, out: Array) -> Array:
        root, is_root = request.root, self.index == request.root
        # The root's operand may be in the window. A repeated request has no operand, and `out` is its copy.
        given = request.x if is_root and request.x is not None else out
        call = self._word("broadcast", given, given.size, root)
        place = self._buffers.place(given) if is_root else 0
        at = 0
        for start, stop in pieces(0, given.size, SLOT_BYTES // given.itemsize):
            if is_root and not place:
                self._slot(self._flags.number + 1, root, given.dtype, stop - start)[...] = given[start:stop]
            n = self._flags.synchronize(call, place)
            at = at or self._places(n)[root]
            if not is_root:
                out[start:stop] = (
                    self._buffers.at(at, root, out.dtype, start, stop)
                    if at
                    else self._slot(n, root, out.dtype, stop - start)
                )
        if at:
            self._flags.synchronize(call)
        return out


_CALLS: dict[str, Callable[[SharedMemory, Request, Any, Any], Any]] = {
    "barrier": SharedMemory._barrier,
    "reduce_scatter": SharedMemory._reduce_scatter,
    "all_gather": SharedMemory._all_gather,
    "broadcast": SharedMemory._broadcast,
}


def _offsets(counts: Sequence[int]) -> list[int]:
    """The offset of each part."""
    return [int(sum(counts[:r])) for r in range(len(counts))]


# -- by axis ----------------------------------------------------------------------------------------------------------
def shared_memory(group: Communicator) -> SharedMemory:
    """The shared memory of a group, made at the first call, by all ranks of the group together."""
    group = getattr(group, "base", group)  # if the group has an algorithm: the group of its transport
    found: SharedMemory | None = None if group.shared is None else group.shared()
    if found is None:
        found = SharedMemory(group)
        group.shared = weakref.ref(found)  # weak, so that neither keeps the other alive
    return found
