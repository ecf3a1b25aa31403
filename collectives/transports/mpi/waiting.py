"""Waits over MPI, and the incomplete requests of a rank: started calls, and sends without a wait.

Every wait is recorded in the rank's `Activity`, where its monitor reads it. A waiting rank yields its core to other
processes. Under ``ranks`` checking and under the policy ``raise`` it polls, so that it can raise an error instead of
waiting for ever.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from autograd.errors import CommunicationError, RankFailed

from ...checks import modes
from ...job.activity import Activity, Wait, describe
from .. import unsent
from .library import MPI

if TYPE_CHECKING:
    from .fault_tolerance import FaultTolerance

__all__ = ["Started", "Waits"]

# One MPI test makes a bounded amount of progress on all requests. Over TCP, with operations of 3 ms between them, four
# tests at a time finished an 8 MiB all-reduce in two thirds of the time of one test. Each costs a microsecond.
_TESTS_AT_A_TIME = 4
_MOST_UNTESTED = 32  # incomplete calls, before each further one makes progress on the oldest
_ACCESS_S = 0.5  # how long an access may take after a death
_DEATH_S = 2.0  # how long MPI may take, after an error of a death, to tell whose it was
_LOOK_S = 0.005  # between two looks whether a death is known
_COMPARISON_S = 4.0  # how long the monitors may take to find that the ranks have made different calls


class Waits:
    """The waits and the incomplete requests of one rank of a world.

    Parameters
    ----------
    activity : Activity
        Where waits are recorded.
    """

    def __init__(self, activity: Activity):
        self.activity = activity
        # Requests own the copies that are being sent. They are kept here because a communicator may be dropped earlier.
        self.sends: deque[Any] = deque()
        # Started calls keep their arrays, and the program may never wait for them.
        self.started: deque[Started] = deque()
        self._reaping = Lock()
        self.abandoned: list[Started] = []  # their wait has ended in an error; MPI may still write to their arrays
        self.tolerance: FaultTolerance | None = None  # where MPI survives the deaths of ranks
        self.failed: list[Any] = []  # the arrays of calls that MPI has given up
        self.stuck = 0  # calls in threads of their own that did not return

    @property
    def is_incomplete(self) -> bool:
        """Whether MPI may still use arrays of this rank."""
        return bool(self.sends or self.started or self.abandoned or self.failed)

    @property
    def is_polling(self) -> bool:
        """Whether ranks poll instead of blocking in MPI."""
        return modes.watching or self.activity.raises

    def reap(self) -> None:
        """Make progress, and remove completed sends, oldest first, until the first incomplete one."""
        if self.activity.is_forked:
            return  # the requests are those of the rank
        if not self._reaping.acquire(blocking=False):
            return  # another thread does it; two must not test one request
        try:
            try:
                while self.sends and self.sends[0].Test():
                    self.sends.popleft()
            except MPI.Exception:
                if self.tolerance is None:
                    raise
                self.sends.popleft()  # the receiver has died, or the epoch is over
            started = self.started
            while started and (started[0]._is_done or started[0].advance(_TESTS_AT_A_TIME)):
                started.popleft()
        finally:
            self._reaping.release()

    def settle(self) -> bool:
        """Whether all calls of an epoch that is over are complete or were given up; makes progress."""
        self.reap()
        self.abandoned = [started for started in self.abandoned if not started.advance()]
        return not (self.sends or self.started or self.abandoned)

    def check(self, wait: Wait) -> None:
        """Raise an error if `wait` would never end."""
        error = self.activity.error(wait)
        if error is not None:
            raise error

    def block(self, wait: Wait, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking call of mpi4py, and record the wait for the monitor."""
        if unsent.unsent:
            unsent.hand_over()
        waiting, thread = self.activity.waiting, get_ident()
        waiting.pop(-thread, None)  # remove an earlier failed test: the thread does not wait for that now
        if self.activity.is_alarmed:
            self.check(wait)
        waiting[thread] = wait
        try:
            return function(*args)
        except MPI.Exception as error:
            raise self.error_of(wait, error) from error
        finally:
            waiting[thread] = None

    def block_apart(self, wait: Wait, function: Callable[..., Any], *args: Any) -> Any:
        """`block` for a call of all ranks of a group in which MPI may wait for ever after a death.

        Where MPI survives deaths, the call runs in a thread of its own, which is left alone if the wait must end.
        """
        if self.tolerance is None:
            return self.block(wait, function, *args)
        return self.block(wait, self.tolerance.apart, lambda: function(*args), lambda: self._check_apart(wait))

    def access(self, wait: Wait, function: Callable[..., Any], *args: Any) -> Any:
        """`block` for an access to memory of another rank.

        Where MPI survives deaths, a rank may have died while it held a lock of MPI's. So this rank does not wait for
        long, once one of the window's ranks has died.
        """
        if self.tolerance is None:
            return self.block(wait, function, *args)
        until = time.monotonic() + _ACCESS_S

        def check() -> None:
            self._check_apart(wait)
            dead = [rank for rank in wait[0].ranks if rank in self.activity.failed]
            if dead and time.monotonic() > until:
                self.stuck += 1
                raise RankFailed(
                    f"rank {dead[0]} {self.activity.failed[dead[0]]}, most likely while it accessed the memory for "
                    f"which rank {self.activity.rank} waits {describe(wait)}"
                )

        return self.block(wait, self.tolerance.apart, lambda: function(*args), check)

    def meet(self, wait: Wait, comm: Any, members: Sequence[int], tag: int) -> None:
        """Where MPI survives deaths: wait for the members of a communicator that make another one next."""
        if self.tolerance is not None:
            from .fault_tolerance import meet

            self.block(wait, meet, comm, members, tag, lambda: self._check_apart(wait, False))

    def _check_apart(self, wait: Wait, is_apart: bool = True) -> None:
        if self.activity.is_alarmed and (error := self.activity.error(wait)) is not None:
            self.stuck += is_apart
            raise error

    def error_of(self, wait: Wait, error: Any) -> CommunicationError:
        """The error to raise for an error of MPI in a wait: `RankFailed` if a rank has died or the epoch has ended."""
        if self.tolerance is not None:
            from .fault_tolerance import DEATHS

            kind, since = error.Get_error_class(), time.monotonic()
            while True:  # MPI has several classes for an error after a death; the ranks that have died decide
                is_news = self.tolerance.is_news(self.activity, since)
                if kind == MPI.ERR_REVOKED and is_news and wait[0].epoch == self.activity.epoch:
                    self.activity.end_epoch()
                if (found := self.activity.error(wait)) is not None:
                    return found
                if time.monotonic() - since > _DEATH_S:
                    break
                time.sleep(_LOOK_S)
            if kind in DEATHS:
                return RankFailed(f"a rank has died, and MPI does not tell which, {describe(wait)}: {error}")
        self._await_comparison(wait)
        return CommunicationError(f"{describe(wait)}: {error}")

    def _await_comparison(self, wait: Wait) -> None:
        """After an error of MPI: if the ranks have made different calls, let the monitors find that and end the job.

        MPI's own error then says only that a message was too long, on a rank that may have done nothing wrong.
        """
        channel = wait[0]
        until = time.monotonic() + (0.0 if channel.history is None else _COMPARISON_S)
        while time.monotonic() < until:
            time.sleep(0.02)
            if channel.broken is not None:
                self.check(wait)

    def start(self, wait: Wait, function: Callable[..., Any], *args: Any) -> Started:
        """Start a nonblocking call of mpi4py whose result has a wait."""
        if self.activity.is_alarmed:
            self.check(wait)
        self.activity.waiting.setdefault(get_ident())
        kept = self.started  # nobody may wait for the oldest, and without a sweep nobody pokes
        if len(kept) > _MOST_UNTESTED:
            self.reap()
        elif kept and kept[0]._is_done and self._reaping.acquire(blocking=False):  # `reap` without its tests
            try:
                while kept and kept[0]._is_done:
                    kept.popleft()
            finally:
                self._reaping.release()
        started = Started(self, function(*args), wait, args)
        kept.append(started)
        return started

    def send(self, wait: Wait, function: Callable[..., Any], *args: Any) -> None:
        """Start a send without a wait."""
        if self.activity.is_alarmed:
            self.check(wait)
        self.activity.waiting.setdefault(get_ident())
        self.reap()
        self.sends.append(function(*args))


_YIELDING_S = 3e-4  # then a waiting rank sleeps between tests, as more tests do not speed up a long message
_SLEEP_S = 5e-5
_TESTS_BEFORE_YIELD = 20  # tests before a waiting rank yields its core
_yield_core = getattr(os, "sched_yield", lambda: None)  # not on every platform


class Started:
    """A call that was started.

    Parameters
    ----------
    waits : Waits
    request : mpi4py.MPI.Request
    wait : Wait
        The description of the wait, for the monitor.
    kept : object
        The arguments of the call. They are kept until it is complete, because MPI reads and writes their arrays:
        mpi4py's requests of nonblocking collectives do not keep them.
    """

    __slots__ = ("_error", "_is_done", "_kept", "_lock", "_request", "_wait", "_waits", "status")

    def __init__(self, waits: Waits, request: Any, wait: Wait, kept: Any):
        self._waits = waits
        self._request = request
        self._wait = wait
        self._kept = kept
        self._lock = Lock()  # held by the thread that tests or waits: MPI allows one at a time
        self._is_done = False  # then the request is null, and another test would clear the status
        self._error: Any = None  # of MPI, which the next wait or test raises, after a death
        self.status = MPI.Status()

    def advance(self, tests: int = 1) -> bool:
        """Make progress by some tests, without blocking; True once the call is complete."""
        if self._waits.activity.is_forked:
            self._waits.check(self._wait)
        if not self._is_done and self._lock.acquire(blocking=False):
            try:
                test, status = self._request.Test, self.status
                for _ in range(tests):
                    if self._is_done or test(status):
                        self._is_done, self._kept = True, None
                        break
            except MPI.Exception as error:
                if self._waits.tolerance is None:
                    raise
                self._fail(error)
            finally:
                self._lock.release()
        return self._is_done

    def test(self) -> bool:
        if unsent.unsent:
            unsent.advance()
        if not self._is_done:
            activity, thread = self._waits.activity, get_ident()
            if self.advance():
                activity.waiting.pop(-thread, None)
            else:
                activity.waiting[-thread] = self._wait  # a loop over `test` is a wait, too
                if activity.is_alarmed:
                    self._waits.check(self._wait)
        if self._error is not None:
            raise self._waits.error_of(self._wait, self._error)
        return self._is_done

    def wait(self) -> None:
        if not self._is_done:
            with self._lock:
                if not self._is_done:
                    self._waits.block(self._wait, self._poll if self._waits.is_polling else self._yielding_wait)
                    self._is_done, self._kept = True, None
                    return
        if self._error is not None:
            raise self._waits.error_of(self._wait, self._error)

    def _yielding_wait(self) -> None:
        """Wait and yield the core, which another rank or the operating system may need. MPI's own wait keeps it."""
        test, status = self._request.Test, self.status
        for _ in range(_TESTS_BEFORE_YIELD):
            if test(status):
                return
        yield_until = time.perf_counter() + _YIELDING_S
        while not test(status):
            if time.perf_counter() < yield_until:
                _yield_core()
            else:
                time.sleep(_SLEEP_S)

    def _poll(self) -> None:
        """Wait, and raise an error once it is known that the wait would never end."""
        activity, polls = self._waits.activity, 0
        try:
            while not self._request.Test(self.status):
                if activity.is_alarmed and (error := activity.error(self._wait)) is not None:
                    self._waits.abandoned.append(self)
                    raise error
                polls += 1
                if polls > _TESTS_BEFORE_YIELD:
                    time.sleep(0.0 if polls < 50 * _TESTS_BEFORE_YIELD else 0.0005)
        except MPI.Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Any) -> None:
        """Note that MPI has given the call up. It may still write to the arrays until the epoch is over."""
        self._is_done, self._error = True, error
        self._waits.failed.append(self._kept)
        self._kept = None
