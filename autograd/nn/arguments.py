"""Checks of the arguments of layers and losses: typed errors that name the argument and its legal values."""

from __future__ import annotations

import math
from typing import Any

from ..errors import OptionError, ShapeError, call_site
from ..random.keys import integer, real

__all__ = ["count", "number", "probability"]


def count(value: Any, what: str, least: int = 0) -> int:
    """Return a number of features, channels or heads as an int.

    Raises
    ------
    DtypeError
        It is not an integer.
    ShapeError
        It is smaller than `least`.
    LayoutError
        It depends on the rank.
    """
    n = integer(value, what)
    if n < least:
        raise ShapeError(f"{what}={n} was given; needed: an integer from {least} on" + call_site())
    return n


def number(value: Any, what: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite number from `low` to `high`, which is the same on all ranks, as a float.

    Raises
    ------
    DtypeError
        It is not one real number.
    OptionError
        It is out of range, NaN or infinite.
    LayoutError
        It depends on the rank.
    """
    x = real(value, what)
    if not (low <= x <= high and math.isfinite(x)):
        bounds = "" if low == -math.inf else f", at least {low:g}" if high == math.inf else f" from {low:g} to {high:g}"
        raise OptionError(f"{what}={x!r} was given; needed: a finite number{bounds}" + call_site())
    return x


def probability(value: Any, what: str) -> float:
    """Return a probability as a float; raise the errors of `number`."""
    x = real(value, what)
    if not 0 <= x <= 1:
        raise OptionError(f"{what}={x!r} was given; needed: a probability, 0 <= p <= 1" + call_site())
    return x
