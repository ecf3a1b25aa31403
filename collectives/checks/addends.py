"""Comparison of the addends of a sum over ranks: equal values on all ranks are probably one value, not addends.

A Varying value is one value of each rank, and a Partial one consists of the ranks' addends. If all ranks have computed
the same one, for example because each has read all rows, their sum is the value times the number of ranks, and nothing
else is wrong with the program. So the 1st, 2nd, 4th, 8th, ... time that a program sums a kind of operand
(`collective.Prepared`), the digests of the addends travel with the fingerprint of the call, without a further message.
If they are equal, one rank warns (`ReplicaWarning`). Sums that a sweep or a transform makes are not examined, nor is
`mean`, which is right for equal values.

The same sums are examined for a Replicated term, as that of a penalty in the loss of each rank's rows: it counts once
per rank.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.engine.tensor import Tensor
from autograd.errors import ReplicaWarning, find_site
from autograd.layouts.layout import P, R, V
from autograd.layouts.messages import describe
from autograd.layouts.names import name_of

from .sanitizer import Addend, digest_of

__all__ = ["addend_of", "warn_if_equal", "warn_of_copies"]


_told: dict[Any, Any] = {}  # the warnings that were given: by default Python shows each once


def addend_of(x: Tensor) -> Addend | None:
    """The addend to compare; None for zeros, infinities, and whole numbers outside of a tape, such as counts."""
    if type(x.array) is Shaped:
        return None
    host = to_host(x.array)
    if not host.any() or not np.isfinite(host).all() or (x.tape is None and bool((host == host.round()).all())):
        return None
    return Addend(digest_of(_without_rounding(host)) or 1)


def _without_rounding(host: Any) -> Any:
    """A value of double precision without its last 12 bits: ranks may have added the same numbers in other orders."""
    if host.dtype.char not in "dD":
        return host
    mantissa, exponent = np.frexp(np.ascontiguousarray(host).reshape(-1).view(np.float64))
    return np.stack([np.round(mantissa * 2.0**41), exponent])


def warn_if_equal(addend: Addend | None, name: str, x: Tensor, axes: tuple[str, ...], group: Any) -> None:
    """Warn, on the first rank of a group, if the ranks have added equal values."""
    if addend is None or not addend.is_equal or group.index:
        return
    shown, axis = x.name or "x", repr(axes[0] if len(axes) == 1 else axes)
    rows = ", ".join(f"{each!r}: {R!r}" for each in axes)
    is_partial = x.layout is not None and any(x.layout[each] is P for each in axes)
    says = "they are addends of one value" if is_partial else "each rank has a value of its own"
    file, line = find_site()
    warnings.warn_explicit(
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}): the {group.size} ranks add equal "
        f"values, so the sum is {group.size} times the value. By its label {P if is_partial else V!r} {says}. "
        "Have all ranks read the same rows, or is it one value that all ranks have computed?\n"
        f"  fix: divide the rows: rows = cc.shard(ag.tensor(rows, layout={{{rows}}}), {axis})\n"
        f"  or:  broadcast({shown}, {axis}, 0, to=I) in place of {name}"
        f"{' and of declare_partial' if is_partial else ''}, for one value that all ranks have computed",
        ReplicaWarning, file, line, registry=_told,
    )  # fmt: skip


def warn_of_copies(name: str, x: Tensor, axes: tuple[str, ...], group: Any) -> None:
    """Warn, on the first rank of a group, if a Replicated term was added to the Varying value that the ranks sum.

    It counts once per rank. Only factors, signs and shapes may have changed since: behind any other function, and
    behind a sum over rows, the term is a part of each rank's own value, as a bias is.
    """
    if group.index or group.size == 1 or x.tape is None or x.node < 0:
        return
    nodes: list[Any] = x.tape.nodes
    op, _, _, places, _, _, signature = nodes[x.node]
    while op.name in _SCALINGS and signature is not None:
        own = [i for i, layout in enumerate(signature.layouts) if any(layout[axis] is V for axis in axes)]
        if len(own) != 1 or places[own[0]] < 0:
            return
        op, _, _, places, _, _, signature = nodes[places[own[0]]]
    if op.name not in ("add", "subtract") or signature is None:
        return
    layouts = signature.layouts
    copies = [i for i, layout in enumerate(layouts) if all(layout[axis] is R for axis in axes)]
    if len(copies) != 1 or any(layouts[1 - copies[0]][axis] is not V for axis in axes):
        return
    shown, axis = name_of(x), repr(axes[0] if len(axes) == 1 else axes)
    file, line = find_site()
    warnings.warn_explicit(
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}): {shown} is a sum of a Varying "
        f"and a Replicated term, made by {op.name}. The Replicated one is the same on all ranks, so it counts "
        f"{group.size} times in the sum over the ranks\n"
        f"  fix: add the term after {name}: to a result with to=I the term of the Invariant value, from before its "
        f"cast to R; or to a result with to=R the same term, and cast(sum, {axis}, to=I)",
        ReplicaWarning, file, line, registry=_told,
    )  # fmt: skip


_SCALINGS = frozenset(("multiply", "divide", "negative", "reshape", "astype"))
