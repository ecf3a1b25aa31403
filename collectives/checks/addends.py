"""Comparison of the addends of a sum over ranks: equal values on all ranks are probably one value, not addends.

A Varying value is one value of each rank. If all ranks have computed the same one, for example because each has read
all rows, their sum is the value times the number of ranks, and nothing else is wrong with the program. So the 1st, 2nd,
4th, 8th, ... time that a program sums a kind of operand (`collective.Prepared`), the digests of the addends travel with
the fingerprint of the call, without a further message. If they are equal, one rank warns (`ReplicaWarning`). Sums that
a sweep or a transform makes are not examined, nor is `mean`, which is right for equal values.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from autograd.arrays.device import to_host
from autograd.arrays.shape_only import Shaped
from autograd.engine.tensor import Tensor
from autograd.errors import ReplicaWarning, find_site
from autograd.layouts.layout import R, V
from autograd.layouts.messages import describe

from .sanitizer import Addend, digest_of

__all__ = ["addend_of", "warn_if_equal"]


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
    file, line = find_site()
    warnings.warn_explicit(
        f"{name}({shown}: {describe(x.array, x.array.shape, x.layout)}, axis {axis}): the {group.size} ranks add equal "
        f"values, so the sum is {group.size} times the value. By its label {V!r} each rank has a value of its own. "
        "Have all ranks read the same rows, or is it one value that all ranks have computed?\n"
        f"  fix: divide the rows: rows = cc.shard(ag.tensor(rows, layout={{{rows}}}), {axis})\n"
        f"  or:  broadcast({shown}, {axis}, 0, to=I) in place of {name}, for one value that all ranks have computed",
        ReplicaWarning, file, line, registry=_told,
    )  # fmt: skip
