"""The powers of plain numbers, and the evidence by which the ranks decide together what one counts.

A plain number may be the number of ranks, of this rank's rows, of all rows, or a constant. One rank alone cannot tell:
``/ 4`` beside 4 rows proves nothing if another rank has 5. So at an examined sum over the ranks each of them sends, for
every number on the way of its addend, the number and the counts of elements; and all apply `decide` to those of all.

=========================================  ==========================================================================
the number                                 decided
=========================================  ==========================================================================
divisor that is each rank's own count, or  "own": their mean
the sum of its weights, with or without
1e-8, and not that of all ranks nor n
divisor that is the count of all ranks     "all": the addends are parts, power -1
the number of values that all have added   "added": likewise, behind a sum in Python
factor that is each rank's own count       "rows": a mean becomes a sum again
its share of all rows, if these differ     "share": power -1, as parts. An equal share is 1/n
the mean of each rank's weights            "constant"
factor that is equal on all ranks, and no  "constant": power 0
count and no multiple or share of theirs
the same, but a multiple of n, or 1 over   "ranks": also that of n. The number of this rank's rows is another
it, or the root of n                       one; "root": also one half of a power
otherwise, as small counts, and n          undecided: all that `of_number` finds possible
=========================================  ==========================================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple

from .powers import ZERO

__all__ = [
    "COUNTS", "Division", "Evidence", "counted", "counts_rows", "added_by_all", "decide", "is_computed", "is_multiple",
    "is_of_all_axes", "is_twice", "is_weight", "may_be_of_all", "of_number", "own_count", "sums_of", "whole_divisor",
]  # fmt: skip

_LEAST_COUNT, _MOST_KINDS = 3, 4
COUNTS = ("own", "mean", "all", "added", "rows", "share")
"""The decisions by which the ranks know what a number counts. "mean" is "own", by the ranks along another axis."""


class Division(NamedTuple):
    """A product or a quotient with a plain number, as one rank sees it.

    Attributes
    ----------
    divisor : float
        A factor c counts as the divisor 1 / c.
    counts : tuple of int
        The numbers of this rank's elements that had been summed or averaged, in order.
    extents : tuple of int
        The extents of the dimensions that had been summed over, in order.
    others : tuple of float
        The number of values that had been added, and the sums of the weights of elements, in order.
    is_weight : bool
        Whether it is a factor such as 0.1 or 0.05, as the weights of penalties are.
    summands : int
        The number of scalars that had been added by ``+``. It counts rows only where it differs on the ranks: equal
        ones may be parts of as many things.
    later : tuple of int
        The counts behind the sums over other axes that follow, in order; () without one.
    """

    divisor: float
    counts: tuple[int, ...]
    extents: tuple[int, ...] = ()
    others: tuple[float, ...] = ()
    is_weight: bool = False
    summands: int = 1
    later: tuple[int, ...] = ()

    @property
    def _numbers(self) -> tuple[float, ...]:
        """The numbers that a divisor may be. Of many sums, as those of sequences, each counts the elements of one."""
        return (*self.counts, *self.others) if len(self.counts) <= _MOST_KINDS else self.others

    @property
    def counted(self) -> float | None:
        """The number of this rank's that the divisor is; None without one."""
        return counted(self.divisor, self._numbers)

    @property
    def counted_factor(self) -> float | None:
        """The number of this rank's by which it multiplies; None without one."""
        return counted(1 / self.divisor, (*self.counts, *self.others[1:])) if self.divisor < 1 else None

    @property
    def is_half(self) -> bool:
        """Whether the divisor is twice such a number, as behind a half of squares."""
        return self.divisor > 2 * _LEAST_COUNT and own_count(self.divisor, self._numbers) is not None

    @property
    def is_share(self) -> bool:
        """Whether the divisor is the mean of the weights, behind a mean of weighted elements."""
        return counted(self.divisor, [w / k for w in self.others[1:] for k in self.counts if 0 < w < k]) is not None

    @property
    def is_empty(self) -> bool:
        """Whether this rank has no rows, or a mask without ones, and divides by 1 or a small number in their place."""
        return self.divisor <= 1 and (not any(self.counts) or 0 in self.others)


class Evidence(NamedTuple):
    """The knowledge of one rank about its addend.

    Attributes
    ----------
    divisions : tuple of Division
        In the order of the tape.
    terms : tuple of (int, float)
        Of the terms that are divided by a count: the count, and the weight.
    counts : tuple of int
        Numbers of its elements that were summed or averaged, in order.
    is_mean : bool
        Whether it is a mean over elements of this rank.
    extents : tuple of int
        Of the dimensions that were summed over, in order.
    digest : int
        Of the powers along all axes without the undecided numbers.
    others : tuple of float
        As those of a division.
    """

    divisions: tuple[Division, ...] = ()
    terms: tuple[tuple[int, float], ...] = ()
    counts: tuple[int, ...] = ()
    is_mean: bool = False
    extents: tuple[int, ...] = ()
    digest: int = 0
    others: tuple[float, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows that the messages show."""
        return min(self.counts, default=max((count for count, _ in self.terms), default=0))

    def encode(self) -> str:
        """The evidence as a text, which is a part of a statement."""
        terms = [[count, float(f"{abs(weight):.10g}")] for count, weight in self.terms]
        return json.dumps([self.divisions, terms, *self[2:]])

    @staticmethod
    def decode(text: str) -> Evidence:
        """The evidence from a text that `encode` made."""
        divisions, terms, *rest = json.loads(text)
        return Evidence(
            tuple(Division(*map(_tuples, each)) for each in divisions), tuple(map(tuple, terms)), *map(_tuples, rest)
        )


def _tuples(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x


def counted(divisor: float, numbers: Iterable[float]) -> float | None:
    """The number that a divisor is, up to rounding, or but for a power of ten that keeps it from 0; None without one.

    Examples
    --------
    >>> counted(4.000001, (12, 4)), counted(2.7182818, (2.718281828,)), counted(4.2, (12, 4))
    (4, 2.718281828, None)
    """
    for k in numbers:
        more = divisor - k
        if abs(more) <= (1e-9 if k == int(k) else 1e-6) * k:
            return k
        if 0 < more <= 0.02 and abs(more / 10 ** round(math.log10(more)) - 1) < 0.01 + 1e-6 * k / more:
            return k
    return None


def own_count(divisor: float, numbers: Sequence[float]) -> float | None:
    """The number that a divisor is, or twice that number, as behind a half of squares; None without one."""
    found = counted(divisor, numbers)
    if found is None and not is_power_of_ten(whole_divisor(divisor)):
        half = counted(divisor / 2, numbers)
        return None if half is None else 2 * half
    return found


def whole_divisor(divisor: float) -> int:
    """The integer that a divisor is, up to rounding; 0 if it is none, or smaller than 2."""
    k = round(divisor) if 1.5 < divisor < 1e15 else 0
    return k if k and abs(divisor - k) <= 1e-9 * k else 0


def is_power_of_ten(k: int) -> bool:
    return k > 1 and str(k).rstrip("0") == "1"


def is_weight(k: int) -> bool:
    """Whether 1 / k is a usual weight of a penalty, as 0.1, 0.05 and 1e-4 are."""
    return k >= 10 and str(k).rstrip("0") in ("1", "2", "5")


def is_computed(c: float) -> bool:
    """Whether a number is neither a short decimal, nor an integer or its root, nor one over these: it was computed.

    Examples
    --------
    >>> is_computed(47.38121905), is_computed(0.07), is_computed(8**0.5), is_computed(1 / 3)
    (True, False, False, False)
    """
    c = abs(c)
    return float(f"{c:.6g}") != c and not any(
        abs(each - round(each)) < 1e-9 * each for each in (c, 1 / c, c * c, 1 / (c * c))
    )


def of_number(c: float, n: int, is_varying: bool) -> frozenset[Fraction | int]:
    """The possible powers of a plain factor along an axis of `n` ranks; those of a divisor are the negative ones.

    Examples
    --------
    >>> sorted(of_number(12.0, 4, True)), sorted(of_number(5.0, 4, False)), sorted(of_number(0.25, 4, True))
    ([-1, 0, 1], [-1, 0], [-1, 0, 1])
    """
    c = abs(c)
    if c in (0.0, 1.0) or not math.isfinite(c):
        return ZERO
    found: set[Fraction | int] = {0}
    if k := whole_divisor(c):
        found.add(-1)  # a count of this rank's rows
        if k % n == 0:
            found.add(1)  # n, or a multiple of it, as n times the rows of a rank
    elif k := whole_divisor(1 / c):
        if is_varying:
            found |= {1, -1}  # 1 by a count of this rank's rows, or a share of all rows
        if k % n == 0 and (is_varying or k == n or not is_weight(k)):
            found.add(-1)
    elif is_varying:
        found |= {-1, 1}  # a share of all rows, such as len(rows) / N; or a ratio of numbers
    for power, square in zip((1, -1), _squares(c), strict=True):
        if square == n:
            found.add(Fraction(power, 2))  # the root of n, before a sum and behind it
    return frozenset(found)


def decide(divisions: Sequence[Division], n: int) -> str:
    """The kind of a number, from the evidence of all ranks; see the table of this module. "" if it is undecided.

    Examples
    --------
    >>> decide([Division(5.0, (5,)), Division(4.0, (4,)), Division(3.0, (3,))], 3)
    'own'
    >>> decide([Division(12.0, (5,)), Division(12.0, (4,)), Division(12.0, (3,))], 3)
    'all'
    >>> decide([Division(2.0, (5,)), Division(2.0, (4,)), Division(2.0, (3,))], 3)
    'constant'
    >>> decide([Division(2.0, (5,))] * 2, 2), decide([Division(2.0, (5,))] * 4, 4)
    ('ranks', 'root')
    >>> decide([Division(1 / 5, (5,)), Division(1 / 4, (4,))], 2)  # 5 times the mean over 5 rows
    'rows'
    >>> decide([Division(9 / 5, (5,)), Division(9 / 4, (4,))], 2)
    'share'
    """
    is_equal = len({each.divisor for each in divisions}) == 1
    if not is_equal:  # a rank without rows, which divides by 1, has no part in it
        divisions = [each for each in divisions if not each.is_empty] or divisions
    found = [k for each in divisions if (k := each.counted) is not None]
    sums = sums_of(divisions) | added_by_all(divisions)
    if max([each.summands for each in divisions], default=1) >= _LEAST_COUNT:  # of a loop: its steps on all ranks
        sums |= {sum(each.summands for each in divisions)}
    if len(found) == len(divisions):
        is_small = max(found) < _LEAST_COUNT and all(k == int(k) for k in found)
        return "" if is_small or (is_equal and _may_be_other(found[0], divisions, sums, n)) else "own"
    if _are_rows([each.counted_factor for each in divisions], n):
        return "rows"
    are_halves = all(each.is_half for each in divisions)
    return _decide_equal(divisions, are_halves, sums, n) if is_equal else _decide_unequal(divisions, are_halves)


def _decide_equal(divisions: Sequence[Division], are_halves: bool, sums: set[float], n: int) -> str:
    """The kind of a number that is the same on the ranks, and is none of their counts."""
    divisor = divisions[0].divisor
    if counted(divisor, sums_of(divisions)):
        return "all"
    if counted(divisor, added_by_all(divisions)):
        return "added"
    if are_halves and not _may_be_other(divisor, divisions, sums, n):
        return "own"
    known = {count for each in divisions for count in (*each.counts, *each.extents)}
    known |= {int(k) for each in divisions for k in each.others if k == int(k) and k > 1}
    if divisions[0].is_weight and divisor != n:
        return "constant"
    if _may_count(divisor, known, n):
        return ""
    if is_multiple(divisor, n):
        return "ranks" if known else ""
    return "root" if n in _squares(divisor) else "constant"


def _decide_unequal(divisions: Sequence[Division], are_halves: bool) -> str:
    """The kind of a number that differs on the ranks, and is none of their counts."""
    if all(each.is_share for each in divisions):
        return "constant"
    if _are_shares(divisions):
        return "share"
    summands = [each.summands for each in divisions]
    is_number = max(summands) >= _LEAST_COUNT and all(
        own_count(each.divisor, (each.summands,)) is not None for each in divisions
    )
    return "own" if are_halves or is_number else ""


def _are_rows(factors: Sequence[float | None], n: int) -> bool:
    """Whether numbers by which the ranks multiply are counts of theirs, and large enough to be no others."""
    known = [k for k in factors if k is not None]
    return len(known) == len(factors) and max(known) >= _LEAST_COUNT and set(known) != {n}


def _are_shares(divisions: Sequence[Division]) -> bool:
    """Whether each rank multiplies by its part of what all ranks have counted."""
    columns = [
        *_columns([each.counts for each in divisions]), *_columns([each.others for each in divisions]),
        tuple([each.summands for each in divisions]),
    ]  # fmt: skip
    parts = [1 / each.divisor for each in divisions]
    return any(
        len(set(column)) > 1
        and all(abs(k - part * sum(column)) <= 1e-6 * k for k, part in zip(column, parts, strict=True))
        for column in columns
    )


def is_of_all_axes(divisions: Sequence[Division]) -> bool:
    """Whether a divisor counts the rows of the ranks along several axes, along which sums have followed it."""
    if len({each.divisor for each in divisions}) != 1 or not all(each.later for each in divisions):
        return False
    return counted(divisions[0].divisor, _sums(_alike([each.later for each in divisions]))) is not None


def is_twice(numbers: Sequence[Iterable[float]], divisions: Sequence[Division]) -> bool:
    """Whether the divisor of each rank is twice one of its numbers, as behind a half of squares."""
    return all(
        counted(each.divisor, [2 * k for k in known]) is not None
        for known, each in zip(numbers, divisions, strict=True)
    )


def counts_rows(decided: Mapping[str, str]) -> bool:
    """Whether ranks along some axes have decided that a number counts rows."""
    return not {"own", "all", "added"}.isdisjoint(decided.values())


def _may_be_other(k: float, divisions: Sequence[Division], sums: set[float], n: int) -> bool:
    """Whether a number that is a count of each rank may as well be n, a count of all ranks, or a weight."""
    if k in (n, *sums):
        return True
    is_round = divisions[0].is_weight and is_power_of_ten(int(k))
    return is_round or any(may_be_of_all(k, each.extents, n) for each in divisions)


def may_be_of_all(k: float, extents: Sequence[int], n: int) -> bool:
    """Whether a number of elements of a rank may be the number of rows of all: there are n features, or so.

    Examples
    --------
    >>> may_be_of_all(12, (3, 4), 3), may_be_of_all(4, (3, 4), 3)    # 4 rows of 3 features on each of 3 ranks
    (True, False)
    """
    if k % n or n not in extents:
        return False
    return any(math.prod(some) == k // n for m in range(1, len(extents) + 1) for some in combinations(extents, m))


def sums_of(found: Sequence[Division] | Sequence[Evidence]) -> set[float]:
    """The numbers of elements that all ranks have summed together; none if they have summed different kinds."""
    counts = [each.counts for each in found if any(each.counts)] or [each.counts for each in found]
    if any(len(each) > _MOST_KINDS for each in counts):
        counts = []  # of many sums, as those of sequences, the numbers in order do not belong together
    return (_sums(_alike(counts)) | _sums([each.others[1:] for each in found])) - {0, len(found)}


def added_by_all(found: Sequence[Division] | Sequence[Evidence]) -> set[float]:
    """The number of values that all ranks have added, where any has added some."""
    return _sums([each.others[:1] for each in found]) - {0, len(found)}


def _sums(columns: Sequence[tuple[float, ...]]) -> set[float]:
    return {sum(column) for column in _columns(columns)}


def _alike(counts: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
    """The counts of the ranks; where some have more kinds than others, as of pairs, those of all elements."""
    return [(max(each),) for each in counts] if len(set(map(len, counts))) > 1 and all(counts) else counts


def _columns(counts: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The numbers of all ranks that belong together, if they have equally many."""
    return list(zip(*counts, strict=True)) if len(set(map(len, counts))) == 1 else []


def _squares(c: float) -> tuple[int, int]:
    """The integers whose root a number is, or one over it; 0 where there is none."""
    return whole_divisor(c * c), whole_divisor(1 / (c * c))


def _may_count(divisor: float, counts: set[int], n: int) -> bool:
    """Whether a number that is equal on all ranks may be a multiple or a share of a number of rows, or about n."""
    number = _whole(divisor)
    return any(number % count == 0 for count in counts if count) if number else abs(divisor - n) < 1e-6 * n


def is_multiple(divisor: float, n: int) -> bool:
    """Whether a number is a multiple of n, or one over it."""
    return _whole(divisor) > 0 and _whole(divisor) % n == 0


def _whole(divisor: float) -> int:
    return max(whole_divisor(1 / divisor) if divisor else 0, whole_divisor(divisor))
