"""Checks of the arguments of layers and losses: typed errors that name the argument and its legal values."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ArgumentError, OptionError, ShapeError, short
from ..ops import swapaxes
from ..random.keys import integer, real

__all__ = ["batch_first", "count", "flag", "number", "probability", "refuse_in_place", "tokens_first"]


def count(value: Any, what: str, least: int = 0, most: float = math.inf) -> int:
    """Return a number of features, channels or heads as an int.

    Raises
    ------
    DtypeError
        It is not an integer.
    ShapeError
        It is smaller than `least`, or larger than `most`.
    LayoutError
        It depends on the rank.
    """
    n = integer(value, what)
    if not least <= n <= most:
        upto = "on" if most == math.inf else f"to {most}"
        raise ShapeError(f"{what}={short(n)} was given; needed: an integer from {least} {upto}")
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
        raise OptionError(f"{what}={x!r} was given; needed: a finite number{bounds}")
    return x


def probability(value: Any, what: str) -> float:
    """Return a probability as a float; raise the errors of `number`."""
    x = real(value, what)
    if not 0 <= x <= 1:
        raise OptionError(f"{what}={x!r} was given; needed: a probability, 0 <= p <= 1")
    return x


def flag(value: Any, what: str) -> bool:
    """Return a boolean; raise ArgumentError for anything else, which may be an argument at the wrong place."""
    if value is not True and value is not False:
        raise ArgumentError(f"{what}={value!r} was given; needed: True or False")
    return bool(value)


def refuse_in_place(inplace: Any, caller: str) -> None:
    """Raise OptionError unless `inplace` is False."""
    if flag(inplace, f"{caller}: inplace"):
        raise OptionError(
            f"{caller}: inplace=True was given; needed: False: a Tensor is not changed in place, because a tape may "
            "have saved its array\n  fix: leave it out"
        )


def batch_first(x: Any, caller: str) -> Any:
    """A sequence [tokens, batch, width] as [batch, tokens, width]; one of two dimensions, [tokens, width], unchanged.

    Raises
    ------
    ShapeError
        It has another number of dimensions.
    """
    if len(x.shape) == 3:
        return swapaxes(x, 0, 1)
    if len(x.shape) != 2:
        raise ShapeError(
            f"{caller}: sequences of shape {tuple(map(int, x.shape))} were given; needed: [tokens, batch, width] or "
            "[tokens, width]\n  fix: batch_first=True, for [..., tokens, width]"
        )
    return x


def tokens_first(x: Any) -> Any:
    """The inverse of `batch_first`."""
    return swapaxes(x, 0, 1) if len(x.shape) == 3 else x
