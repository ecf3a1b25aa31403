"""Hearing of every call of every communicator of a thread, while somebody listens; at no cost while nobody does.

The methods of the transports' classes are replaced while there is a listener, and put back after. So communicators that
exist already are heard too (those of a mesh made earlier, a bucket's own channel), and no transport knows of it. Of
calls inside a call (an all-reduce that is a ring of sends, an exchange that is two gathers) the outer one is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any

from ..transports.protocol import Communicator, Pending, Request, named

__all__ = ["Observer", "observing", "quietly"]

Observer = Callable[[Communicator, str, tuple[Any, ...], Callable[[], Any]], Any]
"""``observer(group, call, arguments, run)`` calls `run` once and returns what that returns."""

_CALLS = [
    name for name, value in vars(Communicator).items()
    if isfunction(value) and not name.startswith("_")
    and name not in ("subgroup", "duplicate", "announce", "lane", "run")
]  # fmt: skip


class _Here(threading.local):
    observer: Observer | None = None


_here = _Here()
_lock = threading.Lock()
_listening = 0
_replaced: list[tuple[type, str, Any]] = []


def quietly(run: Callable[[], Any]) -> Any:
    """Call `run` without telling this thread's observer of the calls in it."""
    observer, _here.observer = _here.observer, None
    try:
        return run()
    finally:
        _here.observer = observer


def _told(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def method(self: Communicator, *args: Any, **words: Any) -> Any:
        observer = _here.observer
        if observer is None:
            return plain(self, *args, **words)
        if name == "start" and isinstance(args[0], Request):
            called, given = named(args[0])
            args = (called, *given)
        return observer(self, name, args, lambda: quietly(lambda: plain(self, *args, **words)))

    return method


def _classes(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = type.__subclasses__(kind)
    for below in subclasses:
        yield from _classes(below)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell `observer` of every call of this thread's communicators inside the block.

    Examples
    --------
    >>> import collectives as cc
    >>> from collectives.inspect.observing import observing
    >>> heard = []
    >>> def observer(group, call, arguments, run):
    ...     heard.append((group.name, call))
    ...     return run()
    >>> with observing(observer):
    ...     cc.world().barrier()
    >>> heard
    [('world', 'barrier')]
    """
    global _listening
    from ..algorithms import selected  # noqa: F401 - whose calls are calls too, though it is loaded when first asked for

    with _lock:
        _listening += 1
        if _listening == 1:
            for kind in dict.fromkeys(_classes(Communicator)):
                for name in _CALLS:
                    if name in vars(kind):
                        plain = vars(kind)[name]
                        _replaced.append((kind, name, plain))
                        setattr(kind, name, _told(name, plain))
    outer, _here.observer = _here.observer, observer
    try:
        yield
    finally:
        _here.observer = outer
        with _lock:
            _listening -= 1
            if _listening == 0:
                for kind, name, plain in _replaced:
                    setattr(kind, name, plain)
                _replaced.clear()


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
