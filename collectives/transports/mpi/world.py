"""All ranks that mpiexec started: makes a world's MPI objects when it is opened, and frees them when it is closed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ...job.activity import Activity, Channel
from ...job.ending import Ending
from ...job.failure import process
from ...job.monitor import Monitor
from ..device import unsent
from .communicator import MpiCommunicator
from .control import MpiControl
from .groups import Groups
from .library import MPI
from .waiting import Waits

__all__ = ["MpiWorld"]

_PAUSE_S = 0.0002  # between two checks whether the other ranks have closed the world; it grows to `_LONG_PAUSE_S`
_LONG_PAUSE_S = 0.01
_ROUNDS = 8  # of comparing two clocks


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
    is_on_first_host : bool
        Whether this rank is on the host of rank 0.
    """

    def __init__(self, raises: bool = False, has_monitor: bool = True):
        size, rank = MPI.COMM_WORLD.Get_size(), MPI.COMM_WORLD.Get_rank()
        self.activity = Activity(rank, size, raises)
        self._waits = Waits(self.activity)
        self._groups = Groups(self._waits)
        self._monitor: Monitor | None = None
        self._leaving: Iterator[None] | None = None
        self._has_thread = False
        self.is_on_first_host = True
        channel = Channel("world", "world", tuple(range(size)))
        if size == 1:
            self.communicator = MpiCommunicator(None, channel, 0, self._groups)
            return
        _kept_until_finalize().append(self._waits)
        self._control = MpiControl(MPI.COMM_WORLD.Dup())
        hosts = self._groups.hosts = _hosts(self._control.comm)
        self.is_on_first_host = hosts[rank] == 0
        if rank in hosts:
            process.report_hosts(len(set(hosts)), hosts.count(rank), _origin_ns(self._control.comm, hosts))
        process.wait_until_watched()
        self._ending = Ending(self._control, hosts, process.report_ending)
        self._monitor = Monitor(self._control, self.activity, process.end_job, process.report, self._ending)
        handle = self._groups.keep(MPI.COMM_WORLD.Dup(), channel)
        self.activity.keeps_histories = has_monitor and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.communicator = MpiCommunicator(handle, channel, rank, self._groups)
        if self.activity.keeps_histories:
            self._has_thread = True
            self._monitor.start()
        _leave_before_finalize()

    def fail(self, why: str) -> None:
        """Report to the other ranks that this one has failed and makes no further calls."""
        self.activity.has_failed = True
        if self._monitor is not None and not self.activity.is_forked:
            self._monitor.fail(why)

    @staticmethod
    def mpi_size() -> int:
        """The number of ranks according to MPI."""
        size: int = MPI.COMM_WORLD.Get_size()
        return size

    @staticmethod
    def library() -> str:
        """The name of the MPI library."""
        name: str = MPI.get_vendor()[0]
        return name

    def announce_end(self) -> None:
        """Send the other hosts that this rank ends the job."""
        if self._has_thread and not MPI.Is_finalized():
            self._ending.announce()

    def receive_end(self) -> bool:
        """Whether a rank of another host has just sent that it ends the job."""
        return self._has_thread and not MPI.Is_finalized() and self._ending.receive()

    def leave(self, why: str) -> Iterator[None]:
        """Wait until all ranks leave: a generator that makes progress at every step. There is one per world."""
        if self._leaving is None:
            if unsent.unsent and not (self.activity.is_forked or self.activity.has_failed):
                unsent.hand_over()  # calls that this rank has started and does not wait for
            monitor = None if self.activity.is_forked else self._monitor
            self._leaving = iter(()) if monitor is None else monitor.leave(why, self._waits.reap)
        return self._leaving

    def close(self) -> bool:
        """Leave together with all other ranks, and free the world's MPI objects. No further call is possible.

        Returns
        -------
        bool
            False if a rank has failed. Then this rank does not wait, nothing is freed, and `leave` has to be continued
            before MPI is finalized. A forked child of the rank does not wait and frees nothing either.
        """
        if self.activity.is_forked:
            return True
        leaving, pause = self.leave("closed the world"), _PAUSE_S
        while not (self.activity.has_failed or self.activity.failed):
            if next(leaving, leaving) is leaving:
                self._groups.free_all()
                if self._monitor is not None:
                    self._control.comm.Free()
                    if not self._waits.is_incomplete:
                        _kept_until_finalize().remove(self._waits)
                return True
            time.sleep(pause)
            pause = min(2 * pause, _LONG_PAUSE_S)
        self.activity.close()
        return False


def _hosts(comm: Any) -> tuple[int, ...]:
    """For each rank, the lowest rank on its host. Ranks are on one host if they can share memory. All ranks call it."""
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    lowest = np.array(comm.Get_rank())
    here.Bcast(lowest, 0)
    here.Free()
    hosts = np.empty(comm.Get_size(), lowest.dtype)
    comm.Allgather(lowest, hosts)
    return tuple(hosts.tolist())


def _origin_ns(comm: Any, hosts: tuple[int, ...]) -> int:
    """The time when the world was made, on the clock of this host. The lowest rank of every host returns it.

    Cristian's method, as in `inspect.clocks`: rank 0 asks every host for its time. The midpoint between the request and
    the answer is wrong by at most half the round trip. The shortest of several rounds is used.
    """
    origin = time.monotonic_ns()
    mine, answer = np.zeros(1, np.int64), np.zeros(1, np.int64)
    if comm.Get_rank() == 0:
        for other in sorted(set(hosts) - {0}):
            rounds = []
            for _ in range(_ROUNDS):
                asked = time.monotonic_ns()
                comm.Send(mine, other)
                comm.Recv(answer, other)
                arrived = time.monotonic_ns()
                rounds.append((arrived - asked, int(answer[0]) - (asked + arrived) // 2))
            comm.Send(np.array([origin + min(rounds)[1]]), other)
    elif comm.Get_rank() in hosts:
        for _ in range(_ROUNDS):
            comm.Recv(answer, 0)
            mine[0] = time.monotonic_ns()
            comm.Send(mine, 0)
        comm.Recv(answer, 0)
        origin = int(answer[0])
    return origin


@cache
def _kept_until_finalize() -> list[Waits]:
    """Waits whose incomplete calls keep their arrays until MPI is finalized.

    That is after the interpreter has deleted its modules, so a reference from Python alone would not be enough.
    """
    kept: list[Waits] = []
    MPI.COMM_WORLD.Set_attr(MPI.Comm.Create_keyval(), kept)
    return kept


@cache
def _leave_before_finalize() -> None:
    """Leave when the program calls ``MPI.Finalize`` itself, which first deletes the attributes of COMM_SELF."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: process.leave())
    MPI.COMM_SELF.Set_attr(keyval, True)
