"""Windows and clocks: memory and counters of a group that its ranks use at different times, without a collective call.

A collective call is made by all ranks of a group in one order. A `Window` is memory of each rank that any rank of the
group reads and updates when it wants to, while the owner computes. `Clocks` are one counter for each rank, and a wait
until all of them have reached a number. Making one is a collective call; using it is not. The transports implement
them over shared memory (threads) and over MPI's one-sided calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from autograd.errors import ArgumentError, DeadlockError, DtypeError, MeshError, ShapeError

from .request import DTYPES, Array
from .traffic import Traffic

__all__ = ["FINISHED", "AloneClocks", "Clocks", "LocalWindow", "Window", "check_memory"]

FINISHED = 1 << 62
"""The clock of a rank that will not advance it any more."""

_DIRECT = DTYPES - {np.dtype(np.float16), np.dtype(np.bool_)}


def check_memory(x: Any, name: str) -> None:
    """Raise an error unless `x` can be the memory of a rank in a window.

    Raises
    ------
    ShapeError
        It is no contiguous array of one dimension.
    DtypeError
        Its dtype cannot be added one-sidedly.
    """
    if not isinstance(x, np.ndarray) or x.ndim != 1 or not x.flags.c_contiguous:
        shown = f"shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise ShapeError(f"window on '{name}': {shown} was given; needed: a contiguous array of one dimension")
    if x.dtype not in _DIRECT:
        raise DtypeError(f"window on '{name}': dtype {x.dtype} was given; needed: a numeric dtype, and not"
                         " float16: float32 holds its sums")  # fmt: skip


class Window:
    """Memory of every rank of a group, which any of them reads and updates without the owner's participation.

    `Communicator.window` makes it. `get`, `add`, `put` and `fetch_and_add` are atomic for each element. A block of
    ``with window.locked(owner):`` is atomic for the whole memory of one rank: no other rank is in such a block for it
    meanwhile. A rank holds one lock of a window at a time, and does not wait for other ranks in the block.

    Attributes
    ----------
    counts : tuple of int
        The number of elements that each rank owns.
    dtype : numpy.dtype

    Notes
    -----
    Each call moves the bytes of its elements in one message, and a lock costs two more of 8 bytes. They are counted
    in the group's `Traffic`: an `add` or a `put` as sent to the owner, a `get` as sent by it. Over MPI it is a window
    with passive targets (MPI standard 4.1, chapter 12). Whether an owner that computes delays the others depends on the
    network; between hosts ringtape's monitor thread makes progress for it, every 2 ms.
    """

    def __init__(self, index: int, ranks: tuple[int, ...], counts: Sequence[int], dtype: Any, name: str):
        self.index = index
        self.ranks = ranks
        self.counts = tuple(counts)
        self.dtype = np.dtype(dtype)
        self.name = name
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.name}', {self.counts[self.index]} of {sum(self.counts)} {self.dtype})"

    def get(self, owner: int, start: int = 0, count: int | None = None) -> Array:
        """A copy of `count` elements of a rank's memory; by default all from `start` on."""
        self._check("get", owner)
        count = self.counts[owner] - start if count is None else count
        self._check_range("get", owner, start, count)
        self._count(owner, count)
        return self._get(owner, start, np.empty(count, self.dtype))

    def add(self, values: Array, owner: int, start: int = 0) -> None:
        """Add values to elements of a rank's memory. They have been added when this returns."""
        self._check_values("add", values, owner, start)
        self._add(np.ascontiguousarray(values), owner, start)

    def put(self, values: Array, owner: int, start: int = 0) -> None:
        """Replace elements of a rank's memory. They have been replaced when this returns."""
        self._check_values("put", values, owner, start)
        self._put(np.ascontiguousarray(values), owner, start)

    def fetch_and_add(self, value: Any, owner: int, at: int) -> Any:
        """Add a number to one element, and return the element as it was before."""
        self._check("fetch_and_add", owner)
        self._check_range("fetch_and_add", owner, at, 1)
        self._count(owner, 1)
        return self._fetch_and_add(np.full(1, value, self.dtype), owner, at)

    @contextmanager
    def locked(self, owner: int) -> Iterator[None]:
        """No other rank is in such a block for the memory of `owner` meanwhile."""
        self._check("locked", owner)
        self._lock(owner)
        try:
            yield
        finally:
            self._unlock(owner)

    def free(self) -> None:
        """Release the memory. All ranks of the group call it, and none uses the window any more."""

    def _check(self, call: str, owner: int) -> None:
        if not 0 <= owner < len(self.counts):
            raise MeshError(
                f"{call} on the window '{self.name}': owner={owner} was given; needed: a rank from 0 to "
                f"{len(self.counts) - 1}"
            )

    def _check_range(self, call: str, owner: int, start: int, count: int) -> None:
        if start < 0 or count < 0 or start + count > self.counts[owner]:
            raise ShapeError(
                f"{call} on the window '{self.name}': elements {start} to {start + count} of rank {owner} were given, "
                f"which owns {self.counts[owner]}"
            )

    def _check_values(self, call: str, values: Array, owner: int, start: int) -> None:
        """Check values for a rank's memory, and count them as sent."""
        self._check(call, owner)
        if values.dtype != self.dtype or values.ndim != 1:
            raise DtypeError(
                f"{call} to the window '{self.name}': {values.dtype}{list(values.shape)} was given; needed: "
                f"{self.dtype} of one dimension"
            )
        self._check_range(call, owner, start, values.size)
        self._count(owner, values.size)

    def _count(self, owner: int, count: int) -> None:
        if owner != self.index:
            self.traffic.count(self.ranks[owner], count * self.dtype.itemsize)

    # A transport implements these.
    def _get(self, owner: int, start: int, out: Array) -> Array:
        raise NotImplementedError

    def _add(self, values: Array, owner: int, start: int) -> None:
        raise NotImplementedError

    def _put(self, values: Array, owner: int, start: int) -> None:
        raise NotImplementedError

    def _fetch_and_add(self, value: Array, owner: int, at: int) -> Any:
        raise NotImplementedError

    def _lock(self, owner: int) -> None:
        raise NotImplementedError

    def _unlock(self, owner: int) -> None:
        raise NotImplementedError


class LocalWindow(Window):
    """A window of ranks that are threads of one process, or of a single rank.

    Parameters
    ----------
    index, ranks, name
        See `Communicator`.
    memory : sequence of array
        The memory of every rank.
    locks : sequence of Lock
        One for the memory of every rank.
    """

    def __init__(self, index: int, ranks: tuple[int, ...], memory: Sequence[Array], locks: Sequence[Lock], name: str):
        super().__init__(index, ranks, [x.size for x in memory], memory[0].dtype, name)
        self._memory, self._locks = memory, locks
        self._held: int | None = None

    def _lock(self, owner: int) -> None:
        self._locks[owner].acquire()
        self._held = owner

    def _unlock(self, owner: int) -> None:
        self._held = None
        self._locks[owner].release()

    @contextmanager
    def _access(self, owner: int) -> Iterator[Array]:
        if self._held == owner:
            yield self._memory[owner]
        else:
            with self._locks[owner]:
                yield self._memory[owner]

    def _get(self, owner: int, start: int, out: Array) -> Array:
        with self._access(owner) as memory:
            out[...] = memory[start : start + out.size]
        return out

    def _add(self, values: Array, owner: int, start: int) -> None:
        with self._access(owner) as memory:
            memory[start : start + values.size] += values

    def _put(self, values: Array, owner: int, start: int) -> None:
        with self._access(owner) as memory:
            memory[start : start + values.size] = values

    def _fetch_and_add(self, value: Array, owner: int, at: int) -> Any:
        with self._access(owner) as memory:
            before = memory[at]
            memory[at] += value[0]
        return before.item()


class Clocks:
    """A counter for each rank of a group, and a wait until all of them have reached a number.

    `Communicator.clocks` makes them, all at 0. Each rank sets its own, which never decreases. The clock of a rank that
    takes no further part is `FINISHED`.

    Notes
    -----
    The ranks that wait are in deadlock reports, and a wait for a rank that has failed or left ends as that for any
    communication does. Over MPI the clocks are in the memory of the first rank: to set one is a message of 8 bytes, and
    a wait reads all of them, 8 bytes a rank, until they suffice. A rank remembers the least clock that it has read, so
    that it reads them only if that is too old.
    """

    def set(self, clock: int) -> None:
        """Set this rank's clock.

        Raises
        ------
        ArgumentError
            It is less than before.
        """
        if clock < self.mine:
            raise ArgumentError(f"the clock of this rank is {self.mine}, and {clock} was given; needed: no less")
        self._set(clock)

    def wait(self, clock: int) -> None:
        """Return once the clocks of all ranks are at least `clock`.

        Raises
        ------
        DeadlockError
            The ranks wait for each other, or for one that has finished its program.
        RankFailed
            A rank has failed.
        """
        raise NotImplementedError

    def values(self) -> list[int]:
        """The clocks of all ranks, in order."""
        raise NotImplementedError

    @property
    def mine(self) -> int:
        """This rank's clock."""
        raise NotImplementedError

    def free(self) -> None:
        """Release the memory. All ranks of the group call it."""

    def _set(self, clock: int) -> None:
        raise NotImplementedError


class AloneClocks(Clocks):
    """The clock of a single rank."""

    def __init__(self) -> None:
        self._clock = 0

    @property
    def mine(self) -> int:
        return self._clock

    def _set(self, clock: int) -> None:
        self._clock = clock

    def values(self) -> list[int]:
        return [self._clock]

    def wait(self, clock: int) -> None:
        if self._clock < clock:
            raise DeadlockError(f"deadlock: the only rank waits until its own clock is {clock}; it is {self._clock}")
