"""Ranks as threads of one process: for notebooks, for tests, and for deadlock reports that are exact.

A collective is a *meeting* of the group's members: each leaves its call and its part, and the last one to come
compares the calls, makes every member's result and wakes those who wait. A message is a *letter*, which whoever comes
first (the sender or the receiver) puts up. Meetings and letters are matched by the channel (name and members) and a
number that each rank counts for itself, so the order of the calls is the whole protocol.

What the calls do is in `local_calls`, meetings and letters are in `local_meetings`, and `local_waiting` blocks ranks,
wakes them and finds deadlocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np

from autograd.errors import CollectiveMismatch, MeshError, find_site, short_site

from ...checks import modes, sanitizer
from ...checks.sanitizer import Statement
from ..arguments import checked_array, checked_rank
from ..protocol import Array, ByName, Pending, Request, Runs, named
from ..traffic import Traffic
from .calls import CALLS
from .meetings import Channel, Letter, Meeting
from .waiting import WaitingRanks

__all__ = ["CALLS", "LocalCommunicator", "LocalWorld"]


class LocalWorld(WaitingRanks):
    """Ranks 0 to `size` - 1 as threads of this process, and the channels between them.

    Whoever runs a rank reports its end by `finish` or `fail` (`collectives.run` does).

    Parameters
    ----------
    size : int
        The number of ranks.
    raises : bool
        Whether ranks that do not wait for a failed one go on: see `WaitingRanks`.

    Examples
    --------
    >>> LocalWorld(3).communicator(0)
    LocalCommunicator('world', rank 0 of 3)
    """

    def __init__(self, size: int, raises: bool = False):
        super().__init__(size, raises)
        self._channels: dict[tuple[str, tuple[int, ...]], Channel] = {}
        self._communicators: list[dict[tuple[str, tuple[int, ...]], LocalCommunicator]] = [{} for _ in range(size)]

    def communicator(self, rank: int, ranks: Sequence[int] | None = None, name: str = "world") -> LocalCommunicator:
        """The channel of `ranks` (default: all) as world rank `rank` has it; asked again, it is the same object."""
        key = (name, tuple(range(self.size)) if ranks is None else tuple(ranks))
        mine = self._communicators[rank]
        if key not in mine:
            self._threads[rank] = get_ident()
            with self.lock:
                channel = self._channels.setdefault(key, Channel(key[1], name))
            mine[key] = LocalCommunicator(self, channel, rank)
        return mine[key]


class LocalCommunicator(ByName):
    """A channel between threads, as one of its ranks has it. `LocalWorld.communicator` makes them."""

    def __init__(self, world: LocalWorld, channel: Channel, world_rank: int):
        self.rank = channel.ranks.index(world_rank)
        self.size = len(channel.ranks)
        self.ranks = channel.ranks
        self.name = channel.name
        self._world = world
        self._world_rank = world_rank
        self._channel = channel
        self.copies = []
        self.texts = {}
        self._said: Statement | None = None  # about the next call
        self._number = 0
        self._sent = [0] * self.size
        self._received = [0] * self.size
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"LocalCommunicator('{self.name}', rank {self.rank} of {self.size})"

    def subgroup(self, members: Sequence[int], name: str) -> LocalCommunicator:
        members = [checked_rank(self, "member", member) for member in members]
        if self.rank not in members or len(set(members)) < len(members):
            raise MeshError(f"'{name}' must hold rank {self.rank} of '{self.name}', and no rank twice, not {members}")
        return self._world.communicator(self._world_rank, [self.ranks[member] for member in members], name)

    @property
    def checking(self) -> bool:
        return modes.limit > 0

    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        self.announce(call, layout, is_rooted)
        self._call("agree")

    def announce(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        if self._said is not None:  # what it was about made no call of the group
            self._call("agree")
        self._said = sanitizer.statement(call, layout, is_rooted, 0, self.copies)

    def get(self, x: Array, runs: Runs) -> Array:
        return self._call("get", x, runs)

    def accumulate(self, values: Array, runs: Runs, count: int) -> Array:
        return self._call("accumulate", values, runs, count)

    def exchange(self, data: bytes) -> list[bytes]:
        return self._call("exchange", data)

    def send(self, x: Array, dst: int) -> None:
        if self._said is not None:
            self._call("agree")
        checked_rank(self, "dst", dst)
        self._world.check(self._world_rank, self.ranks[dst])
        content = checked_array(x).copy()
        number, self._sent[dst] = self._sent[dst], self._sent[dst] + 1
        with self._world.lock:
            letter = self._letter(self.rank, dst, number)
            letter.content = content
            self._world.release(letter)
        self.traffic.count(self.ranks[dst], content.nbytes)

    def recv(self, buffer: Array, src: int) -> Array:
        return self._take(self._expect(buffer, src), buffer)

    def start(self, call: Any, *args: Any) -> Pending[Any]:
        if isinstance(call, Request):
            call, args = named(call)
        if call == "send":
            self.send(*args)
            return Pending.done(None)
        if call == "recv":
            buffer, src = args
            letter = self._expect(buffer, src)
            return Pending(lambda: self._ready(letter), lambda: self._take(letter, buffer))
        if self.size == 1:
            return Pending.done(self._call(call, *args))
        # The caller may go on and change its array; only the buffer of a broadcast is lent until the wait.
        if args and isinstance(args[0], np.ndarray) and not (call == "broadcast" and args[1] != self.rank):
            args = (args[0].copy(), *args[1:])
        said, self._said = self._said, None
        site = short_site(*find_site())
        meeting = self._join(call, *CALLS[call].prepare(self, *args), said, site)
        return Pending(lambda: self._ready(meeting), lambda: self._leave(meeting))

    # -- meetings ----------------------------------------------------------------------------------------------
    def _call(self, name: str, *args: Any) -> Any:
        """A blocking collective. It needs no copy of its array: it returns when nobody reads that any more."""
        call = CALLS[name]
        said, self._said = self._said, None  # also where the arguments are refused: the call is not made
        agreed, part = call.prepare(self, *args)
        if self.size == 1:
            return call.combine([part], *agreed)[0]
        return self._leave(self._join(name, agreed, part, said, get_ident()))

    def _join(self, name: str, agreed: tuple[Any, ...], part: Any, said: Statement | None, site: str | int) -> Meeting:
        """Leave this rank's call and part at the next meeting, and conclude it if all have come."""
        self._number = number = self._number + 1
        world, meetings = self._world, self._channel.meetings
        with world.lock:
            meeting = meetings.get(number)
            if meeting is None:
                meeting = meetings[number] = Meeting(self._channel, number)
            meeting.calls[self.rank] = (name, *agreed)
            meeting.parts[self.rank] = part
            meeting.said[self.rank] = said
            meeting.sites[self.rank] = site
            meeting.missing -= 1
            if meeting.missing:
                return meeting
            del meetings[number]
        meeting.conclude()
        with world.lock:
            world.release(meeting)
        return meeting

    def _leave(self, meeting: Meeting) -> Any:
        if not meeting.done:
            self._world.block(self._world_rank, meeting)
        return meeting.result(self.rank)

    # -- letters -----------------------------------------------------------------------------------------------
    def _letter(self, src: int, dst: int, number: int) -> Letter:
        """The letter of that number: the one that the other side has put up, else a new one. Needs the lock."""
        letters, key = self._channel.letters, (src, dst, number)
        letter = letters.pop(key, None)
        if letter is None:
            letter = letters[key] = Letter(self._channel, src)
        return letter

    def _expect(self, buffer: Array, src: int) -> Letter:
        """Take the next place in the order of receives from `src`."""
        if self._said is not None:
            self._call("agree")
        checked_rank(self, "src", src)
        checked_array(buffer)
        number, self._received[src] = self._received[src], self._received[src] + 1
        with self._world.lock:
            return self._letter(src, self.rank, number)

    def _take(self, letter: Letter, buffer: Array) -> Array:
        if not letter.done:
            self._world.block(self._world_rank, letter)
        content = letter.content
        assert content is not None
        if content.dtype != buffer.dtype or content.size != buffer.size:
            raise CollectiveMismatch(
                f"recv on '{self.name}': rank {self._world_rank} has a buffer of {buffer.size} {buffer.dtype}, rank "
                f"{self.ranks[letter.src]} sent {content.size} {content.dtype}; needed: the same count and dtype"
            )
        buffer[:] = content
        return buffer

    def _ready(self, wait: Meeting | Letter) -> bool:
        return wait.done or self._world.failure_for(wait) is not None
