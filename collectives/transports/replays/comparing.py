"""Compare the calls of a replayed rank with the recorded ones: `Differences` of all ranks, and `RankReplay` of one.

What a rank gives to a call is compared before the call is made, so the rank that gives something else is known before
the other ranks have a result of it. Their results differ then, too, which is no difference of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple

from autograd.errors import CommunicationError, find_site, is_own_file, short_site

from ..protocol import Communicator, Request
from ..recording import Numbering, described, digest_of_given
from .recorded import Key, Record, Recorded

__all__ = ["Difference", "Differences", "Ended", "RankReplay"]


class Ended(CommunicationError):
    """A rank that is replayed alone communicates after the block that was recorded."""


class Difference(NamedTuple):
    """The first call of a rank that is not as recorded: how many calls came before it, and how it differs."""

    before: int
    rank: int
    text: str


class Differences:
    """The differences of the ranks of a replay from their record.

    Parameters
    ----------
    told : callable, optional
        Called with the first difference of each rank, when it is found.

    Attributes
    ----------
    found : list of Difference
        The first one of each rank, in the order in which they were found.
    ranks, of_threads : dict of int to RankReplay
        The ranks that have begun, and by thread those that run.
    failed : dict of int to str
        The ranks that an error has ended, and the name of its class.
    """

    def __init__(self, told: Callable[[Difference], None] | None = None):
        self.found: list[Difference] = []
        self.ranks: dict[int, RankReplay] = {}
        self.of_threads: dict[int, RankReplay] = {}
        self.failed: dict[int, str] = {}
        self._told = told

    @property
    def first(self) -> Difference | None:
        """The first difference of all ranks."""
        return min(self.found, default=None)

    def note(self, difference: Difference) -> None:
        """Add the first difference of a rank."""
        self.found.append(difference)
        if self._told is not None:
            self._told(difference)

    def block(self, name: str, error: BaseException | None, is_begin: bool) -> None:
        """The rank of the calling thread enters or leaves a block that records in a folder of this name."""
        replay = self.of_threads.get(get_ident())
        if replay is not None:
            replay.block(name, error, is_begin)

    def finish(self, record: Record, ranks: list[int]) -> None:
        """Compare the ends of these ranks: calls that were recorded and not made, and errors."""
        for rank in ranks:
            replay = self.ranks.get(rank)
            if replay is not None:
                replay.finish(self.failed.get(rank))
            elif record.calls[rank] and rank not in self.failed:
                self.note(Difference(0, rank, f"no call; recorded: {len(record.calls[rank])} calls"))


class RankReplay:
    """The calls of a replayed rank, beside the recorded ones.

    Parameters
    ----------
    record : Record
    rank : int
    differences : Differences

    Attributes
    ----------
    is_active : bool
        Whether the program is where the record was made: in its block, if it is that of a block.
    is_equal : bool
        Whether everything was as recorded so far.
    has_ended : bool
        Whether the block that was recorded has ended.
    """

    def __init__(self, record: Record, rank: int, differences: Differences):
        self.record, self.rank, self.differences = record, rank, differences
        self.calls = record.calls.get(rank, {})
        self._block: str | None = record.any["block"]
        self.is_active = self._block is None
        self.is_equal, self.has_ended = True, False
        self._numbering = Numbering()
        self._made = 0
        differences.ranks[rank] = self

    def block(self, name: str, error: BaseException | None, is_begin: bool) -> None:
        """Enter or leave a block that records in a folder of this name. The first one of the record's is compared."""
        if self._block == name and not self.has_ended:
            self.is_active = is_begin
            if not is_begin:
                self.finish(None if error is None else type(error).__name__)
                self.has_ended = True

    def number(self, group: Communicator, request: Request) -> tuple[Key, int]:
        """The key of the call that follows, and how many calls came before it."""
        self._made += 1
        return self._numbering.next(group, request), self._made - 1

    def compare(self, key: Key, made: int, request: Request, is_started: bool = False) -> Recorded | None:
        """The recorded call in the place of this one; None if it is another one, or gives something else.

        A call that was started, and that no rank has waited for, is not in the record.
        """
        found, name = self.calls.get(key), described(request)
        if found is None:
            if not is_started and self._is_extra(key, made):
                self.note(made, key, f"{name} is not in the record")
            return None
        if found.call != name and found.error is None:
            self.note(made, key, f"{name}; recorded there: {found.call}")
            return None
        entry = found.entry
        if entry is not None and entry.given != digest_of_given(request) and _is_of_program(request):
            self.note(made, key, f"{name} gives other values than were recorded")
            return None
        return found

    def _is_extra(self, key: Key, made: int) -> bool:
        """Whether the recorded rank has not made this call; one that was cut off may have come to it later."""
        if self.rank in self.record.ends:
            return True
        channel, number, _ = key
        return made < len(self.calls) and number > self.record.counts(self.rank).get(channel, 0)

    def note(self, made: int, key: Key, text: str) -> None:
        """Note a difference, if it is the first one of this rank."""
        channel, number, _ = key
        self._note(made, f"{text} (at {short_site(*find_site())}, call {number} on {channel})")

    def _note(self, made: int, text: str) -> None:
        if self.is_equal:
            self.is_equal = False
            self.differences.note(Difference(made, self.rank, text))

    def finish(self, error: str | None) -> None:
        """Compare the end of this rank, which came to it, or which an error of this class has ended."""
        recorded = self.record.ends.get(self.rank)
        if not self.is_equal or self.has_ended:
            return
        if error is not None:
            is_own = not self.differences.found and error not in ("RankFailed", *_BY_HAND)
            if is_own and recorded is not None and error not in recorded:
                self._note(self._made, f"{error}; recorded: {recorded or 'it came to its end'}")
            return
        for key, call in self.calls.items():
            channel, number, text = key
            if not text and number > self._numbering.count(channel):
                at = f"call {number} on {channel}"
                self._note(self._made, f"it ends after {self._made} calls; recorded: {call.call}, {at}")
                return
        if recorded:
            self._note(self._made, f"it comes to its end; recorded: {recorded}")


_BY_HAND = ("Stopped", "BdbQuit", "KeyboardInterrupt", "Ended")
"""Errors by which the user ends a rank, or the end of the record."""


def _is_of_program(request: Request) -> bool:
    """Whether the program itself has made a call, and not ringtape an exchange, which may have facts of the machine."""
    if request.call != "exchange":
        return True
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _EXCHANGE:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is None or frame.f_back is None or not is_own_file(frame.f_back.f_code.co_filename)


_EXCHANGE = Communicator.exchange.__code__
