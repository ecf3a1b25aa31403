"""A small transport, written from `collectives/transports/host_transport.py` and `job.py` beside it.

Ranks are threads, and all that they share is a post office. In a collective each rank posts its part to every rank of
the channel, and computes its own result from the parts of all; a message is a letter, too. Parts are copied, because
each rank writes to the arrays that it gets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from queue import Empty, SimpleQueue
from typing import Any, Self

from autograd.errors import CollectiveMismatch, TimeLimitError
from collectives.transports.host_transport import HostTransport
from collectives.transports.job import Job, Options
from collectives.transports.protocol import Communicator, Pending, Request
from collectives.transports.threads.calls import Part, agreed, combine

__all__ = ["PostCommunicator", "PostJob"]

LIMIT_S = 60.0
Office = defaultdict[Any, SimpleQueue[Any]]
"""By channel, what it is, its number, sender and receiver: a letter."""


class PostCommunicator(HostTransport):
    """One rank's end of a channel."""

    repeats = True

    def __init__(self, office: Office, rank: int, ranks: tuple[int, ...], name: str = "world", key: str = "world"):
        super().__init__(ranks.index(rank), ranks, name, key)
        self._office = office
        self._counts: Counter[Any] = Counter()

    def _channel_of(self, ranks: tuple[int, ...], name: str, key: str) -> PostCommunicator:
        return PostCommunicator(self._office, self.ranks[self.index], ranks, name, key)

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        me, peer = self.index, request.peer
        if request.call in ("send", "lend"):
            self._post((*self._numbered(request), me, peer), x)
            return Pending.done(None)
        if request.call == "recv":
            letter = (*self._numbered(request), peer, me)
            return Pending(lambda: self._has(letter), lambda: self._received(request, self._take(letter), out))
        self._counts["call"] = number = self._counts["call"] + 1
        for dst in range(self.size):
            self._post(("call", number, me, dst), Part(request, x, out))
        letters = [("call", number, src, me) for src in range(self.size)]

        def finish() -> Any:
            parts = [self._take(letter) for letter in letters]
            calls = [agreed(*part) for part in parts]
            if len(set(calls)) > 1:
                raise CollectiveMismatch(f"call #{number} on '{self.name}': the ranks made {calls}")
            y = combine(parts)[me]
            if out is None:
                return y
            out[...] = y
            return out

        return Pending(lambda: all(map(self._has, letters)), finish)

    def _numbered(self, request: Request) -> tuple[str, int]:
        """The number that a message has, or else its place in the order of the messages between two ranks."""
        if request.options and request.options[0] is not None:
            return "numbered", request.options[0]
        way = request.call == "recv", request.peer
        self._counts[way] += 1
        return "message", self._counts[way]

    def _received(self, request: Request, x: Any, out: Any) -> Any:
        if (x.dtype, x.size) != (out.dtype, out.size):
            raise CollectiveMismatch(f"recv on '{self.name}' of {out.size} {out.dtype}: {x.size} {x.dtype} arrived")
        out[...] = x
        return out

    # -- letters -----------------------------------------------------------------------------------------------
    def _post(self, letter: tuple[Any, ...], content: Any) -> None:
        self._office[self.key, *letter].put(deepcopy(content))

    def _has(self, letter: tuple[Any, ...]) -> bool:
        return not self._office[self.key, *letter].empty()

    def _take(self, letter: tuple[Any, ...]) -> Any:
        try:
            return self._office[self.key, *letter].get(timeout=LIMIT_S)
        except Empty:
            raise TimeLimitError(f"rank {self.index} has waited on '{self.name}' for {LIMIT_S:g} s") from None


class PostJob(Job):
    """Ranks as threads that write letters."""

    runs_programs = True

    def __init__(self, size: int):
        self.size = size

    @classmethod
    def open(cls, options: Options) -> Self:
        return cls(options.size)

    def run(
        self, program: Callable[..., Any], args: tuple[Any, ...], begin: Callable[[Communicator], None]
    ) -> list[Any]:
        office: Office = defaultdict(SimpleQueue)

        def rank_main(rank: int) -> Any:
            begin(PostCommunicator(office, rank, tuple(range(self.size))))
            return program(*args)

        with ThreadPoolExecutor(self.size) as threads:
            return list(threads.map(rank_main, range(self.size)))
