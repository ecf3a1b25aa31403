"""Comparison of derivatives, and the error that lists the elements that differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays.plain import require_plain
from ..errors import RingtapeError, typed_errors

__all__ = ["DeclarationMismatch", "GradientMismatch", "compare", "worst_elements"]


class GradientMismatch(RingtapeError, AssertionError):
    """A derivative differs from its numerical estimate or from the other mode. The message lists the elements.

    Attributes
    ----------
    size : float
        The largest difference relative to the largest expected element; 0 if elements were not compared.
    """

    size = 0.0


class DeclarationMismatch(RingtapeError, AssertionError):
    """The function of an operation does not have a property that its declaration states."""


@typed_errors
def compare(
    where: str, expected: np.ndarray, got: np.ndarray, rtol: float, atol: float, error: Any = 0.0, worst: int = 0
) -> None:
    """Raise GradientMismatch unless `got` is close to `expected`. The message lists the worst elements.

    Parameters
    ----------
    where : str
        What was compared; the message begins with it.
    expected, got : array
        Of one shape.
    rtol, atol : float
        Tolerances relative to each element and to the largest element of `expected`.
    error : array or float
        Bound on the error of `expected` itself, which is added to the tolerance.
    worst : int
        The number of elements with the largest differences if only these are examined, and 0 otherwise. The error of
        the others is infinite.
    """
    if expected.size == 0:
        return
    for given, name in ((expected, "expected"), (got, "got"), (error, "error")):
        require_plain(given, f"compare: {name}")
    with np.errstate(invalid="ignore"):
        scale = float(np.max(np.abs(expected)))
        difference = np.abs(expected - got)
        wrong = ~(difference <= atol * scale + rtol * np.abs(expected) + error)
    if wrong.any():
        differ = f"{int(wrong.sum())} of {wrong.size} elements differ"
        if worst:
            differ = f"the {worst} worst of {wrong.size} elements were examined, and {int(wrong.sum())} of them differ"
        mismatch = GradientMismatch(f"{where}: {differ}" + worst_elements(wrong, difference, expected, got, error))
        mismatch.size = float(np.max(difference)) / scale if scale else math.inf
        raise mismatch


def worst_elements(wrong: Any, difference: Any, expected: Any, got: Any, error: Any) -> str:
    """Describe the five elements of the mask `wrong` with the largest difference, one per line."""
    indices = sorted(np.argwhere(wrong).tolist(), key=lambda at: -np.nan_to_num(difference[tuple(at)], nan=np.inf))
    lines = [""]
    for at in map(tuple, indices[:5]):
        bound = float(np.broadcast_to(error, np.shape(expected))[at])
        shown = f" (+- {bound:.1e})" if bound else ""
        lines.append(f"  element {list(at)}: expected {expected[at]!s}{shown}, got {got[at]!s}")
    return "\n".join(lines)
