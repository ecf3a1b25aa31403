"""Clocks for tests that advance only when the program says so, and that communication synchronises.

Each rank has a time of its own. `compute` advances it. A call that all ranks make ends, on each of them, at the time of
the last rank to begin it plus `transfer`; a message arrives at the time of its sender plus `transfer`. So a timeline
with these clocks is exact, and the same at each run.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import collectives as cc
from collectives.inspect.observing import observing
from collectives.transports.protocol import Communicator, Pending, Request

MEETINGS = {"all_reduce", "all_gather", "reduce_scatter", "barrier", "exchange", "all_to_all", "broadcast"}


class VirtualTime:
    """The times of all ranks of a world of threads, in nanoseconds."""

    def __init__(self, ranks: int, transfer: Callable[[int, Request], int] = lambda rank, request: 1000):
        self.now = [0] * ranks
        self.transfer = transfer
        self._entered: dict[Any, int] = {}
        self._counts: dict[Any, int] = {}
        self._lock = Lock()

    def clock(self) -> int:
        return self.now[int(cc.world().rank)]

    def compute(self, ns: float) -> None:
        self.now[int(cc.world().rank)] += round(ns)

    def synchronised(self) -> Any:
        """A ``with`` block whose communication takes virtual time. Leave it after a call of all ranks."""
        return observing(self._observe)

    def _observe(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        me = int(group.ranks[group.index])
        if request.call not in MEETINGS and request.call not in ("send", "recv"):
            return run()
        if request.call == "send":
            channel: Any = (group.name, me, group.ranks[request.peer], "sends")
        elif request.call == "recv":
            channel = (group.name, group.ranks[request.peer], me, "sends")
        else:
            channel = (group.name, group.ranks, request.call)
        with self._lock:
            mine = (*channel, me, request.call)
            number = self._counts[mine] = self._counts.get(mine, 0) + 1
            key = (channel, number)
            if request.call != "recv":
                self._entered[key] = max(self._entered.get(key, 0), self.now[me])
        result = run()

        def complete() -> None:  # all have entered
            if request.call != "send":
                self.now[me] = max(self.now[me], self._entered[key] + self.transfer(me, request))

        if not started:
            complete()
            return result

        def wait() -> Any:
            found = result.wait()
            complete()
            return found

        return Pending(lambda: False, wait)
