"""The protocol of the control channel, over which the monitors of a world's ranks talk to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Control", "Test"]

Test = Callable[[], bool]
"""Tests whether what was started is complete, and makes progress on it; never blocks."""


class Control(Protocol):
    """Messages between the monitors, apart from the program's communication. No call blocks.

    A transport implements it (`transports.mpi.control`). Contents are whatever JSON can write.
    """

    rank: int
    size: int

    def send(self, rank: int, tag: int, content: Any, *, is_synchronous: bool = False) -> Test:
        """Start to send. A synchronous message is complete only once it has been received."""
        ...

    def receive(self, tag: int) -> tuple[int, Any] | None:
        """The next message with this tag, as (source rank, content); None if none has arrived."""
        ...

    def barrier(self) -> Test:
        """Enter a barrier of all ranks."""
        ...
