"""How ranks leave an mpiexec job together, and what tells a rank that it waits for one that has left.

A rank whose script ends enters a nonblocking barrier on a control communicator, before MPI is finalized. Ranks may end
minutes apart, so nothing is wrong if the barrier is open for long; but after a moment the rank tells the others how
many collective calls it made on each channel and how many messages it sent to each rank. A monitor thread in every rank
hears that, and if its rank waits for a call or a message that will never come, it says so and ends the job.

The monitor wakes a few times a second. It needs ``MPI_THREAD_MULTIPLE``, which mpi4py asks for by default; without it
a rank that left early is noticed only when the waiting rank leaves too, that is, never.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from autograd.errors import site_of_thread

from .deadlock import Overdue

__all__ = ["Channel", "Farewell", "Waiting", "Wait"]

_GRACE_S = 0.3  # what ranks that end together differ by; goodbyes are sent after it
_PERIOD_S = 0.25  # of the monitor
_BUSY_S = 0.02  # of the monitor while ranks ask each other
_TAG = 1

class Channel:
    """The counts of one communicator, which outlive it: they are what a goodbye tells.

    Attributes
    ----------
    key : str
        The same on all ranks of the communicator, and no other's.
    calls : int
        The collective calls that this rank has made on it.
    sent, received : dict of int to int
        The messages to and from each rank of the world.
    broken : str or None
        Why no rank may wait on it any more: some were told to give up (see `overdue`).
    """

    __slots__ = ("broken", "calls", "key", "name", "ranks", "received", "sent")

    def __init__(self, key: str, name: str, ranks: tuple[int, ...]):
        self.key = key
        self.name = name
        self.ranks = ranks
        self.calls = 0
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self.broken: str | None = None


# (channel, call, its number, the world rank it is received from or lent to, None for a collective): a tuple, as it is
# made often
Wait = tuple[Channel, str, int, int | None]
Waiting = dict[int, Wait]
"""Thread -> what it waits for; written around every blocking call, read by the monitor. Under the negative number of
the thread: what it has tested and found incomplete, so that it may wait or compute."""


def describe(wait: Wait) -> str:
    """A wait in words."""
    channel, call, number, source = wait
    if source is None:
        return f"in {call} #{number} on '{channel.name}'"
    if call == "lend":
        return f"in a send, #{number} to rank {source} on '{channel.name}'"
    return f"in {call} #{number} from rank {source} on '{channel.name}'"


def _site_of(thread: int) -> str:
    """Where the user's program stands in a thread: ``, model.py:41``."""
    site = site_of_thread(abs(thread))
    return f", {site}" if site else ""


class Farewell:
    """The control communicator of this rank: goodbyes, the last barrier and the monitor.

    Parameters
    ----------
    control : mpi4py.MPI.Comm
        A duplicate of the world that nothing else uses. It is passed in, so that this file does not import mpi4py.
    byte : mpi4py.MPI.Datatype
        ``MPI.BYTE``.
    waiting : Waiting
        What the threads of this rank wait for.
    channels : dict of str to Channel
        All channels of this rank, by key.
    end_job : callable
        Prints a text and ends the job; does not return.
    say_doing : callable
        Tells the referee what this rank waits for.
    """

    def __init__(
        self,
        control: Any,
        byte: Any,
        waiting: Waiting,
        channels: dict[str, Channel],
        end_job: Callable[..., None],
        say_doing: Callable[[str], None],
    ):
        self._control = control
        self._byte = byte
        self._waiting = waiting
        self._channels = channels
        self._end_job = end_job
        self._say_doing = say_doing
        self._departed: dict[int, dict[str, Any]] = {}
        self._overdue = Overdue(control, byte, waiting, channels, end_job)
        self._stop = threading.Event()
        self._monitor: threading.Thread | None = None
        self.rank: int = control.Get_rank()
        self.size: int = control.Get_size()

    # -- the monitor -------------------------------------------------------------------------------------------
    def start_monitor(self) -> None:
        """Start the thread that listens for goodbyes. Only under ``MPI_THREAD_MULTIPLE``."""
        self._monitor = threading.Thread(target=self._listen, name="ringtape monitor", daemon=True)
        self._monitor.start()

    def _listen(self) -> None:
        before: Waiting = {}
        told = ""
        while not self._stop.wait(_BUSY_S if self._overdue.is_busy else _PERIOD_S):
            self._hear()
            self._overdue.step()
            now = dict(self._waiting)
            if self._departed:
                for thread, wait in now.items():
                    self._check(thread, wait)
            # What has lasted a whole period is worth knowing if a rank is killed; the rest would only cost.
            doing = "; ".join(
                f"waiting {describe(wait)}{_site_of(thread)}"
                for thread, wait in now.items()
                if before.get(thread) is wait
            )
            if doing != told:
                self._say_doing(doing)
                told = doing
            before = now

    def _hear(self) -> None:
        """Receive the goodbyes and the questions that have arrived."""
        self._overdue.hear()
        while (message := self._control.Improbe(tag=_TAG, status=(status := self._status()))) is not None:
            data = bytearray(status.Get_count(self._byte))
            message.Recv([data, self._byte])
            self._departed[status.Get_source()] = json.loads(data)

    def _status(self) -> Any:
        return sys.modules["mpi4py.MPI"].Status()

    def _check(self, thread: int, wait: Wait) -> None:
        channel, call, number, source = wait
        for rank, goodbye in self._departed.items():
            if source is None:
                made = goodbye["calls"].get(channel.key, 0)
                what = f"{made} call{'s' * (made != 1)} on '{channel.name}'"
                is_missing = rank in channel.ranks and made < number
            elif call == "lend":
                made = goodbye["received"].get(channel.key, 0)
                what = f"{made} receive{'s' * (made != 1)} from rank {self.rank} on '{channel.name}'"
                is_missing = rank == source and made < number
            else:
                made = goodbye["sent"].get(channel.key, 0)
                what = f"{made} send{'s' * (made != 1)} to rank {self.rank} on '{channel.name}'"
                is_missing = rank == source and made < number
            if is_missing and self._waiting.get(thread) is wait:
                self._end_job(
                    f"rank {rank} of {self.size} exited early (its script returned or called sys.exit) after {what}, "
                    f"while rank {self.rank} waits for it {describe(wait)}{_site_of(thread)}",
                    is_told_once=True,
                )

    # -- leaving -----------------------------------------------------------------------------------------------
    def leave(self, progress: Callable[[], None]) -> None:
        """Wait until all ranks leave; `progress` is called meanwhile. Called once, before MPI is finalized."""
        self._stop.set()
        if self._monitor is not None:
            self._monitor.join(2.0)
        self._overdue.has_left = True
        self._poll(self._control.Ibarrier(), progress, is_first=True)
        # All goodbyes have been sent by now, and been received once all ranks are in the second barrier.
        self._poll(self._control.Ibarrier(), progress, is_first=False)

    def _poll(self, barrier: Any, progress: Callable[[], None], is_first: bool) -> None:
        start = time.monotonic()
        goodbyes: list[Any] = []
        is_said = not is_first
        pause = 0.0002
        while True:
            self._hear()
            progress()
            goodbyes = [request for request in goodbyes if not request.Test()]
            if barrier.Test() and not goodbyes:
                return
            if not is_said and time.monotonic() - start > _GRACE_S:
                goodbyes, is_said = self._say_goodbye(), True
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _say_goodbye(self) -> list[Any]:
        calls = {channel.key: channel.calls for channel in self._channels.values()}
        requests = []
        for rank in range(self.size):
            if rank == self.rank:
                continue
            sent = {key: channel.sent[rank] for key, channel in self._channels.items() if rank in channel.sent}
            received = {key: channel.received[rank] for key, channel in self._channels.items()
                        if rank in channel.received}  # fmt: skip
            data = json.dumps({"calls": calls, "sent": sent, "received": received}).encode()
            # Synchronous: complete means received, so that none is under way when MPI is finalized.
            requests.append(self._control.Issend([bytearray(data), self._byte], dest=rank, tag=_TAG))
        return requests
