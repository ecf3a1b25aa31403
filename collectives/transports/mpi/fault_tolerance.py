"""Deaths and the agreement on the ranks that are left, by MPI's own fault tolerance (ULFM).

Open MPI has it under ``mpiexec --with-ft ulfm``. What it reports, and what it does not, was measured with 5.0.11:

- `Get_failed` tells nothing new until MPI makes progress: a probe before it finds a death within some 50 ms.
- A collective call of a group that a death has left incomplete raises an error, on some ranks of another class than
  ``ERR_PROC_FAILED``. So `Get_failed` decides what an error means. A small blocking ``Allgatherv`` returns success, so
  ranks of such worlds poll nonblocking calls, as they do under the policy ``raise`` anyway.
- `Comm.Create_group`, `Split` and `Dup` may never return if a member dies in them, or crash, and may then keep all
  later ones from returning; `Comm.Ishrink` fails after a death. `Comm.Shrink` works at any time, also if ranks die in
  it. So it makes the communicators of an epoch. The ranks meet before other calls that block (`meet`), so that these
  are short, and run them in a thread of their own, which is left alone after a death (`FaultTolerance.apart`).
- A communicator that is freed too early loses messages of a later one that takes its number: messages of calls that
  were given up arrive late. So the communicators of an epoch that is over are freed some time after it (`MpiWorld`).
- A process may die while it holds a lock of MPI's in the shared memory of a window, and the next access never returns.
- `Comm.Iagree` fills its flag also where it raises, and all ranks raise alike.

All agreements are made on communicators of all ranks of the job, which are never revoked: so ranks that have taken part
in another number of failed attempts meet in the next one. See Bland, Bouteiller, Herault, Bosilca, Dongarra:
Post-failure recovery of MPI communication capability (IJHPCA 2013), and the chapter "Process fault tolerance" that they
have proposed for the MPI standard.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...job.activity import Activity, Departure
from ...job.failure import process
from ...job.status import disregards_signals
from .control import MpiControl
from .library import MPI

__all__ = ["DEATHS", "FaultTolerance", "Renewal", "is_available", "meet", "tolerance"]

T = TypeVar("T")

DEATHS = frozenset(getattr(MPI, name, -1) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED"))
"""The classes of MPI's errors that a death, or the end of an epoch, is the only cause of."""

_PAUSE_S = 0.0005
_LOOK_S = 0.005  # between two looks whether a call in a thread of its own may go on
_NEWS_S = 0.3  # how much later than the end of an epoch a rank may hear of the death before it


def is_available() -> bool:
    """Whether the others go on after the death of a rank: Open MPI was started with ``--with-ft ulfm``."""
    return (
        hasattr(MPI.Comm, "Shrink")
        and MPI.get_vendor()[0] == "Open MPI"
        and disregards_signals()
        and MPI.Query_thread() == MPI.THREAD_MULTIPLE
    )


class _Helper:
    """A thread that makes calls which may never return."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], list[Any], Event]] = SimpleQueue()
        Thread(target=self._run, name="ringtape helper", daemon=True).start()

    def _run(self) -> None:
        while True:
            function, found, is_over = self._calls.get()
            try:
                found[:] = [function(), None]
            except BaseException as error:
                found[:] = [None, error]
            is_over.set()
            del function, found, is_over

    def call(self, function: Callable[[], Any], check: Callable[[], object]) -> tuple[Any, BaseException | None]:
        """The result or the error of a function. What `check` raises ends the wait for them."""
        found: list[Any] = []
        is_over = Event()
        self._calls.put((function, found, is_over))
        while not is_over.wait(_LOOK_S):
            check()
        result, error = found
        return result, error


def meet(comm: Any, members: Sequence[int], tag: int, check: Callable[[], object]) -> None:
    """Return when all members of a communicator have called it (a dissemination barrier). `check` may raise an error.

    Hensgen, Finkel, Manber: Two algorithms for barrier synchronization (International Journal of Parallel Programming
    17, 1988).
    """
    place, size, distance = members.index(comm.Get_rank()), len(members), 1
    while distance < size:
        nothing = bytearray(1)
        there, here = members[(place + distance) % size], members[(place - distance) % size]
        requests = [comm.Isend([bytes(1), MPI.BYTE], there, tag), comm.Irecv([nothing, MPI.BYTE], here, tag)]
        for request in requests:
            while not request.Test():
                check()
                time.sleep(_PAUSE_S)
        distance *= 2


@cache  # one in a process
def tolerance() -> FaultTolerance:
    """The fault tolerance of this process. All ranks make it together, with the first world that needs it."""
    return FaultTolerance()


class _Death(Exception):
    """A rank has died while the ranks agreed on those that are left."""


class Renewal(NamedTuple):
    """The result of an agreement: the members of the next epoch, and why each of the other ranks has departed.

    `all_finished` is whether all members have said that their programs have come to their ends.
    """

    control: Any
    data: Any
    members: tuple[int, ...]
    departed: dict[int, str]
    all_finished: bool


class FaultTolerance:
    """Deaths and agreements of one rank of the job; see `tolerance`.

    Attributes
    ----------
    dead : set of int
        The ranks that MPI has reported to have died.
    control : MpiControl
        A control channel of all ranks, which no epoch ends.
    """

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self._everyone = MPI.COMM_WORLD.Dup()
        self._at_exit = MPI.COMM_WORLD.Dup()
        self._group = self._everyone.Get_group()
        self._leaving: Callable[[], bool] | None = None
        self._idle: list[_Helper] = []
        self.control = MpiControl(self._everyone, tuple(range(self._everyone.Get_size())), self.everyone_leaves)

    def barrier(self) -> None:
        """A barrier of all ranks, which no end of an epoch disturbs."""
        self._everyone.Barrier()

    def apart(self, function: Callable[[], T], check: Callable[[], object]) -> T:
        """Run a function that may never return in another thread. `check` may raise an error meanwhile."""
        try:
            helper = self._idle.pop()
        except IndexError:
            helper = _Helper()
        result, error = helper.call(function, check)
        self._idle.append(helper)  # unless its call has not returned
        if error is not None:
            raise error
        value: T = result
        return value

    # -- deaths ------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """Make progress, and look which ranks MPI knows to have died."""
        everyone = self._everyone
        try:
            everyone.Iprobe()
        except MPI.Exception:  # a new death: a message from any source might have been one of the dead rank's
            everyone.Ack_failed(everyone.Get_size())
        dead = everyone.Get_failed()
        if dead.Get_size():
            for rank in set(MPI.Group.Translate_ranks(dead, None, self._group)) - self.dead:
                self.dead.add(rank)
                process.report_lost(rank)
        dead.Free()

    def has_lost_ranks(self) -> bool:
        """Whether a rank is known to have died."""
        self._look()
        return bool(self.dead)

    def note_deaths(self, activity: Activity) -> None:
        """Look for deaths, and add them to the departures of a rank's world."""
        self._look()
        for rank in self.dead - activity.departed.keys():
            activity.add_departure(Departure.of_death(rank))

    def is_news(self, activity: Activity, since: float) -> bool:
        """Whether the end of the epoch may be told, which this rank has known since then: with the deaths before it.

        The news of a death and that of the end come on different ways. If there was no death, none is waited for long.
        """
        self.note_deaths(activity)
        return not activity.is_whole or time.monotonic() - since > _NEWS_S

    # -- the next epoch ----------------------------------------------------------------------------------------
    def renew(self, activity: Activity, why_not: str = "", finished: bool = False) -> Renewal | None:
        """Agree on the members of the next epoch, and make its communicators. All processes that live call it.

        Parameters
        ----------
        activity : Activity
            The state of this rank.
        why_not : str
            Why this rank is no member, because it has failed or its program has ended; "" for a member.
        finished : bool
            Whether the program of this member has come to its end.

        Returns
        -------
        Renewal or None
            None for a rank that is no member.
        """
        while True:
            comms = [self._everyone.Shrink(), self._everyone.Shrink()]
            found = None
            try:
                found = self._renewed(comms, activity, why_not, finished)
            except (MPI.Exception, _Death):  # another death: again, without that rank
                pass
            if _agree(comms[0], found is not None):
                return None if why_not else found
            for comm in comms:
                comm.Revoke()  # ends the calls of ranks that have come further

    def _renewed(self, comms: list[Any], activity: Activity, why_not: str, finished: bool) -> Renewal:
        """The proposal of all processes that live, whose communicators are given."""
        living = comms[0]
        if MPI.Comm.Compare(*comms) != MPI.CONGRUENT:
            raise _Death  # between the two
        died = Departure.of_death(activity.rank).why
        told = [[rank, why] for rank, why in activity.failed.items() if why != died]
        departed: dict[int, str] = {}
        members, all_finished = [], True
        for text in _exchanged(living, json.dumps([activity.rank, why_not, finished, told]).encode()):
            rank, why, is_finished, told_there = json.loads(text)
            departed |= {each: text for each, text in told_there if each not in departed}
            if why:
                departed[rank] = why
            else:
                members.append(rank)
                all_finished &= is_finished
        control, data = comms
        if len(members) < living.Get_size():
            control, data = self._split(living, bool(why_not)), self._split(living, bool(why_not))
        for rank in activity.members:
            if rank not in members:
                departed.setdefault(rank, died)
        gone = {rank: why for rank, why in departed.items() if rank not in members}
        return Renewal(control, data, tuple(sorted(members)), gone, all_finished)

    def _split(self, living: Any, is_out: bool) -> Any:
        """A communicator of the ranks that are not out."""
        known = len(self.dead)

        def check() -> None:
            self._look()
            if len(self.dead) > known:
                raise _Death

        return self.apart(lambda: living.Split(MPI.UNDEFINED if is_out else 0, living.Get_rank()), check)

    # -- the end -----------------------------------------------------------------------------------------------
    def everyone_leaves(self) -> bool:
        """Whether all processes that live have called this, at the ends of their programs. Never blocks."""
        if self._leaving is None:
            flag = np.ones(1, np.intc)
            self._leaving = _test_of(self._at_exit.Iagree(flag))
        return self._leaving()


def _test_of(request: Any) -> Callable[[], bool]:
    """A test whether a request is complete, be it with an error."""

    def test() -> bool:
        try:
            return bool(request.Test())
        except MPI.Exception:
            return True

    return test


def _agree(comm: Any, is_sound: bool) -> bool:
    """Whether all ranks of a communicator found it sound, and none has died. All of them get the same answer."""
    flag = np.array([is_sound], np.intc)
    request = comm.Iagree(flag)
    try:
        _complete(request)
    except MPI.Exception:  # of a death; all ranks raise it
        return False
    return bool(flag[0])


def _complete(request: Any) -> None:
    while not request.Test():
        time.sleep(_PAUSE_S)


def _exchanged(comm: Any, data: bytes) -> list[bytes]:
    """Every rank's bytes, by calls that report deaths."""
    counts = np.empty(comm.Get_size(), np.int64)
    _complete(comm.Iallgather(np.array([len(data)], np.int64), counts))
    sizes = counts.tolist()
    found = np.empty(sum(sizes), np.uint8)
    _complete(comm.Iallgatherv(np.frombuffer(data, np.uint8), (found, sizes)))
    ends = np.cumsum(counts).tolist()
    return [found[end - size : end].tobytes() for size, end in zip(sizes, ends, strict=True)]
