"""Samples of a channel's calls: their places in the program, and the numbers used before them, compared for ever.

After its first 1,000 calls, mode ``first`` compares no call before it is made. So that differences that begin later are
found too, a *window* of `LENGTH` successive calls opens now and then, in every mode: after the calls 256 and 512, and
then once in each `BLOCK` calls. Its place in the block is scattered, so that every part of a step is met, however many
calls a step has. In a window each call leaves its text, its line with the lines around it, and the
constants that were used before it (see `numbers`). The last one carries them all in one statement (see `sanitizer`).
The rule depends on the number of calls only, so all ranks open the same windows. Between windows a call costs an
addition and a comparison. Mode ``off`` stops no program: it reports the first difference of a group on stderr, and its
windows end.

Ranks may make one call at different lines, as in ``if rank == 0: total(x) else: total(0)``. So a difference of lines
alone is no mistake. Two calls in *swapped order* are: at the call where one rank is at line p another one is at q, and
within the same window it is the other way round. A program whose ranks take turns looks like that, too. Therefore p and
q must have been lines of all ranks together, in `_TOGETHER` windows at least, and never of some ranks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from autograd.errors import find_callers, find_site, short_site

__all__ = ["BLOCK", "LENGTH", "Order", "Place", "Sampling", "Swap"]

LENGTH = 16
BLOCK = 1024
_FIRST, _EARLY = 256, 512  # windows open after the calls 256 and 512, too
_SCATTER = 23  # coprime to BLOCK / LENGTH, so that successive windows have all places in a block
_TOGETHER = 2
_NEVER = 1 << 62
_DEPTH = 3  # lines around a call's own
_MOST_PLACES = 4096


class Place(NamedTuple):
    """A call in a window: its text, its line, and the lines around it, innermost first, as one text."""

    call: str
    site: str
    callers: str

    def prefixes(self) -> list[tuple[str, str]]:
        """The call with its line, with its line and the next one around it, and so on."""
        lines = [self.site, *self.callers.split(", ")] if self.callers else [self.site]
        return [(self.call, ", called from ".join(lines[: n + 1])) for n in range(_DEPTH + 1)]


class Sampling:
    """Counts the calls of a communicator that the ranks compare, and records its windows.

    Attributes
    ----------
    calls : int
        How many calls were made. `Prepared.run` counts them.
    agreed : float
        How many were compared before they were made. Python compares two floats, and two integers, faster than one of
        each.
    opens : int
        The number of calls after which the next window opens.
    order : Order
        The lines of earlier windows.
    """

    __slots__ = ("agreed", "calls", "opens", "order", "_facts", "_places")

    def __init__(self) -> None:
        self.calls = 0
        self.agreed = 0.0
        self.opens = _next_window(0)
        self.order = Order()
        self._places: list[Place] = []
        self._facts: list[Any] = []

    @classmethod
    def never(cls) -> Sampling:
        """For a communicator that compares nothing."""
        made = cls()
        made.agreed, made.opens = float("inf"), _NEVER
        return made

    @property
    def is_open(self) -> bool:
        """Whether a window is open."""
        return self.calls >= self.opens

    def end(self) -> None:
        """Open no further window."""
        self.opens = _NEVER

    def note(self, call: str, copies: list[Any]) -> tuple[tuple[Place, ...], list[Any]] | None:
        """Record a call if a window is open, and take the copies that were noted before it out of `copies`.

        At the end of the window its places and copies are returned.
        """
        if self.calls < self.opens:
            return None
        self._places.append(Place(call, short_site(*find_site()), find_callers(_DEPTH)))
        self._facts += [copy._replace(call=self.calls) for copy in copies]
        copies.clear()
        if len(self._places) < LENGTH:
            return None
        window = tuple(self._places), self._facts
        self._places, self._facts = [], []
        self.opens = _next_window(self.calls)
        return window


def _next_window(calls: int) -> int:
    """The number of calls after which the first window opens that is not open yet after `calls` calls.

    Examples
    --------
    >>> [_next_window(calls) for calls in (0, 272)]
    [256, 512]
    >>> _next_window(1500) < _next_window(2500) < _next_window(3500)
    True
    """
    if calls < _EARLY:
        return max(_FIRST, 1 << calls.bit_length())
    block = (calls - 1) // BLOCK + 1
    return block * BLOCK + block * _SCATTER % (BLOCK // LENGTH) * LENGTH


class Swap(NamedTuple):
    """Two calls in different order: the indices of two ranks, and their lines at the first of the two calls."""

    ranks: tuple[int, int]
    at: int
    lines: tuple[str, str]


class Order:
    """The lines at which the ranks of a group have made their calls together, for the windows that follow."""

    def __init__(self) -> None:
        self._together: dict[Any, int] = {}  # in how many windows all ranks were at a line together
        self._apart: set[Any] = set()  # lines at which some ranks were without the others

    def learn(self, windows: Sequence[Sequence[Place]]) -> Swap | None:
        """Take in a window of each rank; one alone stands for all ranks. The swap in them, if there is one."""
        together: set[Any] = set()
        apart: set[Any] = set()
        if len(windows) == 1:
            together.update(*(place.prefixes() for place in windows[0]))
        for places in zip(*windows, strict=True) if len(windows) > 1 else ():
            for lines in map(set, zip(*(place.prefixes() for place in places), strict=True)):
                (together if len(lines) == 1 else apart).update(lines)
        found = self._swap(windows) if apart else None
        if len(self._together) + len(self._apart) > _MOST_PLACES:
            self._together.clear()  # `_apart` stays, so that nothing is found that was no mistake before
        for line in together:
            self._together[line] = self._together.get(line, 0) + 1
        if len(self._apart) < _MOST_PLACES:
            self._apart |= apart
        else:
            self._together.clear()
        return found

    def _swap(self, windows: Sequence[Sequence[Place]]) -> Swap | None:
        first = windows[0]  # two ranks that differ from each other cannot both agree with the first one
        for rank, other in enumerate(windows):
            for depth in range(_DEPTH + 1):
                mine, theirs = ([place.prefixes()[depth] for place in each] for each in (first, other))
                places = list(enumerate(zip(mine, theirs, strict=True)))
                at = {pair: n for n, pair in reversed(places)}
                for n, (p, q) in places:
                    if p != q and n < at.get((q, p), 0) and self._is_shared(p, q):
                        return Swap((0, rank), n, (p[1], q[1]))
        return None

    def _is_shared(self, *lines: Any) -> bool:
        return all(self._together.get(line, 0) >= _TOGETHER and line not in self._apart for line in lines)
