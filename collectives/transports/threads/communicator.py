"""Ranks as threads of one process: for notebooks, for tests, and for deadlock reports that are exact.

A collective is a *meeting* of the group's members: each leaves its call and its part, and the last one to come
compares the calls, makes every member's result and wakes those who wait. A message is a *letter*, which whoever comes
first (the sender or the receiver) puts up. Meetings and letters are matched by the channel (name and members) and a
number that each rank counts for itself, so the order of the calls is the whole protocol.

`calls` has what each collective computes, `meetings` has meetings and letters, and `waiting` blocks ranks, wakes them
and finds deadlocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

from autograd.errors import CollectiveMismatch, find_site, short_site

from ...checks import modes, sanitizer
from ...checks.sanitizer import Statement
from ..protocol import Array, Pending, Request
from ..staged import HostTransport
from ..traffic import Traffic
from .calls import Part, agreed
from .meetings import Channel, Letter, Meeting
from .waiting import WaitingRanks

__all__ = ["LocalCommunicator", "LocalWorld"]


class LocalWorld(WaitingRanks):
    """Ranks 0 to `size` - 1 as threads of this process, and the channels between them.

    Whoever runs a rank reports its end by `finish` or `fail` (`collectives.run` does).

    Parameters
    ----------
    size : int
        The number of ranks.

    Examples
    --------
    >>> LocalWorld(3).communicator(0)
    LocalCommunicator('world', rank 0 of 3)
    """

    def __init__(self, size: int):
        super().__init__(size)
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


class LocalCommunicator(HostTransport):
    """A channel between threads, as one of its ranks has it. `LocalWorld.communicator` makes them."""

    repeats = True

    def __init__(self, world: LocalWorld, channel: Channel, world_rank: int):
        self.rank = channel.ranks.index(world_rank)
        self.size = len(channel.ranks)
        self.ranks = channel.ranks
        self.name = channel.name
        self._world = world
        self._world_rank = world_rank
        self._channel = channel
        self.copies = []
        self._said: Statement | None = None  # about the next call
        self._number = 0
        self._sent = [0] * self.size
        self._received = [0] * self.size
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"LocalCommunicator('{self.name}', rank {self.rank} of {self.size})"

    def _subgroup(self, members: list[int], name: str) -> LocalCommunicator:
        return self._world.communicator(self._world_rank, [self.ranks[member] for member in members], name)

    # -- agreement ---------------------------------------------------------------------------------------------
    @property
    def checking(self) -> bool:
        return modes.limit > 0

    def _agree(self, call: str, layout: str, is_rooted: bool) -> None:
        self.announce(call, layout, is_rooted)
        self._meet_to_agree()

    def announce(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        """The statement travels with the next call of the group, and is compared there."""
        if self._said is not None:  # what it was about made no call of the group
            self._meet_to_agree()
        self._said = sanitizer.statement(call, layout, is_rooted, 0, self.copies)

    def _meet_to_agree(self) -> None:
        said, self._said = self._said, None
        if self.size > 1:
            self._leave(self._join(_AGREE, None, None, said, get_ident()))

    # -- calls -------------------------------------------------------------------------------------------------
    def _prepared(self, request: Request, started: bool) -> Any:
        try:
            return super()._prepared(request, started)
        except BaseException:
            self._said = None  # it was about this call, which is not made again
            raise

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        if request.call in _MESSAGES:
            return self._start(request, x, out).wait()
        said, self._said = self._said, None
        return self._leave(self._join(request, x, out, said, get_ident()))

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        if request.call in _MESSAGES:
            if self._said is not None:
                self._meet_to_agree()
            if request.call != "recv":
                self._send(x if request.call == "send" else x.copy(), request.peer)
                return Pending.done(None)
            letter = self._expect(request.peer)
            return Pending(lambda: self._ready(letter), lambda: self._take(letter, out))
        said, self._said = self._said, None
        meeting = self._join(request, x, out, said, short_site(*find_site()))
        return Pending(lambda: self._ready(meeting), lambda: self._leave(meeting))

    # -- meetings ----------------------------------------------------------------------------------------------
    def _join(self, request: Request, x: Any, out: Any, said: Statement | None, site: str | int) -> Meeting:
        """Leave this rank's call and part at the next meeting, and conclude it if all have come."""
        call = agreed(request, x, out)
        self._number = number = self._number + 1
        world, meetings = self._world, self._channel.meetings
        with world.lock:
            meeting = meetings.get(number)
            if meeting is None:
                meeting = meetings[number] = Meeting(self._channel, number)
            meeting.calls[self.rank] = call
            meeting.parts[self.rank] = Part(request, x, out)
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

    def _send(self, content: Array, dst: int) -> None:
        number, self._sent[dst] = self._sent[dst], self._sent[dst] + 1
        with self._world.lock:
            letter = self._letter(self.rank, dst, number)
            letter.content = content
            self._world.release(letter)

    def _expect(self, src: int) -> Letter:
        """Take the next place in the order of receives from `src`."""
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
        return wait.done or self._world.failed


_AGREE = Request("agree")
_MESSAGES = ("send", "lend", "recv")
