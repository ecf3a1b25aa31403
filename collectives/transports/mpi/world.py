"""All ranks that mpiexec started: makes a world's MPI objects when it is opened, and frees them when it is closed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

from ...job.activity import Activity, Channel
from ...job.failure import process
from ...job.monitor import Monitor
from .communicator import MpiCommunicator
from .control import MpiControl
from .groups import Groups
from .library import MPI
from .waiting import Waits

__all__ = ["MpiWorld"]

_PAUSE_S = 0.0002  # between two checks whether the other ranks have closed the world; it grows to `_LONG_PAUSE_S`
_LONG_PAUSE_S = 0.01


class MpiWorld:
    """All ranks of the job, as processes. All ranks create it and close it together.

    Its communicator is a duplicate of ``COMM_WORLD``, so that ringtape's messages never match those of the program's
    own MPI calls.

    Parameters
    ----------
    raises : bool
        Whether the failure of a rank raises an error on the others (the policy ``raise``) instead of ending the job.
    has_monitor : bool
        False in an exit handler, where a thread cannot be started.

    Attributes
    ----------
    communicator : MpiCommunicator
    activity : Activity
        The state of this rank, and the ranks that have failed.
    """

    def __init__(self, raises: bool = False, has_monitor: bool = True):
        size, rank = MPI.COMM_WORLD.Get_size(), MPI.COMM_WORLD.Get_rank()
        self.activity = Activity(rank, size, raises)
        self._waits = Waits(self.activity)
        self._groups = Groups(self._waits)
        self._monitor: Monitor | None = None
        self._leaving: Iterator[None] | None = None
        channel = Channel("world", "world", tuple(range(size)))
        if size == 1:
            self.communicator = MpiCommunicator(None, channel, 0, self._groups)
            return
        self._control = MpiControl(MPI.COMM_WORLD.Dup())
        self._monitor = Monitor(self._control, self.activity, process.end_job, process.report)
        process.wait_until_watched()
        _link_hosts(self._control)
        handle = self._groups.keep(MPI.COMM_WORLD.Dup(), channel)
        self.activity.keeps_histories = has_monitor and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.communicator = MpiCommunicator(handle, channel, rank, self._groups)
        if self.activity.keeps_histories:
            self._monitor.start()
        _leave_before_finalize()

    def fail(self, why: str) -> None:
        """Report to the other ranks that this one has failed and makes no further calls."""
        self.activity.has_failed = True
        if self._monitor is not None:
            self._monitor.fail(why)

    def leave(self, why: str) -> Iterator[None]:
        """Wait until all ranks leave: a generator that makes progress at every step. There is one per world."""
        if self._leaving is None:
            self._leaving = iter(()) if self._monitor is None else self._monitor.leave(why, self._waits.reap)
        return self._leaving

    def close(self) -> bool:
        """Leave together with all other ranks, and free the world's MPI objects. No further call is possible.

        Returns
        -------
        bool
            False if a rank has failed. Then this rank does not wait, nothing is freed, and `leave` has to be continued
            before MPI is finalized.
        """
        leaving, pause = self.leave("closed the world"), _PAUSE_S
        while not (self.activity.has_failed or self.activity.failed):
            if next(leaving, leaving) is leaving:
                self._groups.free_all()
                if self._monitor is not None:
                    self._control.comm.Free()
                return True
            time.sleep(pause)
            pause = min(2 * pause, _LONG_PAUSE_S)
        self.activity.close()
        return False


def _link_hosts(control: MpiControl) -> None:
    """Link the supervisors of several hosts, before any rank completes the next collective call."""
    here = control.comm.Split_type(MPI.COMM_TYPE_SHARED)
    is_spread = here.Get_size() < control.size  # the same on all ranks
    here.Free()
    if not is_spread:
        return
    where = bytearray(4096)
    if control.rank == 0:
        text = process.open_to_hosts().encode()
        where[: len(text)] = text[: len(where)]
    control.comm.Bcast([where, MPI.BYTE], 0)
    process.join_hosts(where.rstrip(b"\0").decode())


@cache
def _leave_before_finalize() -> None:
    """Leave when the program calls ``MPI.Finalize`` itself, which first deletes the attributes of COMM_SELF."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: process.leave())
    MPI.COMM_SELF.Set_attr(keyval, True)
