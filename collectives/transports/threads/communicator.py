"""Ranks as threads of one process: for notebooks, for tests, and for exact deadlock reports.

A collective is a *rendezvous* of the group's ranks. Each rank stores its call and its part in it. The last rank that
arrives compares the calls, computes every rank's result and wakes the waiting ranks. A point-to-point message is a
`Message`, created by the sender or by the receiver, whichever arrives first. A rendezvous or a message is identified by
its channel and a number. Each rank counts its own calls to get the number, so calls are matched by their order alone.

`calls` computes the results of the collectives, `rendezvous` defines `Rendezvous` and `Message`, and `waiting` blocks
ranks, wakes them and detects deadlocks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

from autograd.errors import CollectiveMismatch, CommunicationError, find_site, short_site

from ...checks import sanitizer
from ...checks.sanitizer import Addend, Statement
from .. import unsent
from ..host_transport import HostTransport
from ..protocol import Array, Pending, Request, Text
from ..windows import LocalWindow
from .arrivals import LocalArrivals
from .calls import Part, agreed
from .clocks import LocalClocks
from .rendezvous import Board, Channel, Gathering, Memory, Message, Rendezvous, Roll
from .waiting import WaitingRanks

__all__ = ["LocalCommunicator", "LocalWorld", "StandsFor"]

T = TypeVar("T")


class StandsFor(NamedTuple):
    """The job that ranks on threads stand for, in a replay: its places, its kind, and the tables of ``auto``."""

    hosts: tuple[int, ...]
    domains: tuple[tuple[int, ...], ...]
    are_processes: bool
    choices: Mapping[str, Any]


class LocalWorld(WaitingRanks):
    """Ranks 0 to `size` - 1 as threads of this process, and the channels between them.

    The code that runs a rank reports its end with `finish` or `fail` (`collectives.run` does this).

    Parameters
    ----------
    size : int
        The number of ranks.
    raises : bool
        Whether ranks that do not wait for a failed rank continue: see `WaitingRanks`.
    stands_for : StandsFor, optional
        The job that is replayed.

    Examples
    --------
    >>> LocalWorld(3).communicator(0)
    LocalCommunicator('world', rank 0 of 3)
    """

    def __init__(self, size: int, raises: bool = False, stands_for: StandsFor | None = None):
        super().__init__(size, raises)
        self.stands_for = stands_for
        self._channels: dict[str, Channel] = {}
        self.devices: list[dict[Any, Any]] = [{} for _ in range(size)]  # see `HostTransport.device_state`
        self._communicators: list[dict[str, LocalCommunicator]] = [{} for _ in range(size)]
        self._dropped: deque[tuple[str, Channel]] = deque()  # an item for each end of a channel that is gone

    def communicator(
        self, rank: int, ranks: Sequence[int] | None = None, name: str = "world", key: str = "world", epoch: int = 0
    ) -> LocalCommunicator:
        """World rank `rank`'s communicator over `ranks` (default: all).

        `key` identifies the channel: the ranks that pass the same one get its ends, and a rank always the same object.
        It belongs to an epoch of the world; see `survivors`.
        """
        mine = self._communicators[rank]
        if key not in mine:
            self._threads[rank] = get_ident()
            mine[key] = self.end(rank, tuple(range(self.size)) if ranks is None else tuple(ranks), name, key, epoch)
        return mine[key]

    def end(self, rank: int, ranks: tuple[int, ...], name: str, key: str, epoch: int) -> LocalCommunicator:
        """World rank `rank`'s end of the channel of some ranks. A rank makes one of each, and may drop it."""
        with self.lock:
            self._forget_dropped()
            channel = self._channels.get(key)
            if channel is None:
                channel = self._channels[key] = Channel(ranks, name, epoch)
        return LocalCommunicator(self, channel, rank, key)

    def drop(self, key: str, channel: Channel) -> None:
        """Note that a rank's end of a channel is gone. It takes no lock, as the collector may call it anywhere."""
        self._dropped.append((key, channel))

    def _forget_dropped(self) -> None:
        """Forget the channels of which the ends of all ranks are gone, but for messages that nobody has received."""
        while self._dropped:
            key, channel = self._dropped.popleft()
            channel.dropped += 1
            if channel.dropped == len(channel.ranks) and self._channels.get(key) is channel and not (
                channel.messages or channel.numbered
            ):  # fmt: skip
                del self._channels[key]

    def of_survivors(self, rank: int, replace: float = 0, finished: bool = False) -> LocalCommunicator:
        """World rank `rank`'s communicator in the epoch that begins when all have called it that have not failed."""
        return self.of_epoch(rank, self.survivors(rank, replace, finished))

    def of_epoch(self, rank: int, gathering: Gathering) -> LocalCommunicator:
        """World rank `rank`'s communicator in the epoch that a gathering has begun. Its thread calls it."""
        unsent.unsent.pop(get_ident(), None)  # calls on channels that can no longer be used
        mine = self._communicators[rank]
        for key in [key for key, each in mine.items() if each.epoch < gathering.epoch]:
            del mine[key]
        with self.lock:
            for key in [key for key, each in self._channels.items() if each.epoch < gathering.epoch]:
                del self._channels[key]
        name = f"survivors {gathering.epoch}"
        return self.communicator(rank, gathering.members, name, name, gathering.epoch)

    def forget(self, rank: int) -> None:
        super().forget(rank)
        self.devices[rank], self._communicators[rank] = {}, {}

    def unreceived(self) -> list[tuple[int, int, str]]:
        """The messages of programs that no rank has received: source, destination and description."""
        found = []
        for channel in self._channels.values():
            waiting = [(key, message) for key, message in channel.messages.items()]
            waiting += [(key, message) for key, messages in channel.numbered.items() for message in messages]
            found += [
                (channel.ranks[source], channel.ranks[target], message.text)
                for (source, target, _), message in waiting
                if message.content is not None and message.text
            ]
        return found


class LocalCommunicator(HostTransport):
    """One rank's end of a channel between threads. `LocalWorld.communicator` creates it."""

    repeats = True

    def __init__(self, world: LocalWorld, channel: Channel, world_rank: int, key: str):
        self._world, self._channel, self.key = world, channel, key  # first, for `__del__`
        super().__init__(channel.ranks.index(world_rank), channel.ranks, channel.name, key)
        self.epoch = channel.epoch
        self._world_rank = world_rank
        self._statement: Statement | None = None  # announced, and compared with the next call
        self._number = 0
        self._sent = [0] * self.size
        self._received = [0] * self.size
        self._made: Counter[type] = Counter()  # windows, clocks and arrivals
        if (of := world.stands_for) is not None:
            self.are_processes, self.recorded_choices = of.are_processes, of.choices

    @property
    def hosts(self) -> tuple[int, ...]:
        of = self._world.stands_for
        return super().hosts if of is None else tuple([of.hosts[rank] for rank in self.ranks])

    @property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        of = self._world.stands_for
        if of is None:
            return super().domains
        return tuple(tuple([level[rank] for rank in self.ranks]) for level in of.domains)

    def __del__(self) -> None:
        self._world.drop(self.key, self._channel)

    def __repr__(self) -> str:
        return f"LocalCommunicator('{self.name}', rank {self.index} of {self.size})"

    @property
    def device_state(self) -> dict[Any, Any]:
        return self._world.devices[self._world_rank]

    def _channel_of(self, ranks: tuple[int, ...], name: str, key: str) -> LocalCommunicator:
        return self._world.end(self._world_rank, ranks, name, key, self.epoch)

    # -- agreement ---------------------------------------------------------------------------------------------
    def _agree(self, call: str, layout: str, is_rooted: bool, addend: Addend | None) -> None:
        self.announce(call, layout, is_rooted, addend)
        self._compare_now()

    def announce(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        """Store a statement about the next call. It is compared in that call's rendezvous."""
        checks = self.checks
        if checks is None:
            return
        if not isinstance(call, str):
            if not checks.is_due:
                return
            call = call()
        if self._statement is not None:  # the call that was announced before did not communicate
            self._compare_now()
        if checks.parts:
            addend = checks.next_addend(self, addend)
        statement = sanitizer.statement(call, layout, is_rooted, 0, checks.copies)
        window = checks.sampling.note(call, [])
        if window is not None:
            statement = statement._replace(places=window[0])
        self._statement = statement if addend is None else statement._replace(addend=addend)

    def _compare_now(self) -> None:
        statement, self._statement = self._statement, None
        if self.unsent is not None:
            self.unsent(True)
        if self.size > 1:
            self._result_of(self._join(_AGREE, None, None, statement, get_ident()))

    # -- calls -------------------------------------------------------------------------------------------------
    def _prepared(self, request: Request, started: bool) -> Any:
        try:
            return super()._prepared(request, started)
        except BaseException:
            self._statement = None  # it described this call, which has failed
            raise

    def _run(self, request: Request, x: Any, out: Any) -> Any:
        if request.call in _MESSAGES:
            return self._start(request, x, out).wait()
        statement, self._statement = self._statement, None
        return self._result_of(self._join(request, x, out, statement, get_ident()))

    def _start(self, request: Request, x: Any, out: Any) -> Pending[Any]:
        if request.call in _MESSAGES:
            if self._statement is not None:
                self._compare_now()
            if request.call != "recv":
                self._send(x if request.call == "send" else x.copy(), request.peer, *request.options)
                return Pending.done(None)
            message = self._next_message(request.peer, *request.options)
            return Pending(lambda: self._ready(message), lambda: self._receive(message, out))
        statement, self._statement = self._statement, None
        rendezvous = self._join(request, x, out, statement, short_site(*find_site()))
        return Pending(lambda: self._ready(rendezvous), lambda: self._result_of(rendezvous))

    # -- windows and clocks ------------------------------------------------------------------------------------
    def _common(self, mine: T) -> T:
        """The object that the ranks of the channel make together: that of the first one that comes here."""
        kind = type(mine)
        self._made[kind] = nth = self._made[kind] + 1
        with self._world.lock:
            found: T = self._channel.common.setdefault((kind, nth), mine)
        return found

    def _window_of(self, x: Array, counts: Sequence[int]) -> LocalWindow:
        shared = self._common(Memory(self.size))
        shared.memory[self.index] = x.copy()
        self.barrier()
        return EpochWindow(self, shared)

    def _clocks_of(self) -> LocalClocks:
        board = self._common(Board(self.ranks, self.name, self.epoch))
        return LocalClocks(self._world, board, self._world_rank)

    def _arrivals_of(self, count: int, steps: int) -> LocalArrivals:
        roll = self._common(Roll(self.ranks, self.name, count, self.epoch))
        return LocalArrivals(self._world, roll, self._world_rank, steps)

    # -- rendezvous --------------------------------------------------------------------------------------------
    def _join(self, request: Request, x: Any, out: Any, statement: Statement | None, site: str | int) -> Rendezvous:
        """Store this rank's call and part in the next rendezvous. The last rank completes it."""
        self.refuse_ended(request.call)
        call = agreed(request, x, out)
        self._number = number = self._number + 1
        world, all_rendezvous = self._world, self._channel.rendezvous
        with world.lock:
            rendezvous = all_rendezvous.get(number)
            if rendezvous is None:
                rendezvous = all_rendezvous[number] = Rendezvous(self._channel, number)
            rendezvous.calls[self.index] = call
            rendezvous.parts[self.index] = Part(request, x, out)
            rendezvous.statements[self.index] = statement
            rendezvous.sites[self.index] = site
            rendezvous.missing -= 1
            if rendezvous.missing:
                return rendezvous
            del all_rendezvous[number]
        rendezvous.complete()
        with world.lock:
            world.release(rendezvous)
        return rendezvous

    def _result_of(self, rendezvous: Rendezvous) -> Any:
        try:
            if not rendezvous.done:
                self._world.block(self._world_rank, rendezvous)
            return rendezvous.result(self.index)
        except CommunicationError:
            self.is_broken = True
            raise

    def refuse_ended(self, call: str) -> None:
        """Raise `RankFailed` if the epoch of the channel has ended."""
        if self.epoch <= self._world.ended:
            self.is_broken = True
            self._world.refuse_ended(self._world_rank, self.epoch, f"{call} on '{self.name}'")

    # -- messages ----------------------------------------------------------------------------------------------
    def _message(self, src: int, dst: int, counts: list[int], peer: int, number: int | None, text: str) -> Message:
        """A message, created if the other rank has not done so. The caller holds the lock.

        It is found by its number, if it has one, else by the order of the messages from `src` to `dst`.
        """
        channel = self._channel
        if number is not None:
            waiting = channel.numbered.setdefault((src, dst, number), deque())
            if waiting and (waiting[0].content is None) == (src == self.index):
                found = waiting.popleft()
                if not waiting:
                    del channel.numbered[src, dst, number]
                return found
            waiting.append(Message(channel, src, number, text))
            return waiting[-1]
        key = src, dst, counts[peer]
        counts[peer] += 1
        message = channel.messages.pop(key, None)
        if message is None:
            message = channel.messages[key] = Message(channel, src, None, text)
        return message

    def _send(self, content: Array, dst: int, number: int | None = None, text: str = "") -> None:
        self.refuse_ended("send")
        self._world.check(self._world_rank, self.ranks[dst])
        with self._world.lock:
            message = self._message(self.index, dst, self._sent, dst, number, text)
            message.content = content
            self._world.release(message)

    def _next_message(self, src: int, number: int | None = None, text: str = "") -> Message:
        """The message that the next receive from `src` waits for."""
        self.refuse_ended("recv")
        with self._world.lock:
            return self._message(src, self.index, self._received, src, number, text)

    def _receive(self, message: Message, buffer: Array) -> Array:
        if not message.done:
            self._world.block(self._world_rank, message)
        content = message.content
        assert content is not None
        if content.dtype != buffer.dtype or content.size != buffer.size:
            raise CollectiveMismatch(
                f"recv on '{self.name}': rank {self._world_rank} has a buffer of {buffer.size} {buffer.dtype}, rank "
                f"{self.ranks[message.src]} sent {content.size} {content.dtype}; needed: the same count and dtype"
            )
        buffer[:] = content
        return buffer

    def _ready(self, wait: Rendezvous | Message) -> bool:
        if unsent.unsent:  # a loop over `test` is a wait, too
            unsent.advance()
        return wait.done or self._world.failure_for(wait) is not None or self._world.ends(self._world_rank, wait)


class EpochWindow(LocalWindow):
    """A window of a channel, which ends with the channel's epoch."""

    def __init__(self, group: LocalCommunicator, shared: Memory):
        super().__init__(group.index, group.ranks, shared.memory, shared.locks, group.name)
        self._group = group

    def _check(self, call: str, owner: int) -> None:
        self._group.refuse_ended(f"{call} of a window")
        super()._check(call, owner)


_AGREE = Request("agree")
_MESSAGES = ("send", "lend", "recv")
