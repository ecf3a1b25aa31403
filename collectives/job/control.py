"""The protocol of the control channel, which carries messages between the monitors of a world's ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Control", "Test"]

Test = Callable[[], bool]
"""Returns whether a started operation is complete, and makes progress on it. Never blocks."""


class Control(Protocol):
    """Messages between the monitors, separate from the program's communication. No call blocks.

    A transport implements it (`transports.mpi.control`). The content of a message is any value that JSON can encode.
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
