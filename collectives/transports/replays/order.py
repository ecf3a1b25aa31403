"""Replay the order of a record: all ranks again, as threads of this process that communicate with each other.

The ranks make the same calls by the same algorithms, which give the same bits. Sums of an MPI library's own reductions,
whose order of additions is the library's, are recorded, and take the place of the sums of this process. Every result is
compared with the digest of the recorded one, so a replay that is not equal says where it first differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple, Self

import numpy as np

from autograd.errors import CommunicationError, MeshError, find_site, short_site

from ..job import Job, Options
from ..protocol import Communicator, Pending, Request, observers, quietly
from ..record_file import ARRAY, CALL, LIST, Entry, decoded, digest_of, guarded, path_of
from ..recording import SENT, Numbering, described, is_checked, passes
from ..threads.communicator import LocalWorld, StandsFor
from ..threads.job import ThreadsJob
from .recorded import Key, Record

__all__ = ["Difference", "Order", "OrderJob"]


class Difference(NamedTuple):
    """The first call of a rank that is not as recorded: how many calls came before it, and how it differs."""

    before: int
    rank: int
    text: str


class Order:
    """The replay of a record's order.

    Parameters
    ----------
    record : Record

    Attributes
    ----------
    differences : list of Difference
        The first one of each rank.
    stops_at : callable or None
        Called with each call of a rank, before it is made: the rank, and the number of its call, from 1.
    """

    def __init__(self, record: Record):
        self.record = record
        self.differences: list[Difference] = []
        self.stops_at: Callable[[int, int], None] | None = None
        self._channels: dict[int, Communicator] = {}

    @property
    def first(self) -> Difference | None:
        """The first difference of all ranks."""
        return min(self.differences, default=None)

    def begin(self, group: Communicator) -> None:
        """Replay the rank of the calling thread, whose channel of all ranks is `group`."""
        self._channels[get_ident()] = group
        observers[get_ident()] = OrderReplay(self, group.index)

    def end(self) -> None:
        """End the replay of the calling thread's rank."""
        self._channels.pop(get_ident(), None)
        observers.pop(get_ident(), None)

    def job_of_thread(self) -> Job | None:
        """The job of the rank that the calling thread runs, which was a process; None in any other thread."""
        group = self._channels.get(get_ident())
        return None if group is None else _OneRank(group)


class OrderReplay:
    """The observer of a replayed rank: calls are made, and compared with the recorded ones.

    Parameters
    ----------
    order : Order
    rank : int
    """

    def __init__(self, order: Order, rank: int):
        self._order, self._rank = order, rank
        self._record = order.record
        self._calls = self._record.calls.get(rank, {})
        self._numbering = Numbering()
        self._made = 0
        self._is_equal = True

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        if request.call == "agree" or passes(group, request):
            return run()
        key, made = self._numbering.next(group, request), self._made
        self._made = made + 1
        if self._order.stops_at is not None:
            self._order.stops_at(self._rank, self._made)
        result = run()
        if not started:
            return self._compared(group, key, made, request, result)
        if request.call in SENT:
            return result
        return Pending(
            lambda: bool(quietly(result.test)),
            lambda: self._compared(group, key, made, request, quietly(result.wait)),
        )

    def _compared(self, group: Communicator, key: Key, made: int, request: Request, result: Any) -> Any:
        found, name = self._calls.get(key), described(request)
        if found is None or found.entry is None:
            return result  # the rank ended before the call was complete, or the record ended before the program
        if found.call != name:
            self._note(made, key, f"{name}; recorded there: {found.call}")
            return result
        entry = found.entry
        if request.call == "all_reduce":
            entries = [self._entry(rank, key) for rank in group.ranks]
            digest, count = Counter(each.digest for each in entries if each is not None).most_common(1)[0]
            if entry.digest != digest and 2 * count > group.size:
                self._note(made, key, f"{name} had another result than on the other ranks")
            first = entries[0]
            if entry.kind == CALL and first is not None and first.kind == ARRAY and first.digest == entry.digest:
                return self._taken(group.ranks[0], first, result)
        if entry.kind == ARRAY:
            result = self._taken(self._rank, entry, result)
        elif entry.kind == LIST:  # what a rank has found in files
            return guarded(path_of(self._record.folder, self._rank), lambda: decoded(entry))
        if self._is_equal and is_checked(request) and digest_of(result) != entry.digest:
            self._note(made, key, f"{name} has another result than was recorded")
        return result

    def _entry(self, rank: int, key: Key) -> Entry | None:
        """The entry of a call in the record of a rank."""
        found = self._record.calls.get(rank, {}).get(key)
        return None if found is None else found.entry

    def _taken(self, rank: int, entry: Entry, result: Any) -> Any:
        """The recorded sum, in the array of the result."""
        value = guarded(path_of(self._record.folder, rank), lambda: decoded(entry))
        if not isinstance(result, np.ndarray) or value.shape != result.shape or value.dtype != result.dtype:
            raise CommunicationError(
                f"the record {path_of(self._record.folder, rank)} is damaged: it has {value.dtype}{value.shape} for a "
                "result of another form\n  fix: record the program again"
            )
        result[...] = value
        return result

    def _note(self, made: int, key: Key, text: str) -> None:
        if self._is_equal:
            self._is_equal = False
            channel, number, _ = key
            at = f"{short_site(*find_site())}, call {number} on {channel}"
            self._order.differences.append(Difference(made, self._rank, f"{text} (at {at})"))


class OrderJob(ThreadsJob):
    """The ranks of a recorded job on threads, which communicate as the recorded ranks did.

    Parameters
    ----------
    order : Order
    raises : bool
        See `ThreadsJob`.
    """

    def __init__(self, order: Order, raises: bool = False):
        self._order = order
        super().__init__(order.record.any["size"], raises)

    def _world(self) -> LocalWorld:
        facts = self._order.record.any
        of = StandsFor(tuple(facts["hosts"]), facts["kind"] == "mpi", self._order.record.choices)
        return LocalWorld(self.size, self._raises, of)

    @classmethod
    def open(cls, options: Options) -> Self:
        raise MeshError("a replayed job is made by `replaying`")

    def run(
        self, program: Callable[..., Any], args: tuple[Any, ...], begin: Callable[[Communicator], None]
    ) -> list[Any]:
        def both(group: Communicator) -> None:
            begin(group)
            self._order.begin(group)

        def replayed(*args: Any) -> Any:
            try:
                return program(*args)
            finally:
                self._order.end()

        return super().run(replayed, args, both)

    @classmethod
    def run_processes(cls, order: Order, program: Callable[[int], Any]) -> list[Any]:
        """Run ``program(rank)`` on all ranks of a record whose ranks were processes."""
        ranks: dict[int, int] = {}

        def begin(group: Communicator) -> None:
            ranks[get_ident()] = group.index

        return cls(order).run(lambda: program(ranks[get_ident()]), (), begin)


class _OneRank(Job):
    """A rank of a replayed job, as its own program sees it."""

    def __init__(self, group: Communicator):
        self.size, self.communicator = group.size, group

    @classmethod
    def open(cls, options: Options) -> Self:
        raise MeshError("a replayed job is made by `replaying`")
