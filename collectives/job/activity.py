"""The state of one rank, for its monitor: the waits of its threads, and its counts of calls and messages."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from autograd.errors import CommunicationError, RankFailed, site_of_thread

__all__ = [
    "Activity", "Channel", "Departure", "Numbers", "Refusing", "Wait", "Waiting", "describe", "forked_text", "has_made",
    "refuse_in_child", "site_text",
]  # fmt: skip

_MOST_NUMBERS = 256


class Channel:
    """The counts of one communicator. They outlive it, because a rank sends them to the others when it leaves.

    Attributes
    ----------
    key : str
        Identifies the communicator. It is the same on all its ranks.
    calls : int
        The number of collective calls that this rank has made on it.
    sent, received : dict of int to int or Numbers
        The number of messages to and from each rank of the world; for messages that have numbers, these.
    texts : dict of int to deque of (int, str)
        The latest messages to each rank that have a description: their numbers, or counts, and the descriptions.
    epoch : int
        The epoch of the world in which it was made (`World.survivors`).
    broken : CommunicationError or None
        The error that waits on it raise: its ranks were part of a deadlock or made different calls.
    history : list of int or None
        The marks of the calls that the monitor has not seen yet (see `history`); None where none compares them.
    count : int
        How many ranks must have made a call that a wait is for, this rank included; 0 stands for all.
    """

    __slots__ = ("broken", "calls", "count", "epoch", "history", "key", "name", "ranks", "received", "sent", "texts")

    def __init__(self, key: str, name: str, ranks: tuple[int, ...], epoch: int = 0):
        self.key = key
        self.name = name
        self.ranks = ranks
        self.epoch = epoch
        self.calls = 0
        self.sent: dict[int, Any] = {}
        self.received: dict[int, Any] = {}
        self.texts: dict[int, deque[tuple[int, str]]] = {}
        self.broken: CommunicationError | None = None
        self.history: list[int] | None = None
        self.count = 0


class Numbers(list[int]):
    """The numbers of the latest messages to or from a rank, for messages that are not matched by their order."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def note(self, number: int) -> None:
        """Append a number. Old ones are dropped."""
        self.total += 1
        self.append(number)
        if len(self) >= 2 * _MOST_NUMBERS:
            del self[:_MOST_NUMBERS]


def has_made(made: Any, number: int) -> bool:
    """Whether message `number` is among those that a rank has made, given their count or their latest numbers."""
    if isinstance(made, int):
        return made >= number
    return number in made or (len(made) >= _MOST_NUMBERS and number <= max(made))  # it may have been dropped


# (channel, name of the call, number of the call, world rank of the sender of a recv or the receiver of a lend, None for
# a collective). A plain tuple, because one is made for every blocking call.
Wait = tuple[Channel, str, int, int | None]
Waiting = dict[int, Wait | None]
"""The wait of each thread, by thread number. It is set during every blocking call and read by the monitor. It is None
for a thread that communicates and does not wait now; a thread that has never communicated is missing. Under the
negative thread number it holds the last call that the thread has tested and found incomplete: the thread may be
waiting in a loop, or computing."""


def describe(wait: Wait) -> str:
    """Describe a wait as text."""
    channel, call, number, source = wait
    if source is None:
        return f"in {call} #{number} on '{channel.name}'"
    if call == "lend":
        return f"in a send, #{number} to rank {source} on '{channel.name}'"
    if number == 0:  # an access to memory of a window
        return f"in {call} of the memory of rank {source} on '{channel.name}'"
    return f"in {call} #{number} from rank {source} on '{channel.name}'"


def site_text(thread: int) -> str:
    """The line of the user's program that a thread runs, as ``, model.py:41``."""
    site = site_of_thread(abs(thread))
    return f", {site}" if site else ""


class Departure(NamedTuple):
    """A message from a rank that makes no further calls: the reason, and its counts of calls and messages.

    Attributes
    ----------
    rank : int
    why : str
        For example ``exited early`` or ``raised ValueError: no data``.
    has_failed : bool
        Whether it failed; otherwise its program has ended or it has closed the world.
    calls : dict of str to int, or None
        The collective calls that it has made, by the key of the channel. None if it has died: nobody knows its counts,
        and every wait that needs it is endless.
    sent, received : dict of str to int or list of int
        The messages to and from the rank that receives this departure, by the key of the channel.
    """

    rank: int
    why: str
    has_failed: bool
    calls: dict[str, int] | None
    sent: dict[str, Any]
    received: dict[str, Any]

    @classmethod
    def of_death(cls, rank: int) -> Departure:
        """The departure of a rank whose process has ended without a word."""
        return cls(rank, "died", True, None, {}, {})

    def needs(self, wait: Wait) -> bool:
        """Whether `wait` is one for a call or a message of this rank."""
        return self.rank in wait[0].ranks if wait[3] is None else self.rank == wait[3]

    def missing_for(self, wait: Wait, rank: int) -> str | None:
        """The number of calls that the rank has made, as text, if `wait` of rank `rank` needs one more; else None."""
        channel, call, number, source = wait
        if self.calls is None or not self.needs(wait):
            return None
        if source is None:
            count, what, peer = self.calls.get(channel.key, 0), "call", ""
        elif call == "lend":
            count, what, peer = self.received.get(channel.key, 0), "receive", f" from rank {rank}"
        else:
            count, what, peer = self.sent.get(channel.key, 0), "send", f" to rank {rank}"
        if has_made(count, number):
            return None
        count = count if isinstance(count, int) else len(count)
        return f"{count} {what}{'s' * (count != 1)}{peer} on '{channel.name}'"

    def why_endless(self, wait: Wait, rank: int, size: int) -> str | None:
        """The reason why `wait` of rank `rank` will never end, if it needs more of this rank; else None."""
        if self.calls is None:
            after = "" if self.needs(wait) else None
        else:
            missing = self.missing_for(wait, rank)
            after = None if missing is None else f" after {missing}"
        if after is None:
            return None
        return f"rank {self.rank} of {size} {self.why}{after}, while rank {rank} waits for it {describe(wait)}"


class DeviceCalls(Protocol):
    """Calls that wait for other ranks on a device. The monitor's thread uses them."""

    def incomplete(self) -> tuple[int, Wait] | None:
        """The thread that made the oldest incomplete call, and the wait for it."""

    def end(self, why: str) -> None:
        """End the calls, because one of them will never be complete."""


class Activity:
    """The state of one rank of a world.

    Parameters
    ----------
    rank, size : int
        This rank and the number of ranks.
    raises : bool
        Whether a wait for a rank that has departed raises an error (the policy ``raise``).

    Attributes
    ----------
    waiting : Waiting
        The waits of this rank's threads.
    channels : dict of str to Channel
        All channels of this rank, by key.
    departed : dict of int to Departure
        The departures that this rank has received.
    epoch, ended : int
        The present epoch of the world, and the newest one that has ended, -1 if none has. Every wait on a channel of
        an epoch that has ended raises an error.
    task : str
        The current task of the program (`World.set_task`). Deadlock reports contain it.
    keeps_histories : bool
        Whether channels keep histories of their calls, because a monitor compares them.
    has_failed : bool
        Whether this rank itself has failed.
    is_closed : bool
        Whether the world was closed.
    is_forked : bool
        Whether this process is a forked child of the rank, which may not communicate.
    windows : int
        The open windows that ranks of other hosts access. The monitor lets MPI make progress for them.
    is_alarmed : bool
        Whether `error` may return an error. While it is False, waits do not call `error`.
    device_calls : list of DeviceCalls
        Those that wait on a device and not in a thread of this process.
    """

    def __init__(self, rank: int, size: int, raises: bool = False):
        self.rank = rank
        self.size = size
        self.raises = raises
        self.waiting: Waiting = {}
        self.channels: dict[str, Channel] = {}
        self.departed: dict[int, Departure] = {}
        self.members = tuple(range(size))  # the ranks of the present epoch
        self.epoch, self.ended = 0, -1
        self.task = ""
        self.keeps_histories = False
        self.has_failed = False
        self.is_closed = False
        self.is_forked = False
        self.windows = 0
        self.is_alarmed = False
        self.device_calls: list[DeviceCalls] = []
        refuse_in_child(self)

    def refuse_in_child(self) -> None:
        """Make all further calls of this process, a forked child of the rank, raise an error."""
        self.is_forked = self.is_alarmed = True
        self.waiting.clear()  # of threads that the child does not have

    def waits(self) -> dict[int, Wait]:
        """The present waits, by thread."""
        return {thread: wait for thread, wait in self.waiting.copy().items() if wait is not None}

    def close(self) -> None:
        """Make all further calls raise an error."""
        self.is_closed = self.is_alarmed = True

    def add_departure(self, departure: Departure) -> None:
        """Record that a rank has departed. Only its first departure counts."""
        self.departed.setdefault(departure.rank, departure)
        self.is_alarmed = self.is_alarmed or self.raises

    @property
    def failed(self) -> dict[int, str]:
        """The ranks that have failed, with the reasons."""
        return {rank: departure.why for rank, departure in self.departed.copy().items() if departure.has_failed}

    @property
    def is_whole(self) -> bool:
        """Whether no rank of the present epoch has failed."""
        return not self.failed.keys() & set(self.members)

    # -- epochs ------------------------------------------------------------------------------------------------
    def end_epoch(self) -> None:
        """Make every wait on a channel that was made so far raise `RankFailed`, and every further call on one."""
        self.ended = self.epoch
        self.is_alarmed = True

    def begin_epoch(self, members: Sequence[int]) -> None:
        """Begin the next epoch, with these ranks of the world. The channels before it are forgotten."""
        self.members = tuple(members)
        self.channels = {key: each for key, each in self.channels.copy().items() if each.epoch > self.epoch}
        self.epoch += 1
        self.windows = 0

    def _ended_text(self, wait: Wait, site: str) -> str:
        """The message of a wait in an epoch that has ended."""
        found = self.failed
        gone = "; ".join(f"rank {rank} of {self.size} {why}" for rank, why in sorted(found.items()))
        return (
            f"{gone or 'no rank has failed'}; a rank has called World.survivors, which ends epoch {wait[0].epoch}, "
            f"while rank {self.rank} was {describe(wait)}{site}\n  fix: call World.survivors on all ranks that are "
            "left, and make meshes of the communicator that it returns"
        )

    def departure(self, rank: int, why: str, has_failed: bool) -> Departure:
        """The message to rank `rank` that this rank departs."""
        channels = self.channels.copy()
        return Departure(
            self.rank, why, has_failed,
            {key: channel.calls for key, channel in channels.items()},
            {key: channel.sent[rank] for key, channel in channels.items() if rank in channel.sent},
            {key: channel.received[rank] for key, channel in channels.items() if rank in channel.received},
        )  # fmt: skip

    def why_endless(self, wait: Wait, site: str = "") -> str | None:
        """The reason why `wait` never ends, if its epoch is over or it needs a rank that has departed; else None."""
        if wait[0].epoch <= self.ended:
            return self._ended_text(wait, site)
        for departure in self.departed.copy().values():
            text = departure.why_endless(wait, self.rank, self.size)
            if text is not None:
                return f"{text}{site}"
        return None

    def error(self, wait: Wait) -> CommunicationError | None:
        """The error that a polling rank must raise instead of waiting; None if it may wait."""
        channel = wait[0]
        if self.is_forked:
            return CommunicationError(forked_text(describe(wait)))
        if self.is_closed:
            return CommunicationError(f"{describe(wait)}: its world is closed")
        if channel.broken is not None and channel.epoch > self.ended:
            return type(channel.broken)(*channel.broken.args)
        if self.raises and (self.departed or self.ended >= 0):
            text = self.why_endless(wait)
            return None if text is None else RankFailed(text)
        return None


# -- forked children, which are no ranks -------------------------------------------------------------------------------
class Refusing(Protocol):
    """An object that communicates, as a rank."""

    def refuse_in_child(self) -> None:
        """Make all further calls of this process, a forked child of the rank, raise an error."""
        ...


def refuse_in_child(what: Refusing) -> None:
    """Have an object refuse all calls in processes that this one forks."""
    _refusing.add(what)


_refusing: weakref.WeakSet[Refusing] = weakref.WeakSet()  # a fork knows no owner


def _refuse() -> None:
    for each in _refusing:
        each.refuse_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse)


def forked_text(what: str) -> str:
    """The message for a call that a forked child of a rank makes."""
    return (
        f"{what}: called in process {os.getpid()}, which rank process {os.getppid()} has forked. A forked child is no "
        "rank: its call would take the place of a call of its parent\n  needed: communication in the processes that "
        "mpiexec started\n  fix: return the child's result to the rank, which then makes the call; or start the child "
        "with multiprocessing's method 'spawn', where it is a world of one rank"
    )
