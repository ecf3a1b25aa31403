"""One-sided calls over MPI windows, with passive targets: the owner of the memory takes no part in a transfer.

`MpiWindow` is memory that the ranks use at different times, and `MpiClocks` are counters in one. `get` and `accumulate`
are collective calls of all ranks:

Each call makes a window over the caller's array, transfers the data, and frees the window. Freeing is collective: when
a call returns, all transfers are complete and no rank accesses the memory any more. There is one transfer per source,
for any number of runs, which are combined in a datatype. MPI does not define the order in which the ranks' accumulates
are applied to an element, so sums of three or more floating-point numbers may differ in the last bit from run to run.
See the MPI standard 4.1, chapters 5 (datatypes) and 12 (one-sided communications).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autograd.errors import RankFailed

from ...job.activity import Channel, Wait, describe
from ..arrivals import Arrivals, bits_of
from ..protocol import Array, Runs
from ..windows import Clocks, Window
from .groups import Groups
from .library import KINDS, MPI, Kind
from .waiting import Waits

__all__ = ["MpiArrivals", "MpiClocks", "MpiWindow", "accumulate", "get", "record_size"]


def get(comm: Any, kind: Kind, x: Array, runs: Runs, out: Array) -> Array:
    """Fill `out` with the elements of all ranks' arrays that `runs` select."""
    window = _opened(comm, x)
    for source, here, there, counts in _by_source(runs):
        with _Typed(kind.datatype, here, counts) as mine, _Typed(kind.datatype, there, counts) as theirs:
            window.Get([out, 1, mine], source, (0, 1, theirs))
    window.Unlock_all()
    window.Free()
    return out


def accumulate(comm: Any, kind: Kind, values: Array, runs: Runs, out: Array) -> Array:
    """Fill `out` with zeros, plus the values that all ranks' runs add to it."""
    out[...] = 0
    window = _opened(comm, out)
    kept = []  # an accumulate may read its array until the window is unlocked
    for target, here, there, counts in _by_source(runs):
        given, here, there, counts = _added_up(values, here, there, counts)
        kept.append(given)
        with _Typed(kind.datatype, here, counts) as mine, _Typed(kind.datatype, there, counts) as theirs:
            window.Accumulate([given, 1, mine], target, (0, 1, theirs), kind.operations["sum"])
    window.Unlock_all()
    window.Free()
    return out


def _opened(comm: Any, x: Array) -> Any:
    """A window over the bytes of an array, opened for access to all ranks."""
    window = MPI.Win.Create(x.view(np.uint8) if x.size else None, x.itemsize, MPI.INFO_NULL, comm)
    window.Lock_all(MPI.MODE_NOCHECK)
    return window


class _Typed:
    """A datatype made of runs. It may be freed once its transfer was started, because MPI keeps a reference."""

    def __init__(self, element: Any, starts: Array, counts: Array):
        self._type = element.Create_indexed(counts.tolist(), starts.tolist()).Commit()

    def __enter__(self) -> Any:
        return self._type

    def __exit__(self, *error: Any) -> None:
        self._type.Free()


def _by_source(runs: Runs) -> Iterator[tuple[int, Array, Array, Array]]:
    """For every source: the offsets of its runs in this rank's array and in the source's, and their counts."""
    table = np.array(runs, np.int64).reshape(-1, 3)
    table = np.column_stack([table, np.cumsum(table[:, 2]) - table[:, 2]])[table[:, 2] > 0]
    for source in np.unique(table[:, 0]):
        _, there, counts, here = table[table[:, 0] == source].T
        yield int(source), here, there, counts


def _added_up(values: Array, here: Array, there: Array, counts: Array) -> tuple[Array, Array, Array, Array]:
    """The same additions with each element named once: a target's datatype must not have overlapping elements."""
    order = np.argsort(there, kind="stable")
    if not np.any(there[order][1:] < (there + counts)[order][:-1]):
        return values, here, there, counts
    mine, theirs = (np.concatenate([np.arange(a, a + n) for a, n in zip(start, counts, strict=True)])
                    for start in (here, there))  # fmt: skip
    places, inverse = np.unique(theirs, return_inverse=True)
    sums = np.zeros(len(places), values.dtype)
    np.add.at(sums, inverse, values[mine])
    begins = np.concatenate([[0], np.flatnonzero(np.diff(places) != 1) + 1])
    return sums, begins, places[begins], np.diff(np.concatenate([begins, [len(places)]]))


# -- memory that the ranks use at different times ---------------------------------------------------------------------
_ZERO = np.zeros(1, np.int64)
_SHORTEST_S, _LONGEST_S = 2e-5, 2e-3  # the pauses of a rank that polls
_SHARE = 0.1  # of the time waited so far is the next pause


def _pause(began: float) -> None:
    """Sleep between two polls of a wait that began at this time."""
    time.sleep(min(max(_SHARE * (time.perf_counter() - began), _SHORTEST_S), _LONGEST_S))


def _allocated(comm: Any, x: Array) -> Any:
    """A window with the contents of `x` on this rank, open for access to all ranks."""
    rank = comm.Get_rank()
    window = MPI.Win.Allocate(x.nbytes, x.itemsize, MPI.INFO_NULL, comm)
    window.Lock(rank, MPI.LOCK_EXCLUSIVE)
    np.frombuffer(window.tomemory(), x.dtype, x.size)[:] = x
    window.Unlock(rank)
    comm.Barrier()
    window.Lock_all(MPI.MODE_NOCHECK)
    return window


class _Pair:
    """The two MPI windows of an `MpiWindow`, as memory of their group (`Groups.own`)."""

    is_unused = True  # values are copied out of it

    def __init__(self, content: Any, latches: Any):
        self.content, self.latches = content, latches

    def refuse(self) -> None:
        """Every access looks at the epoch itself."""

    def free(self) -> None:
        for window in (self.content, self.latches):
            window.Unlock_all()
            window.Free()


class MpiWindow(Window):
    """A window of ranks that are processes. `MpiCommunicator.window` creates it, on all ranks.

    MPI allocates the memory, because libraries then reach it without the owner, where the hardware can. The window is
    open for access to all ranks from its creation on. Outside of `locked` only MPI's accumulates are used, which are
    atomic for each element. A lock is a number in a second window that a rank sets by compare-and-swap, and not MPI's
    own lock: to take that, MPICH waits until the owner calls MPI, also where memory is shared. It tells who holds it.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    x : array
        The first contents of this rank's memory.
    counts : sequence of int
        The elements of every rank.
    channel : Channel
        Where the waits are recorded.
    groups : Groups
    collective : callable
        ``collective(name, function)`` runs a function that all ranks call (`MpiCommunicator.block`).
    is_served : bool
        Whether the monitor makes progress for accesses of other ranks, as those of other hosts may need it.
    """

    def __init__(
        self, comm: Any, x: Array, counts: Sequence[int], channel: Channel, groups: Groups,
        collective: Callable[[str, Callable[[], Any]], Any], is_served: bool = False,
    ):  # fmt: skip
        super().__init__(comm.Get_rank(), channel.ranks, counts, x.dtype, channel.name)
        self._channel, self._waits, self._collective = channel, groups.waits, collective
        self._datatype = KINDS[x.dtype].datatype
        self._held: int | None = None
        # the latch of each rank: 0, or 1 more than the index of the rank that has locked its memory
        pair = collective("window", lambda: _Pair(_allocated(comm, x), _allocated(comm, np.zeros(1, np.int64))))
        self._window, self._latches = pair.content, pair.latches
        self._mine = np.array([self.index + 1], np.int64)
        self._pair, self._groups = pair, groups
        self._key = groups.own(channel, pair)
        self._is_served = is_served
        self._waits.activity.windows += is_served

    def free(self) -> None:
        """Release the memory. All ranks of the group call it, and none uses the window any more.

        When its epoch is over (`World.survivors`), the ranks that are left have released it.
        """
        if self._channel.epoch <= self._waits.activity.ended:
            return
        self._collective("free a window", self._pair.free)
        self._groups.disown(self._key)
        self._waits.activity.windows -= self._is_served

    def _wait_for(self, call: str, owner: int) -> Wait:
        # No rank has to make a call of number 0 for this wait to end, so that it is never part of a deadlock. The owner
        # takes no part in it either. But MPI reads the memory of a rank that has died, where that is still there.
        return self._channel, call, 0, None if self._waits.tolerance is None else self.ranks[owner]

    def _block(self, call: str, owner: int, function: Callable[..., Any], *args: Any) -> Any:
        return self._waits.access(self._wait_for(call, owner), function, *args)

    def _lock(self, owner: int) -> None:
        wait = self._wait_for("lock", owner)
        self._waits.access(wait, self._latch, owner, wait)
        self._held = owner

    def _latch(self, owner: int, wait: Wait) -> None:
        found, began = np.empty(1, np.int64), time.perf_counter()
        while True:
            self._latches.Compare_and_swap(self._mine, _ZERO, found, owner, 0)
            self._latches.Flush(owner)
            if found[0] == 0:
                return
            if self._waits.activity.is_alarmed:
                self._waits.check(wait)
                self._check_holder(self.ranks[int(found[0]) - 1], wait)
            _pause(began)

    def _check_holder(self, holder: int, wait: Wait) -> None:
        departure = self._waits.activity.departed.get(holder)
        if departure is not None and departure.calls is None:
            raise RankFailed(
                f"rank {holder} {departure.why} while it held the lock for which rank {self.ranks[self.index]} waits, "
                f"{describe(wait)}"
            )

    def _unlock(self, owner: int) -> None:
        self._held = None

        def release() -> None:
            self._latches.Fetch_and_op(_ZERO, np.empty(1, np.int64), owner, 0, MPI.REPLACE)
            self._latches.Flush(owner)

        self._block("unlock", owner, release)

    def _access(self, owner: int, start: Callable[[], None]) -> None:
        """Start an access, and return once it is complete at the owner."""
        start()
        self._window.Flush(owner)

    def _get(self, owner: int, start: int, out: Array) -> Array:
        self._block("get", owner, self.read, owner, start, out)
        return out

    def read(self, owner: int, start: int, out: Array) -> None:
        """`get` for a caller that records its wait itself."""
        there, mine = (start, out.size, self._datatype), [out, self._datatype]
        if self._held == owner:
            self._access(owner, lambda: self._window.Get(mine, owner, there))
            return
        nothing = [np.empty(0, self.dtype), 0, self._datatype]
        self._access(owner, lambda: self._window.Get_accumulate(nothing, mine, owner, there, MPI.NO_OP))

    def _add(self, values: Array, owner: int, start: int) -> None:
        given, there = [values, self._datatype], (start, values.size, self._datatype)
        self._block("add", owner, self._access, owner, lambda: self._window.Accumulate(given, owner, there, MPI.SUM))

    def _put(self, values: Array, owner: int, start: int) -> None:
        given, there = [values, self._datatype], (start, values.size, self._datatype)

        def start_put() -> None:
            if self._held == owner:
                self._window.Put(given, owner, there)
            else:
                self._window.Accumulate(given, owner, there, MPI.REPLACE)

        self._block("put", owner, self._access, owner, start_put)

    def _fetch_and_add(self, value: Array, owner: int, at: int) -> Any:
        before = np.empty(1, self.dtype)
        given, found = [value, self._datatype], [before, self._datatype]
        self._block(
            "fetch_and_add", owner, self._access, owner,
            lambda: self._window.Fetch_and_op(given, found, owner, at, MPI.SUM),
        )  # fmt: skip
        return before[0].item()


class MpiClocks(Clocks):
    """Clocks in the memory of the first rank. `MpiCommunicator.clocks` creates them, on all ranks.

    The channel's count of calls is this rank's clock. So a wait for the clocks is a wait for the calls of other ranks,
    and the monitors find deadlocks and ranks that have left as for collective calls.

    Parameters
    ----------
    window : MpiWindow
        One integer for each rank, all at the first rank.
    channel : Channel
        A channel of these clocks alone.
    waits : Waits
    index : int
    """

    def __init__(self, window: MpiWindow, channel: Channel, waits: Waits, index: int):
        self._window, self._channel, self._waits, self._index = window, channel, waits, index
        self._found = np.empty(len(channel.ranks), np.int64)
        self._least = 0  # a lower bound of all clocks

    @property
    def mine(self) -> int:
        return self._channel.calls

    def _set(self, clock: int) -> None:
        change = np.array([clock - self._channel.calls], np.int64)
        self._window.add(change, 0, self._index)
        self._channel.calls = clock

    def values(self) -> list[int]:
        found: list[int] = self._window.get(0).tolist()
        return found

    def wait(self, clock: int) -> None:
        if self._least < clock:
            wait = (self._channel, "wait for clock", clock, None)
            self._waits.access(wait, self._poll, wait)

    def _poll(self, wait: Wait) -> None:
        activity, clock, began = self._waits.activity, wait[2], time.perf_counter()
        while True:
            self._window.read(0, 0, self._found)
            self._least = int(self._found.min())
            if self._least >= clock:
                return
            if activity.is_alarmed:
                self._waits.check(wait)
            _pause(began)

    def free(self) -> None:
        """Release the memory."""
        self._window.free()


# -- arrivals ---------------------------------------------------------------------------------------------------------
_TICKETS, _FINISHED, _MEMBERS = range(3)  # the fields of a record; the members are bits, in several words
_BITS = 62  # of a word, which is a signed integer of 64 bits


def record_size(ranks: int) -> int:
    """The number of integers in the record of a step."""
    return _MEMBERS + -(-ranks // _BITS)


class MpiArrivals(Arrivals):
    """Arrivals in the memory of all ranks, a step's at rank ``step % size``. `MpiCommunicator.arrivals` creates them.

    The channel's count of calls is this rank's stage: 2 step + 1 after its arrival as a member, 2 step + 2 after the
    step. So the monitors find deadlocks, and ranks that have left, as for collective calls of which `count` suffice.

    Parameters
    ----------
    window : MpiWindow
        The records of each rank's steps, all 0.
    channel : Channel
        A channel of these arrivals alone, with its `count`.
    waits : Waits
    index, count, steps : int
        See `Arrivals`.
    """

    def __init__(self, window: MpiWindow, channel: Channel, waits: Waits, index: int, count: int, steps: int):
        super().__init__(index, len(channel.ranks), count, steps)
        self._window, self._channel, self._waits = window, channel, waits

    def take(self, step: int, is_member: bool | None = None) -> bool:
        owner, at = self._place(step)
        if is_member is None:
            is_member = self._window.fetch_and_add(1, owner, at + _TICKETS) < self.count
        if is_member:
            word, bit = divmod(self.index, _BITS)
            self._window.add(np.full(1, 1 << bit, np.int64), owner, at + _MEMBERS + word)
            self._reach(2 * step + 1)
        return is_member

    def members(self, step: int) -> tuple[int, ...]:
        words = self._wait_for(2 * step + 1, _MEMBERS, np.empty(record_size(self.size) - _MEMBERS, np.int64))
        return bits_of(words.tolist(), _BITS)

    def finish(self, step: int) -> None:
        owner, at = self._place(step)
        self._window.fetch_and_add(1, owner, at + _FINISHED)
        self._reach(2 * step + 2)

    def wait(self, step: int) -> None:
        self._wait_for(2 * step + 2, _FINISHED, np.empty(1, np.int64))
        self._reach(2 * step + 2)

    def is_finished(self, step: int) -> bool:
        owner, at = self._place(step)
        return bool(self._window.get(owner, at + _FINISHED, 1)[0] >= self.count)

    def recorded(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        mine = self._window.get(self.index).reshape(-1, record_size(self.size))
        for k, record in enumerate(mine.tolist()):
            if any(record[_MEMBERS:]):
                yield self.index + k * self.size, bits_of(record[_MEMBERS:], _BITS)

    def free(self) -> None:
        """Release the memory."""
        self._window.free()
        self._waits.activity.channels.pop(self._channel.key, None)

    def _place(self, step: int) -> tuple[int, int]:
        """The rank that has the record of a step, and where it begins."""
        return step % self.size, step // self.size * record_size(self.size)

    def _reach(self, stage: int) -> None:
        self._channel.calls = max(stage, self._channel.calls)

    def _wait_for(self, stage: int, field: int, found: Array) -> Array:
        """Read a field of a record into `found` until it counts enough ranks, and return it."""
        step, is_end = divmod(stage - 1, 2)
        owner, at = self._place(step)
        wait = (self._channel, f"{'end' if is_end else 'arrivals'} of step {step}", stage, None)
        self._waits.access(wait, self._poll, wait, owner, at + field, found)
        return found

    def _poll(self, wait: Wait, owner: int, at: int, found: Array) -> None:
        is_end, began = wait[2] % 2 == 0, time.perf_counter()
        while True:
            self._window.read(owner, at, found)
            if (found[0] if is_end else np.bitwise_count(found).sum()) >= self.count:
                return
            if self._waits.activity.is_alarmed:
                self._waits.check(wait)
            _pause(began)
