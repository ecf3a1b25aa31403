"""The job of ranks that are processes under mpiexec. mpi4py is loaded when the first one is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from autograd.errors import CommunicationError, MeshError

from ...job.activity import forked_text
from ...job.failure import process
from ...job.launcher import why_not_of_size
from ..job import Job, Options

__all__ = ["MpiJob"]


class MpiJob(Job):
    """All ranks that mpiexec started. All of them make it and close it together: see `MpiWorld`.

    Parameters
    ----------
    raises : bool
        Whether the failure of a rank raises an error on the others, the policy ``raise``.

    Raises
    ------
    MeshError
        MPI's number of ranks is not the launcher's.
    """

    has_processes = True

    def __init__(self, raises: bool):
        with process.waiting("make a world"):
            from .world import MpiWorld  # loads mpi4py

            if problem := why_not_of_size(MpiWorld.mpi_size(), MpiWorld.library()):
                raise MeshError(problem)
            self._world = MpiWorld(raises, has_monitor=not process.has_left)
        self.communicator = self._world.communicator
        self.size = self.communicator.size
        self.is_on_first_host = self._world.is_on_first_host

    @staticmethod
    def refuse() -> None:
        if process.is_child:  # of a rank, by a fork: nothing of MPI may be touched
            raise CommunicationError(forked_text("World('mpi')"))

    @classmethod
    def open(cls, options: Options) -> Self:
        return cls(options.raises)

    @property
    def failed(self) -> dict[int, str]:
        return self._world.activity.failed

    def set_task(self, task: str, rank: Callable[[], int]) -> None:
        self._world.activity.task = task

    def fail(self, why: str) -> None:
        self._world.fail(why)

    def announce_end(self) -> None:
        self._world.announce_end()

    def receive_end(self) -> bool:
        return self._world.receive_end()

    def leave(self, why: str) -> Iterator[None]:
        return self._world.leave(why)

    def close(self) -> bool:
        with process.waiting("close their world"):
            return self._world.close()
