"""Ranks as threads of one process: for notebooks, for tests, and for deadlock reports that are exact.

A collective is a *meeting* of the group's members: each leaves its call and its part, and the last one to come
compares the calls, makes every member's result and wakes those who wait. A message is a *letter*, which whoever comes
first (the sender or the receiver) puts up. Meetings and letters are matched by the channel (name and members) and a
number that each rank counts for itself, so the order of the calls is the whole protocol.

A rank blocks only in `LocalWorld.block`, where it is counted. When all ranks are blocked or have finished nobody is
left who could wake one of them: that is a deadlock, found at once and without a time limit. There is one lock per
world, held for bookkeeping only (never while data moves), and one bell per rank, rung only when that rank can go on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from autograd.errors import (
    CollectiveMismatch,
    CommunicationError,
    DeadlockError,
    DtypeError,
    MeshError,
    RankFailed,
    ShapeError,
)
from collectives.communicator import Array, Communicator, Pending
from collectives.traffic import Traffic

__all__ = ["LocalCommunicator", "LocalWorld"]


# -- the calls: what must agree, what each rank brings, what each rank gets ----------------------------------------
class Call(NamedTuple):
    """A collective: `prepare` checks one rank's arguments, `combine` makes all ranks' results from all parts.

    `prepare(communicator, *arguments)` returns what must be equal on all ranks, in the order of `agrees`, and the part.
    `combine(parts, *agreed)` returns the results in order of rank; each is a new array (or the buffer of a broadcast).
    """

    agrees: tuple[str, ...]
    prepare: Callable[..., tuple[tuple[Any, ...], Any]]
    combine: Callable[..., list[Any]]


def _check_array(x: Array) -> Array:
    if x.ndim != 1 or not x.flags.c_contiguous:
        raise ShapeError(f"a transport takes one-dimensional C-contiguous arrays, not shape {x.shape}: ravel it first")
    return x


def _check_rank(group: LocalCommunicator, role: str, rank: int) -> int:
    if not 0 <= rank < group.size:
        raise MeshError(f"{role} {rank} is no rank of '{group.name}', whose ranks are 0 to {group.size - 1}")
    return rank


def _check_counts(group: LocalCommunicator, what: str, counts: Sequence[int]) -> tuple[int, ...]:
    if len(counts) != group.size or min(counts) < 0:
        raise ShapeError(f"{what} on '{group.name}' must be {group.size} counts >= 0, not {list(map(int, counts))}")
    return tuple(counts)


def _check_size(x: Array, needed: int, meaning: str) -> None:
    if x.size != needed:
        raise ShapeError(f"the array has {x.size} elements where {meaning} is {int(needed)}")


def _prepare_broadcast(group: LocalCommunicator, x: Array, root: int) -> tuple[tuple[Any, ...], Array]:
    _check_array(x)
    if _check_rank(group, "root", root) != group.rank and not x.flags.writeable:
        raise ShapeError(f"broadcast writes to the array off its root {root}, and this one is read-only")
    return (root, x.dtype, x.size), x


def _prepare_reduce(group: LocalCommunicator, x: Array, root: int) -> tuple[tuple[Any, ...], Array]:
    _check_array(x)
    return (_check_rank(group, "root", root), x.dtype, x.size), x


def _prepare_all_reduce(group: LocalCommunicator, x: Array) -> tuple[tuple[Any, ...], Array]:
    _check_array(x)
    return (x.dtype, x.size), x


def _prepare_all_gather(group: LocalCommunicator, x: Array, counts: Sequence[int]) -> tuple[tuple[Any, ...], Array]:
    counts = _check_counts(group, "counts", counts)
    _check_size(_check_array(x), counts[group.rank], f"counts[{group.rank}]")
    return (x.dtype, counts), x


def _prepare_gather(
    group: LocalCommunicator, x: Array, counts: Sequence[int], root: int
) -> tuple[tuple[Any, ...], Array]:
    agreed, x = _prepare_all_gather(group, x, counts)
    return (_check_rank(group, "root", root), *agreed), x


def _prepare_scatter(
    group: LocalCommunicator, x: Array | None, counts: Sequence[int], root: int, dtype: Any
) -> tuple[tuple[Any, ...], Array | None]:
    counts, dtype = _check_counts(group, "counts", counts), np.dtype(dtype)
    if _check_rank(group, "root", root) != group.rank:
        return (root, dtype, counts), None
    if x is None:
        raise ShapeError(f"scatter needs an array on its root, rank {root} of '{group.name}'")
    if x.dtype != dtype:
        raise DtypeError(f"scatter was given {x.dtype} on its root and dtype {dtype}")
    _check_size(_check_array(x), sum(counts), "the sum of counts")
    return (root, dtype, counts), x


def _prepare_reduce_scatter(group: LocalCommunicator, x: Array, counts: Sequence[int]) -> tuple[tuple[Any, ...], Array]:
    counts = _check_counts(group, "counts", counts)
    _check_size(_check_array(x), sum(counts), "the sum of counts")
    return (x.dtype, counts), x


def _prepare_all_to_all(
    group: LocalCommunicator, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> tuple[tuple[Any, ...], tuple[Array, tuple[int, ...], tuple[int, ...]]]:
    send_counts = _check_counts(group, "send_counts", send_counts)
    receive_counts = _check_counts(group, "receive_counts", receive_counts)
    _check_size(_check_array(x), sum(send_counts), "the sum of send_counts")
    return (x.dtype,), (x, send_counts, receive_counts)


def _sum(parts: list[Array]) -> Array:
    """The sum in order of rank, in the dtype of the parts, so that it does not depend on who came last."""
    total = parts[0].copy()
    for part in parts[1:]:
        np.add(total, part, out=total)
    return total


def _to_all(x: Array, size: int) -> list[Array]:
    """`x`, which nobody else holds, and copies of it for the other ranks."""
    return [x, *(x.copy() for _ in range(size - 1))]


def _to_root(x: Any, root: int, size: int) -> list[Any]:
    results: list[Any] = [None] * size
    results[root] = x
    return results


def _split(x: Array, counts: Sequence[int]) -> list[Array]:
    return [x[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def _combine_broadcast(parts: list[Array], root: int, dtype: Any, count: int) -> list[Array]:
    for rank, buffer in enumerate(parts):
        if rank != root:
            buffer[:] = parts[root]
    return [x.copy() if rank == root else x for rank, x in enumerate(parts)]


def _combine_all_to_all(parts: list[tuple[Array, tuple[int, ...], tuple[int, ...]]], dtype: Any) -> list[Array]:
    wrong = [
        f"rank {i} sends {int(parts[i][1][j])} elements to rank {j}, which receives {int(parts[j][2][i])}"
        for i in range(len(parts))
        for j in range(len(parts))
        if parts[i][1][j] != parts[j][2][i]
    ]
    if wrong:
        needed = "needed: send_counts[j] of rank i equal to receive_counts[i] of rank j"
        raise CollectiveMismatch("the counts of all_to_all do not pair up\n  " + "\n  ".join([*wrong, needed]))
    rows = [_split(x, send_counts) for x, send_counts, _ in parts]
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


CALLS = {
    "broadcast": Call(("root", "dtype", "count"), _prepare_broadcast, _combine_broadcast),
    "reduce": Call(
        ("root", "dtype", "count"),
        _prepare_reduce,
        lambda parts, root, dtype, count: _to_root(_sum(parts), root, len(parts)),
    ),
    "all_reduce": Call(
        ("dtype", "count"), _prepare_all_reduce, lambda parts, dtype, count: _to_all(_sum(parts), len(parts))
    ),
    "gather": Call(
        ("root", "dtype", "counts"),
        _prepare_gather,
        lambda parts, root, dtype, counts: _to_root(np.concatenate(parts), root, len(parts)),
    ),
    "all_gather": Call(
        ("dtype", "counts"),
        _prepare_all_gather,
        lambda parts, dtype, counts: _to_all(np.concatenate(parts), len(parts)),
    ),
    "scatter": Call(
        ("root", "dtype", "counts"),
        _prepare_scatter,
        lambda parts, root, dtype, counts: [part.copy() for part in _split(parts[root], counts)],
    ),
    "reduce_scatter": Call(
        ("dtype", "counts"),
        _prepare_reduce_scatter,
        lambda parts, dtype, counts: [part.copy() for part in _split(_sum(parts), counts)],
    ),
    "all_to_all": Call(("dtype",), _prepare_all_to_all, _combine_all_to_all),
    "exchange": Call((), lambda group, data: ((), bytes(data)), lambda parts: [list(parts) for _ in parts]),
    "barrier": Call((), lambda group: ((), None), lambda parts: parts),
    "agree": Call(("call",), lambda group, call: ((call,), None), lambda parts, call: parts),
}


# -- what a rank can wait for --------------------------------------------------------------------------------------
def _ranks_text(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _call_text(call: tuple[Any, ...]) -> str:
    name, *agreed = call
    if name == "agree":
        return str(agreed[0])
    values = (tuple(map(int, value)) if isinstance(value, tuple) else value for value in agreed)
    return f"{name}({', '.join(f'{word} {value}' for word, value in zip(CALLS[name].agrees, values, strict=True))})"


class Meeting:
    """One collective of one group: the parts until all have come, then the results until they are taken."""

    __slots__ = ("calls", "done", "error", "group", "missing", "number", "parts", "results", "waiters")

    def __init__(self, group: Channel, number: int):
        size = len(group.ranks)
        self.group = group
        self.number = number
        self.calls: list[tuple[Any, ...] | None] = [None] * size
        self.parts: list[Any] = [None] * size
        self.results: list[Any] = []
        self.missing = size
        self.error: str | None = None
        self.done = False
        self.waiters: list[int] = []

    def conclude(self) -> None:
        """Compare the calls and make the results. The last member to come does this, for all."""
        name, *agreed = call = self.calls[0]  # type: ignore[misc]
        if any(other != call for other in self.calls):
            self.error = self._difference()
        else:
            try:
                self.results = CALLS[name].combine(self.parts, *agreed)
            except CollectiveMismatch as mismatch:
                self.error = f"call #{self.number} on '{self.group.name}': {mismatch}"
        self.parts = []

    def result(self, rank: int) -> Any:
        """What one member gets. It is handed over: the meeting keeps no reference."""
        if self.error is not None:
            raise CollectiveMismatch(self.error)
        result, self.results[rank] = self.results[rank], None
        return result

    def wait_text(self, rank: int) -> str:
        absent = [rank for rank, call in zip(self.group.ranks, self.calls, strict=True) if call is None]
        call = self.calls[self.group.ranks.index(rank)]
        text = f"{call[0]} #{self.number} on '{self.group.name}'"  # type: ignore[index]
        return f"{text} for {_ranks_text(absent)}" if absent else text

    def _difference(self) -> str:
        ranks: dict[Any, list[int]] = {}
        for rank, call in zip(self.group.ranks, self.calls, strict=True):
            ranks.setdefault(call, []).append(rank)
        names = {call[0] for call in ranks}
        if len(names) > 1 or names == {"agree"}:
            needed = "the same call, in the same order"
        else:
            columns = zip(CALLS[names.pop()].agrees, zip(*(call[1:] for call in ranks), strict=True), strict=True)
            needed = "the same " + " and ".join(word for word, values in columns if len(set(values)) > 1)
        lines = [f"{_ranks_text(who)}: {_call_text(call)}" for call, who in ranks.items()]
        lines.append(f"needed: {needed} on all of {_ranks_text(self.group.ranks)}")
        return f"call #{self.number} on '{self.group.name}' is not the same on all ranks\n  " + "\n  ".join(lines)


class Letter:
    """One message between two ranks of a group. Only its receiver can wait for it."""

    __slots__ = ("content", "done", "group", "src", "waiters")

    def __init__(self, group: Channel, src: int):
        self.group = group
        self.src = src
        self.content: Array | None = None
        self.done = False
        self.waiters: list[int] = []

    def wait_text(self, rank: int) -> str:
        return f"recv from rank {self.group.ranks[self.src]} on '{self.group.name}'"


class Channel:
    """What the members of one group share: the meetings that miss someone, the letters not yet matched."""

    __slots__ = ("letters", "meetings", "name", "ranks")

    def __init__(self, ranks: tuple[int, ...], name: str):
        self.ranks = ranks
        self.name = name
        self.meetings: dict[int, Meeting] = {}
        self.letters: dict[tuple[int, int, int], Letter] = {}


# -- the world -----------------------------------------------------------------------------------------------------
class LocalWorld:
    """Ranks 0 to `size` - 1 as threads of this process; knows which of them wait, and for what.

    Whoever runs a rank reports its end by `finish` or `fail` (`collectives.ranks.run` does).

    Parameters
    ----------
    size : int
        The number of ranks.
    """

    def __init__(self, size: int):
        if size < 1:
            raise MeshError(f"a world has one rank or more, not {size}")
        self.size = size
        self.lock = Lock()
        self.failed_rank: int | None = None
        self._failure: str | None = None
        self._idle = 0  # ranks that are blocked or have ended
        self._waits: list[Meeting | Letter | None] = [None] * size
        self._errors: list[CommunicationError | None] = [None] * size
        self._bells = [Lock() for _ in range(size)]
        for bell in self._bells:
            bell.acquire()
        self._channels: dict[tuple[str, tuple[int, ...]], Channel] = {}
        self._communicators: list[dict[tuple[str, tuple[int, ...]], LocalCommunicator]] = [{} for _ in range(size)]

    def communicator(self, rank: int, ranks: Sequence[int] | None = None, name: str = "world") -> LocalCommunicator:
        """The channel of `ranks` (default: all) as world rank `rank` has it; asked again, it is the same object."""
        key = (name, tuple(range(self.size)) if ranks is None else tuple(ranks))
        mine = self._communicators[rank]
        if key not in mine:
            with self.lock:
                channel = self._channels.setdefault(key, Channel(key[1], name))
            mine[key] = LocalCommunicator(self, channel, rank)
        return mine[key]

    def block(self, rank: int, wait: Meeting | Letter) -> None:
        """Put world rank `rank` to sleep until `wait` is done.

        Raises
        ------
        RankFailed
            Another rank has raised.
        DeadlockError
            Every rank waits or has finished.
        """
        with self.lock:
            if wait.done:
                return
            self._waits[rank] = wait
            wait.waiters.append(rank)
            self._idle += 1
            if self._failure is not None:
                self._stop(rank, self._failed_error(rank))
            elif self._idle == self.size:
                self._deadlock()
        self._bells[rank].acquire()
        error, self._errors[rank] = self._errors[rank], None
        if error is not None:
            raise error

    def release(self, wait: Meeting | Letter) -> None:
        """Mark `wait` as done and wake those who wait for it. The caller holds the lock."""
        wait.done = True
        for rank in wait.waiters:
            self._wake(rank)

    def finish(self, rank: int) -> None:
        """World rank `rank` has come to the end of its program."""
        with self.lock:
            self._idle += 1
            if self._idle == self.size:
                self._deadlock()

    def fail(self, rank: int | None, error: BaseException) -> None:
        """World rank `rank`, or whoever watches all of them (None), raised `error`: no rank will block any more."""
        with self.lock:
            if self._failure is None:
                self.failed_rank = rank
                who = "the main thread" if rank is None else f"rank {rank} of {self.size}"
                self._failure = _failure_text(who, error)
            self._idle += rank is not None
            for other in self._blocked():
                self._stop(other, self._failed_error(other))

    @property
    def failed(self) -> bool:
        """Whether a rank has raised, so that a wait returns at once or raises."""
        return self._failure is not None

    # The rest is called with the lock held.
    def _blocked(self) -> list[int]:
        return [rank for rank, wait in enumerate(self._waits) if wait is not None]

    def _wake(self, rank: int) -> None:
        self._waits[rank] = None
        self._idle -= 1
        self._bells[rank].release()

    def _stop(self, rank: int, error: CommunicationError) -> None:
        self._waits[rank].waiters.remove(rank)  # type: ignore[union-attr]
        self._errors[rank] = error
        self._wake(rank)

    def _failed_error(self, rank: int) -> RankFailed:
        return RankFailed(f"{self._failure}; rank {rank} waited in {self._waits[rank].wait_text(rank)}")  # type: ignore[union-attr]

    def _deadlock(self) -> None:
        states = (
            f"rank {rank} has finished" if wait is None else f"rank {rank} waits in {wait.wait_text(rank)}"
            for rank, wait in enumerate(self._waits)
        )
        text = "no rank can go on: " + "; ".join(states)
        for rank in self._blocked():
            self._stop(rank, DeadlockError(text))


def _failure_text(who: str, error: BaseException) -> str:
    text = f"{who} raised {type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text


# -- the communicator ----------------------------------------------------------------------------------------------
class LocalCommunicator(Communicator):
    """A channel between threads, as one of its ranks has it. `LocalWorld.communicator` makes them."""

    def __init__(self, world: LocalWorld, channel: Channel, world_rank: int):
        self.rank = channel.ranks.index(world_rank)
        self.size = len(channel.ranks)
        self.ranks = channel.ranks
        self.name = channel.name
        self._world = world
        self._world_rank = world_rank
        self._channel = channel
        self._number = 0
        self._sent = [0] * self.size
        self._received = [0] * self.size
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"LocalCommunicator('{self.name}', rank {self.rank} of {self.size})"

    def subgroup(self, members: Sequence[int], name: str) -> LocalCommunicator:
        members = [_check_rank(self, "member", member) for member in members]
        if self.rank not in members or len(set(members)) < len(members):
            raise MeshError(f"'{name}' must hold rank {self.rank} of '{self.name}', and no rank twice, not {members}")
        return self._world.communicator(self._world_rank, [self.ranks[member] for member in members], name)

    @property
    def checking(self) -> bool:
        return True

    def agree(self, call: str) -> None:
        self._call("agree", call)

    def broadcast(self, x: Array, root: int) -> Array:
        return self._call("broadcast", x, root)

    def reduce(self, x: Array, root: int) -> Array | None:
        return self._call("reduce", x, root)

    def all_reduce(self, x: Array) -> Array:
        return self._call("all_reduce", x)

    def gather(self, x: Array, counts: Sequence[int], root: int) -> Array | None:
        return self._call("gather", x, counts, root)

    def all_gather(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("all_gather", x, counts)

    def scatter(self, x: Array | None, counts: Sequence[int], root: int, dtype: Any) -> Array:
        return self._call("scatter", x, counts, root, dtype)

    def reduce_scatter(self, x: Array, counts: Sequence[int]) -> Array:
        return self._call("reduce_scatter", x, counts)

    def all_to_all(self, x: Array, send_counts: Sequence[int], receive_counts: Sequence[int]) -> Array:
        return self._call("all_to_all", x, send_counts, receive_counts)

    def exchange(self, data: bytes) -> list[bytes]:
        return self._call("exchange", data)

    def barrier(self) -> None:
        self._call("barrier")

    def send(self, x: Array, dst: int) -> None:
        _check_rank(self, "dst", dst)
        content = _check_array(x).copy()
        number, self._sent[dst] = self._sent[dst], self._sent[dst] + 1
        with self._world.lock:
            letter = self._letter(self.rank, dst, number)
            letter.content = content
            self._world.release(letter)
        self.traffic.count(self.ranks[dst], content.nbytes)

    def recv(self, buffer: Array, src: int) -> Array:
        return self._take(self._expect(buffer, src), buffer)

    def start(self, call: str, *args: Any) -> Pending[Any]:
        if call == "send":
            self.send(*args)
            return Pending.done(None)
        if call == "recv":
            buffer, src = args
            letter = self._expect(buffer, src)
            return Pending(lambda: self._ready(letter), lambda: self._take(letter, buffer))
        if self.size == 1:
            return Pending.done(self._call(call, *args))
        # The caller may go on and change its array; only the buffer of a broadcast is lent until the wait.
        if args and isinstance(args[0], np.ndarray) and not (call == "broadcast" and args[1] != self.rank):
            args = (args[0].copy(), *args[1:])
        meeting = self._join(call, *CALLS[call].prepare(self, *args))
        return Pending(lambda: self._ready(meeting), lambda: self._leave(meeting))

    # -- meetings ----------------------------------------------------------------------------------------------
    def _call(self, name: str, *args: Any) -> Any:
        """A blocking collective. It needs no copy of its array: it returns when nobody reads that any more."""
        call = CALLS[name]
        agreed, part = call.prepare(self, *args)
        if self.size == 1:
            return call.combine([part], *agreed)[0]
        return self._leave(self._join(name, agreed, part))

    def _join(self, name: str, agreed: tuple[Any, ...], part: Any) -> Meeting:
        """Leave this rank's call and part at the next meeting, and conclude it if all have come."""
        self._number = number = self._number + 1
        world, meetings = self._world, self._channel.meetings
        with world.lock:
            meeting = meetings.get(number)
            if meeting is None:
                meeting = meetings[number] = Meeting(self._channel, number)
            meeting.calls[self.rank] = (name, *agreed)
            meeting.parts[self.rank] = part
            meeting.missing -= 1
            if meeting.missing:
                return meeting
            del meetings[number]
        meeting.conclude()
        with world.lock:
            world.release(meeting)
        return meeting

    def _leave(self, meeting: Meeting) -> Any:
        if not meeting.done:
            self._world.block(self._world_rank, meeting)
        return meeting.result(self.rank)

    # -- letters -----------------------------------------------------------------------------------------------
    def _letter(self, src: int, dst: int, number: int) -> Letter:
        """The letter of that number: the one that the other side has put up, else a new one. Needs the lock."""
        letters, key = self._channel.letters, (src, dst, number)
        letter = letters.pop(key, None)
        if letter is None:
            letter = letters[key] = Letter(self._channel, src)
        return letter

    def _expect(self, buffer: Array, src: int) -> Letter:
        """Take the next place in the order of receives from `src`."""
        _check_rank(self, "src", src)
        _check_array(buffer)
        number, self._received[src] = self._received[src], self._received[src] + 1
        with self._world.lock:
            return self._letter(src, self.rank, number)

    def _take(self, letter: Letter, buffer: Array) -> Array:
        if not letter.done:
            self._world.block(self._world_rank, letter)
        content = letter.content
        assert content is not None
        if content.dtype != buffer.dtype or content.size != buffer.size:
            raise CollectiveMismatch(
                f"recv on '{self.name}': rank {self._world_rank} has a buffer of {buffer.size} {buffer.dtype}, rank "
                f"{self.ranks[letter.src]} sent {content.size} {content.dtype}; needed: the same count and dtype"
            )
        buffer[:] = content
        return buffer

    def _ready(self, wait: Meeting | Letter) -> bool:
        return wait.done or self._world.failed
