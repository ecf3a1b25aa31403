"""The table of rows: the power rules of operations and collectives that do not follow from their declarations.

Most rules do. The letters of an operation say in which operands it is jointly linear, linear, or nonlinear; its `dims`
say which dimensions it sums over, and which ones meet; `degree` and `sensitive` how a nonlinear function shows the
scale of its argument. `of_operation` reads them. `OPERATIONS` is the rest, which a number or an option decides.
`COLLECTIVES` has the collectives, which are told apart by what they do with the values of the ranks. What is in no
table and nonlinear, or a collective of the program's own, gives an unknown power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np

from autograd.layouts.layout import C, D, I, Label, Mix, P, R, Shard, Sum, V

from .dimensions import Dimensions
from .numbers import COUNTS, counted, is_computed, is_multiple, of_number, own_count, whole_divisor
from .powers import DATA, ZERO, Event, Fault, OwnMean, Power, Powers, is_zero, joint, plus, times
from .uses import NORMALISED, Use, counts_of_sum, items_of, totals_of, unsure_of, weights_of

__all__ = ["COLLECTIVES", "OPERATIONS", "is_open", "of_operation", "over_ranks", "scaled"]


# -- what follows from a declaration -----------------------------------------------------------------------------------
_COPIES = (R, I)
_CONSTANT = (C, D, None)
_NONE: frozenset[Any] = frozenset()


def of_operation(use: Use) -> Power:
    """The power of a result, from the letters and the dimensions that the operation declares."""
    powers, faults, once = _combined(use)
    base: Powers = None
    if any(each is not None and each.base is not None for each in use.inputs):
        complete = tuple([each and (each if each.base is None else each.complete()) for each in use.inputs])
        base = _combined(use._replace(inputs=complete))[0] or None
    return _result(use, powers, base, faults, once)


def _combined(use: Use) -> tuple[Powers, tuple[Fault, ...], int]:
    """The powers of a result apart from sums, the faults, and the place of a term that counts on each rank."""
    powers: Powers = ZERO
    faults: tuple[Fault, ...] = ()
    once = -1
    for letter in dict.fromkeys(use.letters.replace("S", "")):
        members = [i for i, each in enumerate(use.letters) if each == letter]
        if letter == "N" and use.op.degree is None:
            found = ZERO if all(_is_right(use, _seen(use, i)) for i in members) else None
            faults += _of_function(use, members)
        else:
            terms = _Terms(use, members)
            found, fault, times_ranks = terms.joined()
            once = max(once, use.place if times_ranks else -1)
            faults += (Fault("added", use.place, tuple(terms.on_tape)),) if fault else ()
            if letter == "N":
                is_shifted = _may_be_right(found) and any(each.shifted_by_number for each in terms.on_tape)
                found = ZERO if is_shifted else times(found, Fraction(use.op.degree).limit_denominator(64))
        powers = plus(powers, found)
    return powers, faults, once


def _is_right(use: Use, value: Power) -> bool:
    """Whether 0 is the power of an operand of a nonlinear function, or is possible, and right alone."""
    is_alone = bool(use.op.sensitive) or value.shifted_by_number
    return _may_be_right(value.powers) if is_alone else is_zero(value.powers)


def _may_be_right(powers: Powers) -> bool:
    """Whether 0 is among the powers of an argument: of any other power it is wrong, whatever follows."""
    return powers is not None and 0 in powers


def _of_function(use: Use, members: Sequence[int]) -> tuple[Fault, ...]:
    """The fault of a function whose argument is certainly of a wrong scale, which nothing behind it can mend."""
    if use.op.sensitive is not True or use.out is V:
        return ()
    wrong = [power for i in members if (power := use.inputs[i]) is not None and power.is_fault]
    return () if any(power.plain or power.has_unknown for power in wrong) else tuple(
        [Fault("function", use.place, (power,)) for power in wrong[:1]]
    )  # fmt: skip


def _seen(use: Use, i: int) -> Power:
    """The power of an operand; of one that is not on the tape, that of data."""
    known = use.inputs[i]
    if known is not None:
        return known
    return DATA if use.labels[i] is V else Power()


_PER_RANK = frozenset((-1,))


class _Terms:
    """The operands in which an operation is jointly linear, as the terms of a sum."""

    def __init__(self, use: Use, members: Sequence[int]):
        self.use = use
        pairs = [(power, use.labels[i]) for i in members if (power := use.inputs[i]) is not None]
        self.on_tape = [power for power, _ in pairs]
        self.varying = [power for power, label in pairs if label is V]
        self.copies = [power for power, label in pairs if label is R]
        self.has_data = any(use.inputs[i] is None and use.labels[i] not in _CONSTANT for i in members)

    def joined(self) -> tuple[Any, bool, bool]:
        """The powers of the sum, whether unequal terms are a fault, and whether a term counts once on each rank.

        Data that are added have no gradient: they leave the powers as they are, where 0 is among them.
        """
        powers, is_unequal = joint(self.on_tape)
        if self.use.out is V and any(power.powers is None for power in self.on_tape):
            powers, is_unequal = None, False  # each rank's own values: they may be selected before they meet
        if self.varying and self.copies:
            if is_unequal and self.use.op.name == "subtract" and self.copies[0].is_fault:
                return None, not self.varying[0].is_fault, False  # a baseline
            if self.use.out is V and self.use.op.number == "shifts":
                return self._with_copies(powers)
        if is_unequal and self.use.out is V and self._are_certain():
            return None, True, False
        if is_unequal and self.use.out is V:
            return None, False, False  # each of them may be right for what the program does next
        if self.has_data and powers is not None and 0 not in powers:
            return None, False, False
        return powers, is_unequal, False

    def _are_certain(self) -> bool:
        """Whether the terms are means over rows, parts of such means, and terms that were divided by the number of
        ranks, to which the sum over the ranks adds one."""
        is_sum = self.use.op.number == "shifts" and len(self.varying) == len(self.on_tape)
        return is_sum and all(
            each.powers == _PER_RANK or (each.powers and (each.averaged or each.parts) and each.counts)
            for each in self.varying
        )

    def _with_copies(self, powers: Any) -> tuple[Any, bool, bool]:
        """A Replicated term beside a Varying one, of which each rank has its own: it counts once on each rank."""
        own = self.varying[0]
        if own.averaged and powers is None and None not in (own.powers, self.copies[0].powers):
            return None, True, False  # one more for both by the sum over the ranks: they stay unequal
        if self.copies[0].powers is None or 0 not in self.copies[0].powers or own.averaged:
            return powers, False, False  # a local mean may be divided by the number of ranks later
        return own.powers if powers is None else powers, False, True


class _Sums(NamedTuple):
    """The powers and the counts behind the sums of an operation, over rows of this rank and over ranks."""

    powers: Powers
    base: Powers
    counts: frozenset[float]
    extents: frozenset[int]
    totals: frozenset[float]
    items: frozenset[int]
    unsure: frozenset[str]
    added: int
    is_mean: bool


def _sums(use: Use, given: Sequence[Power], of: Power, dims: Dimensions, powers: Powers, base: Powers) -> _Sums:
    counts, extents, is_mean = of.counts, of.extents, False
    added = _added(use, given)
    if dims.extents and use.out is V and len(use.letters) == 1 and use.letters != "N":
        added *= dims.elements  # of features, too: they are elements of a later sum over rows
    if added > 1 and base is None:
        base = powers
    if dims.is_sum and use.out is V:
        base = powers if base is None else base
        counts, extents = counts_of_sum(dims, counts | {of.added}), extents.union(dims.extents)
        added, is_mean = dims.rows, not of.shares.isdisjoint(counts | of.weights | NORMALISED)
        powers = powers if is_mean else _of_sum(powers, of.parts and dims.is_complete)
    totals, items, unsure = of.totals, of.items, of.unsure
    if use.out is P:  # else there are no parts, which saves three calls
        totals, items, unsure = totals_of(use) or totals, items | items_of(use), unsure | unsure_of(use)
    if dims.is_over_ranks:
        base = powers if base is None else base
        totals |= {dims.elements} - {use.n}
        counts |= {k // use.n for k in totals if not k % use.n}
    return _Sums(powers, base, counts, extents, totals, items, unsure, added, is_mean)


def _result(use: Use, powers: Any, base: Powers, faults: tuple[Fault, ...], once: int) -> Power:
    """The power of a result, with what its dimensions say: which are whole, and over which the operation sums."""
    given = [each for each in use.inputs if each is not None]
    of = given[0] if len(given) == 1 else _of_all(given or [Power()])
    dims = Dimensions(use.maps, use.inputs, use.labels, use.shapes)
    varying, sums = use.out is V, _sums(use, given, of, dims, powers, base)
    is_nonlinear = "N" in use.letters and use.op.degree is None
    weights = weights_of(use) if is_nonlinear else of.weights | weights_of(use)
    shares = _NONE if "N" in use.letters or not varying else of.shares | (weights & NORMALISED)
    is_own = varying or bool(dims.stacked) or dims.is_over_ranks
    value = Power(
        powers=sums.powers, base=sums.base if varying or dims.is_over_ranks or _is_of_each(use, given) else None,
        averaged=is_own and (of.averaged or sums.is_mean), parts=is_own and of.parts,
        plain=of.plain or _meets_data(use), counts=sums.counts, weights=weights, added=sums.added,
        shares=_NONE if sums.is_mean else shares, extents=sums.extents,
        summands=1 if dims.is_sum else of.summands if len(given) < 2 else _summands(use, given),
        totals=sums.totals, items=sums.items, stacked=dims.stacked,
        whole=of.whole if use.op.name in _SAME_SHAPE else dims.whole,
        travelled=_travelled(use, dims),
        own_mean=of.own_mean if _is_own_mean(use, dims.is_sum) else None, once=_once(use, once),
        unsure=sums.unsure, shifted_by_number=_is_shifted(use, of.shifted_by_number, given),
        numbers=_numbers(use, of) if of.numbers else (),
        divisions=of.divisions if varying else (), terms=_terms(use, given), met=of.met,
        has_unknown=sums.powers is not None and (of.has_unknown or of.powers is None),
        events=of.events[-8:], faults=of.faults + faults,
    )  # fmt: skip
    return over_ranks(value, Event("ranks", use.place)) if dims.is_over_ranks else value


def _travelled(use: Use, dims: Dimensions) -> int:
    """1 for a result of values of other ranks, of one that was sent or a slice of those of all; 2 if it adds them."""
    given = [(letter, each) for letter, each in zip(use.letters, use.inputs, strict=False) if each is not None]
    if len(given) == 1 and not (given[0][1].travelled or given[0][1].stacked):  # the usual case
        return 0
    level = max([each.travelled for _, each in given], default=0)
    if any(each.stacked for _, each in given) and not (dims.stacked or dims.is_over_ranks):
        level = max(level, 1)
    varying = [letter for i, letter in enumerate(use.letters) if use.inputs[i] is not None and use.labels[i] is V]
    return 2 if level and len(varying) > len(set(varying)) else level


def _is_of_each(use: Use, given: Sequence[Power]) -> bool:
    """Whether each element of a result is one of the operand, times a number, or a sum of such; none of a gather."""
    return use.op.name in _OF_TERMS or (use.op.name == "getitem" and not any(each.stacked for each in given))


def _is_shifted(use: Use, is_shifted: bool, given: Sequence[Power]) -> bool:
    """Whether a plain number is a term of a result, of operands of which one has such a term or none."""
    if not is_shifted and len(given) == 1 and use.op.number == "shifts":
        off = next((i for i, each in enumerate(use.inputs) if each is None), 0)
        is_shifted = use.shapes[off] == () and use.labels[off] in _CONSTANT
    return is_shifted and "N" not in use.letters


def _numbers(use: Use, value: Power) -> tuple[tuple[float, Powers], ...]:
    """The plain numbers in one operand that a linear operation passes on."""
    letters = [letter for letter, each in zip(use.letters, use.inputs, strict=False) if each is not None]
    return () if "N" in letters or use.out is V else value.numbers


def _of_all(given: Sequence[Power]) -> Power:
    """The powers of any of several operands, which are unknown if those of one are."""
    lists = [(each.divisions, each.events, each.faults) for each in given]
    divisions, events, faults = (tuple(dict.fromkeys(chain.from_iterable(each))) for each in zip(*lists, strict=True))
    sets = [
        (each.counts, each.weights, each.shares, each.extents, each.totals, each.items, each.unsure, each.met)
        for each in given
    ]  # fmt: skip
    sets_of_all = (_NONE.union(*each) for each in zip(*sets, strict=True))
    counts, weights, shares, extents, totals, items, unsure, met = sets_of_all
    return Power(
        powers=None if None in [each.powers for each in given] else ZERO,
        averaged=True in [each.averaged for each in given], parts=True in [each.parts for each in given],
        plain=True in [each.plain for each in given], own_mean=next((x.own_mean for x in given if x.own_mean), None),
        has_unknown=True in [each.has_unknown for each in given],
        shifted_by_number=True in [each.shifted_by_number for each in given], counts=counts, weights=weights,
        shares=shares,
        extents=extents, totals=totals, items=items, unsure=unsure, met=met, divisions=divisions, events=events,
        faults=faults,
    )  # fmt: skip


_SAME_SHAPE = frozenset(("softmax", "log_softmax", "layer_norm", "rms_norm", "normalize"))


def _added(use: Use, given: Sequence[Power]) -> int:
    """The number of rows and of other values that were added: of ``+`` if they are scalars, as losses are."""
    if use.out is not V or use.op.name not in (*_OF_TERMS, "sum"):
        return 1
    if use.op.number != "shifts" or any(use.shapes):
        return max([each.added for each in given], default=1)
    return sum(each.added for each in given)


def _summands(use: Use, given: Sequence[Power]) -> int:
    """The number of scalars that were added by ``+``, whatever they are sums of."""
    known = [each.summands for each in given] or [1]
    is_sum = use.out is V and use.op.number == "shifts" and not any(use.shapes)
    return sum(known) if is_sum else max(known)


def _is_own_mean(use: Use, is_sum: bool) -> bool:
    """Whether a result is still a mean over the rows on this tape alone: no sum of several, nor one with a weight."""
    letters = {letter for letter, each in zip(use.letters, use.inputs, strict=True) if each is not None}
    return len(letters) == 1 and not is_sum and use.op.name != "sum"


def _once(use: Use, once: int) -> int:
    """The place of a term that counts on each rank: `once`, or one behind an operation that only scales."""
    if once >= 0 or use.op.name not in SCALINGS:
        return once
    own = [each for each, label in zip(use.inputs, use.labels, strict=True) if each is not None and label is V]
    return own[0].once if len(own) == 1 else -1


def _of_sum(powers: Any, parts: bool) -> Any:
    """The powers of a sum over elements of this rank: of all elements of parts exactly one less, else perhaps."""
    less = plus(powers, frozenset((-1,)))
    return less if parts or powers is None or less is None else powers | less


def _meets_data(use: Use) -> bool:
    """Whether an operand that is not on the tape is Varying data."""
    return any(
        state is None and label is V and letter != "S"
        for state, label, letter in zip(use.inputs, use.labels, use.letters, strict=False)
    )


SCALINGS = frozenset(("multiply", "divide", "negative", "reshape", "astype"))
_OF_TERMS = SCALINGS | {"add", "subtract"}
_UNWEIGHTED = frozenset(("sum", "reshape", "squeeze", "expand_dims", "negative", "astype"))
_ONE_TERM = ((0, 1.0),)
_MOST_TERMS = 16


def _terms(use: Use, given: Sequence[Power]) -> tuple[tuple[int, float], ...]:
    """The counts and weights of the terms of a Varying value; see `Power`."""
    if use.out is not V:
        return _ONE_TERM
    if use.op.number == "shifts":
        return tuple(term for each in given for term in each.terms)[:_MOST_TERMS]
    return given[0].terms if use.op.name in _UNWEIGHTED and given else _ONE_TERM


# -- numbers -----------------------------------------------------------------------------------------------------------
def _scalar(x: Any) -> float | None:
    """A plain number among the operands, as a float."""
    if x is None or np.shape(x) != () or np.iscomplexobj(x) or not isinstance(x, int | float | np.number | np.ndarray):
        return None
    return float(x)


def scaled(use: Use, i: int, sign: int) -> Power:
    """The power of a product (`sign` 1) or a quotient (-1) of a value with the number that is operand `i`."""
    value = of_operation(use)
    label, c = use.labels[1 - i], _scalar(use.arrays[i])
    if use.number is not None:
        value = _by_remembering(use, value, sign, label)
    elif c is not None and use.labels[i] in _COPIES:
        value = _by_count(use, value, c, sign, label)
    elif c is not None:
        value = _by_plain(use, value, c, sign, label)
    elif use.labels[i] is not V or use.shapes[i] == ():
        value = value._replace(powers=None)
    return _reweighted(use, value, c, sign)


def _by_remembering(use: Use, value: Power, sign: int, label: Label | None) -> Power:
    """A value times or by a number that remembers what it counts."""
    number = use.number
    if label is V and is_open(number):  # the extent of a whole value along this axis, or along others: the ranks decide
        return _by_plain(use, value, float(number), sign, label)
    if number.rest not in (1, -1):
        value = _by_plain(use, value, number.rest, sign, label)
    size = abs(float(number)) or 1.0
    count = max(size, 1 / size)  # of whole rows: one over it is less than 1
    is_divisor = (size >= 1) == (sign < 0) if number.counts == "all" else sign < 0
    if number.counts == "all":
        is_own = is_divisor and round(count / abs(number.rest)) in value.totals
        value = value._replace(own_mean=OwnMean(count, rest=abs(number.rest)) if is_own else None)
    if number.counts and is_divisor:
        value = _by_rows(use, value._replace(items=_NONE), label)  # a mean over the items now
    power = sign * sum(each for axis, each in number.powers if axis in (use.axis, "*"))
    if label is V and not power and number.powers:  # the mean along another axis: a divisor may lack its size
        value = value._replace(counts=value.counts | {k // int(count) for k in value.counts if not k % int(count)})
    if power == -1 and round(count) in value.items:  # or the mean of one of each rank
        return value.times(frozenset((-1, 0)))._replace(items=_NONE)
    return value.shifted(power, Event("size", use.place, power)) if power else value


def _by_rows(use: Use, value: Power, label: Label | None) -> Power:
    """A value that is divided by a number that remembers whose rows it counts."""
    if label is not V or value.powers is None:
        return value
    if use.number.counts == "own":
        return _averaged(use, value, float(use.number))
    return value.partial()._replace(parts=True) if value.counts else value


def _by_count(use: Use, value: Power, c: float, sign: int, label: Label | None) -> Power:
    """A value by a number that was computed off the tape. It may count anything, where the ranks do not know."""
    found = _by_plain(use, value, c, sign, label)
    is_known = use.decided in COUNTS or (
        label is not V and c != 0 and counted(abs(c) if sign < 0 else 1 / abs(c), value.totals) is not None
    )
    return found if is_known else found._replace(powers=None, base=None)


def is_open(number: Any) -> bool:
    """Whether a number that remembers counts the rows of a whole value, and no ranks."""
    return getattr(number, "counts", "") == "all" and not number.powers


def _reweighted(use: Use, value: Power, c: float | None, sign: int) -> Power:
    if use.out is not V or c is None or not math.isfinite(c):
        return value
    state = use.first
    is_count = sign < 0 and abs(c) >= 1 and float(c).is_integer()
    by = c if sign > 0 else 1 / (c or 1)
    return value._replace(
        terms=tuple(
            (max(count, 1) * int(abs(c)) if is_count else count, weight * by) for count, weight in state.terms
        )
    )


def _by_plain(use: Use, value: Power, c: float, sign: int, label: Label | None) -> Power:
    """A value times or by a plain number, as far as the ranks have decided what it is."""
    if c in (1.0, -1.0) and label is not V:  # else it may be that of a rank with one row, or with none
        return value
    if not c or not math.isfinite(c):
        return value._replace(own_mean=None)
    divisor = abs(c) if sign < 0 else 1 / abs(c)
    if value.powers is None:  # the ranks decide nevertheless: what they decide of a number before it may make it known
        is_open = label is V and not use.decided
        value = value.divided(divisor)
        return value._replace(divisions=(*value.divisions, use.place)) if is_open else value
    k = counted(divisor, value.totals) or whole_divisor(divisor)
    if use.decided == "left out":
        return value
    return _by_decided(use, value, c, sign, divisor) if label is V else _of_whole(use, value, c, sign, k)


def _by_decided(use: Use, value: Power, c: float, sign: int, divisor: float) -> Power:
    """A Varying value times or by a plain number."""
    if use.decided in ("own", "mean"):
        own = own_count(divisor, (*value.counts, *value.weights, value.added, value.summands))
        if use.is_of_others:  # the ranks along this axis have not decided yet: it may count their rows, too
            value = value._replace(divisions=(*value.divisions, use.place))
        if own is None and use.decided == "mean" and value.base is not None:
            own = divisor
        if own is None:  # the elements are divided before they are summed
            return value._replace(shares=value.shares | {counted(divisor, (round(divisor),)) or divisor})
        return _averaged(use, value, own)
    if use.decided == "share":
        return _with_rows(value).partial()._replace(parts=True) if value.averaged else value.times(_PER_RANK)
    if use.decided == "rows" and value.averaged:
        return _with_rows(value)
    if use.decided in ("all", "added"):
        is_before = not value.counts or (value.base is None and (use.decided == "added" or not value.averaged))
        # likewise: no rows are missing then
        made = value.times(_PER_RANK)._replace(shares=value.shares | NORMALISED) if is_before else value.partial()
        return made._replace(parts=True, own_mean=_own_mean(value, divisor, use.n))
    value = value.divided(divisor)
    if use.decided == "constant":
        return value
    powers = of_number(c, use.n, True)
    if use.decided == "root" and (roots := frozenset(x for x in powers if x != int(x))):
        return value.times(times(roots | ZERO, sign))
    if use.decided == "ranks" and is_multiple(divisor, use.n):
        return value.times(frozenset((0, -1 if divisor > 1 else 1)))
    value = value._replace(divisions=(*value.divisions, use.place))
    more = frozenset((-1, 0, 1)) if use.decided == "open" else ZERO
    return value.times(times(powers | more, sign))


def _with_rows(value: Power) -> Power:
    """The sum over this rank's rows again, of their mean times their number."""
    return value._replace(
        powers=_of_sum(value.powers, False), base=value.powers, averaged=False, own_mean=None,
        added=max((int(k) for k in value.counts), default=1),
    )  # fmt: skip


def _own_mean(value: Power, count: float, n: int) -> OwnMean:
    """A mean by a plain number, which may be that of the rows of as many microbatches as a row has elements.

    It is one of the numbers of `totals`, or about n times one of `counts`.
    """
    known = value.totals if n == 1 else value.counts
    if len(known) < 2:
        return OwnMean(count, frozenset(e for e in value.extents if e and not count % e))
    own = min(known, key=lambda k: abs(count / n - k))
    return OwnMean(count, frozenset(own // k for k in known if 0 < k < own))


_COUNTS = ("own", "mean", "all", "added")


def _of_whole(use: Use, value: Power, c: float, sign: int, k: float) -> Power:
    """One value of all ranks times or by a plain number."""
    is_own = bool(k) and k in value.totals
    if is_own:
        value = value.divided(k) if value.own_mean else value._replace(own_mean=_own_mean(value, k, 1))
    # a number that is twice a count of each rank, as behind a half of squares, may be that of no other
    is_here = use.is_one or (use.is_counted_here and counted(k, [2 * each for each in value.counts]) is None)
    is_counted = is_own and is_here and value.base is not None
    if use.decided in _COUNTS and not is_counted:  # along another axis: it counts rows, and not ranks
        return value
    if is_own:
        value = value.partial() if is_counted else value
        return value._replace(base=None, totals=frozenset(), counts=frozenset(), items=frozenset())
    divisor = abs(c) if sign < 0 else 1 / abs(c)
    value = value.divided(divisor) if value.own_mean else value._replace(own_mean=_of_count(value, divisor))
    if k >= 3 and k in value.counts - value.weights and k != use.n:
        return value.shifted(1, Event("count", use.place, k))
    powers = of_number(c, use.n, False)
    if sign < 0 and is_computed(c):  # perhaps a sum of weights, or their mean over the ranks
        powers |= {-1, 1}
    rows = value.counts | value.extents | {k // use.n for k in value.totals} | _rows_of_parts(use)
    if rows and not any(round(abs(c)) % count == 0 for count in rows if count > 1):
        powers -= {-1} if abs(c) > 1 else set()  # a number that is no multiple of a rank's rows does not count them
    return _with_number(value, 1 / divisor, times(powers, sign), use.n)


def _rows_of_parts(use: Use) -> frozenset[int]:
    """The numbers of rows of a Shard that ranks have, the same on each, if they have agreed on that of all."""
    extents = [int(label.extent) for label in use.labels if type(label) is Shard and label.extent]
    return frozenset([k for extent in extents for k in (extent // use.n, -(-extent // use.n))])


def _with_number(value: Power, factor: float, powers: Powers, n: int) -> Power:
    """A value times a plain factor. Factors whose product is 1 are constants, as the 2 in `2 * x / 2`.

    One of them that counts the rows of a rank would need another that does, and they cancel. Not so where one may be
    the number of ranks: `n * x / 2` on two ranks is n times a half of x.
    """
    made = value.times(powers)
    if is_multiple(factor, n):
        return made
    known = value.numbers
    for size in range(1, len(known) + 1):
        for some in combinations(known, size):
            if abs(math.prod([c for c, _ in some]) * factor - 1) < 1e-12:
                left = list(known)
                for each in some:
                    left.remove(each)
                return value.without([each for _, each in some])._replace(numbers=tuple(left))
    return made._replace(numbers=(*known, (factor, powers))[-_MOST_NUMBERS:])


_MOST_NUMBERS = 4


def _of_count(value: Power, divisor: float) -> OwnMean | None:
    """A mean by a number that may count the rows of all ranks, or those of them that a mask leaves."""
    known = counted(divisor, value.totals)
    if known is not None:
        return _own_mean(value, known, 1)
    is_open = bool(value.totals) and max(value.weights, default=math.inf) <= divisor <= max(value.totals)
    return OwnMean(divisor, frozenset((math.inf,))) if is_open else None


def _averaged(use: Use, value: Power, count: float) -> Power:
    """A sum over this rank's rows that is divided by their number, or 0 for one that is on the tape."""
    kind = "ratio" if not count else "weights" if count in value.weights else "own"
    return value.complete()._replace(
        averaged=True, own_mean=OwnMean(count), counts=frozenset((int(count),)) if count else value.counts, added=1,
        events=(*value.events, Event(kind, use.place, count)),
    )  # fmt: skip


def _product(use: Use) -> Power:
    off = [i for i, each in enumerate(use.inputs) if each is None]
    if len(off) == 1 and use.shapes[off[0]] == ():
        return scaled(use, off[0], 1)
    return of_operation(use) if not off or _is_array(use, off) else of_operation(use)._replace(powers=None)


def _quotient(use: Use) -> Power:
    off = [i for i, each in enumerate(use.inputs) if each is None]
    if off == [1] and use.shapes[1] == ():
        return scaled(use, 1, -1)
    value = of_operation(use)
    if value.parts and value.base is not None and value.powers == value.base and not off:
        return _averaged(use, value, 0)  # a ratio of sums over parts
    if not off and use.out is V and _are_of_the_same(*use.inputs):
        value = value._replace(powers=value.base)
    if not off and use.shapes[1] == () and use.out is not V:
        return value._replace(own_mean=_of_count(use.first, _scalar(use.arrays[1]) or 0.0))
    if off == [1] and _counts_each(use.arrays[1], use.first):
        return value.complete()._replace(averaged=True)
    return value if not off or off == [0] or _is_array(use, off) else value._replace(powers=None)


def _are_of_the_same(one: Power | None, two: Power | None) -> bool:
    """Whether two values are sums over the same elements: then both lack the rows of other ranks, or none does."""
    if one is None or two is None or one.base is None or two.base is None:
        return False
    return bool(one.counts) and (one.counts, one.extents, one.added) == (two.counts, two.extents, two.added)


def _counts_each(x: Any, value: Power) -> bool:
    """Whether an array counts the elements of each of several sums, or sums up their weights."""
    if value.base is None or not isinstance(x, np.ndarray) or x.dtype.kind not in "iuf" or not x.size:
        return False
    numbers, total = (*value.weights, *[k * x.size for k in value.counts]), float(x.sum(dtype=np.float64))
    return any(abs(total - k) <= 1e-6 * k for k in numbers)


def _is_array(use: Use, off: Sequence[int]) -> bool:
    """Whether operands that are not on the tape are arrays of elements, not scalars that may count something."""
    return all(use.shapes[i] != () for i in off)


def _logarithm(use: Use) -> Power:
    """A factor in the argument of a logarithm is a term of the result, which has no gradient."""
    value = of_operation(use)
    is_known = use.out is not V and use.first.powers is not None
    return value._replace(powers=ZERO, base=None) if is_known else value


def _power(use: Use) -> Power:
    base, exponent = use.inputs
    value = of_operation(use._replace(letters="aS"))
    c = _scalar(use.arrays[1]) if exponent is None else None
    if base is None or exponent is not None or c is None:
        return value._replace(powers=ZERO if all(_seen(use, i).powers == ZERO for i in (0, 1)) else None)
    degree = Fraction(c).limit_denominator(64)
    if degree != 1 and base.shifted_by_number and _may_be_right(value.powers):
        return value._replace(powers=ZERO, base=None, once=-1, numbers=(), shifted_by_number=False)
    return _to_the(value, degree)


def _to_the(value: Power, degree: Fraction | int) -> Power:
    return value._replace(powers=times(value.powers, degree), base=times(value.base, degree), once=-1, numbers=())


# -- reductions --------------------------------------------------------------------------------------------------------
def _mean(use: Use) -> Power:
    """A mean over elements of this rank, unless all its dimensions are whole."""
    axes, keepdims, shape = use.options[:3]
    state = use.first
    value = of_operation(use)
    rows = [d for d in axes if d not in state.whole]
    if any(d in state.stacked for d in axes):
        return value._replace(base=state.base, averaged=False, parts=False, stacked=frozenset())
    if use.out is not V or not rows:
        return value
    count = math.prod(int(shape[d]) for d in axes)
    mine = math.prod(int(shape[d]) for d in rows)
    terms = tuple((max(each, 1) * count, weight / max(count, 1)) for each, weight in state.terms)
    met = value.met | {use.place} if use.number is not None else value.met  # the mean of a BatchNorm
    return value._replace(
        averaged=True, own_mean=OwnMean(count), counts=frozenset({count, mine}), terms=terms, met=met,
        extents=value.extents.union([int(shape[d]) for d in axes]),
        events=(*value.events, Event("mean", use.place, mine))[-8:],
    )  # fmt: skip


def _norm(use: Use) -> Power:
    """The root of the sum of the squares."""
    dims = tuple([Sum(d) if place is Mix else place for d, place in enumerate(use.maps[0])])
    squares = _to_the(use.first, 2)
    return _to_the(of_operation(use._replace(letters="a", inputs=(squares,), maps=[dims])), Fraction(1, 2))


def _rows_added(use: Use) -> Power:
    """Rows that are added into several rows, as those of one token or node: none of the others' are missing in them."""
    return of_operation(use._replace(maps=None)) if use.shapes[0][0] > 1 else of_operation(use)


def _contrastive(use: Use) -> Power:
    """The cross-entropy of rows against the rows of the same rank, each labelled by its own place."""
    value, shape, labels = of_operation(use), use.shapes[0], use.arrays[1]
    if use.labels[0] is V and len(shape) == 2 and shape[0] == shape[1] >= _LEAST_ROWS and type(labels) is np.ndarray:
        if np.array_equal(labels, np.arange(shape[0])):
            return value._replace(met=value.met | {use.place})
    return value


_LEAST_ROWS = 3
OPERATIONS: dict[str, Callable[[Use], Power]] = {
    **dict.fromkeys(("log", "log2", "log10"), _logarithm),
    "multiply": _product, "divide": _quotient, "power": _power, "mean": _mean,
    "clip": lambda use: of_operation(use._replace(letters="aSS")), "cross_entropy": _contrastive,
    "cross_entropy_sum": _contrastive, "add_rows": _rows_added, "norm": _norm,
}  # fmt: skip
"""Operations whose rule reads a number or an option."""


# -- collectives -------------------------------------------------------------------------------------------------------
def over_ranks(value: Power, event: Event) -> Power:
    """The sum over the ranks of a Varying value: one more, or the same if it may be this rank's part of a sum.

    Parts that are not summed up over their rows yet are added row by row: a later sum over them is that of all rows.
    """
    powers = value.powers
    is_part = value.parts and value.base is not None and powers != value.base  # summed up over its rows
    if powers is not None and not (value.averaged or is_part or -1 in powers):
        powers = powers | frozenset(x - 1 for x in powers)
    if value.travelled == 2 and powers is not None:
        powers = powers | frozenset(x + 1 for x in powers)
    return _made_one(value)._replace(powers=powers, base=value.base, whole=frozenset()).shifted(1, event)


def _made_one(value: Power) -> Power:
    """The knowledge about the one value that is made of those of the ranks."""
    return value._replace(
        base=None, averaged=False, parts=False, once=-1, divisions=(), terms=_ONE_TERM, stacked=frozenset(),
        travelled=0,
    )  # fmt: skip


def _summed(value: Power, label: Label, out: Label, place: int, call: Any) -> Power:
    return over_ranks(value, Event("ranks", place)) if label is V and out is not V else value


def _kept(value: Power, label: Label, out: Label, place: int, call: Any) -> Power:
    if type(label) is Shard and out is V:
        return value._replace(parts=label.is_agreed, plain=value.plain or not label.is_agreed)
    return value


def _relabelled(value: Power, label: Label, out: Label, place: int, call: Any) -> Power:
    if out is P:
        return _declared(value) if label is V or type(label) is Shard else value
    if label is R and out is V:
        return value._replace(once=place if value.powers == ZERO else -1)
    return _kept(value, label, out, place, call)


def _declared(value: Power) -> Power:
    """Values that the program declares to be addends: of one value, or different ones, whose mean may follow."""
    counted = (0, 1, 2) if value.travelled == 2 else (0, 1)  # as in `over_ranks`
    return _made_one(value.times(frozenset(counted)))._replace(plain=True)


def _sent(value: Power, label: Label, out: Label, place: int, call: Any) -> Power:
    kept = _kept(value, label, out, place, call)
    return kept._replace(travelled=max(value.travelled, 1)) if label is V else kept


def _nonlinear(value: Power, label: Label, out: Label, place: int, call: Any) -> Power:
    return value if value.powers == ZERO else value._replace(powers=None)


def _gathered(value: Power, label: Label, out: Label, place: int, call: Any) -> Power:
    if label is V and out is not V:
        return value._replace(stacked=frozenset((call.dim,)), once=-1, divisions=())
    return value


COLLECTIVES: dict[str, Callable[[Power, Label, Label, int, Any], Power]] = {
    **dict.fromkeys(("all_reduce", "reduce", "reduce_scatter", "reproducible_sum"), _summed),
    **dict.fromkeys((
        "cast I->R", "cast R->I", "cast to P", "send", "all_max", "all_min", "shard", "pad", "all_to_all",
        "halo_exchange", "get", "broadcast", "keep on the root", "scatter", "equal copies", "own addend",
    ), _kept),
    **dict.fromkeys(("all_gather", "gather"), _gathered),
    "permute": _sent, "relabel": _relabelled, "ring_attention": _nonlinear,
}  # fmt: skip
"""``rule(power, label, label of the result, place, call)`` along an axis of the call. Others give an unknown power:
messages arrive from another tape, and a collective of the program's own does what only the program knows."""

