"""Job: the ranks of a `World` as its transport makes them, with their channel, their failures and their end.

A transport is added by a subclass and one row in `JOBS`. Records, replays, pages and ``doctor`` ask the class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Literal, NamedTuple, Self

from autograd.errors import MeshError

from .protocol import Communicator

__all__ = ["JOBS", "Death", "Job", "Kind", "Options", "Replaced", "Replayed", "checked_ranks", "job_of"]

Kind = Literal["mpi", "threads", "dry"]

JOBS: dict[Kind, tuple[str, str]] = {
    "mpi": ("mpi.job", "MpiJob"), "threads": ("threads.job", "ThreadsJob"), "dry": ("dry", "DryJob"),
}  # fmt: skip
"""By kind of world: the module of this folder that has its `Job`, loaded with the first such world, and the class."""


def job_of(kind: Any) -> type[Job]:
    """The class of a kind's jobs."""
    module, name = JOBS[kind]
    found: type[Job] = getattr(import_module(f".{module}", __package__), name)
    return found


class Death(BaseException):
    """Ends a rank's thread as a signal ends a process, past handlers of `Exception`. The text follows its name."""


class Replaced(NamedTuple):
    """A rank that has died and was replaced: the epoch in which the newest replacement joined, and why it died."""

    epoch: int
    why: str


class Options(NamedTuple):
    """The arguments of `World` that a job is made from. `ranks` is None where none were given."""

    kind: str
    ranks: int | None
    raises: bool
    rank: int
    note: Callable[..., Any]

    @property
    def size(self) -> int:
        """The number of ranks of a world that may have any: by default 1."""
        return 1 if self.ranks is None else checked_ranks(self.kind, self.ranks)


class Job:
    """The ranks of one world, as a transport makes them. The methods here are those of a job that cannot fail.

    Attributes
    ----------
    size : int
        The number of ranks.
    communicator : Communicator or None
        The channel of all ranks, for the rank of the calling thread; None where ranks are threads of `run`.
    failed : dict of int to str
        The ranks that this process knows to have failed, and the reasons.
    has_processes : bool
        Whether the ranks are the processes of the launcher's job: then one world at a time is open, making and closing
        it are collective, and an error of this rank ends it.
    runs_programs : bool
        Whether `run` starts the ranks, which are threads. A job of neither kind is one rank that sends nothing.
    is_fault_tolerant : bool
        Whether the other ranks can go on after one that a signal has ended.
    can_replace : bool
        Whether they can start another one in its place.
    replaced : dict of int to Replaced
        The ranks that were replaced.
    """

    size: int
    communicator: Communicator | None = None
    has_processes = False
    runs_programs = False
    is_fault_tolerant = False
    can_replace = False

    @staticmethod
    def refuse() -> None:
        """Raise if this process cannot have such a job, before other worlds are looked at."""

    @classmethod
    def open(cls, options: Options) -> Self:
        """Make the job. Where it has processes, all ranks call it."""
        raise NotImplementedError

    @property
    def failed(self) -> dict[int, str]:
        return {}

    @property
    def replaced(self) -> dict[int, Replaced]:
        return {}

    @property
    def is_on_first_host(self) -> bool:
        """Whether this rank is on the host of the first rank."""
        return True

    def run(
        self, program: Callable[..., Any], args: tuple[Any, ...], begin: Callable[[Communicator], None]
    ) -> list[Any]:
        """Run a program on each rank, as `World.run` describes. Each rank calls `begin` with its communicator first."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The number of times that the ranks have agreed on who has not failed."""
        return 0

    @property
    def all_finished(self) -> bool:
        """Whether all members of the present epoch have begun it with ``survivors(finished=True)``."""
        return False

    @property
    def is_lost(self) -> bool:
        """Whether this rank has failed, and no other one is left that could go on."""
        return False

    def survivors(self, everyone: Communicator, replace: float, finished: bool) -> Communicator:
        """The channel of the ranks of `everyone` that have not failed. All of them call it: see `World.survivors`.

        Only where `can_replace` is `replace` other than 0: the number of ranks that may be replaced in all.
        """
        alive = [i for i, rank in enumerate(everyone.ranks) if rank not in self.failed]
        return everyone.subgroup(alive, f"survivors of {len(self.failed)}")

    def set_task(self, task: str, rank: Callable[[], int]) -> None:
        """Set a description of the current work of the calling rank, for reports. `rank` gives its number."""

    def fail(self, why: str) -> None:
        """Report to the other ranks that this one has failed. Only worlds of the policy ``raise`` call it."""

    def announce_end(self) -> None:
        """Send the other hosts that this rank ends the job."""

    def receive_end(self) -> bool:
        """Whether a rank of another host has just sent that it ends the job."""
        return False

    def leave(self, why: str) -> Iterator[None]:
        """Wait at exit until all ranks leave: a generator that makes progress at every step."""
        return iter(())

    def close(self) -> bool:
        """Leave together with the other ranks and free the resources. False if a failure left them to the exit."""
        return True


def checked_ranks(kind: str, ranks: Any) -> int:
    """The argument `ranks` of a world; MeshError unless it is a positive int."""
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise MeshError(f"World({kind!r}, ranks={ranks!r}): a world has one rank or more")
    return ranks


class Replayed:
    """The record that this process replays, if any.

    `job` makes a world's job, or returns None for an ordinary one. `block` is called where the rank of the calling
    thread enters or leaves a block that records: with the name of its folder, the error that ends the block, if any,
    and whether it begins.
    """

    job: Callable[[Options], Job | None] | None = None
    block: Callable[[str, BaseException | None, bool], None] | None = None
