"""Worlds: the ranks of a job, their channels, and the policy for failures.

Every thread has a current world. If the program has made none, it is the world of all processes that mpiexec started,
or, without mpiexec, a world of this thread alone.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from autograd import environment
from autograd.doors import door, is_there
from autograd.engine.distribution import ALONE
from autograd.engine.state import state
from autograd.errors import ArgumentError, MeshError, OptionError, typed_errors
from autograd.layouts.sizes import size_of

from .job.failure import process
from .job.launcher import launched_size, why_not_alone
from .transports.job import JOBS, Job, Kind, Options, Replaced, Replayed, checked_ranks, job_of
from .transports.protocol import Communicator

if TYPE_CHECKING:
    from .transports.dry import Note

__all__ = ["World", "in_order", "replaced_world", "run", "world"]

T = TypeVar("T")
Policy = Literal["end", "raise"]
POLICIES: tuple[Policy, ...] = ("end", "raise")


class _Current(threading.local):
    """The current world of a thread, and the thread's communicator in it."""

    world: World | None = None
    communicator: Communicator | None = None


_current = _Current()


def is_rank_thread() -> bool:
    """Whether this thread is a rank of a world of threads, or has a current world."""
    return _current.communicator is not None


class World:
    """The ranks of a job: their channels, their monitor, and the policy for failures.

    ``with World(...) as world:`` makes it the current world of this thread, and closes it at the end. Worlds can be
    made and closed one after another; worlds of threads can also be open at the same time. A program that needs one
    world of the usual kind need not make it: `cc.world()` and `cc.Mesh` make it.

    Parameters
    ----------
    kind : {"mpi", "threads", "dry"}, optional
        The kind of ranks: ``mpi``, the processes that mpiexec started; ``threads`` of this process, on which `run`
        runs a program; ``dry``, one rank of a world of any size that sends nothing and computes on shapes only
        (`cc.dry` also counts the communication). The default is ``mpi`` under mpiexec, otherwise ``threads`` with one
        rank, which is the calling thread.
    ranks : int, optional
        The number of ranks of a ``threads`` or ``dry`` world, by default 1. An ``mpi`` world always has all ranks that
        mpiexec started.
    policy : {"end", "raise"}
        The effect of a rank's failure. Under ``end`` the whole job ends: over MPI all processes end and the failed rank
        is reported; on threads every other rank raises `RankFailed` at its next wait, and `run` raises the first error.
        Under ``raise``, which elastic programs use, a rank that waits for the failed rank, or next communicates with
        it, raises `RankFailed`. All other ranks continue, and may communicate in groups without the failed rank (see
        `survivors`).
    rank : int
        The rank of a ``dry`` world that this program runs as, or of another one whose job asks for it.
    note : callable, optional
        Called at every call of a ``dry`` world; see `transports.dry.Note`.

    Attributes
    ----------
    kind, policy : str
    size : int
        The number of ranks.
    communicator : Communicator
        The channel of all ranks, for the rank of this thread.
    failed : dict of int to str
        The ranks that this process knows to have failed, and the reasons.
    is_closed : bool
    wrappers : list of callable
        Of the class, for tools: each gets the program of a `run`, and returns the one that the ranks run.

    Raises
    ------
    OptionError
        An unknown kind or policy.
    MeshError
        The number of ranks is not possible for the kind; or, for ``mpi``, another world over MPI is open, a rank has
        failed in an earlier one, or MPI's number of ranks is not the launcher's. Without a kind: a launcher has started
        this process, and neither its variables nor MPI tell the number of ranks.
    CommunicationError
        A world over MPI in a forked child of a rank.

    Notes
    -----
    Over MPI, making and closing a world are collective: all ranks do it. A rank fails if an error reaches the top of
    its script or the end of the ``with`` block, or if it exits early. Under ``raise`` it sends the reason to the others
    and waits at its exit until they leave. A killed process is a different case: the launchers of MPICH and Open MPI
    end all other processes at once, under either policy, and the report names the killed process. Only under
    ``mpiexec --with-ft ulfm`` of Open MPI the others go on (`is_fault_tolerant`), and no rank that has failed waits at
    its exit. Under ``raise`` ranks poll instead of blocking in MPI, as they do in ``ranks`` check mode.

    Closing a world over MPI waits until all ranks close it, stops its monitor thread, and frees its communicators and
    shared memory; MPI stays initialised. Shared memory that an array of the program uses (`shared_arrays.empty`) is
    kept until MPI is finalized. After a failure, closing neither waits nor frees anything, and no further world over
    MPI can be made.

    A child process that a rank forks, for example a worker of ``multiprocessing``, is no rank. It may compute, and its
    end is no event for the job. A call in it that communicates in a world of its parent raises `CommunicationError`. A
    child that is started in another way (``spawn``) has a world of one rank.

    Examples
    --------
    >>> import collectives as cc
    >>> with cc.World("threads", ranks=3) as world:
    ...     world.run(lambda: cc.world().rank)
    [0, 1, 2]

    Rank 1 fails, and the others go on without it:

    >>> def program():
    ...     group = cc.world()
    ...     if group.rank == 1:
    ...         raise OSError("no data")
    ...     try:
    ...         group.barrier()
    ...     except cc.RankFailed:
    ...         group = cc.World.current().survivors()
    ...     return group.size
    >>> with cc.World("threads", ranks=3, policy="raise") as world:
    ...     world.run(program)
    ...     sorted(world.failed)
    [2, None, 2]
    [1]
    """

    wrappers: ClassVar[list[Callable[[Callable[..., Any]], Callable[..., Any]]]] = []

    def __init__(
        self,
        kind: Kind | None = None,
        ranks: int | None = None,
        *,
        policy: Policy = "end",
        rank: int = 0,
        note: Note | None = None,
    ):
        for text, fix in environment.problems().values():  # variables that are misspelt or have wrong values
            raise OptionError(f"{text}\n  fix: {fix}")
        if kind is None:
            kind = "mpi" if launched_size() > 1 else "threads"
            if kind == "threads" and (problem := why_not_alone()):
                raise MeshError(problem)
        if kind not in JOBS or policy not in POLICIES:
            wrong = f"kind={kind!r}" if kind not in JOBS else f"policy={policy!r}"
            needed = POLICIES if kind in JOBS else tuple(JOBS)
            raise OptionError(f"World({wrong}) was given; needed: one of {', '.join(needed)}")
        self.kind = kind
        self.policy = policy
        self.raises = policy == "raise"
        self.is_closed = False
        self._entered: list[ExitStack] = []
        self._is_abandoned = False  # an error has left its `with` block
        self._job = self._opened(Options(kind, ranks, self.raises, rank, note or (lambda *_: None)))
        self.size = self._job.size
        self._communicator = self._job.communicator
        self._former: weakref.WeakSet[Communicator] = weakref.WeakSet()  # of epochs that are over
        if environment.value("RINGTAPE_FAULTS"):
            door("faults").begin(self._communicator)
        if environment.value("RINGTAPE_RECORD") and self._job.has_processes and Replayed.job is None:
            door("records").begin(self.communicator, kind)
        if self._job.has_processes:
            process.worlds.append(self)
            if ranks is not None and checked_ranks(kind, ranks) != self.size:
                raise MeshError(f"World({kind!r}, ranks={ranks}) was given; mpiexec has started {self.size} ranks")

    def __repr__(self) -> str:
        closed = ", closed" if self.is_closed else ""
        return f"World({self.kind!r}, ranks={self.size}, policy={self.policy!r}{closed})"

    # -- making ------------------------------------------------------------------------------------------------
    def _opened(self, options: Options) -> Job:
        job = job_of(self.kind)
        replayed = Replayed.job(options) if Replayed.job is not None else None
        if replayed is not None:
            return replayed
        job.refuse()
        if job.has_processes:
            self._close_others()
        return job.open(options)

    def _close_others(self) -> None:
        """Close the worlds of the same processes that an error has left, and refuse another one beside open ones."""
        for other in process.worlds.copy():
            assert isinstance(other, World)
            if other._is_abandoned:
                other.close()
            if other in process.worlds:
                other._refuse_another()

    def _refuse_another(self) -> None:
        if not self.is_closed:
            raise MeshError(
                "a new world over MPI cannot be made while another one is open. Fix: close it first (`World.close`, or "
                "the end of its `with` block); `cc.world()` and `cc.Mesh` open one unless a world is current"
            )
        failed = "; ".join(f"rank {rank} {why}" for rank, why in sorted(self.failed.items())) or "it is this rank"
        raise MeshError(
            f"a new world over MPI cannot be made after a rank failed in an earlier one ({failed}). A "
            "world over MPI has all ranks that mpiexec started. Fix: continue with `World.survivors` before closing it"
        )

    # -- the current world -------------------------------------------------------------------------------------
    @staticmethod
    def current() -> World:
        """The current world of this thread.

        If the program has entered no world, it is the open world over MPI of this process. If there is none, one is
        made: over MPI under mpiexec with two or more ranks (all ranks make it together), otherwise of this thread
        alone.

        Returns
        -------
        World

        Examples
        --------
        >>> import collectives as cc
        >>> cc.World.current().size
        1
        """
        if _current.world is None or _current.world.is_closed:
            opened = (each for each in process.worlds if isinstance(each, World) and not each.is_closed)
            found = next(opened, None)
            _current.world = World() if found is None else found
            _current.communicator = _current.world.communicator
        return _current.world

    @property
    def communicator(self) -> Communicator:
        if self.is_closed:
            raise MeshError(f"{self!r} no longer has a communicator")
        found = _current.communicator if _current.world is self else None
        if found is None or found in self._former:
            found = self._communicator
        if found is None:
            raise MeshError(f"this thread is no rank of {self!r}: its ranks are the threads of `run`")
        return found

    def __enter__(self) -> World:
        if self.is_closed:
            raise MeshError(f"{self!r} was entered; needed: a new World")
        stack = ExitStack()
        if self._communicator is not None:
            stack.enter_context(_entered(self, self._communicator))
        self._entered.append(stack)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._entered.pop().close()
        if error is None or not self._job.has_processes:
            self.close()
        elif self.raises:
            process.record_exit(error.code if isinstance(error, SystemExit) else None)
            self.fail(_why(error))
            self.close()
        else:
            # The error ends the job, unless the program catches it. A rank that raised must not wait here for the other
            # ranks, because they may be waiting for it. This world is closed at exit, or when the next one is made.
            self._is_abandoned = True

    # -- running -----------------------------------------------------------------------------------------------
    def run(self, program: Callable[..., T], *args: Any) -> list[T]:
        """Run `program(*args)` on each rank of a world of threads.

        Every thread has its own tape, mesh and random state. The threads share only what the program itself shares.

        Parameters
        ----------
        program : callable
            The function that every rank runs; inside it `cc.world()` is this world.
        *args
            Passed to the program on every rank.

        Returns
        -------
        list
            The return values of the program, in order of rank. Under the policy ``raise``, the value of a failed rank
            is None; if all ranks failed, an error is raised.

        Raises
        ------
        MeshError
            The world is not one of threads, or it is closed.
        DeadlockError
            All ranks wait for each other, or for a rank that has finished.
        CollectiveMismatch
            All ranks have finished, and a message that one of them sent was never received.
        Exception
            The error of the first rank that failed, with a note that names the rank. If several ranks raised this kind
            of error (as all do on a mismatch or a deadlock), that of the lowest rank. A `SystemExit` becomes a
            RankFailed.
        """
        if not self._job.runs_programs or self.is_closed:
            raise MeshError(f"`run` of {self!r}; needed: an open World('threads', ranks=...)")
        if not callable(program):
            raise ArgumentError(
                f"run({program!r}) was given; needed: a function, which each rank calls\n"
                "  fix: cc.run(program, ranks=4), without the parentheses of a call, or lambda: program(...)"
            )

        def begin(communicator: Communicator) -> None:
            _current.world, _current.communicator = self, communicator

        for wrap in self.wrappers:
            program = wrap(program)
        if environment.value("RINGTAPE_RECORD") and process.size == 1 and Replayed.job is None:
            program = door("records").around(program, lambda: self.communicator, self.kind)
        if is_there("faults"):
            program = door("faults").around(program, self.size, lambda: self.communicator)
        return self._job.run(program, args, begin)

    # -- failure -----------------------------------------------------------------------------------------------
    @property
    def failed(self) -> dict[int, str]:
        return self._job.failed

    def set_task(self, task: str) -> None:
        """Set a description of this rank's current work, for reports of deadlocks and overdue ranks.

        Parameters
        ----------
        task : str
            For example ``epoch 3``; "" for none.
        """
        self._job.set_task(task, lambda: self.communicator.index)

    def fail(self, why: str) -> None:
        """Report to the other ranks that this rank has failed, under the policy ``raise`` over MPI.

        The exception hooks call it, and the end of a ``with`` block that raised an error. A program calls it when it
        catches an error after which this rank cannot continue.

        Parameters
        ----------
        why : str
            The reason, for example ``lost its disk``. `RankFailed` shows it after the rank's number.
        """
        if self.raises:
            self._job.fail(why)

    @property
    def is_fault_tolerant(self) -> bool:
        """Whether the other ranks can go on after one that a signal has ended.

        So it is on threads (where the signal is a fault that a test injects), and over Open MPI under ``mpiexec
        --with-ft ulfm``, both with the policy ``raise``. Elsewhere a signal ends the job, and ranks can go on after
        one that raised an error or exited early.
        """
        return self.raises and self._job.is_fault_tolerant

    @property
    def epoch(self) -> int:
        """The number of times that the ranks have agreed on who has not failed: see `survivors`."""
        return self._job.epoch

    @property
    def all_finished(self) -> bool:
        """Whether all members of the present epoch have begun it with ``survivors(finished=True)``."""
        return self._job.all_finished

    @property
    def can_replace(self) -> bool:
        """Whether `survivors` can start ranks in the place of those that have died: on threads, under ``raise``."""
        return self.raises and self._job.can_replace

    @property
    def replaced(self) -> dict[int, Replaced]:
        """By rank that was replaced: the epoch in which its newest replacement joined, and why the rank died."""
        return self._job.replaced

    @property
    def is_replacement(self) -> bool:
        """Whether this rank was started in the place of one that has died."""
        return bool(self.replaced) and self.communicator.ranks[self.communicator.index] in self.replaced

    def survivors(self, finished: bool = False, *, replace: bool | int = False) -> Communicator:
        """Agree on the ranks that have not failed, and begin a new epoch with them.

        All ranks that have not failed call it, whatever each of them knows, also again. The first one ends the present
        epoch: waits on its channels raise `RankFailed`, as does the next communication of a rank that computes. A rank
        that fails meanwhile is left out. ``cc.Mesh(world.survivors(), dp=-1)`` makes a mesh of the others.

        Parameters
        ----------
        finished : bool
            Whether the work of this rank is done. With the members they agree on `all_finished`: to leave or to go on.
        replace : bool or int
            True to start another rank in the place of each that has died; a number limits the replacements in the life
            of the world. If the ranks differ, the least counts. A rank that has raised an error is not replaced: it
            would raise it again.

            A replacement has the number of the dead rank, so that all that is known by rank stays valid, and the ranks
            of the world stay 0 to `size` - 1. It runs the program from its beginning and is in the new epoch at once:
            there `communicator` is the channel that is returned here, and `is_replacement` is True. The dead rank
            is no longer in `failed`, but in `replaced`. `parallel.elastic.run` replaces ranks itself: a program that
            uses it does not do so before.

        Returns
        -------
        Communicator
            The channel of the new epoch, `communicator` from then on. Its `ranks` are their numbers in the world.

        Raises
        ------
        RankFailed
            This rank has failed itself (`fail`), and the others go on without it.
        OptionError
            The policy of a world over MPI is ``end``; or `replace` is no number, or not possible (`can_replace`).

        Examples
        --------
        Rank 1 dies, and another one joins in its place:

        >>> import collectives as cc
        >>> from collectives.testing import faults
        >>> def program():
        ...     world = cc.World.current()
        ...     if not world.is_replacement:
        ...         try:
        ...             cc.world().barrier()
        ...         except cc.RankFailed:
        ...             world.survivors(replace=True)
        ...     return cc.world().ranks, world.is_replacement
        >>> with faults.injected("kill:1@1"), cc.World("threads", 3, policy="raise") as world:
        ...     world.run(program)
        [((0, 1, 2), False), ((0, 1, 2), True), ((0, 1, 2), False)]
        """
        if not isinstance(replace, int) or replace < 0:
            raise OptionError(
                f"World.survivors(replace={replace!r}) was given; needed: a whole number, or whether to replace"
            )
        if replace and not self.can_replace:
            raise OptionError(
                f"World.survivors(replace={replace!r}) of {self!r}; needed: World('threads', policy='raise'), the only "
                "kind that starts ranks again\n  fix: survivors(), which goes on without the ranks that have died"
            )
        found = self._job.survivors(self.communicator, math.inf if replace is True else replace, finished)
        if self._communicator is not None:
            self._former.add(self._communicator)
            self._communicator = found
        if _current.world is self:
            _current.communicator = found
        return found

    @property
    def is_on_first_host(self) -> bool:
        """Whether this rank is on the host of rank 0."""
        return self._job.is_on_first_host

    @property
    def is_lost(self) -> bool:
        """Whether this rank has failed, and no other one is left that could go on."""
        return self._job.is_lost

    def announce_end(self) -> None:
        """Send the other hosts that this rank ends the job. `job.failure` calls it before it ends the job."""
        self._job.announce_end()

    def receive_end(self) -> bool:
        """Whether a rank of another host has just sent that it ends the job."""
        return self._job.receive_end()

    def leave(self, why: str) -> Iterator[None]:
        """Wait at exit until all ranks leave. The exit handler of `job.failure` calls it."""
        return self._job.leave(why)

    def close(self) -> None:
        """Leave the world and free its resources. Over MPI all ranks call it. A second call does nothing."""
        if self.is_closed:
            return
        is_left = self._job.close()
        self.is_closed = True
        self._communicator = None
        if _current.world is self:
            _current.world = _current.communicator = None
        if is_left and self in process.worlds:
            process.worlds.remove(self)


@contextmanager
def _entered(new: World | None, communicator: Communicator) -> Iterator[None]:
    """Make a world current on this thread, with no current mesh."""
    before = _current.world, _current.communicator, state.distribution, state.grid, state.dry
    _current.world, _current.communicator = new, communicator
    state.distribution, state.grid = ALONE, None
    state.dry = communicator.dry
    try:
        yield
    finally:
        _current.world, _current.communicator, state.distribution, state.grid, state.dry = before


def world() -> Communicator:
    """The communicator of all ranks of the current world: see `World.current`.

    It is the same object for the life of the world. mpi4py is imported only under mpiexec with two or more ranks.

    Returns
    -------
    Communicator

    Examples
    --------
    >>> world().size
    1
    """
    communicator = World.current().communicator
    if communicator.size.__class__ is int:
        communicator.size = size_of(communicator.size, *communicator.axes)  # remembered in products and quotients
    return communicator


@contextmanager
def replaced_world(communicator: Communicator) -> Iterator[None]:
    """Inside the block, make `world` return another communicator on this thread."""
    before, _current.communicator = World.current().communicator, communicator
    try:
        yield
    finally:
        _current.communicator = before


@typed_errors
def run(program: Callable[..., T], ranks: int = 4, *args: Any) -> list[T]:
    """Run `program(*args)` on each of `ranks` threads of this process, in a new world.

    Equivalent to ``World("threads", ranks).run(program, *args)``, where errors are described too.

    Parameters
    ----------
    program : callable
        The function that every rank runs; inside it `world()` is the new world.
    ranks : int
        The number of ranks.
    *args
        Passed to the program on every rank.

    Returns
    -------
    list
        The return values of the program, in order of rank.

    Raises
    ------
    DeadlockError
        All ranks wait for each other, or for a rank that has finished.
    Exception
        The error of the first rank that failed.

    Examples
    --------
    >>> run(lambda: world().rank, 3)
    [0, 1, 2]
    """
    with World("threads", ranks) as local:
        return local.run(program, *args)


def _why(error: BaseException) -> str:
    """The reason that other ranks receive for an error."""
    if isinstance(error, SystemExit):
        return f"exited early, with code {error.code}"
    import traceback  # needed only where a rank fails

    text = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    return f"raised {text[0] if text else type(error).__name__}"


def in_order(text: object) -> None:
    """Print the text of every rank on rank 0, in order of rank. All ranks call it.

    Parameters
    ----------
    text : object
        ``str(text)`` is printed, each line after the number of the rank.

    Examples
    --------
    >>> import collectives as cc
    >>> _ = cc.run(lambda: cc.in_order(f"half of {cc.world().rank}"), ranks=2)
    [rank 0] half of 0
    [rank 1] half of 1
    """
    everyone = world()
    texts = everyone.exchange(str(text).encode())
    if everyone.dry:
        texts = texts[:1]
    if everyone.index == 0:
        for rank, each in enumerate(texts):
            for line in each.decode().splitlines():
                print(f"[rank {rank}] {line}", flush=True)
