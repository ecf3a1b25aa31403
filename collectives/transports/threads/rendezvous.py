"""The things that a rank which is a thread can wait for: a rendezvous, a message, clocks, arrivals, or survivors.

An announced call carries its rank's statement about it (see `sanitizer`). The rank that completes the rendezvous
compares the statements as well, so a fingerprint needs no rendezvous of its own. A rank's line in the user's program is
found in the frames of its thread, and only when an error message needs it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from threading import Lock
from typing import Any

from autograd.errors import CollectiveMismatch, CommunicationError, site_of_thread

from ...checks import modes, sanitizer
from ...checks.reports import print_report
from ...checks.sampling import Order
from ...checks.sanitizer import Statement
from ..protocol import Array
from .calls import AGREES, combine

__all__ = [
    "Board", "Channel", "Gate", "Gathering", "Memory", "Message", "Milestone", "Rendezvous", "Roll", "Wait",
]  # fmt: skip


def _ranks_text(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _call_text(call: tuple[Any, ...]) -> str:
    name, *agreed = call
    values = (tuple(map(int, value)) if isinstance(value, tuple) else value for value in agreed)
    text = ", ".join(f"{word} {value}" for word, value in zip(_words(name), values, strict=True))
    return f"{name}({text})" if text or " " not in name else name


def _words(name: str) -> tuple[str, ...]:
    """The names of a call's values. Its name may be followed by a reduction, as in ``all_reduce max``, or a purpose."""
    return AGREES[name.partition(" ")[0]]


class Rendezvous:
    """One collective of one group: it holds the parts until all ranks have arrived, and then their results."""

    __slots__ = (
        "calls", "done", "error", "group", "missing", "number", "parts", "results", "sites", "statements", "waiters",
    )  # fmt: skip

    def __init__(self, group: Channel, number: int):
        size = len(group.ranks)
        self.group = group
        self.number = number
        self.calls: list[Any] = [None] * size  # a tuple for each rank that has arrived
        self.parts: list[Any] = [None] * size  # a Part for each rank that has arrived
        self.statements: list[Statement | None] = [None] * size
        self.sites: list[str | int] = [""] * size  # each rank's call site, or the thread that waits there
        self.results: list[Any] = []
        self.missing = size
        self.error: CommunicationError | None = None
        self.done = False
        self.waiters: list[int] = []

    def complete(self) -> None:
        """Compare the calls and compute all results. The last rank that arrives calls it."""
        call, statement = self.calls[0], self.statements[0]
        if any(other != statement for other in self.statements):
            self.error = error = self._compare_statements()
            if error is not None and not modes.limit and all(other == call for other in self.calls):
                self.error = None  # mode off stops no program that MPI would run
                self.group.report(error)
        elif statement is not None and (statement.addend is not None or statement.places):
            for each in self.statements:
                if each is not None and each.addend is not None:
                    each.addend.is_equal = True
            if statement.places:
                self.group.order.learn([statement.places])
        if self.error is None and any(other != call for other in self.calls):
            self.error = CollectiveMismatch(self._difference())
        if self.error is None:
            try:
                self.results = combine(self.parts)
            except CollectiveMismatch as mismatch:
                self.error = CollectiveMismatch(f"call #{self.number} on '{self.group.name}': {mismatch}")
        self.parts = []

    def result(self, rank: int) -> Any:
        """One rank's result. The rendezvous keeps no reference to it."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)  # each rank raises its own object, with its own traceback
        result, self.results[rank] = self.results[rank], None
        return result

    @property
    def epoch(self) -> int:
        """The epoch of its channel."""
        return self.group.epoch

    @property
    def is_full(self) -> bool:
        """Whether all ranks have arrived, so that the last of them completes it, whatever happens meanwhile."""
        return not self.missing

    def needs(self, rank: int) -> bool:
        """Whether world rank `rank` has not arrived yet."""
        return rank in self.group.ranks and self.calls[self.group.ranks.index(rank)] is None

    def wait_text(self, rank: int) -> str:
        absent = [rank for rank, call in zip(self.group.ranks, self.calls, strict=True) if call is None]
        place = self.group.ranks.index(rank)
        call, statement = self.calls[place], self.statements[place]
        text = f"{call[0]} #{self.number} on '{self.group.name}'"
        text = text if statement is None else f"{text}, which is {statement.call},"
        return f"{text} for {_ranks_text(absent)}" if absent else text

    def _where(self) -> list[str]:
        """Each rank's call site. A thread in `sites` is still blocked in its call when this is evaluated."""
        return [site if isinstance(site, str) else site_of_thread(site) for site in self.sites]

    def _compare_statements(self) -> CommunicationError | None:
        """Compare the ranks' statements. For a rank without one, its call is used."""
        statements = [
            Statement(_call_text(call), site=site)
            if statement is None
            else statement._replace(site=statement.site or site)
            for statement, call, site in zip(self.statements, self.calls, self._where(), strict=True)
        ]
        error = sanitizer.compare(self.group.name, self.group.ranks, statements, self.group.order)
        for each in statements:
            if each.addend is not None:
                sanitizer.note_facts(each.addend, self.group.ranks, statements)
        return None if error is None else type(error)(f"call #{self.number} on '{self.group.name}': {error}")

    def _difference(self) -> str:
        ranks: dict[Any, list[int]] = {}
        for rank, call, site in zip(self.group.ranks, self.calls, self._where(), strict=True):
            ranks.setdefault((call, site), []).append(rank)
        calls = [call for call, _ in ranks]
        names = {call[0] for call in calls}
        if len(names) > 1:
            needed = "the same call, in the same order"
        else:
            columns = zip(_words(names.pop()), zip(*(call[1:] for call in calls), strict=True), strict=True)
            needed = "the same " + " and ".join(word for word, values in columns if len(set(values)) > 1)
        lines = [
            f"{_ranks_text(members)}: {_call_text(call)}" + (f"\n    at {site}" if site else "")
            for (call, site), members in ranks.items()
        ]
        lines.append(f"needed: {needed} on all of {_ranks_text(self.group.ranks)}")
        return f"call #{self.number} on '{self.group.name}' is not the same on all ranks\n  " + "\n  ".join(lines)


class Message:
    """One message between two ranks of a group. Only its receiver waits for it."""

    __slots__ = ("content", "done", "group", "number", "src", "text", "waiters")

    def __init__(self, group: Channel, src: int, number: int | None, text: str):
        self.group = group
        self.src = src
        self.number = number
        self.text = text
        self.content: Array | None = None
        self.done = False
        self.waiters: list[int] = []

    @property
    def epoch(self) -> int:
        """The epoch of its channel."""
        return self.group.epoch

    def needs(self, rank: int) -> bool:
        """Whether world rank `rank` is its sender."""
        return self.group.ranks[self.src] == rank

    def wait_text(self, rank: int) -> str:
        text = f"recv from rank {self.group.ranks[self.src]} on '{self.group.name}'"
        return f"{text}: {self.text}" if self.text else text


class Board:
    """The clocks of a group, and the incomplete waits for them."""

    __slots__ = ("clocks", "epoch", "milestones", "name", "ranks")

    def __init__(self, ranks: tuple[int, ...], name: str, epoch: int = 0):
        self.ranks = ranks
        self.name = name
        self.epoch = epoch
        self.clocks = [0] * len(ranks)
        self.milestones: dict[int, Milestone] = {}


class Milestone:
    """A wait until all clocks of a board are at least `clock`."""

    __slots__ = ("board", "clock", "done", "waiters")

    def __init__(self, board: Board, clock: int):
        self.board = board
        self.clock = clock
        self.done = False
        self.waiters: list[int] = []

    @property
    def epoch(self) -> int:
        """The epoch of its channel."""
        return self.board.epoch

    def needs(self, rank: int) -> bool:
        """Whether the clock of world rank `rank` is behind."""
        ranks = self.board.ranks
        return rank in ranks and self.board.clocks[ranks.index(rank)] < self.clock

    def wait_text(self, rank: int) -> str:
        behind = [r for r, clock in zip(self.board.ranks, self.board.clocks, strict=True) if clock < self.clock]
        text = f"a wait on '{self.board.name}' until all clocks are {self.clock}"
        return f"{text}, for {_ranks_text(behind)}" if behind else text


class Roll:
    """The arrivals at the steps of a group: the members of each, how many have finished it, and the waits for them."""

    __slots__ = ("count", "epoch", "finished", "gates", "members", "name", "ranks", "stages", "tickets")

    def __init__(self, ranks: tuple[int, ...], name: str, count: int, epoch: int = 0):
        self.ranks, self.name, self.count, self.epoch = ranks, name, count, epoch
        self.tickets: Counter[int] = Counter()
        self.finished: Counter[int] = Counter()
        self.members: dict[int, list[int]] = {}
        self.stages = [0] * len(ranks)  # of each rank: 2 step + 1 after its arrival as a member, + 2 after the step
        self.gates: dict[int, Gate] = {}  # by stage


class Gate:
    """A wait until `count` ranks of a roll have reached a stage."""

    __slots__ = ("done", "roll", "stage", "waiters")

    def __init__(self, roll: Roll, stage: int):
        self.roll = roll
        self.stage = stage
        self.done = False
        self.waiters: list[int] = []

    @property
    def epoch(self) -> int:
        """The epoch of its channel."""
        return self.roll.epoch

    def needs(self, rank: int) -> bool:
        """Whether world rank `rank` is not yet at the stage. Any of these ranks can end the wait."""
        ranks = self.roll.ranks
        return rank in ranks and self.roll.stages[ranks.index(rank)] < self.stage

    def wait_text(self, rank: int) -> str:
        roll, (step, is_end) = self.roll, divmod(self.stage - 1, 2)
        absent = [r for r in roll.ranks if r != rank and self.needs(r)]
        what = "have finished" if is_end else "have arrived at"
        return f"a wait on '{roll.name}' until {roll.count} ranks {what} step {step}, for any of {_ranks_text(absent)}"


class Gathering:
    """A wait until all ranks that have not failed have called `World.survivors`.

    A rank that fails meanwhile is left out.

    Attributes
    ----------
    epoch : int
        The number of the epoch that begins with it.
    missing : set of int
        The ranks that have neither called it nor failed.
    finished : set of int
        The ranks that have said that their program has come to its end.
    members : tuple of int
        The ranks of the new epoch, once it is done.
    replace : float
        The number of ranks that may be replaced in the life of the world: the least that a rank has given.
    """

    __slots__ = ("done", "epoch", "finished", "members", "missing", "replace", "waiters")

    def __init__(self, epoch: int, ranks: Iterable[int]):
        self.epoch = epoch
        self.missing = set(ranks)
        self.finished: set[int] = set()
        self.members: tuple[int, ...] = ()
        self.replace = math.inf
        self.done = False
        self.waiters: list[int] = []

    def needs(self, rank: int) -> bool:
        """Whether world rank `rank` has not called it yet."""
        return rank in self.missing

    def wait_text(self, rank: int) -> str:
        text = "World.survivors, which all ranks call that have not failed,"
        return f"{text} for {_ranks_text(sorted(self.missing))}" if self.missing else text


class Memory:
    """The memory of every rank in a window, with a lock for each."""

    __slots__ = ("locks", "memory")

    def __init__(self, size: int):
        self.memory: list[Any] = [None] * size
        self.locks = [Lock() for _ in range(size)]


Wait = Rendezvous | Message | Milestone | Gate | Gathering


class Channel:
    """The state that the ranks of one group share: incomplete rendezvous, unmatched messages, and one-sided memory."""

    __slots__ = (
        "common", "dropped", "epoch", "has_reported", "messages", "name", "numbered", "order", "ranks", "rendezvous",
    )  # fmt: skip

    def __init__(self, ranks: tuple[int, ...], name: str, epoch: int = 0):
        self.ranks = ranks
        self.name = name
        self.epoch = epoch  # that of the world in which it was made; see `World.survivors`
        self.rendezvous: dict[int, Rendezvous] = {}
        self.messages: dict[tuple[int, int, int], Message] = {}  # by source, destination and order
        self.numbered: dict[tuple[int, int, int], deque[Message]] = {}  # by source, destination and number
        self.common: dict[tuple[type, int], Any] = {}  # windows, clocks and arrivals, by class and order
        self.order = Order()  # of the calls' lines
        self.dropped = 0  # how many ranks have dropped their end
        self.has_reported = False

    def report(self, error: CommunicationError) -> None:
        """Print the first difference that mode ``off`` has found on stderr."""
        if not self.has_reported:
            self.has_reported = True
            print_report(str(error))
