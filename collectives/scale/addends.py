"""The addends of a sum over ranks: equal ones, terms that count on each rank, and means of unequal numbers of rows.

Facts about the addends of an examined sum travel with the fingerprint of the call, without a further message. On a tape
the sums of an examined recording are examined (see `examination`); off a tape the 1st, 2nd, 4th, 8th, ... time that a
program sums a kind of operand (`declaration.prepared.Prepared`). Sums that a sweep or a transform makes are not. One
rank warns of three mistakes that the labels allow:

- The addends are equal (`ReplicaWarning`). A Varying value is one value of each rank, and a Partial one consists of the
  ranks' addends. If all ranks have computed the same one, for example because each has read all rows, their sum is the
  value times the number of ranks. `mean` is right for equal values. In a sum over several axes the addends are compared
  along each of them: ranks that divide the rows along one axis may have read the same rows along another.
- A Replicated term was added to the Varying value (`ReplicaWarning`), as that of a penalty in the loss of each rank's
  rows: it counts once per rank.
- The addends are means of different numbers of rows (`GradientWarning`): then a row of a rank with few rows counts more
  than one of a rank with many. If each rank multiplies its mean by its own count, the weights are equal: all is well.

The latter two follow from the `Walk` over the tape. What the ranks find out about the numbers of rows they keep for it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.engine.recording import op_of, parents_of, signature_of
from autograd.engine.tensor import Tensor
from autograd.errors import GradientWarning, ReplicaWarning, find_site, short_site
from autograd.layouts.layout import P, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of

from ..checks.channel import MOST
from ..checks.reports import warn_once
from ..checks.sanitizer import Addend, Copy, digest_of
from .numbers import (
    COUNTS,
    Division,
    Evidence,
    added_by_all,
    counts_rows,
    decide,
    is_of_all_axes,
    is_twice,
    may_be_of_all,
    of_number,
    sums_of,
    whole_divisor,
)
from .rules import SCALINGS
from .sums import Sum
from .walk import Walk

__all__ = ["addend_of", "learn_of_parts", "warn_of_addends"]


_SHOWN_RANKS = 8


def addend_of(
    x: Tensor, name: str, axes: tuple[str, ...], group: Any, walk: Walk | None = None, adds: bool = True
) -> Addend | None:
    """The addend to compare in the next call of a group, whose fingerprint then contains the evidence about its scale.

    In a call along several axes it also contains the digest: if the digests differ, the ranks learn those of all. Not
    compared are the values of `mean` and of gathers, which do not add (`adds`), zeros, infinities, and whole numbers
    outside of a tape, such as counts.
    """
    if type(x.array) is Shaped:
        return None
    is_compared = adds and name != "mean"
    digest = 0 if not is_compared or _is_count(x, axes, walk) else _digest(x)
    facts: tuple[Copy, ...] = ()
    copies = group.checks.copies
    if len(copies) < MOST:
        if walk is not None and x.tape is not None:
            text = walk.evidence(walk.place_of(x.tape, x.node), axes).encode()
            facts = (Copy(f"{name} at {short_site(*find_site())}", text, zlib.crc32(text.encode()), "scale"),)
        if is_compared and len(axes) > 1:
            facts += (Copy(name, f"{digest:x}", digest, "addend"),)
        copies.extend(facts)
    return Addend(digest, facts) if digest or facts else None


def _is_count(x: Tensor, axes: tuple[str, ...], walk: Walk | None) -> bool:
    """Whether a value is the number of the elements that were summed, as a sum of ones is. The ranks' may be equal."""
    if walk is None or x.tape is None or x.array.size != 1:
        return False
    return float(to_host(x.array).item().real) in walk.evidence(walk.place_of(x.tape, x.node), axes).counts


def _digest(x: Tensor) -> int:
    host = to_host(x.array)
    if not host.any() or not np.isfinite(host).all() or (x.tape is None and bool((host == host.round()).all())):
        return 0
    return digest_of(_without_rounding(host)) or 1


def _without_rounding(host: Any) -> Any:
    """A value of double precision without its last 12 bits: ranks may have added the same numbers in other orders."""
    if host.dtype.char not in "dD":
        return host
    mantissa, exponent = np.frexp(np.ascontiguousarray(host).reshape(-1).view(np.float64))
    return np.stack([np.round(mantissa * 2.0**41), exponent])


def evidence_of_all(addend: Addend, ranks: Sequence[int]) -> dict[int, Evidence]:
    """The evidence of each rank about an addend, after the call that has carried it; empty if a rank has sent none."""
    own = next((copy.text for copy in addend.facts if copy.kind == "scale"), "")
    texts = addend.evidence or dict.fromkeys(ranks, own)
    return {rank: Evidence.decode(text) for rank, text in texts.items()} if all(texts.values()) else {}


def warn_of_addends(
    addend: Addend | None, name: str, x: Tensor, axes: tuple[str, ...], group: Any, walk: Walk | None, place: int
) -> None:
    """Tell, on the first rank of a group, what is wrong with the addends of a sum; see the module.

    The walk takes what the ranks have found out. `place` is that of the result.
    """
    counts: dict[int, int] = {}
    if walk is not None and x.tape is not None:
        counts = {} if addend is None else _learn(walk, addend, name, x, axes, group, place)
        _warn_of_copies(name, x, axes, group, walk)
    if addend is None or group.index:
        return
    if addend.digest and addend.is_equal:
        warn_once(_equal_text(name, x, axes, axes), ReplicaWarning, find_site())
    elif any(addend.digests) and (along := _equal_along(addend.digests, x, axes)):
        warn_once(_equal_text(name, x, axes, along), ReplicaWarning, find_site())
    if counts:
        warn_once(_counts_text(name, x, axes, group.size, counts), GradientWarning, find_site())


def learn_of_parts(
    addend: Addend | None, name: str, x: Tensor, axes: tuple[str, ...], group: Any, walk: Walk | None, place: int
) -> None:
    """Let the walk take what the ranks have found out about the operands of a gather, which are no addends yet."""
    if addend is not None and walk is not None and x.tape is not None:
        _learn(walk, addend, name, x, axes, group, place)


def _learn(
    walk: Walk, addend: Addend, name: str, x: Tensor, axes: tuple[str, ...], group: Any, place: int
) -> dict[int, int]:
    """Let the walk decide about the numbers on the way of an addend; return the counts of means of unequal numbers."""
    found = evidence_of_all(addend, group.ranks)
    made = walk.sums[place] = Sum(name, x, axes)
    if not found:
        return {}
    made.counts = {rank: each.rows for rank, each in found.items()}
    own = walk.divisions(walk.place_of(x.tape, x.node), axes)
    each_has = len({len(each.divisions) for each in found.values()}) == 1
    is_agreed = each_has and len({each.digest for each in found.values()}) == 1
    for nth, (at, _) in enumerate(own):
        divisions = [each.divisions[nth] for each in found.values()] if each_has else []
        decided = _decide(walk, at, divisions, axes, group.size)
        is_agreed = is_agreed and (decided != "" or _mean_the_same(divisions, walk.grid.sizes))
    if is_agreed:
        walk.agree(place)
    assert x.layout is not None
    powers = zip(walk.grid.names, walk.at(walk.place_of(x.tape, x.node)), strict=True)  # now that numbers are decided
    is_mean = any(power.averaged for axis, power in powers if axis in axes)
    _count(walk, place, list(found.values()), group.size, is_mean)
    return _unequal_means(found)


def _decide(walk: Walk, at: int, divisions: list[Division], axes: tuple[str, ...], n: int) -> str:
    """Let the walk keep what the ranks along some axes decide about a number. If it counts the rows along others, too,
    or is twice a number that they have, the walk keeps each of the ways to read it.
    """
    known = walk.decided(at)
    decided = decide(divisions, n) if divisions else "open"  # other ranks have more or fewer numbers
    if counts_rows(known) and not set(axes) & known.keys():
        if decided == "all":
            walk.read(at, dict.fromkeys(axes, "all"))
        return "read"
    others = [axis for axis in known if axis not in axes]
    if decided not in COUNTS and others and is_of_all_axes(divisions):
        walk.decide(at, "all", [*others, *axes])
        if is_twice([each.later for each in divisions], divisions):
            walk.read(at, {**dict.fromkeys(others, "all"), **dict.fromkeys(axes, "mean")})
        if is_twice([sums_of(divisions)] * n, divisions):
            walk.read(at, dict.fromkeys(axes, "all"))
        return "all"
    walk.decide(at, decided, axes)
    return decided


def _count(walk: Walk, place: int, found: Sequence[Evidence], n: int, may_be_mean: bool) -> None:
    """Let the walk know the numbers of elements that a sum over the ranks has added."""
    if any(each.counts or len(each.others) > 1 for each in found):
        is_mean = may_be_mean and any(each.is_mean for each in found)
        totals = added_by_all(found) | (set() if is_mean else sums_of(found))
        extents = {extent for each in found for extent in each.extents}
        walk.know(place, totals, _counts_of_all(found, n, is_mean), extents)


def _counts_of_all(found: Sequence[Evidence], n: int, is_mean: bool) -> set[float]:
    """The counts that all ranks have, of means those of any, without those that may be of all ranks."""
    counts = (set.union if is_mean else set.intersection)(*(set(each.counts) for each in found))
    return {k for k in counts if not any(may_be_of_all(k, each.extents, n) for each in found)}


def _mean_the_same(divisions: Sequence[Division], sizes: Sequence[int]) -> bool:
    """Whether the same powers of an undecided number are possible on all ranks."""
    return all(len({of_number(each.divisor, n, True) for each in divisions}) == 1 for n in sizes)


def _unequal_means(found: dict[int, Evidence]) -> dict[int, int]:
    """The counts by which the ranks have divided a term, if its weight differs because the counts do.

    Three or more terms of each rank, whose counts have other ratios on each, are means of items, as of sequences.
    """
    ratios = {tuple(count / each.terms[0][0] for count, _ in each.terms) for each in found.values() if each.terms}
    if len(ratios) > 1 and max(map(len, ratios)) > 2:
        return {}
    for nth in range(max(len(each.terms) for each in found.values())):
        terms = {rank: each.terms[nth] for rank, each in found.items() if len(each.terms) > nth}
        if all(len(set(values)) > 1 for values in zip(*terms.values(), strict=True)):
            return {rank: int(count) for rank, (count, _) in terms.items()}
    return {}


def _sizes(x: Tensor, axes: tuple[str, ...]) -> list[int]:
    assert x.layout is not None
    grid = x.layout.grid
    return [grid.sizes[grid.axis(each)] for each in axes]


def _equal_along(digests: tuple[int, ...], x: Tensor, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes along which the addends of a sum over several are equal, from the digests of the ranks."""
    table = np.array(digests, np.uint64).reshape(_sizes(x, axes))
    return tuple([each for k, each in enumerate(axes) if table.shape[k] > 1 and not np.ptp(table, axis=k).any()])


def _shown_axes(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)


def _equal_text(name: str, x: Tensor, axes: tuple[str, ...], along: tuple[str, ...]) -> str:
    """The text for a sum over `axes` whose addends are equal along some of them, or along all."""
    shown, axis, equal = x.name or "x", _shown_axes(axes), _shown_axes(along)
    rest = tuple([each for each in axes if each not in along])
    rows = ", ".join(f"{each!r}: {R!r}" for each in along)
    is_partial = x.layout is not None and any(x.layout[each] is P for each in along)
    says = "they are addends of one value" if is_partial else "each rank has a value of its own"
    size = math.prod(_sizes(x, along))
    ranks = f"{size} ranks of axis {equal}" if rest else f"{size} ranks"
    copy = f"broadcast({shown}, {equal}, 0, to=I)"
    if rest:
        copy = f"{name}({copy}, {_shown_axes(rest)}{', to=I' * (name == 'all_reduce')})"
    return (
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}): the {ranks} add equal "
        f"values, so the sum is {size} times the value. By its label {P if is_partial else V!r} {says}. "
        "Have all ranks read the same rows, or is it one value that all ranks have computed?\n"
        f"  fix: divide the rows{f' along {equal}, too' if rest else ''}: "
        f"rows = cc.shard(ag.tensor(rows, layout={{{rows}}}), {equal})\n"
        f"  or:  {copy} in place of {name}"
        f"{' and of declare_partial' if is_partial else ''}, for one value that all ranks have computed"
    )


def _counts_text(name: str, x: Tensor, axes: tuple[str, ...], size: int, counts: dict[int, int]) -> str:
    shown, axis = name_of(x), _shown_axes(axes)
    divided = f" / {size}" if name == "mean" else ""
    rows = f"{axis}: {Shard(0)!r}"
    each = ", ".join(f"rank {rank} by {count}" for rank, count in list(counts.items())[:_SHOWN_RANKS])
    each += ", ..." if len(counts) > _SHOWN_RANKS else ""
    return (
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}): each rank has divided its value "
        f"by a count of its own: {each}. So a row of a rank with few rows counts more than one of a rank with many, "
        "and the result is not the mean over all rows\n"
        f"  fix: all_reduce(losses.sum(), {axis}, to=I) / all_reduce(float(n), {axis}, to=I), where n is the count of "
        f"this rank\n"
        f"  or:  label the rows, rows = cc.from_local(rows, {{{rows}}}), and divide by the count of all ranks, "
        f"all_reduce(losses.sum(), {axis}, to=I) / rows.global_shape[0], if each row counts once (none is masked)\n"
        f"  or:  all_reduce(declare_partial({shown}, {axis}), {axis}, to=I){divided}, if that is meant"
    )


def _warn_of_copies(name: str, x: Tensor, axes: tuple[str, ...], group: Any, walk: Walk) -> None:
    """Tell, on the first rank of a group, if a Replicated term was added to the Varying value that the ranks sum.

    It counts once per rank. Only factors, signs and shapes may have changed since: behind any other function, and
    behind a sum over rows, the term is a part of each rank's own value, as a bias is.
    """
    if name == "mean" or group.index or group.size == 1:
        return
    assert x.layout is not None
    powers, grid = walk.at(walk.place_of(x.tape, x.node)), x.layout.grid
    along = tuple([axis for axis in axes if powers[grid.axis(axis)].once >= 0 and x.layout[axis] is V])
    if not along:
        return
    node: Any = walk.node(powers[grid.axis(along[0])].once)
    if op_of(node).name not in ("add", "subtract") or _is_mended(walk, node, along, math.prod(_sizes(x, along))):
        return
    shown, axis = name_of(x), _shown_axes(axes)
    warn_once(
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}): {shown} is a sum of a Varying "
        f"and a Replicated term, made by {op_of(node).name}. The Replicated one is the same on all ranks"
        f"{'' if along == axes else f' of axis {_shown_axes(along)}'}, so it counts "
        f"{math.prod(_sizes(x, along))} times in the sum over the ranks\n"
        f"  fix: add the term after {name}: to a result with to=I the term of the Invariant value, from before its "
        f"cast to R; or to a result with to=R the same term, and cast(sum, {_shown_axes(along)}, to=I)",
        ReplicaWarning,
        find_site(),
    )


def _is_mended(walk: Walk, node: Any, axes: tuple[str, ...], n: int) -> bool:
    """Whether the sum of a Varying and a Replicated term may be right: the numbers on the way of the terms may mend it.

    The Varying one may be a local mean, which the program divides by the number of ranks later. The Replicated one may
    be divided by it, or multiplied by the number of rows.
    """
    one, two = parents_of(node)
    layouts = signature_of(node).layouts
    varying, copy = (one, two) if layouts[0][axes[0]] is V else (two, one)
    if any(division.divisor > 1 for _, division in walk.divisions(varying, axes)):
        return True
    counts = walk.evidence(varying, axes).counts
    while (made := walk.node(copy)) is not None and op_of(made).name in SCALINGS:
        divisor = walk.divisor(copy)
        if divisor is not None and _may_mend(divisor, counts, n):
            return True
        places = [place for place in parents_of(made) if place >= 0]
        if len(places) != 1:
            return False
        (copy,) = places
    return False


def _may_mend(divisor: float, counts: Sequence[int], n: int) -> bool:
    """Whether a divisor may be the number of ranks, or one over a number of rows."""
    return -1 in of_number(1 / divisor, n, False) if divisor > 1 else whole_divisor(1 / divisor) in counts
