"""The constants that the ranks compare: plain numbers, arrays with the label C, and random draws.

They are compared where they meet a value that is R, I, P or Shard.

A plain number is a constant, so all ranks must use the same one with a value that is one for all of them. Often they
do not: ``mask.sum()`` of a NumPy mask is the count of one rank. Where the ranks of an axis compare their calls, each
such number or array is a *fact* (`sanitizer.Copy`) of its line, and the next call along the axis compares the facts.
Constants that meet only V or constants are not compared. Between two calls, the ranks use the same numbers at a
line in the same order; a rank may leave some out.

On a mesh of one rank nothing happens here: operations do not announce their constants (`autograd.engine.primitive`).
"""

from __future__ import annotations

import weakref
import zlib
from typing import Any

import numpy as np

from autograd.arrays.shape_only import Shaped
from autograd.errors import find_site, short_site
from autograd.layouts.layout import I, Layout, P, R
from autograd.layouts.messages import describe
from autograd.layouts.rank_values import plain

from .channel import MOST
from .sanitizer import Copy, digest_of

__all__ = ["note"]

_ONE_VALUE = frozenset((R, I, P))
_LARGE_BYTES = 1 << 16
_digests: dict[int, tuple[Any, int]] = {}  # of large arrays, by their id, while they live: a reference
# and the digest, which takes 10 us for each 64 KiB in every call that uses the array


def note(mesh: Any, name: str, layout: Layout, value: Any) -> None:
    """Record the constant that the operation `name` used, for every group of a mesh whose next call is compared."""
    if layout.grid is not mesh.grid:
        return
    fact = None
    for axis in mesh.known_axes:
        checks = axis.group.checks
        if checks is not None and (checks.is_due or checks.sampling.is_open) and len(checks.copies) < MOST:
            if all(layout[axis_name] in _ONE_VALUE for axis_name in axis.names):
                if fact is None:
                    fact = _fact(name, value)
                checks.copies.append(fact)


def _fact(name: str, value: Any) -> Copy:
    place = f"{name} at {short_site(*find_site())}"
    if getattr(value, "shape", ()) == ():
        text = _text(value)
        return Copy(place, f"{name} with the number {text}", zlib.crc32(text.encode()), "number")
    return Copy(place, f"{name} with {describe(value, value.shape, None)}", _digest(value), "constant")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, slice):
        return ":".join("" if x is None else _text(x) for x in (value.start, value.stop, value.step))
    if getattr(value, "shape", ()) != ():
        return f"{describe(value, value.shape, None)} with digest {_digest(value):08x}"
    value = plain(value)
    return repr(value.item() if isinstance(value, np.ndarray | np.generic) else value)


def _digest(array: Any) -> int:
    """The digest of an array. That of a large one is computed once."""
    if type(array) is Shaped:
        return 0
    if array.nbytes < _LARGE_BYTES or not isinstance(array, np.ndarray):
        return digest_of(array)
    key = id(array)
    known = _digests.get(key)
    if known is None:
        known = _digests[key] = weakref.ref(array, lambda _: _digests.pop(key, None)), digest_of(array)
    return known[1]
