"""Replay the order of a record: all ranks again, as threads of this process that communicate with each other.

The ranks make the same calls by the same algorithms, which give the same bits. Sums of an MPI library's own reductions,
whose order of additions is the library's, are recorded, and take the place of the sums of this process, as long as all
ranks give what they gave then. What each rank gives, and every result, is compared with the recorded digests, so a
replay that is not equal says where it first differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any, Self

import numpy as np

from autograd.errors import CommunicationError, MeshError

from ..job import Job, Options
from ..protocol import Communicator, Pending, Request, observers, quietly
from ..record_file import ARRAY, CALL, LIST, Entry, decoded, digest_of, guarded, path_of
from ..recording import SENT, described, is_checked, passes
from ..threads.communicator import LocalWorld, StandsFor
from ..threads.job import ThreadsJob
from .comparing import Difference, Differences, RankReplay
from .recorded import Key, Record, Recorded

__all__ = ["Order", "OrderJob"]


class Order:
    """The replay of a record's order.

    Parameters
    ----------
    record : Record
    differences : Differences, optional

    Attributes
    ----------
    differences : Differences
    """

    def __init__(self, record: Record, differences: Differences | None = None):
        self.record = record
        self.differences = Differences() if differences is None else differences
        self._channels: dict[int, Communicator] = {}
        self._others: dict[str, int] = {}

    @property
    def first(self) -> Difference | None:
        """The first difference of all ranks."""
        return self.differences.first

    def gives_other(self, key: Key) -> None:
        """Note that a rank gives another operand to a call than was recorded: recorded sums on its channel are over.

        A rank notes it before it makes the call, so every rank knows it that has the result.
        """
        channel, number, _ = key
        self._others[channel] = min(number, self._others.get(channel, number))

    def is_as_recorded(self, key: Key) -> bool:
        """Whether all ranks have given what they gave then, in a call that is complete."""
        channel, number, _ = key
        return number < self._others.get(channel, number + 1)

    def begin(self, group: Communicator) -> None:
        """Replay the rank of the calling thread, whose channel of all ranks is `group`."""
        self._channels[get_ident()] = group
        known = self.differences.ranks.get(group.index)  # a program may run its ranks several times
        replay = known if isinstance(known, OrderReplay) else OrderReplay(self, group.index)
        observers[get_ident()] = self.differences.of_threads[get_ident()] = replay

    def end(self, error: BaseException | None) -> None:
        """End the replay of the calling thread's rank."""
        group = self._channels.pop(get_ident())
        observers.pop(get_ident(), None)
        self.differences.of_threads.pop(get_ident(), None)
        if error is not None:
            self.differences.failed[group.index] = type(error).__name__

    def job_of_thread(self) -> Job | None:
        """The job of the rank that the calling thread runs, which was a process; None in any other thread."""
        group = self._channels.get(get_ident())
        return None if group is None else _OneRank(group)


class OrderReplay(RankReplay):
    """The observer of a replayed rank: calls are made, and compared with the recorded ones.

    Parameters
    ----------
    order : Order
    rank : int
    """

    def __init__(self, order: Order, rank: int):
        super().__init__(order.record, rank, order.differences)
        self._order = order

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        if request.call == "agree" or passes(group, request) or not self.is_active:
            return run()
        key, made = self.number(group, request)
        is_pending = started and request.call not in SENT
        found = self.compare(key, made, request, is_pending)
        if found is None and key in self.calls:
            self._order.gives_other(key)
        result = run()
        if not is_pending:
            return result if found is None else self._compared(group, key, made, request, found, result)
        return Pending(
            lambda: bool(quietly(result.test)),
            lambda: self._waited(group, key, made, request, found, quietly(result.wait)),
        )

    def _waited(
        self, group: Communicator, key: Key, made: int, request: Request, found: Recorded | None, result: Any
    ) -> Any:
        if found is not None:
            return self._compared(group, key, made, request, found, result)
        if key not in self.calls:
            self.compare(key, made, request)
        return result

    def _compared(
        self, group: Communicator, key: Key, made: int, request: Request, found: Recorded, result: Any
    ) -> Any:
        """Compare a result with the recorded one, or take that."""
        entry, name = found.entry, found.call
        if entry is None:
            kind, text = found.error or ("", "")
            if kind != "RankFailed":  # which depends on when another rank has failed
                self.note(made, key, f"{described(request)} succeeds; recorded there: {kind}: {text}")
            return result
        is_as_recorded = self._order.is_as_recorded(key)
        if request.call == "all_reduce" and is_as_recorded:
            entries = [self._entry(rank, key, name) for rank in group.ranks]
            digest, count = Counter(each.digest for each in entries if each is not None).most_common(1)[0]
            if entry.digest != digest and 2 * count > group.size:
                self.note(made, key, f"{name} had another result than on the other ranks")
            first = entries[0]
            if entry.kind == CALL and first is not None and first.kind == ARRAY and first.digest == entry.digest:
                return self._taken(group.ranks[0], first, result)
        if entry.kind == ARRAY and is_as_recorded:
            result = self._taken(self.rank, entry, result)
        elif entry.kind == LIST:  # what a rank has found in files
            return guarded(path_of(self.record.folder, self.rank), lambda: decoded(entry))
        if self.is_equal and is_checked(request) and digest_of(result) != entry.digest:
            if self.differences.found:  # another rank has given something else
                self.is_equal = False
            else:
                self.note(made, key, f"{name} has another result than was recorded")
        return result

    def _entry(self, rank: int, key: Key, name: str) -> Entry | None:
        """The entry of a call in the record of a rank."""
        found = self.record.calls.get(rank, {}).get(key)
        return None if found is None or found.call != name else found.entry

    def _taken(self, rank: int, entry: Entry, result: Any) -> Any:
        """The recorded sum, in the array of the result."""
        value = guarded(path_of(self.record.folder, rank), lambda: decoded(entry))
        if not isinstance(result, np.ndarray) or value.shape != result.shape or value.dtype != result.dtype:
            raise CommunicationError(
                f"the record {path_of(self.record.folder, rank)} is damaged: it has {value.dtype}{value.shape} for a "
                "result of another form\n  fix: record the program again"
            )
        result[...] = value
        return result


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
        domains = tuple(map(tuple, facts["domains"]))
        of = StandsFor(tuple(facts["hosts"]), domains, self._order.record.of_processes, self._order.record.choices)
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
            error: BaseException | None = None
            try:
                return program(*args)
            except BaseException as failure:
                error = failure
                raise
            finally:
                self._order.end(error)
                del error  # its traceback has this frame

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
