"""The monitor: a thread in every process of a world that detects departed ranks, deadlocks and different calls.

A few times a second it receives the messages of the other monitors on the control channel, compares the calls that the
ranks have made (`comparison`), and checks the waits of its own rank. A wait for a rank that has departed ends the job
under the policy ``end``. Under ``raise`` the waiting rank polls and raises `RankFailed` itself. Its monitor ends the
job only if the rank is blocked inside the transport, where it cannot raise an error.

A second thread, the reporter, tells the supervisor of the host what this rank waits for, and answers its questions. It
calls MPI only to announce the end of the job, because in a process that MPI ends no call of MPI returns.

Where MPI survives the death of a rank, the monitor looks for deaths, too, and the reporter's messages tell the
supervisor that this process runs. `World.survivors` ends an epoch of the world: then monitors of the next one take
over (`continue_with`), on a control channel of their own.

The transport must allow calls from several threads (``MPI_THREAD_MULTIPLE``, which mpi4py requests by default). Without
it there is no monitor, and a rank that waits for a rank that exited early hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from .activity import Activity, Wait, describe, site_text
from .comparison import Comparison
from .control import Control
from .deadlock import DeadlockDetection
from .ending import Ending
from .shutdown import Shutdown
from .status import disregards_signals
from .supervisor import WHERE
from .survivors import Survivors
from .threads import place_of_program

__all__ = ["Monitor"]

_PERIOD_S = 0.25
_BUSY_PERIOD_S = 0.02  # while deadlock detection exchanges messages
_SERVING_S = 0.002  # while other hosts access a window: over TCP their accesses wait until this process calls MPI
_DEATHS_PERIOD_S = 0.015  # where MPI survives deaths, so that they are found soon
_STOP_S = 2.0  # how long the thread may take to stop
_BLOCKED_S = 1.0  # how long a rank may take to raise an error before it counts as blocked inside the transport
_PAUSE_S = 0.001  # between two looks whether the ranks have agreed
_REPORTED_S = 5.0  # how long the supervisor may take to end a job


class Monitor:
    """Monitors one rank of a world.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        The state of this rank.
    end_job : callable
        Prints a text and ends the job; does not return.
    report : callable
        Passes the supervisor a description of this rank's waits, and what answers its questions. Returns
        whether a rank of this host has died.
    ending : Ending
        Sends and receives the announcements that the job ends.
    watch : callable, optional
        Where MPI survives the death of a rank: looks for deaths, and whether the epoch is over.
    lasting : Control, optional
        There: a control channel that does not end with the epoch.

    Attributes
    ----------
    lock : RLock
        Held by the thread that uses the control channel.
    """

    def __init__(
        self,
        control: Control,
        activity: Activity,
        end_job: Callable[..., None],
        report: Callable[[str, Callable[[bytes], list[str]]], bool],
        ending: Ending,
        watch: Callable[[], None] | None = None,
        lasting: Control | None = None,
    ):
        self._activity = activity
        self._end_job = end_job
        self._report = report
        self._watch, self._lasting = watch, lasting
        self._use(control, ending)
        self._stop, self._has_left = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._reporter: threading.Thread | None = None
        self._waits: dict[int, Wait] = {}  # those of the last period
        self._device_waits: dict[int, Wait] = {}  # those of the last period, by negative thread number
        self._endless: dict[int, tuple[Wait, float]] = {}  # waits that must raise an error, and since when
        self.lock = threading.RLock()  # `fail` is called from other threads

    def _use(self, control: Control, ending: Ending) -> None:
        self._control, self._ending = control, ending
        self._shutdown = Shutdown(control, self._activity, self._lasting)
        self._deadlock = DeadlockDetection(control, self._activity, self._end_job)
        self._comparison = Comparison(control, self._activity, self._end_job)
        self._survivors = Survivors(control, self._activity)

    # -- the threads -------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the threads. The transport must allow calls from several threads."""
        self._thread = threading.Thread(target=self._run, name="ringtape monitor", daemon=True)
        self._reporter = threading.Thread(target=self._run_reports, name="ringtape reporter", daemon=True)
        self._thread.start()
        self._reporter.start()

    def _run(self) -> None:
        try:
            self._watch_ranks()
        except Exception:
            if disregards_signals():  # a rank has died: the supervisor reports that, and ends the job
                time.sleep(_REPORTED_S)
            raise

    def _watch_ranks(self) -> None:
        due = time.monotonic() + _PERIOD_S
        while not self._stop.wait(self._pause_s()):
            with self.lock:
                if self._watch is not None:
                    self._watch()
                self._receive()  # which makes progress, too
                if self._activity.windows and time.monotonic() < due:
                    continue
                if self._activity.device_calls:
                    self._look_at_devices()
                due = time.monotonic() + (_BUSY_PERIOD_S if self._deadlock.is_busy else _PERIOD_S)
                if not self._control.is_over:
                    self._deadlock.step()
                    self._comparison.step()
            if self._activity.departed or self._activity.ended >= 0:
                for thread, wait in self._activity.waits().items():
                    self._check(thread, wait)

    def _look_at_devices(self) -> None:
        """Record the waits of devices as calls that their threads have found incomplete, and end those without end.

        Under the policy ``end`` `_check` ends the job.
        """
        waiting, known = self._activity.waiting, self._device_waits
        now: dict[int, Wait] = {}
        for calls in tuple(self._activity.device_calls):
            thread, wait = calls.incomplete() or (0, None)
            if wait is None:
                continue
            text = self._activity.why_endless(wait, site_text(thread)) if self._activity.raises else None
            if text is not None:
                calls.end(text)
            else:
                now.setdefault(-thread, wait)
        for key in known.keys() - now.keys():
            if waiting.get(key) is known[key]:
                waiting.pop(key, None)
        for key, wait in now.items():
            if waiting.get(key) is None or waiting.get(key) is known.get(key):
                waiting[key] = wait
        self._device_waits = now

    def _pause_s(self) -> float:
        if self._activity.windows:
            return _SERVING_S
        if self._watch is not None:
            return _DEATHS_PERIOD_S
        return _BUSY_PERIOD_S if self._deadlock.is_busy else _PERIOD_S

    def _run_reports(self) -> None:
        """Talk to the supervisor until this rank has left."""
        while not self._has_left.wait(_PERIOD_S):
            self._report_waits()

    def _report_waits(self) -> None:
        """Tell the supervisor what this rank waits for, for its report if a rank is killed, and what it asks for."""
        now = self._activity.waits()
        # Waits shorter than a period are not worth a message.
        doing = [_described(*each) for each in now.items() if self._waits.get(each[0]) is each[1]]
        if self._report("; ".join(doing), self._latest):
            self._ending.announce()
        self._waits = now

    def _latest(self, question: bytes) -> list[str]:
        """Lines for the supervisor: the place in the program, or the present waits and the latest calls."""
        if question == WHERE:
            return [f"at {place_of_program()}"]
        doing = "; ".join(_described(*each) for each in self._activity.waits().items())
        return [f"doing {doing}", *self._comparison.latest()]

    def _receive(self) -> None:
        self._deadlock.receive()
        self._comparison.receive()
        self._shutdown.receive()
        self._survivors.step()
        self._ending.receive()

    def _check(self, thread: int, wait: Wait) -> None:
        """End the job if a thread waits for a rank that has departed, unless the thread can raise an error."""
        text = self._activity.why_endless(wait, site_text(thread))
        if text is None or self._activity.waiting.get(thread) is not wait:
            return
        if self._activity.raises:
            now = time.monotonic()
            known, since = self._endless.get(thread, (None, now))
            self._endless[thread] = (wait, since if known is wait else now)
            if thread < 0 or known is not wait or now - since < _BLOCKED_S:
                return
        self._end_job(text, is_printed_once=True)

    # -- epochs ------------------------------------------------------------------------------------------------
    def agree(self, finished: bool = False) -> tuple[tuple[int, ...], bool]:
        """Agree by messages on the ranks that have not failed, and whether all have finished: see `survivors`."""
        waiting, thread = self._activity.waiting, threading.get_ident()
        with self.lock:
            number = self._survivors.enter(finished)
        try:
            while True:
                with self.lock:
                    self._receive()
                    members = self._survivors.members(number)
                    if members is not None:
                        return members, self._survivors.all_finished
                    waiting[thread] = self._survivors.wait(number)
                time.sleep(_PAUSE_S)
        finally:
            waiting[thread] = None

    def continue_with(self, control: Control, ending: Ending) -> None:
        """Go on with the monitors of the next epoch, on a new control channel. The caller holds the lock."""
        self._use(control, ending)

    # -- the end -----------------------------------------------------------------------------------------------
    def fail(self, why: str) -> None:
        """Report to the other ranks that this one has failed (the policy ``raise``)."""
        with self.lock:
            self._shutdown.send_departures(why)

    def leave(self, why: str, progress: Callable[[], None]) -> Iterator[None]:
        """Wait until all ranks leave: a generator, see `Shutdown.leave`. The thread makes no further call of MPI.

        Where MPI survives deaths, a rank that has failed waits only until the others have been told.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        self._deadlock.left = why
        self._comparison.finish()

        def advance(number: int) -> bool:
            self._deadlock.receive()
            self._ending.receive()
            self._comparison.receive()
            self._survivors.step()
            progress()
            if self._watch is not None:
                self._watch()
            self._comparison.step()
            if number == 0:  # later no rank waits, and no question may be asked
                self._deadlock.step()
            return self._deadlock.has_sent() and self._comparison.is_quiet() and self._survivors.is_quiet

        return self._leave(advance)

    def _leave(self, advance: Callable[[int], bool]) -> Iterator[None]:
        if self._activity.has_failed and self._watch is not None:  # it is no member of a later epoch
            until = time.monotonic() + _STOP_S
            while not self._shutdown.have_sent() and time.monotonic() < until:
                self._shutdown.receive()  # others may have failed, too, and wait until this rank knows
                yield
        else:
            yield from self._shutdown.leave(advance)
        self._has_left.set()
        if self._reporter is not None:
            self._reporter.join(_STOP_S)


def _described(thread: int, wait: Wait) -> str:
    return f"waiting {describe(wait)}{site_text(thread)}"
