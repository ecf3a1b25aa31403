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
    "Listener", "besides", "constants", "declarations", "emit", "emit_span", "listeners", "listening",
    "listening_to_spans", "objectives", "repeated", "span", "spans", "uses",
]  # fmt: skip

Listener = Callable[[str, str, str], None]
"""The type of a listener: ``listener(phase, direction, name)``."""

listeners: list[tuple[int, Listener]] = []
"""(thread, listener) pairs. A listener is called for the events of its own thread (on threads, its own rank)."""

declarations: list[Callable[[str, Any], None]] = []
"""Called as ``f("tensor", x)`` with a leaf with explicit labels, ``f("constant", x)`` with a constant, ``f("norm", x)``
with a norm that a function of the user has computed, ``f("key", x)`` with the name of a random key, and
``f("order", x)`` with that of the order of a data set."""

objectives: list[Callable[[Any, Any], None]] = []
"""Called as ``f(outputs, recording)`` before a sweep without given cotangents, under a mesh of several ranks."""

uses: list[Callable[[Any, Any, Any, Any], None]] = []
"""Called as ``f(operation, layouts, arrays, options)`` at the first use of an operation of the user with operands of
these layouts, shapes and dtypes under a mesh."""

constants: list[Callable[[str, Any, Any], None]] = []
"""Called as ``f(name, layout, value)`` where a number or an array that should be constant is used: with the name of the
operation and the layout of its result. On axes where the result is R, I or P, all ranks must use the same value."""


besides: list[Callable[[str, Any, Any], None]] = []
"""Called as ``f(name, x, out)`` where a Varying operand of an operation on elements has an element for each of a part
beside it: with the name of the operation, the operand (a Tensor or an array), and the layout of the result."""


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


def compare(name: str, layout: Any, value: Any) -> None:
    """Call every function in `constants`."""
    for each in constants:
        each(name, layout, value)


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
