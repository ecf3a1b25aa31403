"""Replay a record: the ranks of a job again, each alone, with the recorded results in the place of communication.

A rank gets from others what it got then, so its bits are equal whatever transport and algorithm ran, and no rank waits
for another one. A call that was not recorded, or another one than was recorded, is an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NoReturn, Self

from autograd import errors
from autograd.errors import CommunicationError, MeshError

from ..checks.channel import Checks
from ..checks.sanitizer import Addend
from .dry import DryCommunicator
from .job import Job, Options, Replayed
from .protocol import Communicator, Pending, Request, Text, observers
from .record_file import Entry, decoded, guarded, path_of, read_record
from .recording import SENT, Numbering, described

__all__ = ["Record", "Replay", "ReplayJob", "replaying"]


class Record:
    """The record of all ranks of a job that can be read from a folder.

    Parameters
    ----------
    folder : str

    Attributes
    ----------
    facts : dict of int to dict
        By rank: the facts of its program.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.facts: dict[int, dict[str, Any]] = {}
        self.calls: dict[int, dict[str, Entry]] = {}
        names = [name for name in os.listdir(folder) if name.startswith("rank-")] if os.path.isdir(folder) else []
        for name in names:
            path = os.path.join(folder, name)
            entries = read_record(path)
            guarded(path, partial(self._take, entries))
        if not self.facts:
            raise CommunicationError(f"{folder} holds no record of a rank; needed: a folder that cc.record wrote")

    def _take(self, entries: list[Entry]) -> None:
        if not entries:
            return  # killed before its first entry was complete
        facts = entries[0][0]
        rank, size = facts["rank"], facts["size"]
        if not (type(rank) is int and type(size) is int and 0 <= rank < size == len(facts["hosts"])):
            raise ValueError(f"rank {rank!r} of {size!r}")
        self.facts[rank] = facts
        self.calls[rank] = {line["key"]: (line, data) for line, data in entries[1:] if "key" in line}

    @property
    def any(self) -> dict[str, Any]:
        """The facts of the lowest rank."""
        return self.facts[min(self.facts)]


class Replay:
    """The observer of a replayed rank: it returns recorded results.

    Parameters
    ----------
    record : Record
    rank : int
    """

    def __init__(self, record: Record, rank: int):
        if rank not in record.calls:
            raise MeshError(
                f"replay of rank {rank}: {record.folder} has the ranks {', '.join(map(str, sorted(record.calls)))}"
            )
        self._path, self._calls, self._rank = path_of(record.folder, rank), record.calls[rank], rank
        self._numbering = Numbering()

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        if self._numbering.passes(group, request):
            return run()
        key = self._numbering.next(group, request)
        if not started or request.call in SENT:
            result = self._of(group, key, request)
            return Pending.done(result) if started else result
        return Pending(lambda: True, lambda: self._of(group, key, request))

    def agree(self, group: Communicator, text: str) -> None:
        """Repeat the error of a comparison, if there was one."""
        line, _ = self._calls.get(self._numbering.next(group, Request("agree", text)), ({}, b""))
        if line:
            self._repeat(group, line)

    def _of(self, group: Communicator, key: str, request: Request) -> Any:
        line, data = self._calls.get(key, ({}, b""))
        made = described(request)
        if not line:
            self._refuse(
                f"{made}, call {key}, is not in the record: the rank ended before it was complete, or the recording "
                "did not begin with the program\n  fix: record with RINGTAPE_RECORD=DIR"
            )
        if line.get("call") != made:
            self._refuse(
                f"{made} is call {key}; recorded there: {line.get('call')}\n  fix: the program, arguments and "
                "environment of the record"
            )
        self._repeat(group, line)
        result = guarded(self._path, lambda: decoded(line.get("result"), data))
        if request.out is not None and result is not None:
            guarded(self._path, lambda: request.out.__setitem__(..., result))
            return request.out
        return result

    def _repeat(self, group: Communicator, line: dict[str, Any]) -> None:
        if "error" in line:
            name, text = guarded(self._path, lambda: map(str, line["error"]))
            kind = getattr(errors, name, None)
            known = isinstance(kind, type) and issubclass(kind, errors.RingtapeError)
            raise kind(text) if known and kind is not None else CommunicationError(f"{name}: {text}")
        if group.checks is not None and "sampling" in line:
            sampling = group.checks.sampling
            agreed, opens = guarded(self._path, lambda: line["sampling"])
            sampling.agreed, sampling.opens = guarded(self._path, lambda: (float(agreed), int(opens)))
            group.checks.copies.clear()

    def _refuse(self, text: str) -> NoReturn:
        raise CommunicationError(f"replay of rank {self._rank}: {text}")


class ReplayCommunicator(DryCommunicator):
    """A channel of a replayed rank. All its calls go to the `Replay` of the thread."""

    def __init__(self, replay: Replay, hosts: Sequence[int], index: int, ranks: tuple[int, ...], name: str):
        super().__init__(index, ranks, name, self._not_observed, dry=False)
        self._replay, self._hosts = replay, tuple(hosts)
        self.checks = None if self.size == 1 else Checks()

    def _not_observed(self, group: Communicator, request: Request) -> None:
        raise CommunicationError(
            f"replay: {described(request)} on '{self.name}' in another thread than the rank's; needed: calls of the "
            "thread that was recorded"
        )

    @property
    def hosts(self) -> tuple[int, ...]:
        return tuple([self._hosts[rank] for rank in self.ranks])

    def _subgroup(self, members: list[int], name: str) -> ReplayCommunicator:
        ranks = tuple([self.ranks[member] for member in members])
        return ReplayCommunicator(self._replay, self._hosts, members.index(self.index), ranks, name)

    def duplicate(self, purpose: str) -> ReplayCommunicator:
        return ReplayCommunicator(self._replay, self._hosts, self.index, self.ranks, f"{self.name}/{purpose}")

    def agree(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        if self.checks is not None:
            self._replay.agree(self, call if isinstance(call, str) else call())


class ReplayJob(Job):
    """The ranks of a recorded job: one that was a process, or all that were threads, which `run` starts again."""

    def __init__(self, record: Record, ranks: Sequence[int], is_threads: bool, calls: dict[int, Replay]):
        self._record, self._ranks, self._calls = record, ranks, calls
        self.size, self.runs_programs = record.any["size"], is_threads
        self.communicator = None if is_threads else self._communicator(ranks[0])

    @classmethod
    def open(cls, options: Options) -> Self:
        raise MeshError("a replayed job is made by `replaying`")

    def _communicator(self, rank: int) -> ReplayCommunicator:
        replay = self._calls.get(rank) or self._calls.setdefault(rank, Replay(self._record, rank))
        hosts = self._record.any["hosts"]
        observers[get_ident()] = replay
        return ReplayCommunicator(replay, hosts, rank, tuple(range(self.size)), "world")

    def run(
        self, program: Callable[..., Any], args: tuple[Any, ...], begin: Callable[[Communicator], None]
    ) -> list[Any]:
        """Run a program on the ranks. The error of the lowest rank is raised once all have ended."""
        from autograd.random import State, set_state

        results: list[Any] = [None] * self.size
        failed: dict[int, BaseException] = {}

        def rank_main(rank: int) -> None:
            try:
                begin(self._communicator(rank))
                set_state(State())
                results[rank] = program(*args)
            except BaseException as error:
                failed[rank] = error
            finally:
                observers.pop(get_ident(), None)

        threads = [threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}") for rank in self._ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[min(failed)]
        return results


@contextmanager
def replaying(record: Record, rank: int | None = None) -> Iterator[None]:
    """Inside the block, worlds of the record's kind replay it. Of ranks that were threads, all run.

    Parameters
    ----------
    record : Record
    rank : int, optional
        The rank that this program runs as, if the ranks were processes; by default the lowest one.
    """
    facts, calls = record.any, dict[int, Replay]()
    is_threads = facts["kind"] == "threads"

    def job(options: Options) -> Job | None:
        if options.kind == "dry" or (is_threads and options.ranks != facts["size"]):
            return None
        if options.kind == "threads" and not is_threads and (options.ranks or 1) > 1:
            return None
        ranks = sorted(record.calls) if is_threads else [facts["rank"] if rank is None else rank]
        return ReplayJob(record, ranks, is_threads, calls)

    before, Replayed.job = Replayed.job, job
    outer = observers.pop(get_ident(), None)
    try:
        yield
    finally:
        Replayed.job = before
        observers.pop(get_ident(), None)
        if outer is not None:
            observers[get_ident()] = outer
