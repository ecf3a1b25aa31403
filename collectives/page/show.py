"""Record a part of a program on all ranks, and make its page: `show`.

At the end of the block rank 0 gathers the records and writes the page. If a rank raises, no rank may wait for another
one, so the records are collected beside the communication: ranks that are threads see each other's records in memory.
Ranks that are processes write theirs to files once one of them asks, by a folder that only their user can enter, for
which a thread of each process looks; the rank that asked makes the page of all that it finds. The files are JSON.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from autograd.errors import ArgumentError, MeshError, check_callable, short, typed_errors
from autograd.files import PrivateFolder, temporary
from autograd.records.plain import packed, unpacked

from ..inspect.clocks import Clock, Offset, correct_records, measure_offsets
from ..inspect.record import CallOf, Contribution, OperationRecord, RankRecords, Summary
from ..inspect.recorder import recording_operations
from ..inspect.timeline import gathered
from ..inspect.topology import Topology
from ..job.failure import process
from ..transports.job import job_of
from ..transports.protocol import Communicator
from ..world import World, world
from .data import check_selection
from .document import Page, page

__all__ = ["Show", "show"]

_THREADS_S = 0.3  # how long a rank that raised waits for the threads that raise the same
_FILES_S = 5.0  # how long it waits for the files of other processes
_WRITING_S = 10.0  # how long another rank that raised waits until the page is written
_PAUSE_S = 0.05
_KINDS = (RankRecords, OperationRecord, CallOf, Contribution, Summary)
"""The classes of records, by their number in the files and messages of ranks."""
_ASKS = "asks"  # the file by which the folder of a rank that asks is told from another one of the same user


@typed_errors
def show(
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    only: Sequence[int] | None = None,
    steps: tuple[int, int] | None = None,
    values: bool = True,
    predicted: Topology | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Show:
    """Record the operations of all ranks inside a ``with`` block, and write an HTML page of them at its end.

    All ranks enter and leave the block together. The page contains values of small arrays, summaries of others, and the
    program's source around each line that ran: pass it on with care.

    Parameters
    ----------
    path : path, optional
        The file that rank 0 writes. Without it the page is only kept, for a notebook.
    title : str
        The title of the page; by default the name of the file.
    only : sequence of int, optional
        The world ranks to show. By default all.
    steps : (int, int), optional
        The first step of training to show, counted from 0, and the step after the last. A step ends with the step of an
        optimizer.
    values : bool
        Whether values are recorded and shown. Without them no copies are compared.
    predicted : Topology, optional
        The machine for which times are predicted, as another horizontal axis; see `collectives.page.page`.
    clock : callable, optional
        Returns the time on this rank in nanoseconds; for tests. The page has all times by rank 0's clock.

    Returns
    -------
    Show
        After the block, `page` is the page on rank 0, and None on other ranks.

    Raises
    ------
    MeshError
        In a dry world, whose arrays have no values and no times.
    ArgumentError
        Ranks that are not in the world; or, at the end, steps that the program has not run. The page then has all.

    Notes
    -----
    If a rank raises inside the block, the page has what is known of all ranks up to then, and the error is raised. A
    rank that is killed leaves no page. Ranks on hosts that share no folder with the failed rank are then missing.

    Examples
    --------
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.show() as shown, cc.Mesh(dp=2):
    ...         x = cc.all_reduce(ag.tensor([1.0, 2.0]), "dp", to=cc.R)
    ...     return shown.page
    >>> cc.run(program, ranks=2)[1] is None
    True
    """
    return Show(path, title, only, steps, values, predicted, clock)


@typed_errors
class Show:
    """A recording of all ranks and its page, made by `show`.

    Attributes
    ----------
    page : Page or None
        The page, on rank 0 after the block; after an error, on the ranks that raised.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, title: str, only: Sequence[int] | None,
        steps: tuple[int, int] | None, values: bool, predicted: Topology | None, clock: Clock,
    ):  # fmt: skip
        self.path = None if path is None else os.fspath(path)
        self.page: Page | None = None
        check_selection(only, steps)
        self._options: dict[str, Any] = {
            "title": title or (os.path.basename(self.path) if self.path else ""), "only": only, "steps": steps,
            "values": values, "predicted": predicted,
        }  # fmt: skip
        check_callable(clock, "show")
        if predicted is not None and not isinstance(predicted, Topology):
            raise ArgumentError(
                f"show(predicted={short(predicted)}) was given; needed: a machine\n"
                "  fix: predicted=cc.Topology(8, inside=cc.Link(2e-6, 100e9), between=cc.Link(5e-6, 12e9))"
            )
        self._clock = clock
        self._starts: list[Offset] = []  # by rank, on all ranks: one that fails writes the page
        self._ends: list[Offset] = []
        self._exit: ExitStack | None = None
        self._channel: Communicator | None = None
        self._exchange: _Threads | _Files | None = None

    def __enter__(self) -> Show:
        if self._exit is not None:
            raise MeshError("this page was recorded before. Fix: make a new cc.show(...) for each with block")
        everyone = world()
        if everyone.dry:
            raise MeshError("show: the current world is a dry run, whose arrays have no values; needed: real ranks")
        only = self._options["only"]
        if only is not None and not all(0 <= rank < everyone.size for rank in only):
            raise ArgumentError(
                f"show(only={list(only)}) was given; needed: ranks from 0 to {everyone.size - 1}\n"
                "  fix: leave `only` out to show all ranks"
            )
        self._channel = channel = everyone.duplicate("show")
        token = channel.exchange(os.urandom(16).hex().encode())[0].decode()
        kind: Any = _Files if job_of(World.current().kind).has_processes and channel.size > 1 else _Threads
        self._exchange = kind(token, self.path, RankRecords(int(channel.rank)), channel.size, self._write)
        self._exchange.open()
        measured = measure_offsets(channel, clock := self._clock)
        self._starts = unpacked(channel.exchange(packed(measured, (Offset,)))[0], (Offset,))
        channel.barrier()  # no rank fails before all can give their records
        self._exit = ExitStack()
        self._exchange.own = self._exit.enter_context(
            recording_operations(values=bool(self._options["values"]), clock=clock)
        )
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        assert self._exit is not None and self._exchange is not None and self._channel is not None
        self._exit.__exit__(kind, error, traceback)
        try:
            if error is not None:  # that the page cannot be written is no reason to hide it
                try:
                    self._exchange.failed()
                except Exception as problem:
                    error.add_note(f"the page of the failed program was not written: {problem}")
                return
            self._ends = measure_offsets(self._channel, self._clock)
            records = self._exchange.gathered(self._channel)
            if records is not None:
                self._write(records)
        finally:
            self._exchange.close()

    def _repr_html_(self) -> str:
        return "" if self.page is None else self.page._repr_html_()

    def _write(self, records: Sequence[RankRecords]) -> None:
        known = {of.rank for of in records}
        for of in records:  # copies; after a failure the offsets at the end are not known
            correct_records(of, self._starts[of.rank], (self._ends or self._starts)[of.rank])
        options = dict(self._options)
        if options["only"] is not None:  # after a failure, records of some ranks may be missing
            options["only"] = [rank for rank in options["only"] if rank in known]
        try:
            self.page = page(records, self.path, **options)
        except ArgumentError as error:  # the program has not run these steps
            self.page = page(records, self.path, **options | {"steps": None})
            error.add_note("the page has all operations instead")
            raise


class _Threads:
    """Ranks that are threads of this process, or one rank: they see each other's records."""

    running: dict[str, _Threads] = {}
    """By token: what the ranks of one block share."""

    def __init__(
        self, token: str, path: str | None, own: RankRecords, size: int,
        write: Callable[[Sequence[RankRecords]], None],
    ):  # fmt: skip
        self.own = own
        self._token, self._size, self._write = token, size, write
        self._condition = threading.Condition()
        self._ranks: list[_Threads] = []
        self._left: set[int] = set()
        self._is_written = False

    def open(self) -> None:
        self._shared = shared = self.running.setdefault(self._token, self)
        with shared._condition:
            shared._ranks.append(self)

    def gathered(self, channel: Communicator) -> list[RankRecords] | None:
        channel.barrier()
        return self._known() if channel.index == 0 else None

    def failed(self) -> None:
        """Write the page: at once if all ranks have left the block, else after a moment; and once more at the end."""
        shared = self._shared
        with shared._condition:
            shared._left.add(self.own.rank)
            shared._condition.notify_all()
            if len(shared._left) < self._size:
                shared._condition.wait_for(lambda: len(shared._left) == self._size, _THREADS_S)
                if shared._is_written:
                    return
            shared._is_written = True
            self._write(self._known())

    def _known(self) -> list[RankRecords]:
        return [_copied(each.own) for each in sorted(self._shared._ranks, key=lambda each: int(each.own.rank))]

    def close(self) -> None:
        self.running.pop(self._token, None)


class _Files:
    """Ranks that are processes: after a failure they write their records to files in a private folder."""

    def __init__(
        self, token: str, path: str | None, own: RankRecords, size: int,
        write: Callable[[Sequence[RankRecords]], None],
    ):  # fmt: skip
        self.own = own
        above = temporary() if path is None else os.path.dirname(os.path.abspath(path))
        self._folder = os.path.join(above, f".ringtape-show-{token}")
        self._size, self._write = size, write
        self._is_closed = threading.Event()
        self._given = threading.Lock()
        self._watch = threading.Thread(target=self._answer, name="ringtape page", daemon=True)

    def open(self) -> None:
        process.before_end.append(self._end)
        self._watch.start()

    def gathered(self, channel: Communicator) -> list[RankRecords] | None:
        return gathered(channel, self.own, _KINDS)

    def failed(self) -> None:
        """Ask the others for their records and write the page; or, if another rank has asked, wait until it is done."""
        try:
            made = PrivateFolder.make(self._folder)
        except FileExistsError:
            self._give()
            _wait(lambda: not os.path.lexists(self._folder), _WRITING_S)
            return
        with made as folder:
            folder.write(_ASKS, b"")
            self._give_to(folder)
            _wait(lambda: len(_given(folder)) == self._size, _FILES_S)
            records = [unpacked(folder.read(name), _KINDS) for name in _given(folder)]
            self._write(sorted(records, key=lambda of: int(of.rank)))

    def close(self) -> None:
        self._is_closed.set()
        if self._end in process.before_end:
            process.before_end.remove(self._end)

    def _end(self, text: str) -> None:
        """Write the page before the job ends, as after a deadlock, which raises nothing."""
        if not self._is_closed.is_set():
            self.own.error = self.own.error or text
            self.failed()

    def _answer(self) -> None:
        """Give the records once another rank has asked for them."""
        while not self._is_closed.wait(_PAUSE_S):
            if self._give():
                return

    def _give(self) -> bool:
        """Give the records if a rank of this user asks for them: nobody else can have made such a folder."""
        folder = PrivateFolder.find(self._folder)
        if folder is None:
            return False
        with folder:
            if not folder.has(_ASKS):
                return False
            self._give_to(folder)
            return True

    def _give_to(self, folder: PrivateFolder) -> None:
        with self._given:
            name = f"{self.own.rank}.records"
            if not folder.has(name):
                folder.write(name, packed(_copied(self.own), _KINDS))


def _given(folder: PrivateFolder) -> list[str]:
    return [name for name in folder.names() if name.endswith(".records")]


def _copied(of: RankRecords) -> RankRecords:
    """The records at this moment; another thread may add to them."""
    return replace(of, records=[replace(record, calls=list(record.calls)) for record in list(of.records)])


def _wait(is_done: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not is_done() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S / 5)
