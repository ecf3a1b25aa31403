"""All ranks that mpiexec started: what a world opens in MPI when it is made, and frees when it is closed."""

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

_PAUSE_S = 0.0002  # between two looks at whether the other ranks have closed the world; it grows to the second
_LONG_PAUSE_S = 0.01


class MpiWorld:
    """All ranks of the job, as processes. All of them make it and close it.

    Its communicator is a duplicate of ``COMM_WORLD``, so that the program's own MPI calls cannot be mistaken for
    ringtape's.

    Parameters
    ----------
    raises : bool
        Whether the failure of a rank raises an error on the others (the policy ``raise``) instead of ending the job.
    has_monitor : bool
        False in an exit handler, where no thread can be started any more.

    Attributes
    ----------
    communicator : MpiCommunicator
    activity : Activity
        What this rank does; it knows which ranks have failed.
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
        self.communicator = MpiCommunicator(handle, channel, rank, self._groups)
        if has_monitor and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._monitor.start()
        _leave_before_finalize()

    def fail(self, why: str) -> None:
        """Tell the other ranks that this one has failed; it makes no further calls."""
        self.activity.has_failed = True
        if self._monitor is not None:
            self._monitor.fail(why)

    def leave(self, why: str) -> Iterator[None]:
        """Wait until all ranks leave: a generator that makes progress at every step. Asked again, it is the same."""
        if self._leaving is None:
            self._leaving = iter(()) if self._monitor is None else self._monitor.leave(why, self._waits.reap)
        return self._leaving

    def close(self) -> bool:
        """Leave together with all other ranks, and free what the world holds in MPI; no further call is possible.

        Returns
        -------
        bool
            False if a rank has failed. Then nobody is waited for and nothing is freed, and `leave` has to be continued
            before MPI is finalized.
        """
        leaving, pause = self.leave("closed the world"), _PAUSE_S
        while not (self.activity.has_failed or self.activity.failed):
            if next(leaving, leaving) is leaving:
                self.activity.close()
                if self._monitor is not None:
                    self._groups.free_all()
                    self._control.comm.Free()
                return True
            time.sleep(pause)
            pause = min(2 * pause, _LONG_PAUSE_S)
        self.activity.close()
        return False


def _link_hosts(control: MpiControl) -> None:
    """Make the supervisors of several hosts known to one another. No rank leaves the next collective call before."""
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
    """Have a program that calls ``MPI.Finalize`` itself leave there: the attributes of COMM_SELF go first."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: process.leave())
    MPI.COMM_SELF.Set_attr(keyval, True)
