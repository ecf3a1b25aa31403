"""Failure of a rank: the failed rank is reported, and by default the job ends on all ranks.

- The rank raises an exception: the exception hooks print the traceback and the rank, and end the job. If other ranks of
  the host raise the same one within a quarter of a second, one of them prints it, with the list of ranks.
- It exits early, by ``sys.exit`` or at the end of its script: its worlds send that to the other ranks (see `shutdown`).
- It is killed, or calls ``os._exit``: the `supervisor`, a separate process, reports which rank it was.

A child that a rank forks is no rank. It may compute, but a call that communicates raises an error, and its end is no
event for the job.

`RankProcess.guard` installs this when the package is imported. Otherwise a rank that fails before it makes a world
would leave the other ranks waiting in MPI's initialisation. This file does not import mpi4py. On one rank it does
nothing.

docs/jobs.md lists what importing the package does to a process that a launcher started as one of several ranks, and
what ``RINGTAPE_GUARD=0`` leaves out. The first world over MPI registers two exit handlers of the C library; see
`library_exit`.
"""

from __future__ import annotations

import atexit
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from autograd import environment
from autograd.digests import blake2b
from autograd.errors import (
    CollectiveMismatch,
    MeshError,
    TimeLimitError,
    find_site,
    short_site,
    show_error,
    site_of_traceback,
)

from ..checks import modes
from ..checks.reports import print_report
from .launcher import PROCESS_ID, ask, launched, launched_on_host
from .status import disregards_signals, end_launcher
from .traceback import comparable, ranks_text, traceback_text

if TYPE_CHECKING:
    from .supervisor_client import SupervisorClient

__all__ = ["ProcessWorld", "RankProcess", "process"]

_ABORT_S = 2.0  # how long MPI may take to end the job before a signal ends this process
_ONCE_S = 1.0  # how long a rank that does not print waits for the one that does
_PAUSE_S = 0.0002  # between two steps of a leaving rank; it grows to `_LONG_PAUSE_S`
_LONG_PAUSE_S = 0.02


class ProcessWorld(Protocol):
    """The interface of a world whose ranks are processes, for the process that makes it."""

    raises: bool
    """Whether its failure policy is ``raise``."""

    def fail(self, why: str) -> None:
        """Report to the other ranks that this one has failed (the policy ``raise``)."""
        ...

    @property
    def is_on_first_host(self) -> bool:
        """Whether this rank is on the host of rank 0."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether this rank has failed, and all others too, or have left although it waited for them."""
        ...

    def announce_end(self) -> None:
        """Send the other hosts that this rank ends the job."""
        ...

    def receive_end(self) -> bool:
        """Whether a rank of another host has just sent that it ends the job."""
        ...

    def leave(self, why: str) -> Iterator[None]:
        """Wait until all ranks leave; a generator that makes progress at every step."""
        ...


class RankProcess:
    """One rank of a job as a process: its exception hooks, its exit handler and its connection to the supervisor.

    There is one per process, `process`, because a process has one ``sys.excepthook``, one exit handler and one rank in
    the job. A world adds itself to `worlds` while it is open.

    Attributes
    ----------
    rank, size : int
        The rank and size that the launcher has set; 0 and 1 outside mpiexec.
    worlds : list of ProcessWorld
        The worlds that this rank has not left, in the order in which they were made.
    is_abandoned : bool
        Whether the others go on without this rank (after `survive`).
    before_end : list of callable
        Called with the report before this rank ends the job. They take seconds at most.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.worlds: list[ProcessWorld] = []
        self.before_end: list[Callable[[str], None]] = []
        self._pid = 0  # the process that called `guard`; a fork of it is not a rank
        self._supervisor: SupervisorClient | None = None
        self._make_world: Callable[[], Any] | None = None
        self._hook: Callable[..., Any] | None = None
        self.has_left = False
        self._has_lost_ranks: Callable[[], bool] | None = None  # where ranks go on after a death
        self.is_abandoned = False
        self._is_watched = False
        self._is_guarded = False
        self._ending = threading.Lock()  # held by the thread that ends the job
        self._exit_argument: Any = None  # of the last `sys.exit`, where `_record_exit` was called
        self._has_raised = False  # an uncaught error, in any thread, that the others go on after
        self._ends_in_thread = False  # a thread has raised, and leaves in place of the main thread
        self._has_left_block = False  # of a world that the others go on in, by an error or by `sys.exit`

    def guard(
        self,
        make_world: Callable[[], Any] | None = None,
        ask_mpi: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Install the handling of failures if a launcher started this process as one of several ranks.

        It is called when the package is imported. Only the first call has an effect. It takes a few milliseconds under
        mpiexec and some microseconds elsewhere. ``RINGTAPE_GUARD=0`` turns it off; see docs/jobs.md.

        Parameters
        ----------
        make_world : callable, optional
            Makes a world and adds it. It is called at exit if there is no world, because the other ranks may be
            waiting for this one while they make theirs. It raises MeshError where there is no MPI.
        ask_mpi : callable, optional
            Returns the rank and the number of ranks according to MPI. It is called only under a launcher that does not
            set them. It raises MeshError where there is no MPI.

        Raises
        ------
        ValueError
            ``RINGTAPE_GUARD`` or ``RINGTAPE_LAUNCHER`` has an unknown value.
        """
        if self._pid == os.getpid():
            return
        given = environment.value("RINGTAPE_GUARD")
        if ask_mpi is not None:
            with suppress(MeshError):  # no mpi4py, or no MPI library for it; making a world raises an error
                ask(ask_mpi)
        rank, size = launched(os.environ)
        if size < 2:
            return
        self.rank, self.size, self._pid = rank, size, os.getpid()
        atexit.register(self.leave, True)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._record_exit)
        if given == "0":
            return
        self._count_exits()
        from .supervisor_client import connect  # loaded under mpiexec only, as it loads `socket` and `subprocess`

        self._make_world = make_world
        self._is_guarded = True
        os.environ[PROCESS_ID] = str(self._pid)
        self._supervisor = connect(rank, size, launched_on_host(os.environ, 0))
        self._enter("", None, "import collectives")
        self._install_hooks()

    # -- a forked child ----------------------------------------------------------------------------------------
    @property
    def is_child(self) -> bool:
        """Whether this process is a forked child of a rank."""
        return self._pid not in (0, os.getpid())

    def _record_exit(self) -> None:
        """Record the argument of `sys.exit` from now on, which exit handlers cannot find out."""
        leave = sys.exit

        def exit(status: Any = None, /) -> NoReturn:
            self._exit_argument = status
            leave(status)

        sys.exit = exit

    def record_exit(self, status: Any) -> None:
        """Record that an error leaves a world in which the others go on, with the argument of a `SystemExit`."""
        self._exit_argument, self._has_left_block = status, True

    def _count_exits(self) -> None:
        """Let ``os._exit(0)`` of this rank count as a failure before the rank has left, as MPICH's launcher does not.

        Where the launcher disregards signals, so are such ends: the supervisor knows of them.
        """
        leave = os._exit

        def _exit(status: int) -> NoReturn:
            is_early = os.getpid() == self._pid and not self.has_left and not disregards_signals()
            leave(status or int(is_early))

        os._exit = _exit

    def _end_child(self) -> None:
        """End a forked child without finalizing MPI, which would wait for the other ranks in the name of this one."""
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
            return
        _flush_output()
        os._exit(self._exit_status())

    def _exit_status(self) -> int:
        """The status with which this process would end, if its exit is recorded."""
        has_raised = self._has_raised or getattr(sys, "last_value", None) is not None
        status = 1 if has_raised else self._exit_argument
        return status & 0xFF if isinstance(status, int) else int(status is not None)

    # -- the supervisor ----------------------------------------------------------------------------------------
    def wait_until_watched(self) -> None:
        """Return when the supervisor, if there is one, watches this rank."""
        if self._supervisor is not None and not self._is_watched:
            self._supervisor.wait_until_watched()
            self._is_watched = True

    def report_hosts(self, hosts: int, ranks_here: int, origin_ns: int) -> None:
        """Send the supervisor, if there is one, what MPI has told; see `SupervisorClient.report_hosts`."""
        if self._supervisor is not None:
            self._supervisor.report_hosts(hosts, ranks_here, origin_ns)

    def report_ending(self) -> None:
        """Send the supervisor, if there is one, that the deaths that follow are not the cause of the job's end."""
        if self._supervisor is not None:
            self._supervisor.report_ending()

    def report(self, text: str, answer: Callable[[bytes], Iterable[str]]) -> bool:
        """Send the supervisor, if there is one, a description of this rank's waits; see `SupervisorClient.report`."""
        return self._supervisor is not None and self._supervisor.report(text, answer)

    def survive(self, has_lost_ranks: Callable[[], bool] | None) -> None:
        """From now on the others go on if this rank dies: tell the supervisor, which then ends only ranks that stop.

        Parameters
        ----------
        has_lost_ranks : callable or None
            Whether a rank has died. None when a world is closed: from then on this rank may stop, too.
        """
        if self._has_lost_ranks is None:
            self._record_exit()
        self._has_lost_ranks = has_lost_ranks or self._has_lost_ranks
        if self._supervisor is not None:
            limit_s = environment.seconds("RINGTAPE_STOPPED_S") if has_lost_ranks is not None else None
            self._supervisor.report_survival(limit_s or 0.0)

    def report_lost(self, rank: int) -> None:
        """Send the supervisor, if there is one, that MPI has told this rank of the death of another one."""
        if self._supervisor is not None:
            self._supervisor.report_lost(rank)

    def survive_no_longer(self) -> None:
        """Undo `survive`, for a world whose policy is another one."""
        if self._supervisor is not None and self._has_lost_ranks is not None:
            self._supervisor.report_survival(-1.0)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Tell the supervisor, if there is one, that this rank waits inside the block for all others to do the same.

        All ranks enter such blocks in the same order. `what` is for its reports, as in ``make a world``.
        """
        if self._supervisor is None or self._supervisor.exits:  # it waits already
            yield
            return
        self._enter(what, modes.time_limit_s())
        try:
            yield
        finally:
            self._enter("", None, f"{what}, at {short_site(*find_site())}")

    def _enter(self, what: str, limit_s: float | None, last: str = "", exits: bool = False) -> None:
        if self._supervisor is not None:
            given = modes.report_s(), limit_s, environment.seconds("RINGTAPE_IMPORT_S")
            limits = [float("inf") if each is None else each for each in given]
            self._supervisor.enter(limits, modes.time_limit_source(), what, last, exits)

    # -- the end of the job ------------------------------------------------------------------------------------
    def end_job(self, text: str, code: int = 1, is_printed_once: bool = False) -> None:
        """Print ``ringtape: <text>`` and end the job on all ranks. Does not return.

        With `is_printed_once` only one rank prints, for events that all ranks detect at the same time: the first one of
        the first host.
        """
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread is ending the job
        is_first = self._supervisor is None or self._supervisor.report_ending()
        if is_printed_once and not (is_first and all(world.is_on_first_host for world in self.worlds)):
            self._wait_for_first()
        self._end(text, code, is_first)

    def _end_after_error(self, text: Callable[[list[int]], str], key: str) -> None:
        """End the job because of an error. One of the ranks of a host with equal keys prints ``text(ranks)``.

        The others wait for it to end the job. If it does not, as where each rank is a job of its own for MPI, they
        print the first line of the text.
        """
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()
        is_first, ranks, is_repeated = True, [self.rank], False
        if self._supervisor is not None:
            digest = blake2b(key.encode(errors="replace"), digest_size=16).hexdigest()
            is_first, found = self._supervisor.report_error(digest)
            if found is not None and not found:
                _flush_output()
                time.sleep(_ABORT_S)
            ranks = found or ranks
            is_repeated = found is not None and not found
        said = text(ranks)
        self._end(said.partition("\n")[0] if is_repeated else said, 1, is_first)

    def _end(self, text: str, code: int, is_first: bool) -> None:
        """Print ``ringtape: <text>`` and end the job; the first rank that does tells the other hosts."""
        _flush_output()
        print_report(text)
        for call in self.before_end:
            _quietly(partial(call, text))
        _kill_after(_ABORT_S)
        if is_first:
            for world in self.worlds:
                world.announce_end()
        _drain()
        if disregards_signals():  # and MPI_Abort; the supervisor ends the others
            if self._supervisor is None:
                from .supervisor_client import launcher_process

                end_launcher(launcher_process())
            os._exit(code)
        _abort_mpi(code)
        _kill()

    def _wait_for_first(self) -> None:
        """Wait for the first rank, which prints and ends the job, including this process. It may be late."""
        deadline = time.monotonic() + _ONCE_S
        while time.monotonic() < deadline:
            time.sleep(_LONG_PAUSE_S)
            if any(world.receive_end() for world in self.worlds):
                deadline = time.monotonic() + _ABORT_S

    # -- a rank that raises ------------------------------------------------------------------------------------
    def _install_hooks(self) -> None:
        previous = sys.excepthook
        previous_thread = threading.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            if os.getpid() == self._pid and not hasattr(sys, "ps1"):
                if previous in (sys.__excepthook__, show_error):
                    self._fail(kind, error, trace, "")
                else:
                    _quietly(lambda: previous(kind, error, trace))
                    self._fail(kind, error, None, "")
            else:
                previous(kind, error, trace)

        def thread_hook(args: threading.ExceptHookArgs) -> None:
            # A thread that has failed may have had communications to make, so the rank has failed.
            if os.getpid() == self._pid and args.exc_type is not SystemExit and args.exc_value is not None:
                name = f" in thread {args.thread.name!r}" if args.thread is not None else ""
                if previous_thread is threading.__excepthook__:
                    self._fail(args.exc_type, args.exc_value, args.exc_traceback, name)
                else:
                    _quietly(lambda: previous_thread(args))
                    self._fail(args.exc_type, args.exc_value, None, name)
                self._ends_in_thread = True  # the main thread may wait for this one for ever
                self.leave(True)
            else:
                previous_thread(args)

        sys.excepthook = self._hook = hook
        threading.excepthook = thread_hook

    def _fail(self, kind: type[BaseException], error: BaseException, trace: Any, where: str) -> None:
        """Report an uncaught error, and end the job; under the policy ``raise``, send it to the other ranks instead."""
        import traceback  # needed only where a rank fails

        lines = "".join(traceback.format_exception_only(kind, error)).strip().splitlines() or [kind.__name__]
        why = f"raised{where} {lines[0]}"
        is_interrupt = issubclass(kind, KeyboardInterrupt)  # launchers pass Ctrl-C on to all ranks
        if is_interrupt:
            why, trace = f"{why} at {site_of_traceback(error.__traceback__)}", None
        continues = bool(self.worlds) and all(world.raises for world in self.worlds)
        continues &= not isinstance(error, TimeLimitError)  # the rank that is late would be left, and wait for nobody
        full = "" if trace is None else traceback_text(kind, error, trace)

        def text(ranks: list[int]) -> str:
            who = ranks_text(ranks)
            head = f"{who} of {self.size} {why}; the job {'continues without it' if continues else 'ends'}"
            shown = [f"[{who}] {line}" for line in full.splitlines()]
            if isinstance(error, CollectiveMismatch):  # the ranks share the text of the error, not the frames
                shown = [f"[{ranks_text([self.rank])}] {line}" for line in full.splitlines()[: -len(lines)]]
                shown += [f"[{who}] {line}" for line in lines]
            return "\n".join([head, *shown])

        if is_interrupt and not continues:
            self.end_job(text([self.rank]), 128 + signal.SIGINT, is_printed_once=True)
        if not continues:
            self._end_after_error(text, comparable(error, f"{why}\n{full}"))
        self._has_raised = True
        print_report(text([self.rank]))
        for world in self.worlds:
            world.fail(why)

    # -- a rank that exits -------------------------------------------------------------------------------------
    def leave(self, exits: bool = False) -> None:
        """Leave all worlds: the exit handler, which runs before MPI is finalized, and waits for the other ranks.

        `exits` says that the process ends then; otherwise the program has finalized MPI itself.
        """
        if self.is_child:
            self._end_child()
        if os.getpid() != self._pid:
            return
        if self.has_left:
            if exits and self._ends_in_thread:
                threading.Event().wait()  # another thread waits for the other ranks, and then ends this process
            return
        self.has_left = True
        _flush_output()
        # The interpreter sets this for an uncaught exception, and so do test runners. It counts only if the user has
        # replaced ringtape's hook.
        error = getattr(sys, "last_value", None)
        if self._is_guarded and error is not None and sys.excepthook is not self._hook and not hasattr(sys, "ps1"):
            self._fail(type(error), error, None, "")
        if self.worlds or exits:
            self._enter("end their programs", modes.given_limit_s(), exits=True)
        if not self.worlds and self._is_guarded:
            self._make_late()
        why = "exited early (its script returned or called sys.exit)"
        leaving, pause = [world.leave(why) for world in self.worlds], _PAUSE_S
        while leaving := [each for each in leaving if next(each, leaving) is not leaving]:  # all at the same time
            time.sleep(pause)
            pause = min(2 * pause, _LONG_PAUSE_S)
        self._end_after_worlds(exits)

    def _end_after_worlds(self, exits: bool) -> None:
        """Tell the supervisor how this rank ends, and end the process where its own end would hang, or return 0."""
        has_come = self._has_left_block and not self._exit_status()  # to its end: the program has caught the error
        is_lost = bool(self.worlds) and all(world.is_lost for world in self.worlds) and not has_come
        has_failed = self._has_raised or is_lost
        if self._supervisor is not None:
            is_out = has_failed or (self.is_abandoned and not has_come)
            self._supervisor.close(exits, "last" if is_lost else "failed" if is_out else "exit")
        if not exits:
            return
        if self._has_lost_ranks is not None and (self.is_abandoned or self._has_lost_ranks()):
            self._end_without_mpi(is_lost)
        if has_failed and getattr(sys, "last_value", None) is None:  # the interpreter would end with 0
            self._end_with_error()

    def _end_without_mpi(self, is_lost: bool) -> NoReturn:
        """End this process now: after a death MPI's finalization may never return.

        A rank that the others go on without is killed instead, if its status is not 0: Open MPI's launcher ends the job
        after a few processes with such a status, but not after signals. If no other is left (`is_lost`), its status is
        that of the job.
        """
        _flush_output()
        _drain()
        status = self._exit_status()
        if is_lost:
            os._exit(status or 1)
        if status and self.is_abandoned:
            _kill()
        os._exit(status)

    def _end_with_error(self) -> NoReturn:
        """End this process with another status than 0, the interpreter's where the main thread has not raised."""
        _flush_output()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()
        os._exit(self._exit_status() or 1)

    def leave_without_mpi(self) -> None:
        """Leave without a failure where MPI cannot be used, and without waiting for the other ranks."""
        self.has_left = True
        if self._supervisor is not None:
            self._supervisor.close(False)

    def _make_late(self) -> None:
        """Make a world now, because the other ranks may be waiting for this one while they make theirs."""
        mpi = sys.modules.get("mpi4py.MPI")
        if self._make_world is None or (mpi is not None and mpi.Is_finalized()):
            return
        with suppress(MeshError):  # no MPI, or not the launcher's
            self._make_world()


process = RankProcess()


def _kill() -> None:
    """End this process by a signal, which ends the job under every launcher, even before MPI_Init."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _kill_after(limit_s: float) -> None:
    """End this process after a time, because MPI may be blocked in another thread when it is asked to abort.

    A thread does it, and the supervisor as well. A timer's signal would be lost if the program handles it.
    """

    def wait() -> None:
        time.sleep(limit_s)
        if disregards_signals():
            os._exit(1)
        _kill()

    with suppress(RuntimeError):  # the interpreter is exiting, or there are too many threads
        threading.Thread(target=wait, daemon=True).start()


def _drain() -> None:
    """Wait until the launcher has read the output of this rank, because it may drop unread output after an abort."""
    import fcntl  # fcntl and termios do not exist on every platform
    import termios

    for number in (1, 2):
        with suppress(OSError):
            limit = time.monotonic() + 1.0
            while stat.S_ISFIFO(os.fstat(number).st_mode) and time.monotonic() < limit:
                if fcntl.ioctl(number, termios.FIONREAD, b"\0\0\0\0") == b"\0\0\0\0":
                    break
                time.sleep(0.002)
    time.sleep(0.05)


def _abort_mpi(code: int) -> None:
    """Abort through MPI if a world or the user's program has initialised it."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)


def _quietly(print_error: Callable[[], Any]) -> None:
    with suppress(Exception):
        print_error()
        sys.stderr.flush()


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
