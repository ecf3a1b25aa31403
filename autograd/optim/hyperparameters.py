"""The check of learning rates and other hyperparameters."""

from __future__ import annotations

import math
import numbers
from typing import Any

from ..errors import ArgumentError, OptionError

__all__ = ["check_count", "check_numbers"]


def check_numbers(caller: str, least: float = 0.0, below: float = math.inf, **given: Any) -> None:
    """Raise an error unless every number is in the half-open interval from `least` to `below`.

    Raises
    ------
    ArgumentError
        A value is no real number.
    OptionError
        A value is NaN or out of range.

    Examples
    --------
    >>> check_numbers("Adam", below=1.0, beta=0.9)
    """
    for name, x in given.items():
        if not isinstance(x, numbers.Real) or isinstance(x, bool):
            raise ArgumentError(f"{caller}: {name}={x!r} was given; needed: a number")
        try:
            value = float(x)
        except OverflowError:  # an integer above all floats, which is in no interval of them
            value = math.nan
        if not least <= value < below:
            upper = "finite" if below == math.inf else f"below {below:g}"
            lower = f"at least {least:g} and " if least > -math.inf else ""
            raise OptionError(f"{caller}: {name}={x} was given; needed: a number {lower}{upper}")


def check_count(caller: str, least: int = 0, **given: Any) -> None:
    """Raise an error unless every value is an integer of at least `least`."""
    for name, n in given.items():
        if not isinstance(n, numbers.Integral) or isinstance(n, bool):
            raise ArgumentError(f"{caller}: {name}={n!r} was given; needed: an integer")
        if n < least:
            raise OptionError(f"{caller}: {name}={n} was given; needed: at least {least}")
