"""A communicator whose sums and copies are taken by an algorithm of one's choice; everything else is the transport's.

It stands in the place of the group that it wraps, so tapes, adjoints and fingerprints need not know. The algorithms
work on a channel of their own, made at their first use: what they send cannot be mistaken for the program's messages.
They are started in order and run one after the other, so nonblocking calls may be many. One that was started goes on
when it, or one behind it on its channel, is tested or waited for; it has no thread of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autograd.errors import ShapeError

from ..transports.arguments import checked_array, checked_counts, checked_rank
from ..transports.protocol import Array, Communicator, Pending, Request, named
from .fit import Fit, measure
from .hierarchical import Hosts
from .steps import Steps
from .table import OPERATIONS, steps_of, widened

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


class Selected(Communicator):
    """`base` with an algorithm for its sums and copies, where the algorithm has one for the call.

    Parameters
    ----------
    channel : Channel
        Shared by all choices on one group.
    algorithm : str
        A name of `table`.
    """

    def __init__(self, channel: Channel, algorithm: str):
        base = channel.base
        self.rank, self.size, self.ranks, self.name = base.rank, base.size, base.ranks, base.name
        self.base = base
        self.algorithm = algorithm
        self.channel = channel
        self.traffic = base.traffic

    run = Communicator.run  # by name, so that what stands here is taken

    def __repr__(self) -> str:
        return f"Selected({self.base!r}, {self.algorithm!r})"

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # not set yet
            raise AttributeError(name)
        return getattr(self.base, name)

    # -- what it is ------------------------------------------------------------------------------------------------
    def agree(self, call: str, *args: Any, **options: Any) -> None:
        """Compare with the other ranks; the algorithm is part of what must be the same."""
        self.base.agree(f"{call} algorithm={self.algorithm}", *args, **options)

    def announce(self, call: str, *args: Any, **options: Any) -> None:
        """The same; only the transport's own calls can carry it along."""
        tell = self.base.announce if self.algorithm == "native" else self.base.agree
        tell(f"{call} algorithm={self.algorithm}", *args, **options)

    def duplicate(self, purpose: str) -> Communicator:
        return Selected(Channel(self.base.duplicate(purpose), self.channel), self.algorithm)

    def choice(self, operation: str, size_bytes: int) -> str:
        """The algorithm that a call of so many bytes runs, with `auto` resolved."""
        if self.algorithm == "auto":
            return self.channel.fit.choose(operation, size_bytes)
        return self.algorithm if steps_of(operation, self.algorithm) is not None else "native"

    # -- the calls -------------------------------------------------------------------------------------------------
    def _prepared(self, call: str, args: tuple[Any, ...]) -> Steps[Any] | None:
        """The algorithm for a call; None where it is the transport's own."""
        if self.base.dry:
            return None  # nothing is sent, and nothing measured: the dry run predicts every algorithm
        x = args[0]
        size_bytes = sum(map(int, args[1])) * x.itemsize if call == "all_gather" else x.nbytes
        if self.size == 1:
            return None
        name = self.choice(call, size_bytes)
        algorithm = steps_of(call, name)
        if algorithm is None:
            return None
        _check(self, call, args)
        where: Any = self.channel if name.startswith("hierarchical") else self.channel.messages
        if call in _SUMS and x.dtype == np.float16:
            return _narrowed(algorithm(where, widened(x), *args[1:]))
        return algorithm(where, *args)

    def _call(self, call: str, *args: Any) -> Any:
        steps = self._prepared(call, args)
        return getattr(self.base, call)(*args) if steps is None else self.channel.run(steps)

    def broadcast(self, x: Array, root: int) -> Array:
        return self._call("broadcast", x, root)

    def reduce(self, x: Array, root: int) -> Array | None:
        return self._call("reduce", x, root)

    def all_reduce(self, x: Array) -> Array:
        return self._call("all_reduce", x)

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("all_gather", x, counts)

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("reduce_scatter", x, counts)

    def start(self, call: Any, *args: Any) -> Pending[Any]:
        if isinstance(call, Request):
            call, args = named(call)
        if call in OPERATIONS and self.size > 1:
            # the caller may write to its array before the end; only the buffer of a broadcast is lent
            if call != "broadcast" or args[1] == self.rank:
                args = (args[0].copy(), *args[1:])
            steps = self._prepared(call, args)
            if steps is not None:
                job = self.channel.start(steps)
                job.test()
                return Pending(job.test, job.finish)
        return self.base.start(call, *args)


_SUMS = ("all_reduce", "reduce_scatter", "reduce")


def _narrowed(steps: Steps[Any]) -> Steps[Any]:
    total = yield from steps
    return None if total is None else total.astype(np.float16)


def _check(group: Communicator, call: str, args: tuple[Any, ...]) -> None:
    """Refuse arguments that the transports refuse, before anything is sent."""
    x = checked_array(args[0])
    if call in ("broadcast", "reduce"):
        root = checked_rank(group, "root", args[1])
        if call == "broadcast" and root != group.rank and not x.flags.writeable:
            raise ShapeError(f"broadcast writes to the array off its root {root}, and this one is read-only")
    elif call != "all_reduce":
        counts = list(map(int, checked_counts(group, "counts", args[1])))
        needed = counts[group.rank] if call == "all_gather" else sum(counts)
        if x.size != needed:
            raise ShapeError(f"{call} on '{group.name}' was given {x.size} elements and counts {counts}")


def _delegated(name: str) -> Callable[..., Any]:
    return lambda self, *args, **options: getattr(self.base, name)(*args, **options)


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self.base, name))


# Every other call of the protocol, those to come included, is the transport's.
for _name, _value in list(vars(Communicator).items()):
    if not _name.startswith("_") and _name not in vars(Selected) and _name not in ("traffic", "algorithm"):
        is_method = callable(_value) and not isinstance(_value, property)
        setattr(Selected, _name, _delegated(_name) if is_method else _attribute(_name))
