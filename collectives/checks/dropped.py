"""Values that a broadcast has dropped: a rank had computed another one than the root, and nothing else uses it.

The broadcast notes them, and backward warns: what such a value was computed from gets no gradient.
"""

from __future__ import annotations

import warnings
from typing import Any

from autograd.engine.recording import parents_of
from autograd.errors import GradientWarning, find_site

__all__ = ["note", "warn"]

_MOST_NOTED = 16  # values; they keep their tapes


def note(axis: Any, recording: Any, place: int, text: str) -> None:
    """Note a value of a recording that a broadcast along an axis has dropped, for the recording's next sweep."""
    noted: list[Any] = axis.kept.setdefault("dropped", [])
    noted.append((recording, place, text, find_site()))
    del noted[:-_MOST_NOTED]


def warn(noted: list[Any], recording: Any) -> None:
    """Warn of the values of a recording that were noted along an axis, and only the broadcast uses."""
    for each in [each for each in noted if each[0] is recording]:
        noted.remove(each)
        _, place, text, site = each
        if sum(place in parents_of(node) for node in recording.nodes if node is not None) == 1:
            warnings.warn_explicit(text, GradientWarning, *site)
