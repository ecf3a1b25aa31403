"""Where in the user's program an error or a communication stands. Frames are looked at on errors only."""

from __future__ import annotations

import os
import sys

__all__ = ["call_site", "find_site"]

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_HERE, package) + os.sep for package in ("autograd", "collectives", "parallel"))


def find_site() -> tuple[str, int]:
    """File and line of the innermost frame that is not ringtape's own."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def call_site() -> str:
    """The same as the tail of an error's text: ``   model.py:41``."""
    file, line = find_site()
    return f"\n  at {os.path.basename(file)}:{line}"
