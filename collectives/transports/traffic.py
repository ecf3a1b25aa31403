"""Counters of point-to-point messages: how many messages and payload bytes were sent to each peer."""

from __future__ import annotations

__all__ = ["Traffic"]


class Traffic:
    """Counters of point-to-point messages; payload only, without the transport's own headers.

    A communicator counts its `send` and `lend` requests. The channels of an algorithm count into the communicator that
    they were made from, so that one object holds the traffic of an axis. The messages that a transport sends inside
    its own collectives (`native`) are not counted.

    Attributes
    ----------
    peers : dict of int to (int, int)
        The messages and bytes sent to each world rank that received at least one message.

    Examples
    --------
    >>> import numpy as np, collectives as cc
    >>> def program():
    ...     group = cc.world()
    ...     if group.rank == 0:
    ...         group.send(np.zeros(4), 1)
    ...     elif group.rank == 1:
    ...         group.recv(np.empty(4), 0)
    ...     return group.traffic.messages, group.traffic.bytes
    >>> cc.run(program, ranks=2)
    [(1, 32), (0, 0)]
    """

    __slots__ = ("peers",)

    def __init__(self) -> None:
        self.peers: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"Traffic({self.messages} messages, {self.bytes} bytes to {len(self.peers)} ranks)"

    def count(self, peer: int, size_bytes: int) -> None:
        """Count one message to a world rank."""
        messages, total = self.peers.get(peer, (0, 0))
        self.peers[peer] = messages + 1, total + size_bytes

    def clear(self) -> None:
        """Reset the counters to zero."""
        self.peers.clear()

    @property
    def messages(self) -> int:
        """Messages sent to all peers."""
        return sum(messages for messages, _ in self.peers.values())

    @property
    def bytes(self) -> int:
        """Payload bytes sent to all peers."""
        return sum(size for _, size in self.peers.values())
