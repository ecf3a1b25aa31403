"""Ranks of one host meet by flags in shared memory: no message, no system call where each rank has a processor.

Each rank has one line of words. To meet, it writes what it calls and where its operand lies, then its flag, the number
of the meeting; then it reads the others' flags until all have that number or a later one. What a rank wrote before its
flag, the others see after it: x86 keeps the order of stores, elsewhere `sync` does.

The words of a meeting are kept in two places that take turns, as data in slots are. A rank that has passed meeting n
may write for n + 1 while a slow one still reads what was written for n; it cannot write for n + 2 before all have come
to n + 1, and nobody comes to n + 1 before it has done with n.

A rank that waits looks for a while, then gives the processor to others; from time to time it lets MPI make progress,
tells the monitor what it waits for, and looks whether the one it waits for is alive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

import numpy as np

from autograd.errors import RankFailed

from ...job.activity import Channel
from .windows import Host, Window, is_alive, process_mark

__all__ = ["CALL", "LINE", "PLACE", "Flags", "limit_s", "set_limit"]

LINE = 16  # words of a rank: two cache lines, as processors fetch them in pairs
CALL, PLACE = 2, 4  # in a line, the words of even and of odd meetings: what is called, and where the operand lies
_MARK = 8
_SPINS = 1000  # about 50 us: on a busy machine, a rank that yields at once is away for milliseconds
_YIELDS = 64  # between two looks around
_NAP_S = 2e-5  # of a rank that shares its processor
_PATIENT_S = 1.0  # after which a waiting rank sleeps between looks
_LOOK_S = 0.1  # between two looks whether the other is alive

_limit_s = float(os.environ.get("RINGTAPE_SHARED_LIMIT_S", "600"))


def set_limit(seconds: float) -> None:
    """How long a rank waits in shared memory for one that is alive but does not come (600 s unless told).

    A rank that is dead is noticed within a fraction of a second, whatever the limit. Also settable by
    ``RINGTAPE_SHARED_LIMIT_S``.
    """
    global _limit_s
    if not seconds > 0:
        raise ValueError(f"a limit of {seconds} s was given; needed: a positive number")
    _limit_s = seconds


def limit_s() -> float:
    """The limit in force, in seconds."""
    return _limit_s


class _Channel(Channel):
    """The meetings that this rank has come to, for the monitor. The flags count them anyway."""

    def __init__(self, key: str, name: str, ranks: tuple[int, ...], flags: Flags):
        self._flags = flags
        super().__init__(key, name, ranks)

    @property
    def calls(self) -> int:
        return self._flags.meeting

    @calls.setter
    def calls(self, value: int) -> None:
        pass


class Flags:
    """The flags of a group's ranks, in the first bytes of a window.

    Attributes
    ----------
    words : memoryview of int64
        All ranks' lines.
    meeting : int
        The number of the last meeting that this rank came to.
    peers : tuple of int
        Where the other ranks' lines begin.
    """

    def __init__(self, host: Host, window: Window, rank: int, size: int, disagree: Callable[[int], None]):
        self.words: Any = window.bytes[: Flags.bytes(size)].data.cast("q")
        self.meeting = 0
        self.rank = rank
        self.line = rank * LINE
        self.peers = tuple(r * LINE for r in range(size) if r != rank)
        self._host = host
        self._disagree = disagree
        self._channel = _Channel(host.channel_key, host.group.name, host.group.ranks, self)
        host.tell_calls_of(self._channel)
        self._names = [f"rank {r}" for r in host.group.ranks]
        self.sync = window.sync if host.is_fenced else None
        for i in range(LINE):
            self.words[self.line + i] = 0
        for i, word in enumerate(process_mark()):
            self.words[self.line + _MARK + i] = word
        mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        everyone = host.group.exchange(np.array(mine, np.int64).tobytes())  # and nobody goes on before all have written
        processors = {n for data in everyone for n in np.frombuffer(data, np.int64).tolist()}
        self.is_oversubscribed = size > len(processors) or host.ranks_here > (os.cpu_count() or 1)
        self._spins = 0 if self.is_oversubscribed else _SPINS

    @staticmethod
    def bytes(size: int) -> int:
        """The bytes that the lines of `size` ranks take."""
        return size * LINE * 8

    def meet(self, call: int, place: int = 0) -> int:
        """Come to the next meeting with two words, and wait for all others; its number.

        `disagree` is called with the number where another rank has come with another call.
        """
        self.meeting = n = self.meeting + 1
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
                self.sync()  # what is read below was written before the flag
            if words[at + CALL + odd] != call:
                differs = True
        if differs:
            self._disagree(n)
        return n

    def said(self, n: int, which: int) -> tuple[int, ...]:
        """The words that all ranks brought to meeting `n`, the last one: `CALL` or `PLACE`."""
        at = which + (n & 1)
        return tuple(self.words[at :: LINE].tolist())

    def wait(self, at: int, n: int) -> None:
        """Wait for the flag at `at`. RankFailed if its rank is dead, or does not come within the limit."""
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
        waiting, thread = self._host.waiting, get_ident()
        waiting[thread] = (self._channel, "a collective in shared memory", n, None)
        try:
            self._wait_long(at, n)
        finally:
            waiting.pop(thread, None)

    def _wait_long(self, at: int, n: int) -> None:
        words, sync, progress = self.words, self.sync, self._host.progress
        start = looked = time.monotonic()
        while True:
            progress()
            if self.is_oversubscribed:
                time.sleep(_NAP_S)  # the one that is waited for may need this processor
            for _ in range(1 if self.is_oversubscribed else _YIELDS):
                os.sched_yield()
                if sync is not None:
                    sync()
                if words[at] >= n:
                    return
            now = time.monotonic()
            if now - looked > _LOOK_S:
                looked = now
                self._look(at, n, now - start)
            if now - start > _PATIENT_S:
                time.sleep(0.0005)

    def _look(self, at: int, n: int, waited_s: float) -> None:
        rank = at // LINE
        mark = self.words[at + _MARK : at + _MARK + 3].tolist()
        where = f"in collective {n} in shared memory on '{self._channel.name}'"
        if not is_alive(mark) and self.words[at] < n:
            raise RankFailed(
                f"{self._names[rank]} (pid {mark[0]}) died, while {self._names[self.rank]} waits for it {where}"
            )
        if waited_s > _limit_s:
            raise RankFailed(
                f"{self._names[rank]} (pid {mark[0]}) did not come within {_limit_s:g} s, while "
                f"{self._names[self.rank]} waits for it {where}. It is alive: it computes, is stopped, or makes "
                "another call. Fix: the same calls on all ranks; for work that takes longer, RINGTAPE_SHARED_LIMIT_S"
            )
