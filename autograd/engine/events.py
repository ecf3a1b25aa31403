"""Events: the begin and end of every operation, for timelines, progress displays and anomaly detection.

A listener is called as ``listener(phase, direction, name)`` with phase "begin" or "end" and direction "forward",
"backward", "effect" or "update" (a parameter that an optimizer has updated, or whose gradient was clipped). An
operation that raises has no end. Without listeners an operation only tests an empty list.

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
    "Listener", "all_whole", "emit", "emit_span", "emitting", "heard", "listeners", "listening",
    "listening_to_spans", "refuse", "repeated", "span", "spans", "tell", "unheard",
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

    A listener with a method `see` gets the facts too, where the event has some:

    ==================  ==============================================================================================
    event               facts
    ==================  ==============================================================================================
    forward, begin      the operation, its operands, its options (of a collective the `Prepared` call)
    forward, end        the operation, its operands, its result, its options (none of a collective)
    backward, both      the node, its cotangent, the sweep; of a gradient bucket the entry's place, its array, the sweep
    effect, both        the function that runs
    update, both        the optimizer, the parameter; of clipping None, and at the end the gradient
    a named part        none: see `tape.scope`
    ==================  ==============================================================================================
    """
    me = threading.get_ident()
    for thread, listener in tuple(listeners):
        if thread == me:
            if facts and hasattr(listener, "see"):
                listener.see(phase, direction, name, facts)
            else:
                listener(phase, direction, name)


def tell(method: str, *facts: Any) -> None:
    """Call a method of this thread's listeners, if they have it.

    ``failed(direction, name, error)``: an operation has raised. ``added(place, cotangent, sweep)``: the step of a sweep
    adds a cotangent to that at a place, if `heard` was true of "added" when the sweep began. ``transferred(call,
    is_cotangent, key, value, layout)``: a message has the value; `call` is "send" or "recv", the channel, and
    the other rank. The message of the cotangent has the same key.
    """
    me = threading.get_ident()
    for thread, listener in tuple(listeners):
        if thread == me and hasattr(listener, method):
            getattr(listener, method)(*facts)


def heard(method: str) -> bool:
    """Whether a listener of this thread has a method, which `tell` calls."""
    me = threading.get_ident()
    return any(thread == me and hasattr(listener, method) for thread, listener in tuple(listeners))


def all_whole() -> bool:
    """Whether all listeners of this thread take operations as they are: they have an attribute `whole` that is true.

    For other listeners an operation that can be computed by several simpler ones is, so that they hear of each.
    """
    me = threading.get_ident()
    return all(thread != me or getattr(listener, "whole", False) for thread, listener in tuple(listeners))


class emitting:
    """Emit the begin of an operation around the block that runs it, and `tell` that it `failed` if the block raises.

    The block emits the end, which has the facts of the result.
    """

    __slots__ = ("_direction", "_facts", "_name")

    def __init__(self, direction: str, name: str, *facts: Any):
        self._direction, self._name, self._facts = direction, name, facts

    def __enter__(self) -> None:
        emit("begin", self._direction, self._name, *self._facts)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            tell("failed", self._direction, self._name, error)


def refuse(name: str, *facts: Any, error: BaseException) -> None:
    """Emit the begin of an operation that was refused before it could run, and `tell` that it `failed`."""
    emit("begin", "forward", name, *facts)
    tell("failed", "forward", name, error)


@contextmanager
def unheard() -> Iterator[None]:
    """Inside the block this thread's listeners hear nothing: what runs there is no part of the program."""
    me = threading.get_ident()
    mine = [entry for entry in listeners if entry[0] == me]
    for entry in mine:
        listeners.remove(entry)
    try:
        yield
    finally:
        listeners.extend(mine)


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
