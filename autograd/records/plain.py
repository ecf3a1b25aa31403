"""Records as data: JSON that can be read without running anything, in place of pickles.

What ranks send each other may come from a file: that of a rank whose page is made by another one, or a recorded result.
So its reader says which classes it may have, and these hold data only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ..arrays.device import dtype_named
from ..arrays.half import is_half

__all__ = ["packed", "unpacked"]

_NUMBERS = "biufc"
_AS_THEY_ARE = frozenset((str, int, float, bool, type(None)))


def packed(value: Any, kinds: Sequence[type] = ()) -> bytes:
    """The bytes of a value: numbers, texts, bytes, arrays, lists, tuples, dictionaries and objects of `kinds`.

    Parameters
    ----------
    value
    kinds : sequence of type
        Dataclasses and named tuples.

    Raises
    ------
    TypeError
        It has something else.

    Examples
    --------
    >>> unpacked(packed({"a": (1, [2.5, None])}))
    {'a': (1, [2.5, None])}
    """
    number = {kind: k for k, kind in enumerate(kinds)}

    def plain(x: Any) -> Any:
        kind = x.__class__
        if kind in _AS_THEY_ARE:
            return x
        if kind is list:
            return [plain(each) for each in x]
        if kind is tuple:
            return {"t": [plain(each) for each in x]}
        k = number.get(kind)
        if k is not None:
            given = x if isinstance(x, tuple) else [getattr(x, each.name) for each in fields(x)]
            return {"r": [k, *map(plain, given)]}
        if isinstance(x, dict):
            return {"d": [[plain(key), plain(each)] for key, each in x.items()]}
        if isinstance(x, np.ndarray) and (x.dtype.kind in _NUMBERS or is_half(x.dtype)):
            dtype = x.dtype.str if x.dtype.kind in _NUMBERS else x.dtype.name
            return {"a": [dtype, x.shape, base64.b64encode(x.tobytes()).decode()]}
        if isinstance(x, np.generic):
            return plain(x.item())
        if isinstance(x, complex):
            return {"c": [x.real, x.imag]}
        if isinstance(x, bytes):
            return {"b": base64.b64encode(x).decode()}
        for base in (str, float, int):  # a rank number is an int that knows its axis
            if isinstance(x, base):
                return base(x)
        raise TypeError(f"a {kind.__name__} is no data that ranks send each other; needed: one of {list(kinds)}")

    return json.dumps(plain(value), separators=(",", ":")).encode()


def unpacked(data: bytes, kinds: Sequence[type] = ()) -> Any:
    """The value that `packed` has made bytes of, with the same kinds.

    Raises
    ------
    ValueError
        The bytes are no such value.
    """

    def made(found: dict[str, Any]) -> Any:
        ((mark, x),) = found.items()
        if mark == "t":
            return tuple(x)
        if mark == "r":
            return kinds[x[0]](*x[1:])
        if mark == "d":
            return dict(map(tuple, x))
        if mark == "a":
            dtype = dtype_named(x[0]) if x[0] == "bfloat16" else np.dtype(x[0])
            if not (dtype.kind in _NUMBERS or is_half(dtype)):
                raise ValueError(f"an array of dtype {dtype}")
            return np.frombuffer(base64.b64decode(x[2]), dtype).reshape(x[1]).copy()
        return complex(*x) if mark == "c" else {"b": base64.b64decode}[mark](x)

    try:
        return json.loads(data, object_hook=made)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"it is no data of a rank: {error}") from error
