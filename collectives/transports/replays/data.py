"""Replay a record: the ranks of a job again, each alone, with the recorded results in the place of communication.

A rank gets from others what it got then, so its bits are equal whatever transport and algorithm ran, and no rank waits
for another one. A call that was not recorded, or another one than was recorded, is an error. What the rank gives is
compared, too: recorded results are those of what was given then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NoReturn, Self

from autograd import errors
from autograd.errors import CommunicationError, MeshError

from ...checks.channel import Checks
from ...checks.sanitizer import Addend
from ..dry import DryCommunicator
from ..job import Job, Options
from ..protocol import Communicator, Pending, Request, Text, observers
from ..record_file import decoded, guarded, path_of
from ..recording import SENT, described, passes
from .comparing import Differences, Ended, RankReplay
from .recorded import Key, Record, Recorded

__all__ = ["Replay", "ReplayJob"]


class Replay(RankReplay):
    """The observer of a replayed rank: it returns recorded results.

    Parameters
    ----------
    record : Record
    rank : int
    differences : Differences, optional
    """

    def __init__(self, record: Record, rank: int, differences: Differences | None = None):
        if not record.has_data:
            raise MeshError(
                f"replay of rank {rank} alone: {record.folder} has the order of the calls, and not their results; "
                "needed: a record with its data\n  fix: record with RINGTAPE_RECORD_DATA=1, or replay all ranks"
            )
        super().__init__(record, rank, Differences() if differences is None else differences)
        self._path, self.calls = path_of(record.folder, rank), record.needs_rank(rank)

    def __call__(self, group: Communicator, request: Request, started: bool, run: Callable[[], Any]) -> Any:
        if passes(group, request):
            return run()
        key, made = self.number(group, request)
        if not started or request.call in SENT:
            self._compared(key, made, request)
            result = self._of(group, key, request)
            return Pending.done(result) if started else result
        if key in self.calls:
            self._compared(key, made, request)
        return Pending(lambda: True, lambda: self._of(group, key, request))

    def _compared(self, key: Key, made: int, request: Request) -> None:
        """Compare what the rank gives; refuse another call than was recorded."""
        found, name = self.calls.get(key), described(request)
        if self.has_ended:
            raise Ended(
                f"its record: {name} is not in the record: the block that was recorded has ended\n"
                "  fix: record with RINGTAPE_RECORD=DIR to go on"
            )
        if found is None or not self.is_active:
            self._refuse(
                f"{name}, call {key[1]} on {key[0]}, is not in the record: the rank ended before it was complete, or "
                "the recording did not begin with the program\n  fix: record with RINGTAPE_RECORD=DIR"
            )
        if found.call != name:
            self._refuse(
                f"{name} is call {key[1]} on {key[0]}; recorded there: {found.call}\n  fix: the program, arguments and "
                "environment of the record"
            )
        self.compare(key, made, request)

    def agree(self, group: Communicator, text: str) -> None:
        """Repeat the error of a comparison, if there was one."""
        found = self.calls.get(self._numbering.next(group, Request("agree", text)))
        if found is not None:
            self._repeat(group, found)
        elif group.checks is not None:  # they were compared
            group.checks.copies.clear()

    def _of(self, group: Communicator, key: Key, request: Request) -> Any:
        found = self.calls.get(key)
        if found is None:
            self._refuse(f"{described(request)}, call {key[1]} on {key[0]}, was started there, and not waited for")
        self._repeat(group, found)
        entry = found.entry
        result = None if entry is None else guarded(self._path, lambda: decoded(entry))
        if request.out is not None and result is not None:
            guarded(self._path, lambda: request.out.__setitem__(..., result))
            return request.out
        return result

    def _repeat(self, group: Communicator, found: Recorded) -> None:
        if found.error is not None:
            name, text = found.error
            kind = getattr(errors, name, None)
            known = isinstance(kind, type) and issubclass(kind, errors.RingtapeError)
            raise kind(text) if known and kind is not None else CommunicationError(f"{name}: {text}")
        if group.checks is not None and found.sampling is not None:
            group.checks.sampling.agreed, group.checks.sampling.opens = found.sampling
            group.checks.copies.clear()

    def _refuse(self, text: str) -> NoReturn:
        raise CommunicationError(f"replay of rank {self.rank}: {text}")


class ReplayCommunicator(DryCommunicator):
    """A channel of a replayed rank. All its calls go to the `Replay` of the thread."""

    def __init__(self, replay: Replay, index: int, ranks: tuple[int, ...], name: str):
        super().__init__(index, ranks, name, self._not_observed, dry=False)
        self._replay = replay
        self.are_processes = replay.record.of_processes
        self.checks = None if self.size == 1 else Checks()

    def _not_observed(self, group: Communicator, request: Request) -> None:
        raise CommunicationError(
            f"replay: {described(request)} on '{self.name}' in another thread than the rank's; needed: calls of the "
            "thread that was recorded"
        )

    @property
    def hosts(self) -> tuple[int, ...]:
        hosts = self._replay.record.any["hosts"]
        return tuple([hosts[rank] for rank in self.ranks])

    @property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple([level[rank] for rank in self.ranks]) for level in self._replay.record.any["domains"])

    def _channel_of(self, ranks: tuple[int, ...], name: str, key: str) -> ReplayCommunicator:
        return ReplayCommunicator(self._replay, ranks.index(self.ranks[self.index]), ranks, name)

    def agree(self, call: Text, layout: str = "", is_rooted: bool = False, addend: Addend | None = None) -> None:
        if self.checks is not None:
            self._replay.agree(self, call if isinstance(call, str) else call())


class ReplayJob(Job):
    """The ranks of a recorded job: one that was a process, or all that were threads, which `run` starts again."""

    def __init__(self, record: Record, ranks: Sequence[int], is_threads: bool, differences: Differences):
        self._record, self._ranks, self._differences = record, ranks, differences
        self.size, self.runs_programs = record.any["size"], is_threads
        self.communicator = None if is_threads else self._communicator(ranks[0])

    @classmethod
    def open(cls, options: Options) -> Self:
        raise MeshError("a replayed job is made by `replaying`")

    def _communicator(self, rank: int) -> ReplayCommunicator:
        known = self._differences.ranks.get(rank)
        replay = known if isinstance(known, Replay) else Replay(self._record, rank, self._differences)
        observers[get_ident()] = self._differences.of_threads[get_ident()] = replay
        return ReplayCommunicator(replay, rank, tuple(range(self.size)), "world")

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
                self._differences.failed[rank] = type(error).__name__
            finally:
                observers.pop(get_ident(), None)
                self._differences.of_threads.pop(get_ident(), None)

        threads = [threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}") for rank in self._ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[min(failed)]
        return results
