"""The allocator of buffers in shared memory, which computes the same places on every rank without communication.

Every rank has its own `Arena`. All ranks make the same requests in the same order, so the arenas stay equal. Memory is
allocated in slabs. A slab is one shared window with one segment per rank, and a buffer has the same offset in every
segment.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ALIGNMENT_BYTES", "Arena", "Place", "SLAB_BYTES"]

ALIGNMENT_BYTES = 4096  # a page: no two buffers share a cache line, and first touch puts pages near their rank
SLAB_BYTES = 16 << 20  # the size of one rank's segment; a larger request gets a slab of its own size


class Place(NamedTuple):
    """A buffer: the slab's number and the offset in bytes in each rank's segment."""

    slab: int
    offset: int


class Arena:
    """A first-fit allocator in slabs. Freed places are merged with adjacent free memory.

    Examples
    --------
    >>> arena = Arena()
    >>> arena.take(100) is None
    True
    >>> arena.grow(100)
    (0, 16777216)
    >>> arena.take(100)
    Place(slab=0, offset=0)
    >>> arena.take(5000)
    Place(slab=0, offset=4096)
    """

    def __init__(self) -> None:
        self.slabs: dict[int, int] = {}  # number -> bytes of one segment
        self._free: dict[int, list[tuple[int, int]]] = {}  # slab -> (offset, bytes) in order
        self._taken: dict[Place, int] = {}
        self._next = 0

    @property
    def taken_bytes(self) -> int:
        """The bytes that the buffers in use take of one rank's segments."""
        return sum(self._taken.values())

    def take(self, size_bytes: int) -> Place | None:
        """Allocate a place for a buffer. None if no slab has room: then call `grow` and try again."""
        size = _rounded(size_bytes)
        for slab, holes in self._free.items():
            for i, (offset, free) in enumerate(holes):
                if free >= size:
                    holes[i : i + 1] = [(offset + size, free - size)] if free > size else []
                    place = Place(slab, offset)
                    self._taken[place] = size
                    return place
        return None

    def grow(self, size_bytes: int) -> tuple[int, int]:
        """Add a slab with room for a buffer of this size. Returns its number and the bytes of one segment."""
        size = max(_rounded(size_bytes), SLAB_BYTES)
        slab, self._next = self._next, self._next + 1
        self.slabs[slab] = size
        self._free[slab] = [(0, size)]
        return slab, size

    def give(self, place: Place) -> None:
        """Free a buffer's place."""
        size = self._taken.pop(place)
        holes = self._free[place.slab]
        holes.append((place.offset, size))
        holes.sort()
        joined: list[tuple[int, int]] = []
        for offset, free in holes:
            if joined and sum(joined[-1]) == offset:
                joined[-1] = (joined[-1][0], joined[-1][1] + free)
            else:
                joined.append((offset, free))
        self._free[place.slab] = joined

    def unused(self, keep: int = 0) -> list[int]:
        """Remove the empty slabs, except for the first `keep` of ordinary size, and return their numbers."""
        empty = [slab for slab, size in self.slabs.items() if self._free[slab] == [(0, size)]]
        ordinary = [slab for slab in empty if self.slabs[slab] == SLAB_BYTES][:keep]
        unused = [slab for slab in empty if slab not in ordinary]
        for slab in unused:
            del self.slabs[slab], self._free[slab]
        return unused


def _rounded(size_bytes: int) -> int:
    return max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
