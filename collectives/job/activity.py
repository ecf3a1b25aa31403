"""What one rank of a world does, for its monitor: what its threads wait for, and its counts of calls and messages."""

from __future__ import annotations

from typing import NamedTuple

from autograd.errors import CommunicationError, DeadlockError, RankFailed, site_of_thread

__all__ = ["Activity", "Channel", "Departure", "Wait", "Waiting", "describe", "site_text"]


class Channel:
    """The counts of one communicator. They outlive it, because a rank that leaves tells them to the others.

    Attributes
    ----------
    key : str
        The same on all ranks of the communicator, and different from the key of every other one.
    calls : int
        The number of collective calls that this rank has made on it.
    sent, received : dict of int to int
        The number of messages to and from each rank of the world.
    broken : str or None
        Why no rank may wait on it any more: a deadlock was found in which its ranks waited (see `deadlock`).
    """

    __slots__ = ("broken", "calls", "key", "name", "ranks", "received", "sent")

    def __init__(self, key: str, name: str, ranks: tuple[int, ...]):
        self.key = key
        self.name = name
        self.ranks = ranks
        self.calls = 0
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self.broken: str | None = None


# (channel, call, its number, the world rank it is received from or lent to, None for a collective). A plain tuple,
# because one is made for every blocking call.
Wait = tuple[Channel, str, int, int | None]
Waiting = dict[int, Wait]
"""Thread -> what it waits for. It is written around every blocking call and read by the monitor. The negative number of
a thread holds what the thread has tested and found incomplete: it may be waiting in a loop, or computing."""


def describe(wait: Wait) -> str:
    """A wait as text."""
    channel, call, number, source = wait
    if source is None:
        return f"in {call} #{number} on '{channel.name}'"
    if call == "lend":
        return f"in a send, #{number} to rank {source} on '{channel.name}'"
    return f"in {call} #{number} from rank {source} on '{channel.name}'"


def site_text(thread: int) -> str:
    """The line of the user's program that a thread is at: ``, model.py:41``."""
    site = site_of_thread(abs(thread))
    return f", {site}" if site else ""


class Departure(NamedTuple):
    """A rank that makes no further calls: why, and how many it has made.

    Attributes
    ----------
    rank : int
    why : str
        For example ``exited early`` or ``raised ValueError: no data``.
    has_failed : bool
        Whether it failed; otherwise its program has ended or it has closed the world.
    calls : dict of str to int
        The collective calls that it has made, by the key of the channel.
    sent, received : dict of str to int
        The messages to and from the rank that is told, by the key of the channel.
    """

    rank: int
    why: str
    has_failed: bool
    calls: dict[str, int]
    sent: dict[str, int]
    received: dict[str, int]

    def missing_for(self, wait: Wait, rank: int) -> str | None:
        """What the rank has done, if it will never do what `wait` of rank `rank` is for; otherwise None."""
        channel, call, number, source = wait
        if source is None:
            made, what, is_awaited = self.calls.get(channel.key, 0), "call", self.rank in channel.ranks
            whom = ""
        elif call == "lend":
            made, what, is_awaited = self.received.get(channel.key, 0), "receive", self.rank == source
            whom = f" from rank {rank}"
        else:
            made, what, is_awaited = self.sent.get(channel.key, 0), "send", self.rank == source
            whom = f" to rank {rank}"
        if not is_awaited or made >= number:
            return None
        return f"{made} {what}{'s' * (made != 1)}{whom} on '{channel.name}'"


class Activity:
    """What one rank of a world does.

    Parameters
    ----------
    rank, size : int
        This rank and the number of ranks.
    raises : bool
        Whether a wait for a rank that has departed raises an error (the policy ``raise``).

    Attributes
    ----------
    waiting : Waiting
        What the threads of this rank wait for.
    channels : dict of str to Channel
        All channels of this rank, by key.
    departed : dict of int to Departure
        The ranks that make no further calls, as far as this rank knows.
    task : str
        What the program says it is doing; deadlock reports show it.
    has_failed : bool
        Whether this rank itself has failed.
    is_closed : bool
        Whether the world was closed.
    is_alarmed : bool
        Whether `error` may find a reason; while it is False, a wait costs one look at it.
    """

    def __init__(self, rank: int, size: int, raises: bool = False):
        self.rank = rank
        self.size = size
        self.raises = raises
        self.waiting: Waiting = {}
        self.channels: dict[str, Channel] = {}
        self.departed: dict[int, Departure] = {}
        self.task = ""
        self.has_failed = False
        self.is_closed = False
        self.is_alarmed = False

    def close(self) -> None:
        """Refuse all further calls."""
        self.is_closed = self.is_alarmed = True

    def hear(self, departure: Departure) -> None:
        """Note that a rank has departed; the first reason counts."""
        self.departed.setdefault(departure.rank, departure)
        self.is_alarmed = self.is_alarmed or self.raises

    @property
    def failed(self) -> dict[int, str]:
        """The ranks that have failed, and why."""
        return {rank: departure.why for rank, departure in self.departed.copy().items() if departure.has_failed}

    def departure(self, rank: int, why: str, has_failed: bool) -> Departure:
        """What rank `rank` is told when this rank departs."""
        channels = self.channels.copy()
        return Departure(
            self.rank, why, has_failed,
            {key: channel.calls for key, channel in channels.items()},
            {key: channel.sent[rank] for key, channel in channels.items() if rank in channel.sent},
            {key: channel.received[rank] for key, channel in channels.items() if rank in channel.received},
        )  # fmt: skip

    def hopeless(self, wait: Wait, site: str = "") -> str | None:
        """Why `wait` will never end, if it is for a rank that has departed; otherwise None."""
        for departure in self.departed.copy().values():
            what = departure.missing_for(wait, self.rank)
            if what is not None:
                return (
                    f"rank {departure.rank} of {self.size} {departure.why} after {what}, while rank {self.rank} waits "
                    f"for it {describe(wait)}{site}"
                )
        return None

    def error(self, wait: Wait) -> CommunicationError | None:
        """What a rank that polls has to raise in the place of waiting; None if it may wait."""
        channel = wait[0]
        if self.is_closed:
            return CommunicationError(f"{describe(wait)}: its world is closed")
        if channel.broken is not None:
            return DeadlockError(channel.broken)
        if self.raises and self.departed:
            text = self.hopeless(wait)
            return None if text is None else RankFailed(text)
        return None
