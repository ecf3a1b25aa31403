"""Observe every call of every communicator of a thread. Without an observer it costs one lookup in an empty dictionary.

An observer receives the `Request` of each call, for any transport, and also for communicators made before the block. If
a call makes further calls (an all-reduce made of messages in a ring), the observer receives only the outer call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from ..transports.protocol import Communicator, Observer, Pending, Request, observers, quietly

__all__ = ["Observer", "Watched", "observing", "quietly"]


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call `observer` for every call of this thread's communicators inside the block.

    Inside the block of another observer both see each call: the `run` of the inner one calls the outer one.

    Parameters
    ----------
    observer : callable
        ``observer(group, request, started, run)`` is called in place of each call. It returns ``run()``, which runs the
        call. `started` is whether the call is nonblocking.

    Examples
    --------
    >>> import collectives as cc
    >>> from collectives.inspect.observing import observing
    >>> seen = []
    >>> def observer(group, request, started, run):
    ...     seen.append((group.name, request.call))
    ...     return run()
    >>> with observing(observer):
    ...     cc.world().barrier()
    >>> seen
    [('world', 'barrier')]
    """
    thread = get_ident()
    outer = observers.get(thread)
    observers[thread] = observer if outer is None else _both(observer, outer)
    try:
        yield
    finally:
        if outer is None:
            del observers[thread]
        else:
            observers[thread] = outer


def _both(inner: Observer, outer: Observer) -> Observer:
    def observer(group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        return inner(group, request, started, lambda: outer(group, request, started, run))

    return observer


class Watched(Pending[Any]):
    """A pending communication that calls a function before its wait, and another at its completion.

    Parameters
    ----------
    inner : Pending
    began, ended : callable
        Each is called once: before the wait, and when the communication is known to be complete.
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
            self._report_end()
        return bool(done)

    def wait(self) -> Any:
        if self._began is not None:
            self._began()
            self._began = None
        result = quietly(self._inner.wait)
        self._report_end()
        return result

    def _report_end(self) -> None:
        if self._ended is not None:
            self._ended()
            self._ended = None
