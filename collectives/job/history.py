"""The calls that a rank has made on a channel, for comparison with those of the other ranks by the monitors.

Every collective call appends its *mark* to the history of its channel (see `marks`). That is all that a call does. The
monitor's thread takes the marks out of the history and condenses them: it keeps the latest ones, and a digest of all
calls up to each multiple of `BLOCK`. Two ranks whose digests differ have made different calls, whether a call has hung
or not; see `comparison`.
"""

from __future__ import annotations

import threading
from array import array
from typing import Any

from autograd.digests import blake2b

from .activity import Channel

__all__ = ["BLOCK", "History", "Record"]

BLOCK = 256  # calls between two digests
_KEPT = 4096  # the latest marks that are kept
_DIGESTS = 1 << 16  # the latest digests that are kept

History = list[int]
"""The marks of the calls that the monitor has not seen yet. A call appends one; nothing else touches it."""


class Record:
    """A channel's history, condensed. Only the monitor uses it.

    Attributes
    ----------
    channel : Channel
    number : int
        How many calls it covers.
    hashed : int
        The calls of the last digest: a multiple of `BLOCK`.
    """

    def __init__(self, channel: Channel):
        self.channel = channel
        self.number = self.hashed = 0
        self._marks = array("Q")  # the latest ones
        self._first = 0  # the number of marks before them
        self._digests = array("Q", [0])
        self._first_digest = 0
        self._folding = threading.Lock()  # while calls are in neither of the two lists, or in both

    def fold(self) -> None:
        """Take in the calls that the rank has made since."""
        history = self.channel.history
        count = 0 if history is None else len(history)
        if not count:
            return
        assert history is not None
        with self._folding:
            self._marks.extend(history[:count])
            del history[:count]
            self.number += count
        while self.number - self.hashed >= BLOCK:
            at = self.hashed - self._first
            block = self._marks[at : at + BLOCK].tobytes()
            before = self._digests[-1].to_bytes(8, "little")
            self._digests.append(int.from_bytes(blake2b(before + block, digest_size=8).digest(), "little"))
            self.hashed += BLOCK
        if len(self._marks) > 2 * _KEPT:
            dropped = min(len(self._marks) - _KEPT, self.hashed - self._first)
            del self._marks[:dropped]
            self._first += dropped
        if len(self._digests) > 2 * _DIGESTS:
            del self._digests[:_DIGESTS]
            self._first_digest += _DIGESTS

    def digest(self, hashed: int) -> int | None:
        """The digest of the first `hashed` calls; None if it is no longer kept."""
        at = hashed // BLOCK - self._first_digest
        return self._digests[at] if at >= 0 else None

    def marks(self, start: int) -> tuple[int, Any]:
        """The number of calls before the first mark that is kept from call `start` on, and these marks."""
        at = max(start - self._first, 0)
        return self._first + at, self._marks[at:]

    def latest(self, count: int) -> tuple[int, list[int]]:
        """The number of calls before the latest ones, and their marks, with those that `fold` has not yet taken in.

        Another thread may call it than the one that calls `fold`.
        """
        with self._folding:
            unseen = [] if self.channel.history is None else self.channel.history.copy()
            marks = [*self._marks[-count:], *unseen][-count:]
            return self.number + len(unseen) - len(marks), marks
