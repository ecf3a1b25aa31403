"""Observing every call of every communicator of a thread; at the cost of one look at an empty dictionary otherwise.

An observer is told of the `Request` of each call, whatever the transport and whenever the communicator was made. Of
calls inside a call (an all-reduce that is a ring of messages) it is told of the outer one only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from ..transports.protocol import Observer, Pending, observers, quietly

__all__ = ["Observer", "Watched", "observing", "quietly"]


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every call of this thread's communicators inside the block.

    Examples
    --------
    >>> import collectives as cc
    >>> from collectives.inspect.observing import observing
    >>> heard = []
    >>> def observer(group, request, started, run):
    ...     heard.append((group.name, request.call))
    ...     return run()
    >>> with observing(observer):
    ...     cc.world().barrier()
    >>> heard
    [('world', 'barrier')]
    """
    thread = get_ident()
    outer = observers.get(thread)
    observers[thread] = observer
    try:
        yield
    finally:
        if outer is None:
            del observers[thread]
        else:
            observers[thread] = outer


class Watched(Pending[Any]):
    """A pending communication that tells when it was waited for, and when it was complete.

    Parameters
    ----------
    inner : Pending
    began, ended : callable
        Called once each: before its wait, and when it is known to be complete.
    """

    __slots__ = ("_began", "_ended", "_inner")

    def __init__(self, inner: Pending[Any], began: Callable[[], None], ended: Callable[[], None]):
        super().__init__(None, None)
        self._inner = inner
        self._began: Callable[[], None] | None = began
        self._ended: Callable[[], None] | None = ended

    def test(self) -> bool:
        done = quietly(self._inner.test)
        if done:
            self._tell_end()
        return bool(done)

    def wait(self) -> Any:
        if self._began is not None:
            self._began()
            self._began = None
        result = quietly(self._inner.wait)
        self._tell_end()
        return result

    def _tell_end(self) -> None:
        if self._ended is not None:
            self._ended()
            self._ended = None
