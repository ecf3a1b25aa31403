"""Synchronization of the ranks of one host by flags in shared memory, without messages.

It needs no system call if each rank has a processor. Each rank has one line of words. To synchronize, a rank writes a
word for its call, a word for the place of its operand, and then its flag, which is the number of the synchronization.
Then it reads the flags of the other ranks until all of them have that number or a later one. The other ranks see the
words once they see the flag: x86 preserves the order of stores, and on other processors `sync` does.

The words are written to two alternating places, like the data in slots. A rank that has completed synchronization n may
write the words of n + 1 while a slow rank still reads those of n. It cannot write the words of n + 2 before all ranks
have reached n + 1, and every rank that has reached n + 1 has finished reading those of n.

A waiting rank polls for a while and then yields its processor. At intervals it lets MPI make progress, records its wait
for the monitor, and checks whether the rank that it waits for is alive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, NoReturn

import numpy as np

from autograd import environment
from autograd.errors import RankFailed

from ...job.activity import Channel
from .. import unsent
from ..protocol import quietly
from .windows import Host, Window, is_alive, process_mark

__all__ = ["CALL", "LINE", "PLACE", "Flags", "limit_s", "set_limit"]

LINE = 16  # words of a rank: two cache lines, as processors fetch them in pairs
CALL, PLACE = 2, 4  # in a line, the words for the call and for the operand's place; odd numbers use the next word
_MARK = 8
_SPINS = 1000  # about 50 us: on a busy machine, a rank that yields at once is suspended for milliseconds
_YIELDS = 64  # between two checks of the time
_NAP_S = 2e-5  # the sleep of a rank that shares its processor
_PATIENT_S = 1.0  # then a waiting rank sleeps between polls
_LOOK_S = 0.1  # between two checks whether the other rank is alive
_DEAD_S = 2.0  # how long a dead rank's report may take to end this rank, before this rank raises an error itself

_CALL = "a collective in shared memory"

_limit_s = float(environment.value("RINGTAPE_SHARED_LIMIT_S"))


def set_limit(seconds: float) -> None:
    """Set how long a rank waits in shared memory for a rank that is alive but does not arrive (default 600 s).

    A dead rank is detected within seconds, whatever the limit. The environment variable
    ``RINGTAPE_SHARED_LIMIT_S`` sets the limit, too.
    """
    global _limit_s
    if not seconds > 0:
        raise ValueError(f"a limit of {seconds} s was given; needed: a positive number")
    _limit_s = seconds


def limit_s() -> float:
    """The current limit, in seconds."""
    return _limit_s


class _Channel(Channel):
    """The number of synchronizations of this rank, for the monitor. It reads the count that the flags keep."""

    def __init__(self, key: str, name: str, ranks: tuple[int, ...], epoch: int, flags: Flags):
        self._flags = flags
        super().__init__(key, name, ranks, epoch)

    @property
    def calls(self) -> int:
        number = self._flags.number
        return number if isinstance(number, int) else 0  # where every further call raises an error

    @calls.setter
    def calls(self, value: int) -> None:
        pass


class Flags:
    """The flags of a group's ranks, in the first bytes of a window.

    Attributes
    ----------
    words : memoryview of int64
        The lines of all ranks.
    number : int
        The number of the last synchronization that this rank started.
    peers : tuple of int
        The first index of each other rank's line.
    channel : Channel
        Counts the synchronizations, for the monitor.
    """

    def __init__(self, host: Host, window: Window, rank: int, size: int, disagree: Callable[[int], None]):
        self.words: Any = window.bytes[: Flags.bytes(size)].data.cast("q")
        self.number: Any = 0  # of synchronizations; a `_NoNumber` once each further one must raise
        self.rank = rank
        self.line = rank * LINE
        self.peers = tuple(r * LINE for r in range(size) if r != rank)
        self._host = host
        self._disagree = disagree
        self.channel = _Channel(host.channel_key, host.group.name, host.group.ranks, host.epoch, self)
        host.add_channel(self.channel)
        self._names = [f"rank {r}" for r in host.group.ranks]
        self.sync = window.sync if host.is_fenced else None
        for i in range(LINE):
            self.words[self.line + i] = 0
        for i, word in enumerate(process_mark()):
            self.words[self.line + _MARK + i] = word
        mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        # The exchange also makes every rank wait until all have written their lines.
        everyone = quietly(lambda: host.group.exchange(np.array(mine, np.int64).tobytes()))
        processors = {n for data in everyone for n in np.frombuffer(data, np.int64).tolist()}
        self.is_oversubscribed = size > len(processors) or host.ranks_here > (os.cpu_count() or 1)
        self._spins = 0 if self.is_oversubscribed else _SPINS

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Make every further synchronization raise an error."""
        self.number = _NoNumber(error)

    def refuse_ended(self) -> None:
        """Make every further synchronization raise that the epoch of the group is over."""

        def error() -> Exception:
            self._host.check((self.channel, _CALL, 0, None))
            raise AssertionError(self.channel.name)

        self.refuse(error)

    @staticmethod
    def bytes(size: int) -> int:
        """The bytes that the lines of `size` ranks take."""
        return size * LINE * 8

    def synchronize(self, call: int, place: int = 0) -> int:
        """Synchronize with all other ranks, exchange two words with them, and return the synchronization's number.

        If another rank passes another word for its call, `disagree` is called with the number.
        """
        self.number = n = self.number + 1
        words, at, odd = self.words, self.line, n & 1
        words[at + CALL + odd] = call
        words[at + PLACE + odd] = place
        if self.sync is not None:
            self.sync()
        words[at] = n
        differs = False
        for at in self.peers:
            if words[at] < n:
                self.wait(at, n)
            if self.sync is not None:
                self.sync()  # order the reads below after the read of the flag
            if words[at + CALL + odd] != call:
                differs = True
        if differs:
            self._disagree(n)
        return n

    def words_of(self, n: int, which: int) -> tuple[int, ...]:
        """All ranks' words of the last synchronization, which is `n`; `which` is `CALL` or `PLACE`."""
        at = which + (n & 1)
        return tuple(self.words[at::LINE].tolist())

    def wait(self, at: int, n: int) -> None:
        """Wait for the flag at `at`. Raises RankFailed if its rank is dead or does not arrive within the limit."""
        words, sync = self.words, self.sync
        for _ in range(self._spins):
            if words[at] >= n:
                return
        for _ in range(_YIELDS):
            os.sched_yield()
            if sync is not None:
                sync()
            if words[at] >= n:
                return
        if unsent.unsent:
            unsent.hand_over()
        waiting, thread = self._host.waiting, get_ident()
        waiting[thread] = (self.channel, _CALL, n, None)
        try:
            self._wait_long(at, n)
        finally:
            waiting[thread] = None

    def _wait_long(self, at: int, n: int) -> None:
        words, sync, progress = self.words, self.sync, self._host.progress
        start = looked = time.monotonic()
        alive = start  # when the other rank was last known to be alive
        while True:
            progress()
            if self.is_oversubscribed:
                time.sleep(_NAP_S)  # the other rank may need this processor
            for _ in range(1 if self.is_oversubscribed else _YIELDS):
                os.sched_yield()
                if sync is not None:
                    sync()
                if words[at] >= n:
                    return
            if self._host.is_alarmed:
                self._host.check((self.channel, _CALL, n, None))
            now = time.monotonic()
            if now - looked > _LOOK_S:
                looked = now
                mark = words[at + _MARK : at + _MARK + 3].tolist()
                if is_alive(mark):
                    alive = now
                self._look(at, n, mark[0], now - start, now - alive)
            if now - start > _PATIENT_S:
                time.sleep(0.0005)

    def _look(self, at: int, n: int, pid: int, waited_s: float, dead_s: float) -> None:
        rank = at // LINE
        self._host.check((self.channel, _CALL, n, None))
        where = f"in collective {n} in shared memory on '{self.channel.name}'"
        # The rank itself or the supervisor reports its end, and ends the job. An error is needed only if neither does.
        if dead_s > _DEAD_S and self.words[at] < n:
            raise RankFailed(
                f"{self._names[rank]} (pid {pid}) died, while {self._names[self.rank]} waits for it {where}"
            )
        if waited_s > _limit_s:
            raise RankFailed(
                f"{self._names[rank]} (pid {pid}) did not arrive within {_limit_s:g} s, while "
                f"{self._names[self.rank]} waits for it {where}. It is alive: it computes, is stopped, or makes "
                "another call. Fix: make the same calls on all ranks; for longer work, set RINGTAPE_SHARED_LIMIT_S"
            )


class _NoNumber:
    """Takes the place of the number of a synchronization where another one must not be made."""

    def __init__(self, error: Callable[[], Exception]):
        self._error = error

    def __add__(self, one: int) -> NoReturn:
        raise self._error()
