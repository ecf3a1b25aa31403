"""Where in the user's program an error or a communication stands. Frames are looked at on errors only."""

from __future__ import annotations

import os
import sys

__all__ = ["call_site", "find_site", "short_site", "site_of_thread"]

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_HERE, package) + os.sep for package in ("autograd", "collectives", "parallel"))


def find_site() -> tuple[str, int]:
    """File and line of the innermost frame that is not ringtape's own."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def short_site(file: str, line: int) -> str:
    """The same as errors show it: ``model.py:41``."""
    return f"{os.path.basename(file)}:{line}"


def call_site() -> str:
    """The same as the tail of an error's text: ``   model.py:41``."""
    return f"\n  at {short_site(*find_site())}"


def site_of_thread(thread: int | None) -> str:
    """Where the user's program stands in another thread, ``model.py:41``; "" for a thread that has ended."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return "" if frame is None else short_site(frame.f_code.co_filename, frame.f_lineno)
