"""Failure of a rank: one that raises, exits early or is killed is named, and by default ends the job on all ranks.

- It raises: the exception hooks print the traceback and the rank, and end the job.
- It exits early, by ``sys.exit`` or by the end of its script: the others learn it from its worlds (see `shutdown`).
- It is killed, or leaves by ``os._exit``: the `supervisor`, a process beside the ranks, says which rank it was.

`RankProcess.guard` puts this in place when the package is imported: a rank that failed before it made a world would
leave the others waiting in MPI's initialisation. Nothing here imports mpi4py, and on one rank nothing is done at all.
"""

from __future__ import annotations

import atexit
import os
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .launcher import PROCESS_ID, launched, launched_on_host

if TYPE_CHECKING:
    from .supervisor_client import SupervisorClient

__all__ = ["ProcessWorld", "RankProcess", "process"]

_ABORT_S = 2.0  # how long MPI may take to end the job, before this process is ended by a signal
_PAUSE_S = 0.0002  # between two looks at what a leaving rank waits for; it grows to the second
_LONG_PAUSE_S = 0.02


class ProcessWorld(Protocol):
    """What a world whose ranks are processes offers to the process that it is made in."""

    raises: bool
    """Whether its failure policy is ``raise``."""

    def fail(self, why: str) -> None:
        """Tell the other ranks that this one has failed (the policy ``raise``)."""
        ...

    def leave(self, why: str) -> Iterator[None]:
        """Wait until all ranks leave; a generator that makes progress at every step."""
        ...


class RankProcess:
    """One rank of a job as a process: its exception hooks, its exit handler and its connection to the supervisor.

    There is one per process, `process`, because what it holds exists once per process: the interpreter has one
    ``sys.excepthook`` and one exit, and the launcher gives a process one rank. Worlds come and go, and add themselves
    to `worlds` while they are open.

    Attributes
    ----------
    rank, size : int
        What the launcher says; 0 and 1 outside mpiexec.
    worlds : list of ProcessWorld
        The worlds that this rank has not left, in the order in which they were made.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.worlds: list[ProcessWorld] = []
        self._pid = 0  # of the process that called `guard`: a fork of it is not a rank
        self._supervisor: SupervisorClient | None = None
        self._make_world: Callable[[], Any] | None = None
        self._hook: Callable[..., Any] | None = None
        self.has_left = False
        self._is_watched = False
        self._ending = threading.Lock()  # held by the thread that ends the job

    def guard(self, make_world: Callable[[], Any] | None = None) -> None:
        """Put the handling of failures in place if mpiexec started this process as one of several ranks.

        It is called when the package is imported; only the first call does something. It takes a few milliseconds under
        mpiexec and some microseconds elsewhere.

        Parameters
        ----------
        make_world : callable, optional
            Makes and adds a world. It is called at exit if there is none, because the other ranks may be waiting for
            this one in the making of theirs. It raises ImportError where there is no MPI.
        """
        if self._pid == os.getpid():
            return
        rank, size = launched(os.environ)
        if size < 2:
            return
        from .supervisor_client import connect  # loaded under mpiexec only, as it loads `socket` and `subprocess`

        self.rank, self.size, self._pid = rank, size, os.getpid()
        self._make_world = make_world
        os.environ[PROCESS_ID] = str(self._pid)
        self._supervisor = connect(rank, size, launched_on_host(os.environ, size))
        self._install_hooks()
        atexit.register(self.leave)

    # -- the supervisor ----------------------------------------------------------------------------------------
    def wait_until_watched(self) -> None:
        """Return once the supervisor knows of this rank, if there is one."""
        if self._supervisor is not None and not self._is_watched:
            self._supervisor.wait_until_watched()
            self._is_watched = True

    def open_to_hosts(self) -> str:
        """On rank 0 of a job on several hosts: where its supervisor listens for the others', "" without one."""
        return "" if self._supervisor is None else self._supervisor.open_to_hosts()

    def join_hosts(self, where: str) -> None:
        """On every rank of such a job: link its host's supervisor to rank 0's, so that only one failure is reported."""
        if self._supervisor is not None and where:
            self._supervisor.join(where)

    def report(self, text: str) -> None:
        """Tell the supervisor, if there is one, what this rank waits for; "" for nothing worth telling."""
        if self._supervisor is not None:
            self._supervisor.report(text)

    # -- the end of the job ------------------------------------------------------------------------------------
    def end_job(self, text: str, code: int = 1, is_told_once: bool = False) -> None:
        """Print ``ringtape: <text>`` and end the job on all ranks. Does not return.

        With `is_told_once` only the first rank of a host prints: for what all of them find out at the same time.
        """
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread is ending the job
        if self._supervisor is not None and not self._supervisor.tell_ending() and is_told_once:
            time.sleep(1.0)  # the rank that was first prints, and ends this one too
        _flush(sys.stdout)
        # one write, so that the lines of several ranks do not mix
        os.write(2, f"ringtape: {text}\n".encode(errors="replace"))
        # MPI may be stuck in another thread. A death by signal ends the job under every launcher, even before MPI_Init.
        try:
            signal.setitimer(signal.ITIMER_REAL, _ABORT_S)
        except (AttributeError, OSError):
            pass
        _drain()
        _abort_mpi(code)
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    # -- a rank that raises ------------------------------------------------------------------------------------
    def _install_hooks(self) -> None:
        previous = sys.excepthook
        previous_thread = threading.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            if os.getpid() == self._pid and not hasattr(sys, "ps1"):
                if previous is sys.__excepthook__:
                    self._fail(kind, error, trace, "")
                else:
                    _quietly(lambda: previous(kind, error, trace))
                    self._fail(kind, error, None, "")
            else:
                previous(kind, error, trace)

        def thread_hook(args: threading.ExceptHookArgs) -> None:
            # A rank without one of its threads is a rank whose communications may never be made.
            if os.getpid() == self._pid and args.exc_type is not SystemExit and args.exc_value is not None:
                name = f" in thread {args.thread.name!r}" if args.thread is not None else ""
                if previous_thread is threading.__excepthook__:
                    self._fail(args.exc_type, args.exc_value, args.exc_traceback, name)
                else:
                    _quietly(lambda: previous_thread(args))
                    self._fail(args.exc_type, args.exc_value, None, name)
            else:
                previous_thread(args)

        sys.excepthook = self._hook = hook
        threading.excepthook = thread_hook

    def _fail(self, kind: type[BaseException], error: BaseException, trace: Any, where: str) -> None:
        """Report an error that nobody caught, and end the job, or under the policy ``raise`` tell the other ranks."""
        lines = "".join(traceback.format_exception_only(kind, error)).strip().splitlines() or [kind.__name__]
        why = f"raised{where} {lines[0]}"
        goes_on = bool(self.worlds) and all(world.raises for world in self.worlds)
        text = f"rank {self.rank} of {self.size} {why}; the job {'goes on without it' if goes_on else 'ends'}"
        if trace is not None:
            full = "".join(traceback.format_exception(kind, error, trace)).rstrip()
            text += "\n" + "\n".join(f"[rank {self.rank}] {line}" for line in full.splitlines())
        if not goes_on:
            self.end_job(text)
        os.write(2, f"ringtape: {text}\n".encode(errors="replace"))
        for world in self.worlds:
            world.fail(why)

    # -- a rank that exits -------------------------------------------------------------------------------------
    def leave(self) -> None:
        """The exit handler, which runs before MPI is finalized: wait for the other ranks, or let them know."""
        if os.getpid() != self._pid or self.has_left:
            return
        self.has_left = True
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        # The interpreter sets this for an uncaught exception. It counts only where a hook of the user's has replaced
        # ours, as test runners set it too.
        error = getattr(sys, "last_value", None)
        if error is not None and sys.excepthook is not self._hook and not hasattr(sys, "ps1"):
            self._fail(type(error), error, None, "")
        if not self.worlds:
            self._make_late()
        why = "exited early (its script returned or called sys.exit)"
        _advance_all([world.leave(why) for world in self.worlds])
        if self._supervisor is not None:
            self._supervisor.close()

    def leave_without_mpi(self) -> None:
        """Leave in good order where MPI cannot be used: the others are not waited for, and the end is no failure."""
        self.has_left = True
        if self._supervisor is not None:
            self._supervisor.close()

    def _make_late(self) -> None:
        """Make a world now, as the others may be waiting for this rank in the making of theirs."""
        mpi = sys.modules.get("mpi4py.MPI")
        if self._make_world is None or (mpi is not None and mpi.Is_finalized()):
            return
        try:
            self._make_world()
        except ImportError:
            pass


process = RankProcess()


def _advance_all(steps: list[Iterator[None]]) -> None:
    """Run generators to their ends, all of them at the same time."""
    pause = _PAUSE_S
    while steps := [each for each in steps if next(each, steps) is not steps]:
        time.sleep(pause)
        pause = min(2 * pause, _LONG_PAUSE_S)


def _drain() -> None:
    """Wait until the launcher has read what this rank printed: it may drop the rest when it hears of the abort."""
    import fcntl  # not on every platform, as the next one
    import termios

    for number in (1, 2):
        try:
            limit = time.monotonic() + 1.0
            while stat.S_ISFIFO(os.fstat(number).st_mode) and time.monotonic() < limit:
                if fcntl.ioctl(number, termios.FIONREAD, b"\0\0\0\0") == b"\0\0\0\0":
                    break
                time.sleep(0.002)
        except OSError:
            pass
    time.sleep(0.05)


def _abort_mpi(code: int) -> None:
    """Abort through MPI if it is initialised, whether a world or the user's program has done that."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)


def _quietly(print_error: Callable[[], Any]) -> None:
    try:
        print_error()
        sys.stderr.flush()
    except Exception:
        pass


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        pass
