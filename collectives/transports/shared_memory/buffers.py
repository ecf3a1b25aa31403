"""Arrays that lie in shared windows: made by all ranks of a group together, given back when all have dropped them.

A rank notices that an array of its own is gone when its last view is; the place is used again when all ranks have said
so, which they do at the next allocation. So nothing is freed by hand, and no rank writes where another still reads.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import DtypeError

from ..protocol import Array
from .arena import Arena, Place
from .windows import Host, Window

__all__ = ["CODES", "DTYPES", "Buffers"]

DTYPES = [np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"]
CODES = {dtype: i for i, dtype in reversed([*enumerate(DTYPES)])}
"""What can be communicated, by a number."""

_OFFSET_BITS = 44


class _Buffer:
    """What holds a buffer's place: the numpy arrays that lie there hold it."""

    __slots__ = ("__array_interface__", "__weakref__", "_content")

    def __init__(self, content: Array):
        self._content = content  # and so the window's mapping
        self.__array_interface__ = content.__array_interface__


class _Home(NamedTuple):
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
        Called before a window is freed: lets go of views that were kept.
    """

    def __init__(self, host: Host, rank: int, size: int, forget: Callable[[], None]):
        self.arena = Arena()
        self._host = host
        self._rank, self._size = rank, size
        self._forget = forget
        self._windows: dict[int, Window] = {}
        self._homes: dict[int, _Home] = {}  # by the id of the array that all views of a buffer have as base
        self._dropped: list[Place] = []  # on this rank, and not told yet
        self._dropped_by: dict[Place, int] = {}  # how many ranks have told

    def empty(self, shape: int | Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array in a window. All ranks call it; shapes may differ."""
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        if dtype not in CODES:
            raise DtypeError(f"empty: dtype {dtype} was given; needed: a native numeric or boolean dtype")
        size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        most = self.agree(size_bytes)
        if most == 0:
            return np.empty(shape, dtype)
        place = self.arena.take(most)
        if place is None:
            slab, segment_bytes = self.arena.grow(most)
            self._windows[slab] = self._host.window(segment_bytes * self._size)
            place = self.arena.take(most)
            assert place is not None
        return self._array_at(place, size_bytes).view(dtype).reshape(shape)

    def agree(self, size_bytes: int, keep: int = 1) -> int:
        """Tell what this rank has dropped, free what all have, and return the largest of the sizes wanted.

        Of the windows that are empty then, `keep` of the ordinary size are kept.
        """
        told = [self._dropped.pop() for _ in range(len(self._dropped))]  # finalizers append at any time
        said = [json.loads(data) for data in self._host.group.exchange(json.dumps([size_bytes, told]).encode())]
        for _, places in said:
            for slab, offset in places:
                place = Place(slab, offset)
                count = self._dropped_by[place] = self._dropped_by.get(place, 0) + 1
                if count == self._size:
                    del self._dropped_by[place]
                    self.arena.give(place)
        for slab in self.arena.unused(keep):
            self._forget()
            self._windows.pop(slab).free()
        return max(size for size, _ in said)

    @property
    def is_empty(self) -> bool:
        """Whether there is no window, on this rank and so on all."""
        return not self._windows

    def _array_at(self, place: Place, size_bytes: int) -> Array:
        content = self._segment(place.slab, self._rank)
        buffer = _Buffer(content[place.offset : place.offset + size_bytes])
        array = np.asarray(buffer)
        self._homes[id(array)] = _Home(place.slab, content.__array_interface__["data"][0])
        weakref.finalize(buffer, _drop, self._homes, id(array), self._dropped, place).atexit = False
        return array

    def _segment(self, slab: int, rank: int) -> Array:
        size_bytes = self.arena.slabs[slab]
        return self._windows[slab].bytes[rank * size_bytes : (rank + 1) * size_bytes]

    def place(self, x: Array) -> int:
        """Where an operand lies, as one word: 0 outside the windows, else the slab and the offset in its segment."""
        home = self._homes.get(id(x.base))
        if home is None or x.nbytes == 0:
            return 0
        return (home.slab + 1) << _OFFSET_BITS | (x.__array_interface__["data"][0] - home.start)

    def at(self, place: int, rank: int, dtype: np.dtype[Any], start: int, stop: int) -> Array:
        """Elements of a rank's operand that begins at the place which that rank has told."""
        offset = place & ((1 << _OFFSET_BITS) - 1)
        segment = self._segment((place >> _OFFSET_BITS) - 1, rank)
        return segment[offset + start * dtype.itemsize : offset + stop * dtype.itemsize].view(dtype)

    def close(self) -> None:
        """Free all windows, with what lies in them. All ranks call it."""
        for window in self._windows.values():
            window.free()
        self._windows.clear()
        self._homes.clear()


def _drop(homes: dict[int, _Home], key: int, dropped: list[Place], place: Place) -> None:
    homes.pop(key, None)
    dropped.append(place)
