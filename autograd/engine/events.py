"""Events: the begin and end of every operation, for timelines, progress displays and anomaly detection.

A listener is called as ``listener(phase, direction, name)`` with phase "begin" or "end" and direction "forward",
"backward" or "effect". Without listeners an operation only tests an empty list.

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

__all__ = [
    "Listener", "emit", "emit_span", "listeners", "listening", "listening_to_spans", "repeated", "span", "spans",
]  # fmt: skip

Listener = Callable[[str, str, str], None]
"""The type of a listener: ``listener(phase, direction, name)``."""

listeners: list[tuple[int, Listener]] = []
"""(thread, listener) pairs. A listener is called for the events of its own thread (on threads, its own rank)."""

spans: list[tuple[int, Callable[[str, str, int], None]]] = []
"""(thread, listener) pairs. A listener is called as ``f("begin", name, 0)`` and ``f("end", name, rows)`` around the
parts of a training step: "forward" (the block of a tape), "backward" (a sweep) and "optimizer" (`Optimizer.step`). The
layers above add spans of their own, such as "step", which tells its rows at its end."""


def emit_span(edge: str, name: str, rows: int = 0) -> None:
    """Call this thread's listeners in `spans`. Callers test first that there are any."""
    me = threading.get_ident()
    for thread, listener in tuple(spans):
        if thread == me:
            listener(edge, name, rows)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Emit the begin and the end of a span around the block."""
    emit_span("begin", name)
    try:
        yield
    finally:
        emit_span("end", name)


@contextmanager
def listening_to_spans(listener: Callable[[str, str, int], None]) -> Iterator[None]:
    """Call `listener` for every span of this thread inside the block."""
    entry = (threading.get_ident(), listener)
    spans.append(entry)
    try:
        yield
    finally:
        spans.remove(entry)


def emit(phase: str, direction: str, name: str, *facts: Any) -> None:
    """Call this thread's listeners.

    A listener with a method `see` gets the facts too, where the event has some: at the end of an operation the
    operation, its operands, its result and its options; around a step of a sweep the node, its cotangent, the sweep.
    """
    me = threading.get_ident()
    for thread, listener in tuple(listeners):
        if thread == me:
            if facts and hasattr(listener, "see"):
                listener.see(phase, direction, name, facts)
            else:
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


def repeated() -> bool:
    """Whether a listener of this thread runs the operations again and needs no derivative of them."""
    me = threading.get_ident()
    return any(thread == me and getattr(listener, "repeats", False) for thread, listener in tuple(listeners))
