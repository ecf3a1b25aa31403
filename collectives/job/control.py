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
    A message to a rank that has died counts as received.

    Attributes
    ----------
    rank : int
        This rank of the world.
    ranks : tuple of int
        The ranks of the world that it connects.
    is_over : bool
        Whether one of them has ended its epoch (`World.survivors`). Nothing is sent or received any more.
    """

    rank: int
    ranks: tuple[int, ...]
    is_over: bool

    def send(self, rank: int, tag: int, content: Any, *, is_synchronous: bool = False) -> Test:
        """Start to send. A synchronous message is complete only once it has been received."""
        ...

    def receive(self, tag: int) -> tuple[int, Any] | None:
        """The next message with this tag, as (source rank, content); None if none has arrived."""
        ...

    def barrier(self, number: int) -> Test:
        """Enter a barrier of all ranks, the first, second or third one of their end (0, 1, 2; see `shutdown`)."""
        ...
