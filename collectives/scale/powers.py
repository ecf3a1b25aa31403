"""Power: what is known of one value along one axis, and the arithmetic of sets of possible powers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

__all__ = ["DATA", "UNKNOWN", "ZERO", "Event", "OwnMean", "Power", "Powers", "is_zero", "joint", "plus", "times"]

Powers = frozenset[Fraction | int] | None
"""The possible powers of the number of parts; None where they are unknown."""

ZERO: frozenset[Fraction | int] = frozenset((0,))


def plus(a: Powers, b: Powers) -> Powers:
    """The powers of a product."""
    return None if a is None or b is None else frozenset(x + y for x in a for y in b)


def times(a: Powers, degree: Fraction | int) -> Powers:
    """The powers of a homogeneous function of this degree."""
    return None if a is None else frozenset(degree * x for x in a)


def is_zero(powers: Powers) -> bool:
    """Whether 0 is the one whole power that is possible. A half is so only of a number that is the root of n."""
    return powers is not None and {x for x in powers if x == int(x)} == ZERO


class Event(NamedTuple):
    """A step that has changed a power, for messages: what it was, its place on the tape, and a number."""

    kind: str
    place: int
    number: float = 0.0


class OwnMean(NamedTuple):
    """A mean over the rows on one tape, which may be those of a microbatch.

    Attributes
    ----------
    number : float
        Their number, or the sum of their weights.
    elements : frozenset of float
        Of a plain number, the possible numbers of elements of each row: that of the elements of a microbatch is also
        that of the rows of as many microbatches. Infinity if it may be that of any.
    rest : float
        The product of the other plain numbers by which it is divided.
    """

    number: float
    elements: frozenset[float] = frozenset()
    rest: float = 1.0


class Power(NamedTuple):
    """The knowledge about a value along one axis. Sets of dimensions and counts are small.

    Attributes
    ----------
    powers : Powers
    base : Powers
        Of a value behind a sum over rows, the powers if no rows were missing in it; None if they are unknown.
    averaged : bool
        Whether it is a mean over elements of this rank.
    parts : bool
        Whether it is this rank's part of a value of all ranks: a cast from a Shard, or divided by the number of rows of
        all ranks. Then a sum over it certainly lacks the rows of the others.
    plain : bool
        Whether Varying data are among what it is computed from. Then a fault is likely, not proven.
    counts : frozenset of float
        Numbers of elements of this rank that were summed or averaged.
    weights : frozenset of float
        Sums of the weights that elements were multiplied by: of a mask its ones. A later sum is over so many.
    added : int
        The number of values that were added to it: rows by a sum, or values by ``+``; 1 after a mean.
    summands : int
        The number of scalars that were added by ``+`` since the last sum or mean over rows, whatever they are sums of.
    shares : frozenset of float
        The numbers of this rank's rows, or sums of its weights, by which its elements are divided: a sum is a mean.
    extents : frozenset of int
        The extents of the dimensions that were summed over.
    totals : frozenset of float
        The same of all ranks together, where they are known.
    items : frozenset of int
        The extents, of all ranks together, of divided dimensions that were summed over: numbers of items, which may be
        the number of ranks.
    whole : frozenset of int
        Dimensions that have met a whole dimension of a Replicated value, as features do. They are no rows.
    stacked : frozenset of int
        Dimensions along which the values of the ranks lie, after a gather.
    travelled : int
        1 for a value of another rank, and 2 for one that was added to others: perhaps to those of all ranks in turn.
    own_mean : OwnMean or None
        Where it is divided by the number of rows on this tape: the mean of one microbatch.
    once : int
        The place where a Replicated term was added, which counts on each rank; -1 without one.
    divisions : tuple of int
        The places of products and quotients with plain numbers that the ranks decide about together.
    terms : tuple of (int, float)
        The terms that it consists of: the count by which each is divided (0: none), and its weight.
    unsure : frozenset of str
        The axes along which the powers of ranks may differ, as they have not compared them. See `walk`.
    shifted_by_number : bool
        Whether a plain number was added to it. Then a nonlinear function of it is right for the power 0 alone.
    numbers : tuple of (float, Powers)
        The plain factors of one value of all ranks that are no multiples of their number, with the powers that each has
        added. If a product of them is 1, they are constants: see `without`.
    met : frozenset of int
        The places where rows of this rank have met each other, as in the statistics of a batch.
    has_unknown : bool
        Whether a term of unknown power was added, so that the powers are those of the other terms.
    events : tuple of Event
        The latest steps that have changed its powers.
    faults : tuple of Fault
        Faults that are certain wherever the value goes, such as unequal terms that were added.
    """

    powers: Powers = ZERO
    base: Powers = None
    averaged: bool = False
    parts: bool = False
    plain: bool = False
    counts: frozenset[float] = frozenset()
    weights: frozenset[float] = frozenset()
    added: int = 1
    summands: int = 1
    shares: frozenset[float] = frozenset()
    extents: frozenset[int] = frozenset()
    totals: frozenset[float] = frozenset()
    items: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    stacked: frozenset[int] = frozenset()
    travelled: int = 0
    own_mean: OwnMean | None = None
    once: int = -1
    divisions: tuple[int, ...] = ()
    terms: tuple[tuple[int, float], ...] = ((0, 1.0),)
    unsure: frozenset[str] = frozenset()
    shifted_by_number: bool = False
    numbers: tuple[tuple[float, Powers], ...] = ()
    met: frozenset[int] = frozenset()
    has_unknown: bool = False
    events: tuple[Event, ...] = ()
    faults: tuple[Fault, ...] = ()

    def shifted(self, by: int, event: Event | None = None) -> Power:
        """The power plus a number, and the step that has changed it."""
        events = self.events if event is None else (*self.events, event)[-_MOST_EVENTS:]
        return self.times(frozenset((by,)))._replace(events=events)

    def times(self, factor: Powers) -> Power:
        """The power of a product with a number whose powers are possible."""
        return self._replace(powers=plus(self.powers, factor), base=plus(self.base, factor))

    def complete(self) -> Power:
        """That of a sum over rows which is divided by their number: no rows are missing."""
        return self._replace(powers=_without(self.powers, min) if self.base is None else self.base)

    def partial(self) -> Power:
        """That of a sum over this rank's rows, one less than that of all rows."""
        powers = _without(self.powers, max) if self.base is None else plus(self.base, frozenset((-1,)))
        return self._replace(powers=powers)

    def divided(self, by: float) -> Power:
        """That of a quotient with a plain number, as far as the mean of a microbatch is concerned."""
        own = self.own_mean
        return self if own is None else self._replace(own_mean=own._replace(rest=own.rest * by))

    def without(self, added: Iterable[Powers]) -> Power:
        """That of a value to which numbers have added no power after all, though all these were possible."""
        value = self
        for more in added:
            value = value._replace(powers=_less(value.powers, more), base=_less(value.base, more))
        return value

    @property
    def is_fault(self) -> bool:
        """Whether 0 is certainly not the power."""
        return self.powers is not None and 0 not in self.powers


class Fault(NamedTuple):
    """A fault that is found before the objective: at a place on the tape, the values that meet there, and why.

    The kind is "added" for terms of unequal powers, and "function" for a function of a value of a wrong power.
    """

    kind: str
    place: int
    values: tuple[Power, ...]

    @property
    def is_plain(self) -> bool:
        """Whether it is likely and not proven: Varying data are involved, or the function may be meant."""
        return self.kind == "function" or any(value.plain for value in self.values)


def _without(powers: Powers, end: Callable[[frozenset[Fraction | int]], Fraction | int]) -> Powers:
    """The powers without the least or the largest, if there are others."""
    return powers if powers is None or len(powers) < 2 else powers - {end(powers)}


def _less(powers: Powers, added: Powers) -> Powers:
    """The powers to which `added` may have been added: all whose sums with it are among these."""
    if powers is None or not added:
        return powers
    found = {y - min(added) for y in powers}
    return frozenset([x for x in found if all(x + y in powers for y in added)]) or powers


_MOST_EVENTS = 8
UNKNOWN = Power(None)
DATA = Power(plain=True)


def joint(values: Iterable[Power]) -> tuple[Powers, bool]:
    """The powers of a sum of values, and whether no power is possible for all of them: unequal ones are added.

    Those of an unknown value are left out, if another is known: it does not make right a term that is wrong.
    """
    known = [value.powers for value in values]
    found: Powers = None
    for powers in known:
        if powers is not None:
            found = powers if found is None else found & powers
            if not found:
                return None, True
    return ZERO if not known else found, False
