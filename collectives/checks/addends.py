"""Examination of the addends of a sum over ranks: values and terms that count too often, means of unequal counts.

The 1st, 2nd, 4th, 8th, ... time that a program sums a kind of operand (`declaration.prepared.Prepared`), facts about
the addends travel with the fingerprint of the call, without a further message. Sums that a sweep or a transform makes
are not examined. One rank warns of three mistakes that the labels allow:

- The addends are equal (`ReplicaWarning`). A Varying value is one value of each rank, and a Partial one consists of the
  ranks' addends. If all ranks have computed the same one, for example because each has read all rows, their sum is the
  value times the number of ranks. `mean` is right for equal values. In a sum over several axes the addends are compared
  along each of them: ranks that divide the rows along one axis may have read the same rows along another.
- A Replicated term was added to the Varying value (`ReplicaWarning`), as that of a penalty in the loss of each rank's
  rows: it counts once per rank. The nodes on the tape that made the addend tell.
- The addends are means of different numbers of rows (`GradientWarning`): then a row of a rank with few rows counts more
  than one of a rank with many. The nodes tell by which count an addend was divided, and with which weight it is summed.
  If each rank multiplies its mean by its own count, the weights are equal, and all is well.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.engine.recording import arrays_of, op_of, options_of, parents_of
from autograd.engine.tensor import Tensor
from autograd.errors import GradientWarning, ReplicaWarning, find_site, short_site
from autograd.layouts.layout import P, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of

from .channel import MOST
from .reports import warn_once
from .sanitizer import Addend, Copy, digest_of

__all__ = ["addend_of", "warn_of_addends"]


_LONGEST_WALK = 64  # nodes of an addend that are visited
_SHOWN_RANKS = 8


def addend_of(x: Tensor, name: str, axes: tuple[str, ...], group: Any) -> Addend | None:
    """The addend to compare in the next call of a group, whose fingerprint then contains its local means.

    In a call along several axes it also contains the digest: if the digests differ, the ranks learn those of all. Not
    compared are the values of `mean`, zeros, infinities, and whole numbers outside of a tape, such as counts.
    """
    if type(x.array) is Shaped:
        return None
    digest = 0 if name == "mean" else _digest(x)
    facts: tuple[Copy, ...] = ()
    copies = group.checks.copies
    if len(copies) < MOST:
        if x.tape is not None:
            facts = tuple(_means(x, name))
        if name != "mean" and len(axes) > 1:
            facts += (Copy(name, f"{digest:x}", digest, "addend"),)
        copies.extend(facts)
    return Addend(digest, facts) if digest or facts else None


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


def _means(x: Tensor, name: str) -> Iterator[Copy]:
    """The terms of a value that are divided by a count: the count, and the weight of what the term sums.

    A count is the number of elements of a mean, or a divisor that is a whole number.
    """
    assert x.tape is not None
    node_at = x.tape.node
    left, place = [(x.node, 0, 1.0)], ""
    for _ in range(_LONGEST_WALK):
        if not left:
            return
        at, count, weight = left.pop()
        node: Any = node_at(at)
        step = "" if node is None else op_of(node).name
        if step in ("add", "subtract"):
            left += [(parent, count, weight) for parent in reversed(parents_of(node))]
        elif step in _UNWEIGHTED:
            left.append((parents_of(node)[0], count, weight))
        elif step == "mean":
            axes, _, shape = options_of(node)
            n = int(np.prod([shape[axis] for axis in axes]))
            left.append((parents_of(node)[0], max(count, 1) * n, weight / max(n, 1)))
        elif step in ("multiply", "divide") and (factor := _number(node)) is not None:
            is_count = step == "divide" and abs(factor) >= 1 and float(factor).is_integer()
            count = max(count, 1) * int(abs(factor)) if is_count else count
            weight = weight * factor if step == "multiply" else weight / (factor or 1)
            left.append((max(parents_of(node)), count, weight))
        elif count:
            place = place or f"{name} at {short_site(*find_site())}"
            text = f"{count} {abs(weight):.10g}"
            yield Copy(place, text, zlib.crc32(text.encode()), "mean")


_UNWEIGHTED = frozenset(("sum", "reshape", "squeeze", "expand_dims", "negative", "astype", "watch"))


def _number(node: Any) -> float | None:
    """The number by which a node multiplies or divides, if the other operand is on the tape."""
    (place0, place1), (a, b) = parents_of(node), arrays_of(node)
    number = b if place0 >= 0 else a if op_of(node).name == "multiply" else None
    if (place0 >= 0) == (place1 >= 0) or number is None or np.shape(number) != () or np.iscomplexobj(number):
        return None
    return float(number)


def warn_of_addends(addend: Addend | None, name: str, x: Tensor, axes: tuple[str, ...], group: Any) -> None:
    """Warn, on the first rank of a group, of what is wrong with the addends of a sum; see the module."""
    if group.index:
        return
    if name != "mean":
        _warn_of_copies(name, x, axes, group)
    if addend is None:
        return
    if addend.digest and addend.is_equal:
        warn_once(_equal_text(name, x, axes, axes), ReplicaWarning, find_site())
    elif any(addend.digests) and (along := _equal_along(addend.digests, x, axes)):
        warn_once(_equal_text(name, x, axes, along), ReplicaWarning, find_site())
    if addend.counts:
        warn_once(_counts_text(name, x, axes, group.size, addend.counts), GradientWarning, find_site())


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


def _warn_of_copies(name: str, x: Tensor, axes: tuple[str, ...], group: Any) -> None:
    """Warn, on the first rank of a group, if a Replicated term was added to the Varying value that the ranks sum.

    It counts once per rank. Only factors, signs and shapes may have changed since: behind any other function, and
    behind a sum over rows, the term is a part of each rank's own value, as a bias is.
    """
    made = None if group.index or group.size == 1 or x.tape is None else _before_scalings(x.tape, x.node, axes)
    if made is None:
        return
    op, places, signature = made
    if op.name not in ("add", "subtract") or signature is None:
        return
    one, two = signature.layouts
    along = tuple([axis for axis in axes if one[axis] is R and two[axis] is V])
    is_first = bool(along)
    along = along or tuple([axis for axis in axes if two[axis] is R and one[axis] is V])
    if not along or _is_local_mean(x.tape, places[is_first]):
        return  # the program may divide the sum by the number of ranks, which then counts the term once
    shown, axis = name_of(x), _shown_axes(axes)
    warn_once(
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}): {shown} is a sum of a Varying "
        f"and a Replicated term, made by {op.name}. The Replicated one is the same on all ranks"
        f"{'' if along == axes else f' of axis {_shown_axes(along)}'}, so it counts "
        f"{math.prod(_sizes(x, along))} times in the sum over the ranks\n"
        f"  fix: add the term after {name}: to a result with to=I the term of the Invariant value, from before its "
        f"cast to R; or to a result with to=R the same term, and cast(sum, {_shown_axes(along)}, to=I)",
        ReplicaWarning,
        find_site(),
    )


def _before_scalings(tape: Any, at: int, axes: tuple[str, ...]) -> tuple[Any, Any, Any] | None:
    """The operation, operands and signature that made a value, before only factors, signs and shapes have changed."""
    while (made := tape.node(at)) is not None:
        op, _, _, places, _, _, signature = made
        if op.name not in _SCALINGS or signature is None:
            return op, places, signature
        own = [i for i, layout in enumerate(signature.layouts) if any(layout[axis] is V for axis in axes)]
        if len(own) != 1:
            return None
        at = places[own[0]]
    return None


def _is_local_mean(recording: Any, at: int) -> bool:
    """Whether a value is divided by the number of its rows on this rank."""
    counts: list[float] = []
    for _ in range(_LONGEST_WALK):
        node: Any = recording.node(at)
        step = "" if node is None else op_of(node).name
        if step == "mean":
            return True
        if step == "sum":
            axes, _, shape = options_of(node)
            own = {int(shape[axis]) for axis in axes} | {int(np.prod([shape[axis] for axis in axes]))}
            if any(count in own for count in counts):
                return True
        elif step in ("multiply", "divide") and (factor := _number(node)) is not None:
            counts += [factor if step == "divide" else 1 / factor if factor else 0.0]
        elif step not in _UNWEIGHTED:
            return False
        at = max(parents_of(node))
    return False


_SCALINGS = frozenset(("multiply", "divide", "negative", "reshape", "astype"))
