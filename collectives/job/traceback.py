"""The text of an uncaught error, as a failed rank prints it, alone or for others that raise the same one.

A `RingtapeError` says what the user's program did wrong, so the frames inside ringtape are left out; an error of any
other kind is shown whole. ``RINGTAPE_TRACEBACK=full`` shows all frames of all errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import TracebackType

from autograd.errors import CollectiveMismatch, LayoutError, shorten

__all__ = ["comparable", "ranks_text", "text_of", "traceback_text"]


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
    import traceback  # of the standard library; needed only where a rank fails

    error.__traceback__ = trace
    shorten(error)
    return "".join(traceback.format_exception(kind, error, error.__traceback__)).rstrip()


def text_of(error: BaseException) -> str:
    """``str(error)``, also for an error whose own text cannot be made: a failed rank must be reported nevertheless."""
    try:
        return str(error)
    except Exception as other:
        return f"<its text cannot be made: {type(other).__name__}>"


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
    return re.sub(r"(?<=\w)\[[\d,]+\](?= \{)", "[...]", text) if isinstance(error, LayoutError) else text


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
