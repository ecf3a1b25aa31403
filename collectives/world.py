"""Which ranks there are: those of `run` (threads), else those of mpiexec (processes), else this one alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from autograd.errors import RankFailed

from .transports.protocol import Communicator

if TYPE_CHECKING:
    from .transports.threads.communicator import LocalWorld

__all__ = ["in_order", "run", "world"]

T = TypeVar("T")

_GRACE_S = 5.0  # how long `run` waits, after a failure, for ranks that compute and so have not heard of it


class _Here(threading.local):
    communicator: Communicator | None = None


_here = _Here()


def world() -> Communicator:
    """The communicator of all ranks: of `run` in its threads, of mpiexec in a process it started, else of one rank.

    The answer is the same object as long as the thread lives. mpi4py is imported only under mpiexec with two or more
    ranks.

    Examples
    --------
    >>> world().size
    1
    """
    if _here.communicator is None:
        from .job.launcher import launched_size

        if launched_size() > 1:
            from .transports.mpi.communicator import mpi_world

            _here.communicator = mpi_world()
        else:
            from .transports.threads.communicator import LocalWorld

            _here.communicator = LocalWorld(1).communicator(0)
    return _here.communicator


def replaced_world(communicator: Communicator | None) -> Communicator | None:
    """Have `world` answer with another communicator on this thread; returns the one that it had, if any."""
    before, _here.communicator = _here.communicator, communicator
    return before


def run(program: Callable[..., T], ranks: int = 4, *args: Any) -> list[T]:
    """Run `program(*args)` on each of `ranks` threads of this process, which make up a world of their own.

    The threads share nothing but what the program itself shares: tape, mesh and random state are per thread.

    Parameters
    ----------
    program : callable
        What every rank runs; `world()` in it is this world.
    ranks : int
        The number of ranks.
    *args
        Given to the program on every rank.

    Returns
    -------
    list
        What the program returned, in order of rank.

    Raises
    ------
    MeshError
        `ranks` is less than one.
    DeadlockError
        All ranks wait for each other, or for one that has finished.
    Exception
        What the first rank to fail raised, with a note that names it; where others raised the same kind of error
        (all do on a mismatch or a deadlock), the lowest such rank's. A `SystemExit` becomes a RankFailed.

    Examples
    --------
    >>> run(lambda: world().rank, 3)
    [0, 1, 2]
    """
    from .transports.threads.communicator import LocalWorld

    local = LocalWorld(ranks)
    results: list[Any] = [None] * ranks
    errors: dict[int, BaseException] = {}

    def rank_main(rank: int) -> None:
        _here.communicator = local.communicator(rank)
        try:
            results[rank] = program(*args)
        except BaseException as error:
            errors[rank] = error
            local.fail(rank, error)
        else:
            local.finish(rank)

    threads = [
        threading.Thread(target=rank_main, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(ranks)
    ]
    try:
        for thread in threads:
            thread.start()
        _join(threads, local)
    except BaseException as error:  # most likely KeyboardInterrupt: let the ranks end too
        local.fail(None, error)
        raise
    if local.failed_rank is not None:
        first = type(errors[local.failed_rank])
        rank = min(rank for rank, error in errors.copy().items() if type(error) is first)
        chosen = errors[rank]
        try:
            if isinstance(chosen, SystemExit):  # to pass it on would end this process, with a code 0 even in silence
                raise RankFailed(f"rank {rank} of {ranks} exited early, with code {chosen.code}") from chosen
            chosen.add_note(f"raised on rank {rank} of {ranks}")
            raise chosen
        finally:
            errors.clear()  # the error's traceback holds this frame: leave no cycle
            del chosen
    return results


def _join(threads: list[threading.Thread], local: LocalWorld) -> None:
    """Wait for the ranks. After a failure those that still compute are left behind: they fail once they block."""
    deadline = None
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)  # with a limit, so that a KeyboardInterrupt gets through everywhere
            if deadline is None and local.failed:
                deadline = time.monotonic() + _GRACE_S
            if deadline is not None and time.monotonic() > deadline:
                return


def in_order(text: object) -> None:
    """Print the text of every rank on rank 0, in order of rank. All ranks call it."""
    everyone = world()
    texts = everyone.exchange(str(text).encode())
    if everyone.dry:
        texts = texts[:1]
    if everyone.rank == 0:
        for rank, each in enumerate(texts):
            for line in each.decode().splitlines():
                print(f"[rank {rank}] {line}", flush=True)
