"""The traceback of an uncaught error, as a failed rank prints it.

A `RingtapeError` says what the user's program did wrong, so the frames inside ringtape are left out; an error of any
other kind is shown whole. ``RINGTAPE_TRACEBACK=full`` shows all frames of all errors.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from autograd.errors import RingtapeError, is_own_file

__all__ = ["traceback_text"]


def traceback_text(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> str:
    """The text of an uncaught error, without ringtape's own frames if it is a `RingtapeError`.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> try:
    ...     np.ones(2) @ np.ones(3)
    ... except Exception as error:
    ...     "autograd" in traceback_text(type(error), error, error.__traceback__).splitlines()[-2]
    False
    """
    shown = traceback.TracebackException(kind, error, trace)
    if isinstance(error, RingtapeError) and os.environ.get("RINGTAPE_TRACEBACK") != "full":
        _leave_out_own_frames(shown)
    return "".join(shown.format()).rstrip()


def _leave_out_own_frames(shown: traceback.TracebackException) -> None:
    kept = [frame for frame in shown.stack if not is_own_file(frame.filename)]
    if kept:  # otherwise ringtape was started as a program itself
        shown.stack[:] = kept
    for before in (shown.__cause__, shown.__context__):
        if before is not None:
            _leave_out_own_frames(before)
