"""A communicator whose sums and copies are taken by an algorithm of one's choice; everything else is the transport's.

It stands in the place of the group that it wraps, so tapes, adjoints and fingerprints need not know. The algorithms
work on a channel of their own, made at their first use: what they send cannot be mistaken for the program's messages.
They are started in order and run one after the other, so nonblocking calls may be many. One that was started goes on
when it, or one behind it on its channel, is tested or waited for; it has no thread of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..transports.protocol import Communicator, Pending, Request, Wrapper
from ..transports.staged import HostTransport
from .fit import Fit, measure
from .hierarchical import Hosts
from .steps import Steps
from .table import OPERATIONS, steps_of

__all__ = ["Channel", "Selected"]


class Channel:
    """Where algorithms talk: a duplicate of a group, and what is found out about it once."""

    def __init__(self, base: Communicator, like: Channel | None = None):
        self.base = base
        self._like = like  # a channel between the same ranks, whose fit holds here too
        self.jobs: deque[_Job] = deque()
        self._messages: Communicator | None = None
        self._hosts: Hosts | None = None
        self._fit: Fit | None = None

    @property
    def messages(self) -> Communicator:
        """The channel for messages. Made by all ranks at the first use."""
        if self._messages is None:
            self._messages = self._counted(self.base.duplicate("algorithms"))
        return self._messages

    def _counted(self, made: Communicator) -> Communicator:
        made.traffic = self.base.traffic
        return made

    @property
    def hosts(self) -> Hosts:
        """Who is on which host. Found out by all ranks at the first use."""
        if self._hosts is None:
            group = self.messages
            self._hosts = Hosts(group, lambda members, name: self._counted(group.subgroup(members, name)))
        return self._hosts

    @property
    def fit(self) -> Fit:
        """Latency and bandwidth. Measured by all ranks at the first use."""
        if self._like is not None:
            return self._like.fit
        if self._fit is None:
            self.drain()
            self._fit = measure(self.base, self.messages, self.hosts)
        return self._fit

    def run(self, steps: Steps[Any]) -> Any:
        """An algorithm, blocking, after those that were started before it."""
        return self.start(steps).finish()

    def start(self, steps: Steps[Any]) -> _Job:
        """Queue an algorithm."""
        job = _Job(self, steps)
        self.jobs.append(job)
        return job

    def drain(self) -> None:
        """Finish what was started."""
        while self.jobs:
            self.jobs[0].finish()


class _Job:
    """An algorithm that was started; it runs when those before it on the channel are done."""

    def __init__(self, channel: Channel, steps: Steps[Any]):
        self._channel = channel
        self._steps = steps
        self._at: Pending[Any] | None = None
        self._is_done = False
        self._result: Any = None

    def _step(self) -> None:
        try:
            if self._at is not None:
                self._at.wait()  # a transport may move the data only now
            self._at = next(self._steps)
        except StopIteration as stop:
            self._is_done, self._result, self._at = True, stop.value, None
            self._channel.jobs.popleft()
        except BaseException:
            self._channel.jobs.popleft()
            raise

    def test(self) -> bool:
        """Go on as far as can be without waiting."""
        jobs = self._channel.jobs
        while not self._is_done:
            first = jobs[0]
            if first._at is not None and not first._at.test():
                return False
            first._step()
        return True

    def finish(self) -> Any:
        """Wait for the result."""
        jobs = self._channel.jobs
        while not self._is_done:
            jobs[0]._step()
        return self._result


class Selected(Wrapper, HostTransport):
    """`base` with an algorithm for its sums and copies, where the algorithm has one for the call.

    Parameters
    ----------
    channel : Channel
        Shared by all choices on one group.
    algorithm : str
        A name of `table`.
    """

    def __init__(self, channel: Channel, algorithm: str):
        super().__init__(channel.base)
        self.algorithm = algorithm
        self.channel = channel

    def __repr__(self) -> str:
        return f"Selected({self.base!r}, {self.algorithm!r})"

    # -- what it is ------------------------------------------------------------------------------------------------
    def agree(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        """Compare with the other ranks; the algorithm is part of what must be the same."""
        self.base.agree(f"{call} algorithm={self.algorithm}", layout, is_rooted)

    def announce(self, call: str, layout: str = "", is_rooted: bool = False) -> None:
        """The same; only the transport's own calls can carry it along."""
        tell = self.base.announce if self.algorithm == "native" else self.base.agree
        tell(f"{call} algorithm={self.algorithm}", layout, is_rooted)

    def duplicate(self, purpose: str) -> Communicator:
        return Selected(Channel(self.base.duplicate(purpose), self.channel), self.algorithm)

    def choice(self, operation: str, size_bytes: int) -> str:
        """The algorithm that a call of so many bytes runs, with `auto` resolved."""
        if self.algorithm == "auto":
            return self.channel.fit.choose(operation, size_bytes)
        return self.algorithm if steps_of(operation, self.algorithm) is not None else "native"

    # -- the calls -------------------------------------------------------------------------------------------------
    def run(self, request: Request) -> Any:
        """Make a call, by the algorithm if it has one for it."""
        return self.base.run(request) if self._chosen(request) is None else super().run(request)

    def start(self, request: Request) -> Pending[Any]:
        """Start a call, by the algorithm if it has one for it."""
        return self.base.start(request) if self._chosen(request) is None else super().start(request)

    def _chosen(self, request: Request) -> str | None:
        """The algorithm for a call; None where it is the transport's own."""
        call, given = request.call, request.out if request.x is None else request.x
        # a dry group sends nothing, and nothing is measured there: the dry run predicts every algorithm
        if call not in OPERATIONS or request.op != "sum" or self.size == 1 or self.dry or given is None:
            return None
        count = sum(map(int, request.counts or ())) if call == "all_gather" else given.size
        name = self.choice(call, count * given.dtype.itemsize)
        return None if name == "native" else name

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        job = self.channel.start(self._steps(request, x, out))
        job.test()
        return Pending(job.test, job.finish)

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        return self.channel.run(self._steps(request, x, out))

    def _steps(self, request: Request, x: Any, out: Any) -> Steps[Any]:
        name = self._chosen(request)
        algorithm = steps_of(request.call, name) if name is not None else None
        assert name is not None and algorithm is not None
        where: Any = self.channel if name.startswith("hierarchical") else self.channel.messages
        return algorithm(where, request, x, out)
