"""The monitor: a thread in every process of a world that notices ranks that have departed, and deadlocks.

It wakes a few times a second, receives what the other ranks' monitors say on the control channel, and looks at what its
own rank waits for. A wait for a rank that has departed ends the job under the policy ``end``. Under ``raise`` the rank
that waits polls and raises a `RankFailed` itself; only if it is blocked inside the transport, where it cannot raise,
its monitor ends the job.

The transport must allow calls from several threads (``MPI_THREAD_MULTIPLE``, which mpi4py asks for by default). Without
it there is no monitor, and a rank that exited early is noticed only when the waiting rank leaves too, that is, never.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from .activity import Activity, Wait, Waiting, describe, site_text
from .control import Control
from .deadlock import DeadlockDetection
from .shutdown import Shutdown

__all__ = ["Monitor"]

_PERIOD_S = 0.25
_BUSY_PERIOD_S = 0.02  # while ranks ask each other what they wait for
_BLOCKED_S = 1.0  # how long a rank has to raise, before it counts as blocked inside the transport


class Monitor:
    """Watches one rank of a world.

    Parameters
    ----------
    control : Control
        The control channel.
    activity : Activity
        What this rank does.
    end_job : callable
        Prints a text and ends the job; does not return.
    report : callable
        Tells the supervisor what this rank waits for.
    """

    def __init__(
        self, control: Control, activity: Activity, end_job: Callable[..., None], report: Callable[[str], None]
    ):
        self._activity = activity
        self._end_job = end_job
        self._report = report
        self._shutdown = Shutdown(control, activity)
        self._deadlock = DeadlockDetection(control, activity, end_job)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._hopeless: dict[int, tuple[Wait, float]] = {}  # waits that should have raised by now, and since when
        self._lock = threading.Lock()  # `fail` is called by other threads

    # -- the thread --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the thread. Only where the transport may be called by several threads."""
        self._thread = threading.Thread(target=self._run, name="ringtape monitor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before: Waiting = {}
        reported = ""
        while not self._stop.wait(_BUSY_PERIOD_S if self._deadlock.is_busy else _PERIOD_S):
            self._hear()
            self._deadlock.step()
            now = dict(self._activity.waiting)
            if self._activity.departed:
                for thread, wait in now.items():
                    self._check(thread, wait)
            # A wait that has lasted a whole period is worth knowing if a rank is killed; shorter ones only cost.
            doing = "; ".join(
                f"waiting {describe(wait)}{site_text(thread)}"
                for thread, wait in now.items()
                if before.get(thread) is wait
            )
            if doing != reported:
                self._report(doing)
                reported = doing
            before = now

    def _hear(self) -> None:
        with self._lock:
            self._deadlock.hear()
            self._shutdown.hear()

    def _check(self, thread: int, wait: Wait) -> None:
        """End the job if a thread waits for a rank that has departed, unless the thread can raise."""
        text = self._activity.hopeless(wait, site_text(thread))
        if text is None or self._activity.waiting.get(thread) is not wait:
            return
        if self._activity.raises:
            now = time.monotonic()
            known, since = self._hopeless.get(thread, (None, now))
            self._hopeless[thread] = (wait, since if known is wait else now)
            if thread < 0 or known is not wait or now - since < _BLOCKED_S:
                return
        self._end_job(text, is_told_once=True)

    # -- the end -----------------------------------------------------------------------------------------------
    def fail(self, why: str) -> None:
        """Tell the other ranks that this one has failed (the policy ``raise``)."""
        with self._lock:
            self._shutdown.tell(why, has_failed=True)

    def leave(self, why: str, progress: Callable[[], None]) -> Iterator[None]:
        """Stop the thread and wait until all ranks leave: a generator, see `Shutdown.leave`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
            self._thread = None
        self._deadlock.has_left = True

        def advance() -> bool:
            self._deadlock.hear()
            progress()
            return self._deadlock.has_sent()

        return self._shutdown.leave(why, advance)
