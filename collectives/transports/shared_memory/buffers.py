"""Arrays in shared windows: all ranks of a group allocate them together, and they are freed automatically.

A rank drops a buffer when its last view of the array is garbage-collected. The ranks exchange the dropped places at the
next allocation, and reuse a place once all of them have dropped it. So the user frees nothing by hand, and no rank
writes to memory that another rank still reads.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import is_bfloat16
from autograd.errors import DtypeError

from ..protocol import Array, quietly
from ..request import is_communicated
from .arena import Arena, Place
from .windows import Host, Window

__all__ = ["CODES", "DTYPES", "Buffers"]

_NATIVE = [np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"]
DTYPES = [*map(str, _NATIVE), "bfloat16"]
"""The names of the dtypes of arrays in a window, by their codes."""


class _Codes(dict[Any, int]):
    """The code of each dtype. That of bfloat16 is there only where a package has defined it."""

    def __missing__(self, dtype: Any) -> int:
        if not is_bfloat16(dtype):
            raise KeyError(dtype)
        return len(_NATIVE)


CODES = _Codes((dtype, i) for i, dtype in reversed([*enumerate(_NATIVE)]))
"""A number for each dtype that can be communicated."""

_OFFSET_BITS = 44


class _Buffer:
    """Owns a buffer's place. The NumPy arrays in the buffer keep a reference to it."""

    __slots__ = ("__array_interface__", "__weakref__", "_content")

    def __init__(self, content: Array):
        self._content = content  # it keeps the window mapped
        self.__array_interface__ = content.__array_interface__


class _Origin(NamedTuple):
    slab: int
    start: int  # the address of this rank's segment


class Buffers:
    """The buffers of a group.

    Parameters
    ----------
    host : Host
    rank, size : int
        This rank's place in the group, and the number of its ranks.
    forget : callable
        Called before a window is freed, to drop cached views of it.
    """

    def __init__(self, host: Host, rank: int, size: int, forget: Callable[[], None]):
        self.arena = Arena()
        self._host = host
        self._rank, self._size = rank, size
        self._forget = forget
        self._windows: dict[int, Window] = {}
        self._origins: dict[int, _Origin] = {}  # by the id of the base array of a buffer's views
        self._dropped: list[Place] = []  # dropped on this rank and not yet sent
        self._drop_counts: dict[Place, int] = {}  # the number of ranks that have dropped a place

    def empty(self, shape: int | Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array in a window. All ranks call it; shapes may differ."""
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        if not is_communicated(dtype):
            raise DtypeError(f"empty: dtype {dtype} was given; needed: a native numeric or boolean dtype")
        size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        largest = self.agree(size_bytes)
        if largest == 0:
            return np.empty(shape, dtype)
        place = self.arena.take(largest)
        if place is None:
            slab, segment_bytes = self.arena.grow(largest)
            self._windows[slab] = self._host.window(segment_bytes * self._size)
            place = self.arena.take(largest)
            assert place is not None
        return self._array_at(place, size_bytes).view(dtype).reshape(shape)

    def agree(self, size_bytes: int, keep: int = 1) -> int:
        """Exchange the dropped places, free those that all ranks have dropped, and return the largest `size_bytes`.

        Empty windows are freed, except for `keep` of ordinary size.
        """
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]  # finalizers append at any time
        mine = json.dumps([size_bytes, dropped]).encode()
        # no part of the program, which other transports have too
        received = [json.loads(data) for data in quietly(lambda: self._host.group.exchange(mine))]
        for _, places in received:
            for slab, offset in places:
                place = Place(slab, offset)
                count = self._drop_counts[place] = self._drop_counts.get(place, 0) + 1
                if count == self._size:
                    del self._drop_counts[place]
                    self.arena.give(place)
        for slab in self.arena.unused(keep):
            self._forget()
            self._host.free(self._windows.pop(slab))
        return max(size for size, _ in received)

    @property
    def is_empty(self) -> bool:
        """Whether there is no window. The same on all ranks."""
        return not self._windows

    @property
    def is_unused(self) -> bool:
        """Whether this rank has no array in a window."""
        return not self._origins

    def _array_at(self, place: Place, size_bytes: int) -> Array:
        content = self._segment(place.slab, self._rank)
        buffer = _Buffer(content[place.offset : place.offset + size_bytes])
        array = np.asarray(buffer)
        self._origins[id(array)] = _Origin(place.slab, content.__array_interface__["data"][0])
        weakref.finalize(buffer, _drop, self._origins, id(array), self._dropped, place).atexit = False
        return array

    def _segment(self, slab: int, rank: int) -> Array:
        size_bytes = self.arena.slabs[slab]
        return self._windows[slab].bytes[rank * size_bytes : (rank + 1) * size_bytes]

    def place(self, x: Array) -> int:
        """An operand's place as one word: its slab and its offset in the segment, or 0 outside the windows."""
        origin = self._origins.get(id(x.base))
        if origin is None or x.nbytes == 0:
            return 0
        return (origin.slab + 1) << _OFFSET_BITS | (x.__array_interface__["data"][0] - origin.start)

    def at(self, place: int, rank: int, dtype: np.dtype[Any], start: int, stop: int) -> Array:
        """Elements of another rank's operand, which begins at `place`."""
        offset = place & ((1 << _OFFSET_BITS) - 1)
        segment = self._segment((place >> _OFFSET_BITS) - 1, rank)
        return segment[offset + start * dtype.itemsize : offset + stop * dtype.itemsize].view(dtype)

    def close(self) -> None:
        """Free all windows and the arrays in them. All ranks call it."""
        for window in self._windows.values():
            self._host.free(window)
        self._windows.clear()
        self._origins.clear()


def _drop(origins: dict[int, _Origin], key: int, dropped: list[Place], place: Place) -> None:
    origins.pop(key, None)
    dropped.append(place)
