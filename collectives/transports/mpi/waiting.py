"""What is under way in this process over MPI: started calls, sends, and how a rank waits for them.

Every wait is written down where the monitor of `farewell` reads it. A rank that waits lets others have its core, and
under ``ranks`` checking it can be told that it waits in vain.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from autograd.errors import CommunicationError, DeadlockError

from ...checks import modes
from ...job.shutdown import Channel, Wait, Waiting, describe
from . import library

__all__ = ["Request", "process", "while_waiting"]

# A test makes all of MPI go on, but by a bounded amount: over TCP four of them between operations of 3 ms finished an
# 8 MiB all-reduce in two thirds of the time that one did, for a microsecond each.
_TESTS = 4


class Process:
    """What the communicators of this process share: what is waited for, and what is under way."""

    def __init__(self) -> None:
        self.waiting: Waiting = {}
        self.channels: dict[str, Channel] = {}
        # Requests own the copies that are being sent. They are kept here, as a communicator may be dropped earlier.
        self.sends: deque[Any] = deque()
        # So do those of started calls, which nobody may come to wait for.
        self.started: deque[Request] = deque()
        self.abandoned: list[Any] = []  # requests that nobody waits for any more; MPI may still write to their arrays

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


process = Process()


def while_waiting(wait: Wait, function: Callable[..., Any], *args: Any) -> Any:
    """Run a blocking call of mpi4py, with what it waits for written down for the monitor."""
    thread = get_ident()
    process.waiting.pop(-thread, None)  # what it has tested before, it does not wait for now
    process.waiting[thread] = wait
    try:
        return function(*args)
    except library.MPI.Exception as error:
        raise CommunicationError(f"{describe(wait)}: {error}") from error
    finally:
        process.waiting.pop(thread, None)


_PATIENT_S = 3e-4  # of yielding, before a waiting rank sleeps between tests: a long message comes no sooner by looking
_NAP_S = 5e-5
_SPINS = 20  # tests before a waiting rank lets others have its core
_let_others_run = getattr(os, "sched_yield", lambda: None)  # not everywhere


class Request:
    """A started call.

    Parameters
    ----------
    request : mpi4py.MPI.Request
    wait : Wait
        What waiting for it is, in the monitor's words.
    """

    __slots__ = ("_is_done", "_request", "_wait", "status")

    def __init__(self, request: Any, wait: Wait):
        self._request = request
        self._wait = wait
        self._is_done = False  # once done, the request is null and a further test would empty the status
        self.status = library.MPI.Status()
        process.started.append(self)

    def advance(self) -> bool:
        """Make progress without waiting: True once it is done."""
        self._is_done = self._is_done or self._request.Test(self.status)
        return self._is_done

    def test(self) -> bool:
        if not self._is_done:
            thread = get_ident()
            if self.advance():
                process.waiting.pop(-thread, None)
            else:
                process.waiting[-thread] = self._wait  # a loop over `test` waits as well
        return self._is_done

    def wait(self) -> None:
        if not self._is_done:
            while_waiting(self._wait, self._poll if modes.watching else self._yielding_wait)
            self._is_done = True

    def _yielding_wait(self) -> None:
        """MPI's own wait keeps the core; the one waited for, or the system that moves the data, may need it."""
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
        """Wait, and raise if this rank is told that it waits in vain."""
        channel, polls = self._wait[0], 0
        while not self._request.Test(self.status):
            if channel.broken is not None:
                process.abandoned.append(self._request)
                raise DeadlockError(channel.broken)
            polls += 1
            if polls > _SPINS:
                time.sleep(0.0 if polls < 50 * _SPINS else 0.0005)
