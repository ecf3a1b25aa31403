"""How a rank waits over MPI, and what is under way: started calls, and sends that nobody waits for.

Every wait is recorded in the rank's `Activity`, where its monitor reads it. A rank that waits lets others have its
core. Under ``ranks`` checking and under the policy ``raise`` it polls, so that it can raise an error instead of waiting
for a call that never comes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from autograd.errors import CommunicationError

from ...checks import modes
from ...job.activity import Activity, Wait, describe
from .library import MPI

__all__ = ["Started", "Waits"]

# A test makes all of MPI progress, but by a bounded amount: over TCP four of them between operations of 3 ms finished
# an 8 MiB all-reduce in two thirds of the time that one did, for a microsecond each.
_TESTS = 4


class Waits:
    """How one rank of a world waits, and what is under way on its communicators.

    Parameters
    ----------
    activity : Activity
        Where waits are recorded.
    """

    def __init__(self, activity: Activity):
        self.activity = activity
        # Requests own the copies that are being sent. They are kept here, as a communicator may be dropped earlier.
        self.sends: deque[Any] = deque()
        # So do those of started calls, which nobody may come to wait for.
        self.started: deque[Started] = deque()
        self.abandoned: list[Any] = []  # requests that nobody waits for any more; MPI may still write to their arrays

    @property
    def is_polling(self) -> bool:
        """Whether ranks poll instead of blocking in MPI."""
        return modes.watching or self.activity.raises

    def reap(self) -> None:
        """Forget the sends that are complete; the oldest first, so that a call costs one test at most."""
        while self.sends and self.sends[0].Test():
            self.sends.popleft()
        started = self.started
        if started:
            for _ in range(_TESTS):
                if started[0].advance():
                    started.popleft()
                    if not started:
                        break

    def check(self, wait: Wait) -> None:
        """Raise if `wait` would never end."""
        error = self.activity.error(wait)
        if error is not None:
            raise error

    def block(self, wait: Wait, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking call of mpi4py, while the monitor can read what it waits for."""
        waiting, thread = self.activity.waiting, get_ident()
        waiting.pop(-thread, None)  # what it has tested before, it does not wait for now
        if self.activity.is_alarmed:
            self.check(wait)
        waiting[thread] = wait
        try:
            return function(*args)
        except MPI.Exception as error:
            raise CommunicationError(f"{describe(wait)}: {error}") from error
        finally:
            waiting.pop(thread, None)

    def start(self, wait: Wait, function: Callable[..., Any], *args: Any) -> Started:
        """Start a nonblocking call of mpi4py that will be waited for."""
        if self.activity.is_alarmed:
            self.check(wait)
        started = Started(self, function(*args), wait)
        self.started.append(started)
        return started

    def send(self, wait: Wait, function: Callable[..., Any], *args: Any) -> None:
        """Start a send that nobody waits for."""
        if self.activity.is_alarmed:
            self.check(wait)
        self.reap()
        self.sends.append(function(*args))


_PATIENT_S = 3e-4  # of yielding, before a waiting rank sleeps between tests: more tests do not speed up a long message
_NAP_S = 5e-5
_SPINS = 20  # tests before a waiting rank lets others have its core
_let_others_run = getattr(os, "sched_yield", lambda: None)  # not on every platform


class Started:
    """A call that was started.

    Parameters
    ----------
    waits : Waits
    request : mpi4py.MPI.Request
    wait : Wait
        What waiting for it is, for the monitor.
    """

    __slots__ = ("_is_done", "_request", "_wait", "_waits", "status")

    def __init__(self, waits: Waits, request: Any, wait: Wait):
        self._waits = waits
        self._request = request
        self._wait = wait
        self._is_done = False  # once done, the request is null and a further test would empty the status
        self.status = MPI.Status()

    def advance(self) -> bool:
        """Make progress without waiting: True once it is done."""
        self._is_done = self._is_done or self._request.Test(self.status)
        return self._is_done

    def test(self) -> bool:
        if not self._is_done:
            activity, thread = self._waits.activity, get_ident()
            if self.advance():
                activity.waiting.pop(-thread, None)
            else:
                activity.waiting[-thread] = self._wait  # a loop over `test` waits as well
                if activity.is_alarmed:
                    self._waits.check(self._wait)
        return self._is_done

    def wait(self) -> None:
        if not self._is_done:
            self._waits.block(self._wait, self._poll if self._waits.is_polling else self._yielding_wait)
            self._is_done = True

    def _yielding_wait(self) -> None:
        """MPI's own wait keeps the core; the rank waited for, or the system that moves the data, may need it."""
        test, status = self._request.Test, self.status
        for _ in range(_SPINS):
            if test(status):
                return
        patient = time.perf_counter() + _PATIENT_S
        while not test(status):
            if time.perf_counter() < patient:
                _let_others_run()
            else:
                time.sleep(_NAP_S)

    def _poll(self) -> None:
        """Wait, and raise once there is a reason why the wait never ends."""
        activity, polls = self._waits.activity, 0
        while not self._request.Test(self.status):
            if activity.is_alarmed and (error := activity.error(self._wait)) is not None:
                self._waits.abandoned.append(self._request)
                raise error
            polls += 1
            if polls > _SPINS:
                time.sleep(0.0 if polls < 50 * _SPINS else 0.0005)
