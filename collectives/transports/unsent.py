"""Started calls that a rank has not yet handed to its transport, because their operands are still being computed.

The other ranks may wait for them. So before a rank waits for another one, it hands over all of them: transports call
`hand_over` there. Each thread that is a rank has calls of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

__all__ = ["HandOver", "advance", "forget", "hand_over", "unsent", "wait_for"]

HandOver = Callable[[bool], None]
"""``hand_over(waits)`` starts the calls of a channel in order. If it `waits`, it starts all of them, else those whose
operands are ready."""

unsent: dict[int, list[HandOver]] = {}
"""By thread: the functions of the channels that have such calls. Hot paths read whether it is empty."""


def wait_for(function: HandOver) -> None:
    """Note that a channel of this thread has unsent calls."""
    unsent.setdefault(get_ident(), []).append(function)


def forget(function: HandOver) -> None:
    """Note that a channel has no unsent calls any more."""
    for thread in list(unsent):
        functions = unsent.get(thread, [])
        if function in functions:
            functions.remove(function)
            if not functions:
                del unsent[thread]


def hand_over() -> None:
    """Start all unsent calls of this thread. The host waits for their operands."""
    for function in unsent.get(get_ident(), ())[:]:
        function(True)


def advance() -> None:
    """Start the unsent calls of this thread whose operands are ready."""
    for function in unsent.get(get_ident(), ())[:]:
        function(False)
