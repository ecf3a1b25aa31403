"""A rank that raises, exits early or is killed ends the whole mpiexec job, with its name; nothing hangs.

- It raises: the exception hooks print the traceback and the rank, and end the job.
- It leaves early, by ``sys.exit`` or by the end of its script: `farewell` tells the others at exit.
- It is killed, or leaves by ``os._exit``: `referee`, a process beside the ranks, says which rank it was.

`guard` puts this in place when the package is imported: a rank that fails before it ever made a world would leave the
others waiting in MPI's initialisation. Nothing here imports mpi4py, and on one rank nothing is done at all.
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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .launcher import PROCESS_ID, launched, launched_near

if TYPE_CHECKING:  # loaded under mpiexec only
    from .shutdown import Farewell
    from .supervisor_client import RefereeClient

__all__ = ["attach", "end_job", "guard", "join_hosts", "leave", "leave_without_mpi", "open_to_hosts", "say_doing"]


class _State:
    """What is known of this process; one per process."""

    rank = 0
    size = 1
    pid = 0  # of the process that called guard: a fork is not a rank
    referee: RefereeClient | None = None
    farewell: Farewell | None = None
    abort: Callable[[int], None] | None = None
    progress: Callable[[], None] | None = None
    hook: Callable[..., Any] | None = None
    has_left = False


_state = _State()
_ending = threading.Lock()


def guard() -> None:
    """Put the handling of failures in place if mpiexec started this process as one of several ranks.

    Called by importing the package and again by making a world; only the first call does something. Takes a few
    milliseconds under mpiexec and some microseconds elsewhere.
    """
    if _state.pid == os.getpid():
        return
    rank, size = launched(os.environ)
    if size < 2:
        return
    from .supervisor_client import connect

    _state.rank, _state.size, _state.pid = rank, size, os.getpid()
    os.environ[PROCESS_ID] = str(_state.pid)
    _state.referee = connect(rank, size, launched_near(os.environ, size))
    _install_hooks()
    atexit.register(leave)


def attach(farewell: Farewell, abort: Callable[[int], None], progress: Callable[[], None]) -> None:
    """Tell of the world that was made: its control communicator, its Abort, and what completes its sends."""
    _state.farewell, _state.abort, _state.progress = farewell, abort, progress
    if _state.referee is not None:
        _state.referee.wait_until_watched()


def open_to_hosts() -> str:
    """On rank 0 of a job on several hosts: where its referee listens for the others', "" without one."""
    return "" if _state.referee is None else _state.referee.open_to_hosts()


def join_hosts(where: str) -> None:
    """On every rank of such a job: link its host's referee to rank 0's, so that only the first failure is reported."""
    if _state.referee is not None and where:
        _state.referee.join(where)


def say_doing(text: str) -> None:
    """Tell the referee, if there is one, what this rank is doing; "" for nothing worth telling."""
    if _state.referee is not None:
        _state.referee.say_doing(text)


def end_job(text: str, code: int = 1, is_told_once: bool = False) -> None:
    """Print ``ringtape: <text>`` and end the job on all ranks. Does not return.

    With `is_told_once` only the first rank of a host prints: for what all of them find out at the same time.
    """
    if not _ending.acquire(blocking=False):
        threading.Event().wait()  # another thread is at it
    if _state.referee is not None and not _state.referee.say_ending() and is_told_once:
        time.sleep(1.0)  # the rank that was first prints and ends this one too
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        pass
    # one write, so that the lines of several ranks do not mix
    os.write(2, f"ringtape: {text}\n".encode(errors="replace"))
    # MPI may be stuck in another thread. A death by signal ends the job under every launcher, even before MPI_Init.
    try:
        signal.setitimer(signal.ITIMER_REAL, 2.0)
    except (AttributeError, OSError):
        pass
    _drain()
    if _state.abort is not None:
        _state.abort(code)
    _abort_foreign(code)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _drain() -> None:
    """Wait until the launcher has read what this rank printed: when it hears of the abort it may drop the rest."""
    import fcntl
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


def _abort_foreign(code: int) -> None:
    """Abort through an MPI that the user's program initialised without us."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)


# -- a rank that raises ----------------------------------------------------------------------------------------
def _install_hooks() -> None:
    previous = sys.excepthook
    previous_thread = threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if os.getpid() == _state.pid and not hasattr(sys, "ps1"):
            if previous is sys.__excepthook__:
                _fail(kind, error, trace, "")
            _show(lambda: previous(kind, error, trace))
            _fail(kind, error, None, "")
        previous(kind, error, trace)

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        # A rank without one of its threads is a rank whose communications may never be made.
        if os.getpid() == _state.pid and args.exc_type is not SystemExit and args.exc_value is not None:
            name = f" in thread {args.thread.name!r}" if args.thread is not None else ""
            if previous_thread is threading.__excepthook__:
                _fail(args.exc_type, args.exc_value, args.exc_traceback, name)
            _show(lambda: previous_thread(args))
            _fail(args.exc_type, args.exc_value, None, name)
        previous_thread(args)

    sys.excepthook = _state.hook = hook
    threading.excepthook = thread_hook


def _show(print_error: Callable[[], Any]) -> None:
    try:
        print_error()
        sys.stderr.flush()
    except Exception:
        pass


def _fail(kind: type[BaseException], error: BaseException, trace: Any, where: str) -> None:
    lines = "".join(traceback.format_exception_only(kind, error)).strip().splitlines() or [kind.__name__]
    text = f"rank {_state.rank} of {_state.size} raised{where} {lines[0]}; the job ends"
    if trace is not None:
        full = "".join(traceback.format_exception(kind, error, trace)).rstrip()
        text += "\n" + "\n".join(f"[rank {_state.rank}] {line}" for line in full.splitlines())
    end_job(text)


# -- a rank that leaves ----------------------------------------------------------------------------------------
def leave() -> None:
    """At exit, before MPI is finalized: wait for the others, or let them know."""
    if os.getpid() != _state.pid or _state.has_left:
        return
    _state.has_left = True
    for stream in (sys.stdout, sys.stderr):
        _show(stream.flush)
    # The interpreter sets this for an uncaught exception. It counts only where a hook of the user's has replaced ours,
    # as test runners set it too.
    error = getattr(sys, "last_value", None)
    if error is not None and sys.excepthook is not _state.hook and not hasattr(sys, "ps1"):
        _fail(type(error), error, None, "")
    if _state.farewell is None:
        _join_late()
    if _state.farewell is not None and _state.progress is not None:
        _state.farewell.leave(_state.progress)
    if _state.referee is not None:
        _state.referee.close()


def leave_without_mpi() -> None:
    """Leave in good order where MPI cannot be used: the others are not waited for, and the end is no failure."""
    _state.has_left = True
    if _state.referee is not None:
        _state.referee.close()


def _join_late() -> None:
    """Make the world now, as the others may be waiting for this rank in its making."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_finalized():
        return
    try:
        from ..transports.mpi.communicator import mpi_world
    except ImportError:
        return
    mpi_world(is_leaving=True)
