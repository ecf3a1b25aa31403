"""A communicator that runs collectives by a selected algorithm; all other calls go to the transport.

It replaces the communicator that it wraps, so tapes, adjoints and fingerprints need no changes. The algorithms send on
their own channel, which is made at the first use, so their messages cannot be confused with the program's. Algorithms
on one channel run one after the other in the order in which they were started, so any number of nonblocking calls can
be pending. No thread runs them: an algorithm makes progress when it, or a later one on its channel, is tested or waited
for.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from ..checks.sanitizer import Addend
from ..transports.host_transport import HostTransport
from ..transports.protocol import Communicator, Pending, Request, Text, Wrapper, observed, observers, with_words
from ..transports.queue import Queue
from ..transports.steps import Steps
from .choices import Choices, settled
from .fit import Fit, measure
from .hierarchical import Level, domains_of
from .table import OPERATIONS, steps_of

__all__ = ["Channel", "Selected"]


class Channel(Queue):
    """The channel of the algorithms: a duplicate of a group, with its levels and measurements, which are made once.

    Parameters
    ----------
    base : Communicator
    like : Channel, optional
        A channel between the same ranks, whose levels and measurements hold here.
    topology : Topology, optional
        The levels; without one, they are the hosts, and what the launcher tells.
    """

    def __init__(self, base: Communicator, like: Channel | None = None, topology: Any = None):
        super().__init__()
        self.base = base
        self.topology: Any = topology if like is None else like.topology
        self._like = like
        self._messages: Communicator | None = None
        self._levels: Level | None = None
        self._fit: Fit | None = None
        self._choices: dict[str, Choices] = {}

    @property
    def messages(self) -> Communicator:
        """The communicator for messages. All ranks make it at the first use."""
        if self._messages is None:
            self._messages = self._counted(self.base.duplicate("algorithms"))
        return self._messages

    def _counted(self, made: Communicator) -> Communicator:
        made.traffic = self.base.traffic
        return made

    @property
    def levels(self) -> Level:
        """The ranks by host, by rack and so on. All ranks make its groups at the first use."""
        if self._levels is None:
            group, domains = self.messages, domains_of(self.base, self.topology)
            self._levels = Level(group, domains, lambda members, name: self._counted(group.subgroup(members, name)))
        return self._levels

    @property
    def fit(self) -> Fit:
        """Latency and bandwidth. All ranks measure them at the first use; see `fit`."""
        if self._like is not None:
            return self._like.fit
        if self._fit is None:
            self.drain()
            self._fit = measure(self.base, self.messages, self.levels)
        return self._fit

    def choices(self, table: str = "") -> Choices:
        """The choices of ``auto``, from the given file or the usual one. All ranks read them at the first use."""
        if self._like is not None:
            return self._like.choices(table)
        found = self._choices.get(table)
        if found is None:
            self.drain()
            found = self._choices[table] = settled(self.base, self.levels, table, self.topology)
        return found

    def settled(self, table: str) -> Choices | None:
        """The choices, if the ranks have read them already."""
        return self._like.settled(table) if self._like is not None else self._choices.get(table)


class Selected(Wrapper, HostTransport):
    """A communicator that runs a selected algorithm for the calls that have it, and `channel.base` for all others.

    Parameters
    ----------
    channel : Channel
        Shared by all `Selected` of one group.
    algorithm : str
        A name of `table`.

    Attributes
    ----------
    algorithm : str
        The name, without the path of ``auto:PATH``.
    """

    def __init__(self, channel: Channel, algorithm: str):
        super().__init__(channel.base)
        is_auto = algorithm.startswith("auto:")
        self.algorithm, self._table = ("auto", algorithm[5:]) if is_auto else (algorithm, "")
        self.channel = channel

    def __repr__(self) -> str:
        return f"Selected({self.base!r}, {self.algorithm!r})"

    # -- agreement and selection -----------------------------------------------------------------------------------
    def agree(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        """Compare the call with those of the other ranks, including the algorithm."""
        self.base.agree(with_words(call, f"algorithm={self.algorithm}"), layout, is_rooted, addend)

    def announce(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        """As `agree`. Only the transport's own collectives can combine the comparison with the next call."""
        compare = self.base.announce if self.algorithm == "native" else self.base.agree
        compare(with_words(call, f"algorithm={self.algorithm}"), layout, is_rooted, addend)

    def duplicate(self, purpose: str) -> Communicator:
        made = Channel(self.base.duplicate(purpose), self.channel)
        return Selected(made, f"auto:{self._table}" if self._table else self.algorithm)

    @property
    def choices(self) -> Choices:
        """The table of ``auto``. All ranks read it at the first use."""
        return self.channel.choices(self._table)

    def choice(self, operation: str, size_bytes: int) -> str:
        """The algorithm for a call of `size_bytes`; ``auto`` is replaced by its choice."""
        if self.algorithm == "auto":
            return self.choices.choose(operation, size_bytes)
        return self.algorithm if steps_of(operation, self.algorithm) is not None else "native"

    @property
    def settled_choices(self) -> Choices | None:
        """The table of ``auto``, if the ranks have read it already."""
        return self.channel.settled(self._table) if self.algorithm == "auto" else None

    # -- the calls -------------------------------------------------------------------------------------------------
    def explain(self, request: Request) -> tuple[str, str]:
        """The algorithm that runs a call, and why that one."""
        chosen = self._chosen(request)
        if self.algorithm == "auto" and request.call in OPERATIONS:
            source = self.choices.source
            return chosen or "native", "by the rule of auto" if source == "rule" else f"by the table {source}"
        return (chosen, "given") if chosen else ("native", f"{self.algorithm} does not have this call")

    def run(self, request: Request) -> Any:
        """Make a call, by the algorithm if there is one for the call."""
        if observers and get_ident() in observers:
            return observed(self, request, False, lambda: self.run(request))
        return self.base.run(request) if self._chosen(request) is None else super().run(request)

    def start(self, request: Request) -> Pending[Any]:
        """Start a call, by the algorithm if there is one for the call."""
        if observers and get_ident() in observers:
            started: Pending[Any] = observed(self, request, True, lambda: self.start(request))
            return started
        return self.base.start(request) if self._chosen(request) is None else super().start(request)

    def _chosen(self, request: Request) -> str | None:
        """The name of the algorithm for a call; None if the transport's own collective runs."""
        call, given = request.call, request.out if request.x is None else request.x
        # a dry run sends nothing and predicts all algorithms itself
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
        if x is out:  # in place; an algorithm writes to the result while it still reads the operand
            x = x.copy()
        where: Any = self.channel if name.startswith("hierarchical") else self.channel.messages
        return algorithm(where, request, x, out)
