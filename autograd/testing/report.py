"""What a failed check says: which argument, which element, what was expected and what was got."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import RingtapeError

__all__ = ["GradientMismatch", "compare", "listed"]


class GradientMismatch(RingtapeError, AssertionError):
    """A derivative that is not what finite differences, or the other mode, say; the text names the element."""


def compare(where: str, expected: np.ndarray, got: np.ndarray, rtol: float, atol: float, error: Any = 0.0) -> None:
    """Raise GradientMismatch unless `got` is close to `expected`; the text lists the worst elements.

    Parameters
    ----------
    rtol, atol : float
        Relative to each element, and to the largest of them.
    error : array or float
        How far each expected value may itself be off.
    """
    if expected.size == 0:
        return
    with np.errstate(invalid="ignore"):
        scale = float(np.max(np.abs(expected)))
        off = np.abs(expected - got)
        wrong = ~(off <= atol * scale + rtol * np.abs(expected) + error)
    if wrong.any():
        raise GradientMismatch(f"{where}: {int(wrong.sum())} of {wrong.size} elements differ" +
                               listed(wrong, off, expected, got, error))  # fmt: skip


def listed(wrong: Any, off: Any, expected: Any, got: Any, error: Any) -> str:
    """The five worst of the elements named by the mask `wrong`, a line each."""
    worst = sorted(np.argwhere(wrong).tolist(), key=lambda at: -np.nan_to_num(off[tuple(at)], nan=np.inf))[:5]
    lines = [""]
    for at in worst:
        place = tuple(int(n) for n in at)
        own = float(np.broadcast_to(error, np.shape(expected))[place])
        known = f" (known to {own:.1e})" if own else ""
        lines.append(f"  element {list(place)}: expected {expected[place]!s}{known}, got {got[place]!s}")
    return "\n".join(lines)
