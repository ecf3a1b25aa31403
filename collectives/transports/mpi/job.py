"""The job of ranks that are processes under mpiexec. mpi4py is loaded when the first one is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from autograd.errors import CommunicationError, MeshError, OptionError

from ...job.activity import forked_text
from ...job.failure import process
from ...job.launcher import why_not_of_size
from ..job import Job, Options
from ..protocol import Communicator

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
            from .library import MPI  # loads mpi4py
            from .world import MpiWorld

            if problem := why_not_of_size(MpiWorld.mpi_size(), MpiWorld.library()):
                raise MeshError(problem)
            try:
                self._world = MpiWorld(raises, has_monitor=not process.has_left)
            except MPI.Exception as error:
                raise MeshError(f"a world over MPI cannot be made; most likely a rank has died: {error}") from error
        self.communicator = self._world.communicator
        self.size = self.communicator.size
        self.is_fault_tolerant = self._world.is_fault_tolerant

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

    @property
    def epoch(self) -> int:
        return self._world.activity.epoch

    @property
    def is_on_first_host(self) -> bool:
        return self._world.is_on_first_host

    @property
    def is_lost(self) -> bool:
        return self._world.is_lost

    @property
    def all_finished(self) -> bool:
        return self._world.all_finished

    def survivors(self, everyone: Communicator, replace: float, finished: bool) -> Communicator:
        if not self._world.activity.raises:
            raise OptionError("World.survivors of a world of the policy 'end'; needed: World(policy='raise')")
        with process.waiting("agree on the ranks that have not failed"):
            self.communicator = self._world.survivors(finished)
        return self.communicator

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
