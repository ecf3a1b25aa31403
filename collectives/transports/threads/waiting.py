"""Blocks and wakes ranks that are threads, and detects deadlocks exactly.

A rank blocks only in `WaitingRanks.block`, which counts it. A deadlock occurs when every rank is blocked or has
finished, because no rank is left that could wake another one. It is detected at once and needs no time limit. A time
limit, if one is set, catches ranks that compute for ever. Each world has one lock. It protects the bookkeeping and is
never held while data is copied. Each rank has one wake-up lock, which is released when the rank can continue.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from threading import TIMEOUT_MAX, Lock, get_ident
from typing import Any, NoReturn

from autograd.errors import (
    MET,
    CommunicationError,
    DeadlockError,
    MeshError,
    RankFailed,
    TimeLimitError,
    site_of_thread,
)

from ...checks import modes
from ...job.activity import forked_text, refuse_in_child
from ...job.traceback import text_of
from ...job.verdict import states_text, task_text, waiting_state
from .. import unsent
from ..job import Death, Replaced
from .rendezvous import Gathering, Rendezvous, Wait

__all__ = ["WaitingRanks"]


class WaitingRanks:
    """Ranks 0 to `size` - 1 as threads of this process, with the call that each of them waits in.

    Parameters
    ----------
    size : int
        The number of ranks.
    raises : bool
        True under the policy ``raise``: only a wait for a failed rank raises `RankFailed`, and the other ranks can
        continue to communicate. If False, every wait raises it once a rank has failed.

    Attributes
    ----------
    tasks : list of str
        The task that each rank has set (`World.set_task`). Deadlock reports contain it.
    failed_ranks : dict of int to str
        The ranks that have raised an exception, with its text, in order of time.
    replaced : dict of int to Replaced
        The ranks that have died and were replaced. They are no longer among those that have failed.
    begin_rank : callable
        Starts the program of a rank that replaces one, in the epoch of a `Gathering`.
    epoch : int
        How often the ranks have agreed on who has not failed (`survivors`).
    ended : int
        The newest epoch that has ended; -1 if none has. No rank can wait on its channels, or on older ones.
    """

    def __init__(self, size: int, raises: bool = False):
        if size < 1:
            raise MeshError(f"a world has one rank or more, not {size}")
        self.size = size
        self.lock: Any = Lock()
        self.raises = raises
        self.tasks = [""] * size
        self.failed_ranks: dict[int, str] = {}
        self.replaced: dict[int, Replaced] = {}
        self.begin_rank: Callable[[int, Gathering], None] | None = None
        self._dead: set[int] = set()  # of the failed ranks those that have died: the others would fail again
        self._replacements = 0
        self.epoch, self.ended = 0, -1
        self._gathering: Gathering | None = None
        self.all_finished = False  # what the members of the present epoch have agreed on
        self._ended_by = 0  # the rank that has ended the last epoch
        self._failure: str | None = None  # a failure that ends all waits
        self._idle = 0  # the number of ranks that are blocked or have ended
        self._waits: list[Wait | None] = [None] * size
        self._threads: list[int | None] = [None] * size
        self._has_finished = [False] * size
        self._errors: list[CommunicationError | None] = [None] * size
        self._wake_locks = [Lock() for _ in range(size)]
        for lock in self._wake_locks:
            lock.acquire()
        refuse_in_child(self)

    def refuse_in_child(self) -> None:
        if self.size > 1:
            self.lock = _NoLock()

    def block(self, rank: int, wait: Wait) -> None:
        """Block world rank `rank` until `wait` is done.

        Raises
        ------
        CommunicationError
            The rank's program has ended.
        RankFailed
            Another rank has raised.
        DeadlockError
            Every rank is blocked or has finished, or the time limit has passed.
        """
        if unsent.unsent:
            unsent.hand_over()
        limit_s = modes.time_limit_s()
        with self.lock:
            if wait.done:
                return
            if self._has_finished[rank]:
                raise CommunicationError(
                    f"rank {rank} of {self.size} communicates after its program has ended; needed: a communicator or "
                    "mesh that is made and used inside the program that `run` runs"
                )
            self._waits[rank] = wait
            self._threads[rank] = get_ident()
            wait.waiters.append(rank)
            self._idle += 1
            failure = self.failure_for(wait)
            if failure is not None:
                self._stop(rank, self._failed_error(rank, failure))
            elif self._idle == self.size:
                self._deadlock()
        if not self._wake_locks[rank].acquire(timeout=-1 if limit_s is None else min(limit_s, TIMEOUT_MAX)):
            with self.lock:
                if self._waits[rank] is wait:  # otherwise it has just been woken
                    self._stop_all(f"a rank has waited for {limit_s:g} s ({modes.time_limit_source()})", TimeLimitError)
            self._wake_locks[rank].acquire()
        error, self._errors[rank] = self._errors[rank], None
        if error is not None:
            MET.failures += isinstance(error, RankFailed)  # another thread has made it
            raise error

    def release(self, wait: Wait) -> None:
        """Mark `wait` as done and wake the ranks that wait for it. The caller holds the lock."""
        wait.done = True
        for rank in wait.waiters:
            self._wake(rank)

    def finish(self, rank: int) -> None:
        """Record that world rank `rank` has finished its program."""
        if self.lock.__class__ is _NoLock:
            return  # the end of a forked child
        with self.lock:
            self._idle += 1
            self._has_finished[rank] = True
            if self._idle == self.size:
                self._deadlock()

    def fail(self, rank: int | None, error: BaseException) -> None:
        """Record that world rank `rank`, or the main thread (None), raised `error`, and end the waits for it."""
        joining: list[int] = []
        with self.lock:
            text = _failure_text("the main thread" if rank is None else f"rank {rank} of {self.size}", error)
            if rank is not None:
                self.failed_ranks[rank] = text
                if isinstance(error, Death):
                    self._dead.add(rank)
                self._idle += 1
            if self._failure is None and (rank is None or not self.raises):
                self._failure = text
            gathering = self._gathering
            if gathering is not None and rank in gathering.missing:
                gathering.missing.discard(rank)
                joining = self._settle(gathering)
            for other in self._blocked():
                failure = self.failure_for(self._waits[other])
                if failure is not None:
                    self._stop(other, self._failed_error(other, failure))
            if self._idle == self.size:
                self._deadlock()
        if joining and gathering is not None:
            self._begin(joining, gathering)

    def survivors(self, rank: int, replace: float = 0, finished: bool = False) -> Gathering:
        """Agree with all ranks that have not failed on who they are. All of them call it; see `World.survivors`.

        The first one ends the present epoch: waits on its channels raise `RankFailed` on all ranks. The last one starts
        the ranks that replace others.
        """
        with self.lock:
            gathering = self._gathering
            if gathering is None:
                alive = (each for each in range(self.size) if each not in self.failed_ranks)
                gathering = self._gathering = Gathering(self.epoch + 1, alive)
                self.ended, self._ended_by = self.epoch, rank
                for other in self._blocked():
                    wait = self._waits[other]
                    if not (isinstance(wait, Rendezvous) and wait.is_full):  # else it has its result in a moment
                        self._stop(other, self._failed_error(other, self._ended_text()))
            gathering.missing.discard(rank)
            gathering.finished |= {rank} if finished else set()
            gathering.replace = min(gathering.replace, replace)
            joining = self._settle(gathering)
        if joining:
            self._begin(joining, gathering)
        if not gathering.done:
            self.block(rank, gathering)
        return gathering

    def refuse_ended(self, rank: int, epoch: int, call: str) -> None:
        """Raise `RankFailed` if an epoch has ended. Rank `rank` calls it before it communicates on a channel of it."""
        if epoch <= self.ended:
            raise RankFailed(f"{self._ended_text()}; rank {rank} calls {call}{self._at(rank)}")

    @property
    def failed(self) -> bool:
        """Whether a rank has raised an exception."""
        return self._failure is not None or bool(self.failed_ranks)

    def failure_for(self, wait: Wait | None) -> str | None:
        """The failure that ends `wait`; None if `wait` can still complete."""
        if self._failure is not None or wait is None:
            return self._failure
        if wait.epoch <= self.ended and not (isinstance(wait, Rendezvous) and wait.is_full):
            return self._ended_text()
        return next((text for rank, text in self.failed_ranks.copy().items() if wait.needs(rank)), None)

    def ends(self, rank: int, wait: Wait) -> bool:
        """Whether `wait`, which rank `rank` tests, is done.

        Raises
        ------
        DeadlockError
            It will never be done, because it needs a rank whose program has ended.
        """
        finished = [other for other, is_finished in enumerate(self._has_finished) if is_finished and wait.needs(other)]
        if wait.done:  # it was done before the rank finished
            return True
        if finished:
            raise DeadlockError(
                f"deadlock: rank {rank} tests {wait.wait_text(rank)}{self._at(rank)}, and rank {finished[0]} of "
                f"{self.size} has finished without it"
            )
        return False

    def check(self, rank: int, other: int) -> None:
        """Raise `RankFailed` if rank `other` has failed. Rank `rank` calls it before it sends to `other`."""
        if self.raises and other in self.failed_ranks:
            raise RankFailed(f"{self.failed_ranks[other]}; rank {rank} sends to it{self._at(rank)}")

    def _ended_text(self) -> str:
        texts = [*self.failed_ranks.copy().values()]
        return "; ".join([*texts, f"rank {self._ended_by} has called World.survivors, which ends the epoch before it"])

    def _begin(self, ranks: list[int], gathering: Gathering) -> None:
        """Start ranks that replace others. The caller does not hold the lock: they take it."""
        for rank in ranks:
            assert self.begin_rank is not None  # `_settle` has asked
            try:
                self.begin_rank(rank, gathering)
            except RuntimeError as error:  # no more threads
                self.fail(rank, error)

    # The caller of the methods below holds the lock.
    def _settle(self, gathering: Gathering) -> list[int]:
        """Begin the next epoch if no rank is missing. The caller starts the ranks that are returned, without the lock.

        From now on they count as ranks that compute, so that nothing sees a deadlock before they have begun.
        """
        joining: list[int] = []
        if not gathering.missing:
            alive = {each for each in range(self.size) if each not in self.failed_ranks}
            self.all_finished = alive <= gathering.finished
            if self.begin_rank is not None and not self.all_finished:  # else nobody is there whom they could join
                left = max(gathering.replace - self._replacements, 0)
                joining = [rank for i, rank in enumerate(sorted(self._dead)) if i < left]
            for rank in joining:
                self.forget(rank)
                self.replaced[rank] = Replaced(gathering.epoch, self.failed_ranks.pop(rank))
            gathering.members = tuple(each for each in range(self.size) if each not in self.failed_ranks)
            self.epoch, self._gathering = gathering.epoch, None
            self.release(gathering)
        return joining

    def forget(self, rank: int) -> None:
        """Forget a rank that has died: another one gets its number."""
        self._dead.discard(rank)
        self._replacements += 1
        self._idle -= 1  # it was counted when it failed
        self.tasks[rank], self._threads[rank], self._errors[rank] = "", None, None

    def _blocked(self) -> list[int]:
        return [rank for rank, wait in enumerate(self._waits) if wait is not None]

    def _wake(self, rank: int) -> None:
        self._waits[rank] = None
        self._idle -= 1
        self._wake_locks[rank].release()

    def _stop(self, rank: int, error: CommunicationError) -> None:
        self._waits[rank].waiters.remove(rank)  # type: ignore[union-attr]  # the rank waits
        self._errors[rank] = error
        self._wake(rank)

    def _failed_error(self, rank: int, failure: str) -> RankFailed:
        text = self._waits[rank].wait_text(rank)  # type: ignore[union-attr]  # the rank waits
        return RankFailed(f"{failure}; rank {rank} waited in {text}{self._at(rank)}")

    def _at(self, rank: int) -> str:
        site = site_of_thread(self._threads[rank])
        return f" at {site}" if site else ""

    def _state(self, rank: int) -> str:
        wait, task = self._waits[rank], self.tasks[rank]
        if wait is not None:
            return waiting_state(rank, wait.wait_text(rank), site_of_thread(self._threads[rank]), task)
        if self._has_finished[rank]:
            return f"rank {rank} has finished"
        if rank in self.failed_ranks:
            return f"rank {rank} has failed"
        return f"rank {rank} computes{self._at(rank)}{task_text(task)}"

    def _deadlock(self) -> None:
        self._stop_all("deadlock: no rank can continue")

    def _stop_all(self, why: str, kind: type[DeadlockError] = DeadlockError) -> None:
        waits = [wait.wait_text(rank) for rank, wait in enumerate(self._waits) if wait is not None]
        text = states_text(why, list(map(self._state, range(self.size))), waits)
        for rank in self._blocked():
            self._stop(rank, kind(text))


class _NoLock:
    """Replaces the lock in a forked child, which does not have the threads of the other ranks."""

    def __enter__(self) -> NoReturn:
        raise CommunicationError(forked_text("a communication between threads"))

    def __exit__(self, *error: Any) -> None:
        """Never called."""


def _failure_text(who: str, error: BaseException) -> str:
    if isinstance(error, Death):
        return f"{who} {error}"
    text = f"{who} raised {type(error).__name__}: {text_of(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
