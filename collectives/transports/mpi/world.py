"""All ranks that mpiexec started: makes a world's MPI objects when it is opened, and frees them when it is closed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import cache
from threading import get_ident
from typing import Any

import numpy as np

from autograd.errors import CommunicationError, RankFailed

from ...job.activity import Activity, Channel, Departure, forked_text
from ...job.ending import Ending
from ...job.failure import process
from ...job.launcher import place_of
from ...job.marks import digest_of
from ...job.monitor import Monitor
from .. import unsent
from ..protocol import quietly
from .communicator import MpiCommunicator
from .control import MpiControl
from .fault_tolerance import FaultTolerance, is_available, tolerance
from .groups import Groups
from .library import MPI
from .waiting import Waits

__all__ = ["MpiWorld"]

_PAUSE_S = 0.0002  # between two checks whether the other ranks have closed the world; it grows to `_LONG_PAUSE_S`
_LONG_PAUSE_S = 0.01
_ROUNDS = 8  # of comparing two clocks
_MOST_LEVELS = 4  # of `RINGTAPE_PLACE`
_QUIET_S = 1.0  # how long messages of an epoch that is over may be under way


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
        self._retired: list[tuple[Groups, float]] = []  # of epochs that are over, and since when, while it is left
        self._tolerance: FaultTolerance | None = None
        self._why = ""  # it has failed
        self._over_since = 0.0  # when this rank has heard that the epoch is over
        self.all_finished = False  # what the members of the present epoch have agreed on
        self._is_out = False  # the others have begun an epoch without this rank
        self._monitor: Monitor | None = None
        self._leaving: Iterator[None] | None = None
        self._has_thread = False
        self.is_on_first_host = True
        channel = Channel("world", "world", tuple(range(size)))
        if size == 1:
            self.communicator = MpiCommunicator(None, channel, 0, self._groups)
            return
        _kept_until_finalize().append(self._waits)
        if raises and has_monitor and is_available():
            self._tolerance = self._waits.tolerance = tolerance()
        self._control = self._new_control(MPI.COMM_WORLD.Dup())
        hosts, domains = _places(self._control.comm)
        self._groups = Groups(self._waits, hosts, domains)
        self.is_on_first_host = hosts[rank] == 0
        if rank in hosts:
            process.report_hosts(len(set(hosts)), hosts.count(rank), _origin_ns(self._control.comm, hosts))
        process.wait_until_watched()
        self._ending = Ending(self._control, hosts, process.report_ending)
        watch, lasting = (None, None) if self._tolerance is None else (self._watch, self._tolerance.control)
        self._monitor = Monitor(
            self._control, self.activity, process.end_job, process.report, self._ending, watch, lasting
        )
        handle = self._groups.keep(MPI.COMM_WORLD.Dup(), channel)
        self.activity.keeps_histories = has_monitor and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.communicator = MpiCommunicator(handle, channel, rank, self._groups)
        if self._tolerance is not None:
            self._tolerance.barrier()  # a rank that ends the epoch must not find others inside the calls above
            process.survive(self._tolerance.has_lost_ranks)
        else:
            process.survive_no_longer()
        if self.activity.keeps_histories:
            self._has_thread = True
            self._monitor.start()
        _leave_before_finalize()

    def _new_control(self, comm: Any) -> MpiControl:
        found = self._tolerance
        return MpiControl(comm, self.activity.members, None if found is None else found.everyone_leaves)

    @property
    def is_fault_tolerant(self) -> bool:
        """Whether the other ranks can go on after one that a signal has ended."""
        return self._tolerance is not None

    # -- epochs ------------------------------------------------------------------------------------------------
    def survivors(self, finished: bool = False) -> MpiCommunicator:
        """Agree on the ranks that have not failed, and begin an epoch with them; see `World.survivors`."""
        activity, monitor, old, old_epoch = self.activity, self._monitor, self._groups, self.activity.epoch
        if self._waits.activity.is_forked:
            raise CommunicationError(forked_text("World.survivors"))
        if monitor is None:  # one rank
            activity.end_epoch()
            activity.begin_epoch(activity.members)
            self.all_finished = finished
            channel = self._new_channel()
            self._groups = Groups(self._waits)
            self.communicator = MpiCommunicator(None, channel, 0, self._groups)
            return self.communicator
        if activity.has_failed or self._is_out:
            raise RankFailed(f"rank {activity.rank} has failed itself; World.survivors is for the others")
        unsent.unsent.pop(get_ident(), None)  # calls on channels that can no longer be used
        if self._tolerance is None:
            members, self.all_finished = monitor.agree(finished)
            old.refuse(revokes=False)
            activity.begin_epoch(members)
            self._groups = Groups(self._waits, self._hosts_of(members), self._groups.domains)
            self.communicator = self._made(None)
        else:
            with monitor.lock:
                self._end_epoch()
                waiting, thread = activity.waiting, get_ident()
                alone = Channel("survivors", "world", (activity.rank,))
                waiting[thread] = alone, "survivors", activity.epoch + 1, None
                try:
                    renewal = self._tolerance.renew(activity, finished=finished)
                finally:
                    waiting[thread] = None
                assert renewal is not None
                activity.departed |= {
                    rank: Departure(rank, why, True, None, {}, {}) for rank, why in renewal.departed.items()
                }
                activity.begin_epoch(renewal.members)
                self.all_finished = renewal.all_finished
                self._groups = Groups(self._waits, self._hosts_of(renewal.members), self._groups.domains)
                self.communicator = self._made(renewal.data)
                old.keep(self._control.comm, Channel(f"control {old_epoch}", "control", self._control.ranks))
                self._control = self._new_control(renewal.control)
                self._ending = Ending(self._control, self._groups.hosts, process.report_ending)
                monitor.continue_with(self._control, self._ending)
        self.is_on_first_host = self._groups.hosts[activity.rank] == self._groups.hosts[activity.members[0]]
        self._retire()
        self._retired.append((old, time.monotonic()))
        return self.communicator

    def _new_channel(self) -> Channel:
        epoch = self.activity.epoch
        return Channel(f"survivors {epoch}", f"survivors {epoch}", self.activity.members, epoch)

    def _made(self, comm: Any) -> MpiCommunicator:
        """The communicator of all members of the present epoch. Without one of MPI's, they make it."""
        channel, rank = self._new_channel(), self.activity.rank
        index = channel.ranks.index(rank)
        if len(channel.ranks) == 1:
            return MpiCommunicator(None, channel, index, self._groups)
        if comm is None:
            before = self.communicator
            places = [before.ranks.index(each) for each in channel.ranks]
            handle = self._groups.create(before, before.comm, channel, places, digest_of(channel.key))
        else:
            handle = self._groups.keep(comm, channel)
        return MpiCommunicator(handle, channel, index, self._groups)

    def _hosts_of(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """For each rank of the world, the lowest member on its host; a host without members keeps its number."""
        hosts = self._groups.hosts
        lowest = {hosts[rank]: rank for rank in sorted(members, reverse=True)}
        return tuple(lowest.get(host, host) for host in hosts)

    def _end_epoch(self) -> None:
        """End the epoch on all ranks, where MPI survives deaths."""
        self.activity.end_epoch()
        self._control.end()
        self._groups.refuse(revokes=True)

    def _watch(self) -> None:
        """Look for deaths, and whether another rank has ended the epoch. The monitor calls it."""
        found, activity = self._tolerance, self.activity
        assert found is not None
        if self._is_out:
            return
        found.note_deaths(activity)
        if not self._control.is_over:
            self._over_since = time.monotonic()
        if activity.ended == activity.epoch or (
            self._control.is_over and found.is_news(activity, self._over_since)
        ):
            self._end_epoch()
            if activity.has_failed:
                self._step_out(self._why)

    def _step_out(self, why: str) -> None:
        """Let the others agree on an epoch without this rank."""
        assert self._tolerance is not None
        self._tolerance.renew(self.activity, why)
        self._is_out = process.is_abandoned = True

    def _retire(self, is_end: bool = False) -> None:
        """Free what is left of former epochs and not in use. All members of the present one call it.

        Messages of calls that were given up may arrive later, and a new communicator could take the number of one that
        is freed. So where MPI survives deaths, an epoch is kept until it has been over for a while. Elsewhere nothing
        tells when such messages have arrived, and communicators are kept until the world is closed (`is_end`).
        """
        waits, everyone, now = self._waits, self.communicator, time.monotonic()
        is_tolerant = self._tolerance is not None
        is_quiet = not is_tolerant or (waits.stuck == 0 and waits.settle())
        mine = [
            key
            for groups, since in self._retired
            if is_quiet and (not is_tolerant or now - since > _QUIET_S)
            for key in groups.unused(is_tolerant or is_end)
        ]
        told = quietly(lambda: everyone.exchange(json.dumps(mine).encode()))
        found = [frozenset(json.loads(data)) for data in told]
        for groups, _ in self._retired:
            groups.free_unused(dict(zip(everyone.ranks, found, strict=True)), is_tolerant)
        self._retired = [(groups, since) for groups, since in self._retired if not groups.is_empty]
        if not self._retired:
            waits.failed.clear()

    def fail(self, why: str) -> None:
        """Report to the other ranks that this one has failed and makes no further calls."""
        self.activity.has_failed, self._why = True, why
        if self._tolerance is not None:
            process.is_abandoned = True
        if self._monitor is not None and not self.activity.is_forked:
            self._monitor.fail(why)

    @property
    def is_lost(self) -> bool:
        """Whether this rank has failed, and all other members have departed as far as it knows.

        A rank that has failed departs when all others know of that, so the last one finds that all have.
        """
        activity = self.activity
        if not activity.has_failed or activity.is_forked:
            return False
        if self._tolerance is not None:
            self._tolerance.note_deaths(activity)
        return set(activity.members) <= {activity.rank, *activity.departed}

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
        """Wait until all ranks leave: a generator that makes progress at every step. There is one per world.

        Where MPI survives deaths, a rank that others have ended the epoch of takes part in their agreement first.
        """
        if self._leaving is None:
            if unsent.unsent and not (self.activity.is_forked or self.activity.has_failed):
                unsent.hand_over()  # calls that this rank has started and does not wait for
            monitor = None if self.activity.is_forked else self._monitor
            self._leaving = iter(()) if monitor is None else self._left(monitor, why)
        return self._leaving

    def _left(self, monitor: Monitor, why: str) -> Iterator[None]:
        yield from monitor.leave(why, self._waits.reap)
        if self._tolerance is not None and self._control.is_over and not self._is_out:
            with monitor.lock:
                if not self._is_out:
                    self._step_out(why)

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
        while not self._is_broken():
            if next(leaving, leaving) is leaving:
                if self._is_broken():
                    break
                try:
                    return self._free()
                except RankFailed:  # a rank has died meanwhile
                    if self._tolerance is None:
                        raise
            time.sleep(pause)
            pause = min(2 * pause, _LONG_PAUSE_S)
        self.activity.close()
        return False

    def _is_broken(self) -> bool:
        """Whether a rank has failed, so that the others do not close the world together."""
        activity = self.activity
        if self._tolerance is None:
            return bool(activity.has_failed or activity.failed)
        return activity.has_failed or self._is_out or not activity.is_whole

    def _free(self) -> bool:
        """Free the world's MPI objects, together with all other ranks. False if a rank has failed in it."""
        has_failed = bool(self.activity.failed)
        if self.activity.epoch:
            self._retire(is_end=True)
        self._groups.free_all()
        if self._monitor is not None:
            self._control.comm.Free()
            if self._tolerance is not None:
                process.survive(None)
            if not self._waits.is_incomplete:
                _kept_until_finalize().remove(self._waits)
        return not has_failed


def _places(comm: Any) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """`Communicator.hosts` and `Communicator.domains` of all ranks, which call it together.

    Ranks are on one host if they can share memory. A domain has the number of its lowest rank, plus 1.
    """
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    place, mine = place_of(os.environ), np.zeros(1 + _MOST_LEVELS, np.uint64)
    mine[0] = comm.Get_rank()
    here.Bcast(mine[:1], 0)
    here.Free()
    inner = [digest_of("/".join(place[:n])) for n in range(len(place), 0, -1)][:_MOST_LEVELS]
    mine[1 : 1 + len(inner)] = inner
    found = np.empty((comm.Get_size(), mine.size), mine.dtype)
    comm.Allgather(mine, found)
    hosts, *levels = found.T.tolist()
    return tuple(hosts), tuple(
        tuple(level.index(digest) + 1 if digest else 0 for digest in level) for level in levels if any(level)
    )


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


@cache  # one in a process
def _kept_until_finalize() -> list[Waits]:
    """Waits whose incomplete calls keep their arrays until MPI is finalized.

    That is after the interpreter has deleted its modules, so a reference from Python alone would not be enough.
    """
    kept: list[Waits] = []
    MPI.COMM_WORLD.Set_attr(MPI.Comm.Create_keyval(), kept)
    return kept


@cache  # once in a process
def _leave_before_finalize() -> None:
    """Leave when the program calls ``MPI.Finalize`` itself, which first deletes the attributes of COMM_SELF."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda *_: process.leave())
    MPI.COMM_SELF.Set_attr(keyval, True)
