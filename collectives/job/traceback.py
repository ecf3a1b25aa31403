"""The text of an uncaught error, as a failed rank prints it, alone or for others that raise the same one.

A `RingtapeError` says what the user's program did wrong, so the frames inside ringtape are left out; an error of any
other kind is shown whole. ``RINGTAPE_TRACEBACK=full`` shows all frames of all errors.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable
from types import TracebackType

from autograd.errors import CollectiveMismatch, LayoutError, RingtapeError, is_own_file

__all__ = ["comparable", "ranks_text", "shorten", "traceback_text"]


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


def shorten(error: BaseException) -> None:
    """Leave ringtape's own frames out of the traceback of a `RingtapeError` that is being raised.

    A job of several ranks prints errors by hooks of the interpreter, which a process of one rank does not have.
    """
    if not isinstance(error, RingtapeError) or os.environ.get("RINGTAPE_TRACEBACK") == "full":
        return
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = None
    for each in reversed(frames):
        if not is_own_file(each.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    error.__traceback__ = kept or error.__traceback__
    for before in (error.__cause__, error.__context__):
        if before is not None:
            shorten(before)


def _leave_out_own_frames(shown: traceback.TracebackException) -> None:
    kept = [frame for frame in shown.stack if not is_own_file(frame.filename)]
    if kept:  # otherwise ringtape was started as a program itself
        shown.stack[:] = kept
    for before in (shown.__cause__, shown.__context__):
        if before is not None:
            _leave_out_own_frames(before)


_SHAPE = re.compile(r"(?<=\w)\[[\d,]+\](?= \{)")


def comparable(error: BaseException, text: str) -> str:
    """The text of an error as it is compared between ranks.

    The labels in a LayoutError are the same on all ranks, and the shapes of the parts may differ. A CollectiveMismatch
    has the same text on all ranks, with the lines of all, and is raised at different lines.

    Examples
    --------
    >>> comparable(LayoutError(), "exp(x: f64[3,2] {dp: P})")
    'exp(x: f64[...] {dp: P})'
    """
    if isinstance(error, CollectiveMismatch):
        return str(error)
    return _SHAPE.sub("[...]", text) if isinstance(error, LayoutError) else text


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks as text.

    Examples
    --------
    >>> ranks_text([2]), ranks_text([0, 1, 2, 3, 5])
    ('rank 2', 'ranks 0-3, 5')
    """
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][-1] + 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    text = ", ".join("-".join(map(str, each)) for each in found)
    return f"rank{'' if text.isdigit() else 's'} {text}"
