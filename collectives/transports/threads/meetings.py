"""What a rank that is a thread can wait for: a meeting of its group's members, or a letter from one of them.

A call that was announced carries what its rank says about it (see `sanitizer`), and whoever concludes the meeting
compares that too: a fingerprint costs no meeting of its own. Where a rank stands in the program is looked up when an
error wants it, in the frames of its thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autograd.errors import CollectiveMismatch, CommunicationError, site_of_thread

from ...checks import sanitizer
from ...checks.sanitizer import Statement
from ..protocol import Array
from .calls import AGREES, Part, combine

__all__ = ["Channel", "Letter", "Meeting"]


def _ranks_text(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _call_text(call: tuple[Any, ...]) -> str:
    name, *agreed = call
    values = (tuple(map(int, value)) if isinstance(value, tuple) else value for value in agreed)
    return f"{name}({', '.join(f'{word} {value}' for word, value in zip(_words(name), values, strict=True))})"


def _words(name: str) -> tuple[str, ...]:
    """What the values of a call are: its name may have an operation behind it."""
    return AGREES[name.partition(" ")[0]]


class Meeting:
    """One collective of one group: the parts until all have come, then the results until they are taken."""

    __slots__ = ("calls", "done", "error", "group", "missing", "number", "parts", "results", "said", "sites", "waiters")

    def __init__(self, group: Channel, number: int):
        size = len(group.ranks)
        self.group = group
        self.number = number
        self.calls: list[tuple[Any, ...] | None] = [None] * size
        self.parts: list[Part] = [None] * size  # type: ignore[list-item]
        self.said: list[Statement | None] = [None] * size
        self.sites: list[str | int] = [""] * size  # where each member called, or the thread that waits there
        self.results: list[Any] = []
        self.missing = size
        self.error: CommunicationError | None = None
        self.done = False
        self.waiters: list[int] = []

    def conclude(self) -> None:
        """Compare the calls and make the results. The last member to come does this, for all."""
        call, said = self.calls[0], self.said[0]
        if any(other != said for other in self.said):
            self.error = self._judgement()
        if self.error is None and any(other != call for other in self.calls):
            self.error = CollectiveMismatch(self._difference())
        if self.error is None:
            try:
                self.results = combine(self.parts)
            except CollectiveMismatch as mismatch:
                self.error = CollectiveMismatch(f"call #{self.number} on '{self.group.name}': {mismatch}")
        self.parts = []

    def result(self, rank: int) -> Any:
        """What one member gets. It is handed over: the meeting keeps no reference."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)  # every rank its own, with its own traceback
        result, self.results[rank] = self.results[rank], None
        return result

    def is_for(self, rank: int) -> bool:
        """Whether world rank `rank` has still to come."""
        return rank in self.group.ranks and self.calls[self.group.ranks.index(rank)] is None

    def wait_text(self, rank: int) -> str:
        absent = [rank for rank, call in zip(self.group.ranks, self.calls, strict=True) if call is None]
        place = self.group.ranks.index(rank)
        call, said = self.calls[place], self.said[place]
        text = f"{call[0]} #{self.number} on '{self.group.name}'"  # type: ignore[index]
        text = text if said is None else f"{text}, which is {said.call},"
        return f"{text} for {_ranks_text(absent)}" if absent else text

    def _where(self) -> list[str]:
        """Where each member called. A thread that is given waits there: this is asked before it is woken."""
        return [site if isinstance(site, str) else site_of_thread(site) for site in self.sites]

    def _judgement(self) -> CommunicationError | None:
        """What the members' statements come to; a rank that announced nothing says what its call is."""
        told = [
            Statement(_call_text(call), site=site) if said is None else said._replace(site=said.site or site)  # type: ignore[arg-type]
            for said, call, site in zip(self.said, self.calls, self._where(), strict=True)
        ]
        error = sanitizer.compare(self.group.name, self.group.ranks, told)
        return None if error is None else type(error)(f"call #{self.number} on '{self.group.name}': {error}")

    def _difference(self) -> str:
        ranks: dict[Any, list[int]] = {}
        for rank, call, site in zip(self.group.ranks, self.calls, self._where(), strict=True):
            ranks.setdefault((call, site), []).append(rank)
        calls = [call for call, _ in ranks]
        names = {call[0] for call in calls}
        if len(names) > 1:
            needed = "the same call, in the same order"
        else:
            columns = zip(_words(names.pop()), zip(*(call[1:] for call in calls), strict=True), strict=True)
            needed = "the same " + " and ".join(word for word, values in columns if len(set(values)) > 1)
        lines = [
            f"{_ranks_text(who)}: {_call_text(call)}" + (f"\n    at {site}" if site else "")
            for (call, site), who in ranks.items()
        ]
        lines.append(f"needed: {needed} on all of {_ranks_text(self.group.ranks)}")
        return f"call #{self.number} on '{self.group.name}' is not the same on all ranks\n  " + "\n  ".join(lines)


class Letter:
    """One message between two ranks of a group. Only its receiver can wait for it."""

    __slots__ = ("content", "done", "group", "src", "waiters")

    def __init__(self, group: Channel, src: int):
        self.group = group
        self.src = src
        self.content: Array | None = None
        self.done = False
        self.waiters: list[int] = []

    def is_for(self, rank: int) -> bool:
        """Whether world rank `rank` is its sender."""
        return self.group.ranks[self.src] == rank

    def wait_text(self, rank: int) -> str:
        return f"recv from rank {self.group.ranks[self.src]} on '{self.group.name}'"


class Channel:
    """What the members of one group share: the meetings that miss someone, the letters not yet matched."""

    __slots__ = ("letters", "meetings", "name", "ranks")

    def __init__(self, ranks: tuple[int, ...], name: str):
        self.ranks = ranks
        self.name = name
        self.meetings: dict[int, Meeting] = {}
        self.letters: dict[tuple[int, int, int], Letter] = {}
