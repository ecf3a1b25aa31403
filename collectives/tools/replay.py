"""``python -m collectives replay run.rtr``: runs a recorded program again, in one process, with equal bits.

A record with its data replays each rank alone: ranks that were processes one after another, and none of them waits for
another one. A record of the order of calls replays all ranks together, on threads.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from typing import Any

from autograd.environment import VARIABLES
from autograd.errors import (
    ArgumentError,
    CommunicationError,
    MeshError,
    OptionError,
    RankFailed,
    is_own_file,
    short,
    short_site,
)
from autograd.random import State, set_state
from autograd.records.text import shown_value

from ..inspect.record import OperationRecord, RankRecords
from ..inspect.recorder import recording_operations
from ..transports.program_facts import NUMBERS_OF_THREADS, bits
from ..transports.replays.comparing import Difference, Differences, Ended
from ..transports.replays.order import OrderJob
from ..transports.replays.recorded import Record
from ..transports.replays.replaying import replaying
from ..world import World, world
from .replayed_program import Subject, generators_of_ranks, subject_of
from .show import no_handlers_of_threads
from .stopping import Place, Reached, Stopped, found_file, place_of, stopping

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Run a recorded program again in one process, with the bits that it had."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `replay`."""
    parser.add_argument("record", help="the folder that cc.record or RINGTAPE_RECORD wrote")
    parser.add_argument("--program", metavar="FILE", help="run this program: needed if it has changed since")
    parser.add_argument("--module", metavar="NAME", help="run this module, as python -m does")
    parser.add_argument(
        "--rank", type=int, metavar="R",
        help="replay this rank alone, if it was a process and has its data; with --to or --pdb, the rank that stops",
    )  # fmt: skip
    parser.add_argument(
        "--to", metavar="PLACE", help="stop at a step counted from 0, a line as train.py:41, or operation:57"
    )
    parser.add_argument("--pdb", action="store_true", help="under Python's debugger; needs --rank")
    parser.add_argument("--first-nan", action="store_true", help="name the first operation with a value not finite")
    parser.add_argument("--started-again", action="store_true", help=argparse.SUPPRESS)  # with the record's variables
    parser.add_argument("--first-difference", metavar="OTHER", help="name the first operation that differs from OTHER")
    parser.add_argument("--other-program", metavar="FILE", help="the program of OTHER, if it has changed since")
    parser.epilog = "Arguments after -- take the place of the recorded ones."
    parser.set_defaults(arguments=[])


def main(args: argparse.Namespace) -> int:
    """Replay. Returns 0, 1 if a rank failed, differs or an operation was named, or 2 for invalid options."""
    try:
        record = Record(args.record)
        other = Record(args.first_difference) if args.first_difference else None
        if problem := _problem(args, record):
            print(f"replay: {problem}", file=sys.stderr)
            return 2
        subject = subject_of(record, args.program, args.module, args.arguments)
        theirs = None
        if other is not None:  # the program that is named for it, or for both if they have one program
            file, module = args.other_program, None
            if file is None and other.any["program"] == record.any["program"]:
                file, module = args.program, args.module
            theirs = subject_of(other, file, module, [])
        _restart(record, args.started_again)
        for text in subject.changes(record):
            if not text.startswith("the variable"):  # which may be of no matter
                print(f"replay: changed since the record: {text}", file=sys.stderr)
        for name, here in bits().items():
            if (then := record.any["bits"].get(name)) != here:
                print(f"replay: bits may differ: {name} was {short(then)}, here it is {here}", file=sys.stderr)
        found, differences = _run(record, subject, args, values=args.first_nan or other is not None)
        if differences.first is not None:
            _tell_first(differences.first, subject.changes(record))
        if args.first_nan:
            return _named("no value that is not finite", _first(found, _is_not_finite))
        if other is not None and theirs is not None:
            others = _run(other, theirs, args, values=True)[0]
            return _named_difference(found, others, args.record, args.first_difference)
        return int(differences.first is not None or any(of.error for of in found))
    except (CommunicationError, ArgumentError, MeshError, OptionError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2


def _tell_first(first: Difference, changes: list[str]) -> None:
    print(f"replay: first difference from the record: on rank {first.rank}, {first.text}")
    if changes:
        print(f"replay: changed since the record: {'; '.join(changes)}")
    else:
        print("replay: its text and variables have not changed; a file that it reads may have, or it depends on the "
              "time or on random numbers without a seed")  # fmt: skip


def _problem_of_rank(args: argparse.Namespace, record: Record) -> str:
    if args.rank is not None and args.rank not in record.facts:
        return f"--rank {args.rank} was given; {args.record} has the ranks {', '.join(map(str, sorted(record.facts)))}"
    if args.pdb and args.rank is None:
        return "--pdb was given without --rank. Fix: --rank 0 --pdb"
    if args.rank is not None and not record.has_data and not (args.to or args.pdb):
        return (
            f"--rank {args.rank} was given; {args.record} has the order of the calls, and not their results, so all "
            "ranks run together\n  fix: without --rank, or record with RINGTAPE_RECORD_DATA=1"
        )
    return ""


def _problem(args: argparse.Namespace, record: Record) -> str:
    if problem := _problem_of_rank(args, record):
        return problem
    if args.to:
        place_of(args.to)
        if args.first_nan or args.first_difference:
            return "--to was given with --first-nan or --first-difference, which run to the end; needed: one of them"
    if args.program and args.module:
        return "--program and --module were given; needed: one of them"
    if record.any["program"] is None and not (args.program or args.module):
        return f"{args.record} was recorded in an interactive session, which has no program to run"
    if not record.has_data and len(record.facts) < record.any["size"]:
        missing = next(rank for rank in range(record.any["size"]) if rank not in record.facts)
        return f"{args.record} has no file rank-{missing}; needed: those of all {record.any['size']} ranks, or its data"
    return ""


def _restart(record: Record, is_done: bool) -> None:
    """Start this process again with the variables of the record: NumPy and ringtape read them when they start."""
    wanted = dict(os.environ)
    for name in (*(name for name, of in VARIABLES.items() if of.is_replayed), *NUMBERS_OF_THREADS):
        wanted.pop(name, None)
    wanted |= record.any["environment"]
    for name in ("RINGTAPE_RECORD", "RINGTAPE_RECORD_DATA", "RINGTAPE_FAULTS"):
        os.environ.pop(name, None)
        wanted.pop(name, None)
    if wanted != os.environ and not is_done:
        sys.stdout.flush()
        again = [sys.executable, "-m", "collectives", sys.argv[1], "--started-again", *sys.argv[2:]]
        os.execve(sys.executable, again, wanted)


def _run(
    record: Record, subject: Subject, args: argparse.Namespace, values: bool
) -> tuple[list[RankRecords], Differences]:
    """Run the ranks, and return their operations if `values` are wanted, and how they differed."""
    differences = Differences(lambda each: print(
        f"replay: rank {each.rank} differs from here: {each.text}", file=sys.stderr, flush=True))  # fmt: skip
    job = _Replay(record, subject, args, values, differences)
    found = job.together() if not record.has_data and record.of_processes else job.alone()
    if args.to and not any(each.is_reached for each in job.reached):
        raise ArgumentError(f"--to {args.to} was not reached: {_how_far(job.place, job.reached)}")
    return found, differences


def _place(args: argparse.Namespace, subject: Subject) -> tuple[Place, str] | None:
    """Where the options say that a rank stops, with the path of the file of a line."""
    if not (args.to or args.pdb):
        return None
    place = place_of(args.to) if args.to else Place("line", subject.first_line, subject.program.path)
    return place, found_file(place, subject.program.path, subject.folder) if place.kind == "line" else ""


def _how_far(place: tuple[Place, str] | None, reached: list[Reached]) -> str:
    kind = "" if place is None else place[0].kind
    if kind == "line" or not reached:
        return "the program ended before it came to this line"
    most = max(each.steps if kind == "step" else each.operations for each in reached)
    return f"the program ended after {most} {kind}s"


class _Replay:
    """The replay of a record by a program.

    Parameters
    ----------
    record : Record
    subject : Subject
    args : Namespace
    values : bool
        Whether the records of operations are wanted.
    differences : Differences

    Attributes
    ----------
    place : (Place, str) or None
        Where a rank stops, with the path of the file of a line.
    reached : list of Reached
        Of the ranks that are to stop.
    """

    def __init__(
        self, record: Record, subject: Subject, args: argparse.Namespace, values: bool, differences: Differences
    ):
        self.record, self.subject, self.args, self.values = record, subject, args, values
        self.differences = differences
        self.place = _place(args, subject)
        self.reached: list[Reached] = []

    def together(self) -> list[RankRecords]:
        """Run ranks that were processes as threads, which communicate."""
        found = [RankRecords(rank) for rank in range(self.record.any["size"])]
        subject, stopped = self.subject, list[int]()
        given = self.record.any["arguments"]
        if not self.args.arguments and any(each["arguments"] != given for each in self.record.facts.values()):
            raise CommunicationError(
                f"the ranks of {self.record.folder} have different arguments; needed: equal ones, for all ranks run in "
                "one process\n  fix: record with RINGTAPE_RECORD_DATA=1"
            )
        code = subject.code

        def program(rank: int) -> None:
            own = found[rank]
            try:
                with self._recording(own), self._stopping(rank):
                    subject.run(code, is_main=False)
            except BaseException as error:
                if isinstance(error, Stopped | BdbQuit):
                    stopped.append(rank)
                if stopped and isinstance(error, RankFailed):
                    print(f"replay: rank {rank} waits{_place_of(error).replace(chr(10), '')}", flush=True)
                else:
                    _note_end(own, f"rank {rank}", error)
                raise

        with (
            subject.as_recorded(), no_handlers_of_threads(), generators_of_ranks(),
            replaying(self.record, differences=self.differences) as order, suppress(*_ENDS),
        ):  # fmt: skip
            # Each rank has said how it ended; the error of one of them ends all.
            OrderJob.run_processes(order, program)
        return found

    def alone(self) -> list[RankRecords]:
        """Run ranks that were processes one after another, or a program whose ranks were threads once."""
        found: list[RankRecords] = []
        is_threads, record, wanted = not self.record.of_processes, self.record, self.args.rank
        ranks = [record.any["rank"]] if is_threads else sorted(record.facts) if wanted is None else [wanted]
        for rank in ranks:
            own, subject = RankRecords(rank), self.subject
            if not self.args.arguments:
                subject = subject._replace(arguments=record.facts[rank]["arguments"])
            with subject.as_recorded(), replaying(record, rank, self.differences):
                # A thread of its own has its own tape, mesh and random state.
                run = partial(self._on_threads if is_threads else self._of_rank, subject, own, found)
                thread = threading.Thread(target=run, name=f"rank {rank}")
                thread.start()
                thread.join()
            if not is_threads or own.error:
                found.append(own)
        return found

    def _of_rank(self, subject: Subject, own: RankRecords, found: list[RankRecords]) -> None:
        set_state(State())  # of random keys, as that of the process that it was
        try:
            with no_handlers_of_threads(), self._recording(own), self._stopping(own.rank):
                subject.run(subject.code, is_main=True)
        except BaseException as error:
            _note_end(own, f"rank {own.rank}", error)
            self.differences.failed[own.rank] = type(error).__name__

    def _on_threads(self, subject: Subject, own: RankRecords, found: list[RankRecords]) -> None:
        def wrap(program: Callable[..., Any]) -> Callable[..., Any]:
            def recorded(*given: Any) -> Any:
                rank = int(world().rank)
                of = RankRecords(rank)
                if self.values:
                    found.append(of)
                with self._recording(of), self._stopping(rank):
                    return program(*given)

            return recorded

        World.wrappers.append(wrap)
        set_state(State())
        try:
            with no_handlers_of_threads():
                subject.run(subject.code, is_main=True)
        except BaseException as error:
            _note_end(own, "the program", error)
            for rank in self.record.facts:
                self.differences.failed.setdefault(rank, type(error).__name__)
        finally:
            World.wrappers.remove(wrap)

    @contextmanager
    def _recording(self, own: RankRecords) -> Iterator[None]:
        """Record the operations of this rank, if they are wanted."""
        if not self.values:
            yield
            return
        with recording_operations() as operations:
            own.records = operations.records
            yield

    @contextmanager
    def _stopping(self, rank: int) -> Iterator[None]:
        """Stop this rank where the options say so."""
        if self.place is None or self.args.rank not in (None, rank):
            yield
            return
        with stopping(*self.place, self.args.pdb) as reached:
            self.reached.append(reached)
            yield


_ENDS = (Exception, SystemExit, Stopped, BdbQuit)
"""What ends the ranks of a replay. An interrupt ends the replay."""


def _note_end(own: RankRecords, who: str, error: BaseException) -> None:
    """Say how a rank ended."""
    if isinstance(error, Stopped | Ended):
        print(f"replay: {who} stops {'at' if isinstance(error, Stopped) else 'with'} {error}", flush=True)
    if isinstance(error, Stopped | Ended | BdbQuit):  # or the user has left the debugger
        return
    own.error = str(error) or type(error).__name__
    print(f"replay: {who} ends by {type(error).__name__}: {error}{_place_of(error)}", file=sys.stderr, flush=True)


def _place_of(error: BaseException) -> str:
    """The program's line at which an error was raised, unless its text ends with it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_own_file(f.filename) and f.lineno]
    at = short_site(frames[-1].filename, frames[-1].lineno or 0) if frames else ""
    return "" if not at or str(error).endswith(at) else f"\n  at {at}"


def _is_not_finite(of: RankRecords, k: int) -> bool:
    value = of.records[k].value
    return value is not None and value.not_finite > 0


def _first(
    found: list[RankRecords], is_it: Callable[[RankRecords, int], bool]
) -> tuple[RankRecords, OperationRecord] | None:
    """The first such operation of all ranks: one that no communication brought, after the fewest calls."""
    places = []
    for of in found:
        calls = 0
        for k, record in enumerate(of.records):
            own = len([call for call in record.calls if not call.is_control])
            if is_it(of, k):
                places.append((calls, own > 0, of.rank, of, record))
                break
            calls += own
    if not places:
        return None
    *_, of, record = min(places, key=lambda place: place[:3])
    return of, record


def _named(nothing: str, found: tuple[RankRecords, OperationRecord] | None) -> int:
    if found is None:
        print(f"replay: {nothing}")
        return 0
    of, record = found
    print(f"replay: first: {_shown(of, record)}")
    print(f"replay: to stop there: --rank {of.rank} --to operation:{record.id} --pdb")
    return 1


def _named_difference(found: list[RankRecords], others: list[RankRecords], name: str, other_name: str) -> int:
    """Name the first operation whose values differ, or that only one of two replays has."""
    nothing: dict[int, RankRecords] = {}
    for mine, theirs in zip_longest(_runs(found), _runs(others), fillvalue=nothing):
        if _named_difference_of_run(mine, theirs, name, other_name):
            return 1
    print("replay: no difference")
    return 0


def _runs(found: list[RankRecords]) -> list[dict[int, RankRecords]]:
    """The records by rank, for each time that the program has run its ranks."""
    runs: list[dict[int, RankRecords]] = []
    for of in found:
        run = next((run for run in runs if of.rank not in run), None)
        if run is None:
            runs.append(run := {})
        run[of.rank] = of
    return runs


def _named_difference_of_run(
    found: dict[int, RankRecords], theirs: dict[int, RankRecords], name: str, other_name: str
) -> bool:
    rank_only = sorted(found.keys() ^ theirs.keys())
    both = [(of, theirs[rank]) for rank, of in found.items() if rank in theirs]

    def differs(of: RankRecords, at: int) -> bool:
        records = theirs[of.rank].records
        if at >= len(records):
            return True
        one, two = of.records[at], records[at]
        return (one.name, one.direction, one.value) != (two.name, two.direction, two.value)

    longer = [of for mine, of in both if len(of.records) > len(mine.records)]
    mine = {of.rank: len(of.records) for of, _ in both}
    first = _first([of for of, _ in both], differs)
    extra = _first(longer, lambda of, at: at >= mine[of.rank])
    if first is not None and extra is not None and _calls_before(*extra) < _calls_before(*first):
        first = None
    chosen = first or extra
    if chosen is None:
        if rank_only:
            print(f"replay: only {name if rank_only[0] in found else other_name} runs rank {rank_only[0]}")
        return bool(rank_only)
    of, record = chosen
    if first is None or record.id >= len(theirs[of.rank].records):
        print(f"replay: first: only in {other_name if first is None else name}: {_shown(of, record)}")
    else:
        there = theirs[of.rank].records[record.id]
        print(f"replay: first: {_shown(of, record)}")
        print(f"replay: in {other_name}: {_shown(theirs[of.rank], there)}")
    print(f"replay: to stop there: --rank {of.rank} --to operation:{record.id} --pdb")
    return True


def _calls_before(of: RankRecords, record: OperationRecord) -> int:
    """The communication of a rank before one of its operations."""
    return sum(not call.is_control for each in of.records[: record.id] for call in each.calls)


def _shown(of: RankRecords, record: OperationRecord) -> str:
    """An operation with its place, its rank and its value."""
    scope = f" in {'.'.join(record.scope)}" if record.scope else ""
    at = short_site(record.file, record.line) if record.file else "an unknown line"
    value = record.error or shown_value(record.value)
    return f"{record.direction} {record.name}{scope} at {at}, on rank {of.rank}: {value}"
