"""Begin and end of every operation, for a timeline, a progress display or anomaly detection.

A listener is called as ``listener(phase, direction, name)`` with phase "begin" or "end" and direction "forward",
"backward" or "effect". Without listeners an operation pays one look at an empty list.

Examples
--------
>>> import autograd as ag, autograd.numpy as np
>>> seen = []
>>> with ag.events.listening(lambda phase, direction, name: seen.append((phase, name))):
...     _ = np.tanh(ag.tensor([1.0, 2.0]))
>>> seen
[('begin', 'tanh'), ('end', 'tanh')]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Listener", "calls", "declarations", "emit", "hearing_calls", "listeners", "listening", "told"]

Listener = Callable[[str, str, str], None]

listeners: list[tuple[int, Listener]] = []
"""(thread, listener) pairs: a listener hears its own thread, which on threads is its own rank."""

calls: list[tuple[int, Callable[..., None]]] = []
"""Called as ``f(operation, operands, options, result)``, likewise; only while somebody listens at all."""

declarations: list[Callable[[str, Any], None]] = []
"""Called as ``f("tensor", x)`` with a leaf that was given labels, and as ``f("constant", x)`` with a constant."""


def emit(phase: str, direction: str, name: str) -> None:
    """Tell this thread's listeners."""
    me = threading.get_ident()
    for thread, listener in tuple(listeners):
        if thread == me:
            listener(phase, direction, name)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` for every operation of this thread inside the block."""
    entry = (threading.get_ident(), listener)
    listeners.append(entry)
    try:
        yield
    finally:
        listeners.remove(entry)


def told(operation: Any, operands: Any, options: Any, result: Any) -> None:
    """Tell those of this thread who want to know what each operation was given, and what it made."""
    me = threading.get_ident()
    for thread, hear in tuple(calls):
        if thread == me:
            hear(operation, operands, options, result)


@contextmanager
def hearing_calls(hear: Callable[..., None]) -> Iterator[None]:
    """Call ``hear(operation, operands, options, result)`` after every operation of this thread inside the block."""
    entry = (threading.get_ident(), hear)
    calls.append(entry)
    try:
        with listening(lambda phase, direction, name: None):  # where nobody listens, operations take shortcuts
            yield
    finally:
        calls.remove(entry)
