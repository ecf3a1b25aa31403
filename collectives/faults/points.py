"""Named points of the program: places, besides the calls of communicators, where a fault can be injected."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

__all__ = ["Listener", "listeners", "point"]

Listener = Callable[[str], object]
"""Called with the name of each point that its rank reaches."""


class _Listeners:
    """The listeners to points: by thread number those of ranks, and by None that of the process where it is one rank.

    The thread of a rank is known by its number. A point in another thread, such as a background writer, is one of the
    process's rank; on threads it has to name its rank.
    """

    __slots__ = ("by_rank", "by_thread")

    def __init__(self) -> None:
        self.by_thread: dict[int | None, Listener] = {}
        self.by_rank: dict[int, Listener] = {}

    def find(self, rank: int | None) -> Listener | None:
        """The listener for a point that the calling thread has reached."""
        found = self.by_thread.get(get_ident()) or self.by_thread.get(None)
        return found if found is not None or rank is None else self.by_rank.get(rank)


listeners = _Listeners()


def point(name: str, rank: int | None = None) -> None:
    """Announce a place of the program at which a fault can be injected.

    It counts as an operation of its rank: see `collectives.testing.faults`. If no faults are injected, it does
    nothing, and costs a call of a function and one test.

    Parameters
    ----------
    name : str
        For example ``checkpoint.write``: words of letters, digits, ``_`` and ``-``, joined by dots.
    rank : int, optional
        The rank of the calling thread, if it is no rank itself, as a thread that writes in the background. It is needed
        only if ranks are threads. Such a point counts by its name only, because its place among the calls of the rank
        changes from run to run; and where ranks are threads, a rank that is to stop there stops at its next operation.

    Examples
    --------
    >>> import collectives as cc
    >>> from collectives.testing import faults
    >>> def program():
    ...     for step in range(3):
    ...         faults.point("step.end")
    ...     return "done"
    >>> with faults.injected("kill:1@2,of=step.end"):
    ...     cc.run(program, ranks=2)
    Traceback (most recent call last):
    autograd.errors.RankFailed: rank 1 of 2 was killed by an injected fault: kill:1@2,of=step.end, at step.end, ...
    """
    if listeners.by_thread:
        listener = listeners.find(rank)
        if listener is not None:
            listener(name)
