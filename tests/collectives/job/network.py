"""A control channel between monitors of one process, which counts the messages."""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

from collectives.job.control import Test


class Network:
    """The messages between `size` monitors."""

    def __init__(self, size: int):
        self.size = size
        self.sent: Counter[int] = Counter()  # by rank
        self._queues: dict[tuple[int, int], deque[tuple[int, str, list[bool]]]] = {}
        self._entered: Counter[int] = Counter()  # barriers, by their number

    def control(self, rank: int) -> NetworkControl:
        return NetworkControl(self, rank)


class NetworkControl:
    """One rank's end of a `Network`; implements `collectives.job.control.Control`."""

    def __init__(self, network: Network, rank: int):
        self._network = network
        self.rank, self.ranks, self.is_over = rank, tuple(range(network.size)), False

    def send(self, rank: int, tag: int, content: Any, *, is_synchronous: bool = False) -> Test:
        self._network.sent[self.rank] += 1
        received = [not is_synchronous]
        queue = self._network._queues.setdefault((rank, tag), deque())
        queue.append((self.rank, json.dumps(content), received))
        return lambda: received[0]

    def receive(self, tag: int) -> tuple[int, Any] | None:
        queue = self._network._queues.get((self.rank, tag))
        if not queue:
            return None
        source, content, received = queue.popleft()
        received[0] = True
        return source, json.loads(content)

    def barrier(self, number: int) -> Test:
        entered = self._network._entered
        entered[number] += 1
        return lambda: entered[number] == len(self.ranks)
