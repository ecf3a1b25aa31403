"""The job of ranks that are threads of this process, which `run` starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

from autograd.errors import CollectiveMismatch, MeshError, RankFailed

from ...checks.reports import unreceived_text
from ...job.traceback import comparable, ranks_text, text_of
from .. import unsent
from ..job import Death, Job, Options, Replaced
from ..protocol import Communicator
from .communicator import LocalCommunicator, LocalWorld
from .rendezvous import Gathering

__all__ = ["ThreadsJob"]

_GRACE_S = 5.0  # how long `run` waits, after a failure, for ranks that compute and have not noticed the failure


class ThreadsJob(Job):
    """Ranks as threads, with channels of their own in every `run`. One rank alone is the calling thread.

    Parameters
    ----------
    size : int
        The number of ranks.
    raises : bool
        Whether the other ranks continue after a failure: see `WaitingRanks`.
    """

    runs_programs = True
    is_fault_tolerant = True
    can_replace = True

    def __init__(self, size: int, raises: bool):
        self.size, self._raises = size, raises
        self._ranks = self._world()
        if size == 1:
            self.communicator = self._ranks.communicator(0)

    def _world(self) -> LocalWorld:
        """New channels."""
        return LocalWorld(self.size, self._raises)

    @classmethod
    def open(cls, options: Options) -> Self:
        return cls(options.size, options.raises)

    @property
    def failed(self) -> dict[int, str]:
        return self._ranks.failed_ranks.copy()

    @property
    def replaced(self) -> dict[int, Replaced]:
        return self._ranks.replaced.copy()

    @property
    def epoch(self) -> int:
        return self._ranks.epoch

    @property
    def all_finished(self) -> bool:
        return self._ranks.all_finished

    def survivors(self, everyone: Communicator, replace: float, finished: bool) -> Communicator:
        assert isinstance(everyone, LocalCommunicator)
        return self._ranks.of_survivors(everyone.ranks[everyone.index], replace, finished)

    def set_task(self, task: str, rank: Callable[[], int]) -> None:
        self._ranks.tasks[rank()] = task

    def run(
        self, program: Callable[..., Any], args: tuple[Any, ...], begin: Callable[[Communicator], None]
    ) -> list[Any]:
        from autograd.random import State, set_state  # only worlds of threads need it

        local = self._ranks = self._world()
        results: list[Any] = [None] * self.size
        errors: dict[int, BaseException] = {}

        def rank_main(rank: int, gathering: Gathering | None = None) -> None:
            begin(local.communicator(rank) if gathering is None else local.of_epoch(rank, gathering))
            set_state(State())  # of random keys: every rank starts with the same
            try:
                results[rank] = program(*args)
                unsent.hand_over()  # calls that this rank has started and does not wait for
            except BaseException as error:
                errors[rank] = error
                local.fail(rank, error)
            else:
                local.finish(rank)

        def thread_of(*args: Any) -> threading.Thread:
            return threading.Thread(target=rank_main, args=args, name=f"rank {args[0]}", daemon=True)

        def begin_rank(*args: Any) -> None:
            thread = thread_of(*args)
            thread.start()  # without another thread the rank that is replaced stays failed
            threads.append(thread)  # `_join` comes to it: the thread that appends it is one that it waits for

        threads = [thread_of(rank) for rank in range(self.size)]
        if self._raises:
            local.begin_rank = begin_rank
        try:
            for thread in threads.copy():
                _start(thread, self.size)
            _join(threads, local)
        except BaseException as error:  # most likely KeyboardInterrupt: end the ranks too
            local.fail(None, error)
            raise
        failed = list(local.failed_ranks)
        try:
            if failed and (not self._raises or len(failed) == self.size):
                first = failed[0]
                if self._raises:  # others may survive a death, and a rank may fail because another one has failed
                    first = next((rank for rank in failed if not isinstance(errors[rank], Death | RankFailed)), first)
                _raise_first(first, errors, self.size)
        finally:
            local.begin_rank = None
            errors.clear()  # the error's traceback holds this frame: leave no cycle
        if not failed and (unreceived := local.unreceived()):
            raise CollectiveMismatch(unreceived_text(unreceived))
        return results


def _raise_first(first: int, errors: dict[int, BaseException], ranks: int) -> None:
    """Raise the lowest rank's error among those of the same type as the first failure. A note names the ranks."""
    kind = type(errors[first])
    rank = min(rank for rank, error in errors.copy().items() if type(error) is kind)
    chosen = errors[rank]
    try:
        if isinstance(chosen, SystemExit):  # raising it would end this process, silently for code 0
            raise RankFailed(f"rank {rank} of {ranks} exited early, with code {chosen.code}") from chosen
        if isinstance(chosen, Death):
            raise RankFailed(f"rank {rank} of {ranks} {chosen}") from chosen
        text = comparable(chosen, text_of(chosen))
        same = [
            i for i, each in errors.copy().items() if type(each) is kind and comparable(each, text_of(each)) == text
        ]
        note = f"raised on {ranks_text(same)} of {ranks}"
        if note not in getattr(chosen, "__notes__", ()):  # an error may be raised again
            BaseException.add_note(chosen, note)  # whatever its class defines
        raise chosen
    finally:
        del chosen  # as above: leave no cycle


def _start(thread: threading.Thread, size: int) -> None:
    """Start a rank's thread, or raise MeshError where the system has no more threads, or, like WebAssembly, none."""
    try:
        thread.start()
    except RuntimeError as error:
        raise MeshError(
            f"run(program, ranks={size}): {thread.name} of {size} has no thread: {error}\n"
            "  fix: program(), called as a function: it is one rank without a thread of its own\n"
            "  or:  fewer ranks, or a higher limit on threads (ulimit -u), where some can be started"
        ) from error


def _join(threads: list[threading.Thread], local: LocalWorld) -> None:
    """Wait for the ranks. After a failure that ends the world, wait only briefly for ranks that compute."""
    deadline = None
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)  # a time limit lets a KeyboardInterrupt through on every platform
            if deadline is None and local.failed and not local.raises:
                deadline = time.monotonic() + _GRACE_S
            if deadline is not None and time.monotonic() > deadline:
                return
