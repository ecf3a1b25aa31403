"""``python -m collectives replay run.rtr``: runs a recorded program again, in one process, with equal bits.

A record with its data replays each rank alone: ranks that were processes one after another, and none of them waits for
another one. A record of the order of calls replays all ranks together, on threads.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import threading
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import CodeType
from typing import Any

from autograd.errors import ArgumentError, CommunicationError, MeshError, RankFailed, is_own_file, short_site
from autograd.records.text import shown_value

from ..inspect.record import OperationRecord, RankRecords
from ..inspect.recorder import recording_operations
from ..transports.recording import bits
from ..transports.replays.order import Order, OrderJob
from ..transports.replays.recorded import Record
from ..transports.replays.replaying import replaying
from ..world import World, world
from .show import no_handlers_of_threads
from .stopping import Place, Stopped, found_file, place_of, stopping

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Run a recorded program again in one process, with the bits that it had."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `replay`."""
    parser.add_argument("record", help="the folder that cc.record or RINGTAPE_RECORD wrote")
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


def main(args: argparse.Namespace) -> int:
    """Replay. Returns 0, 1 if a rank failed or an operation was named, or 2 for invalid options."""
    try:
        record = Record(args.record)
        other = Record(args.first_difference) if args.first_difference else None
        if problem := _problem(args, record):
            print(f"replay: {problem}", file=sys.stderr)
            return 2
        _restart(record, args.started_again)
        for name, here in bits().items():
            if (then := record.any["bits"].get(name)) != here:
                print(f"replay: bits may differ: {name} was {then}, here it is {here}", file=sys.stderr)
        found, order = _run(record, args, values=args.first_nan or other is not None)
        if order.first is not None:
            print(f"replay: first difference from the record: on rank {order.first.rank}, {order.first.text}")
        if args.first_nan:
            return _named("no value that is not finite", _first(found, lambda of, k: _is_bad(of.records[k])))
        if other is not None:
            theirs = {of.rank: of for of in _run(other, args, values=True)[0]}
            return _named("no difference", _first(found, lambda of, k: _differs(of, theirs.get(of.rank), k)))
        return int(order.first is not None or any(of.error for of in found))
    except (CommunicationError, ArgumentError, MeshError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2


def _problem(args: argparse.Namespace, record: Record) -> str:
    if args.rank is not None and args.rank not in record.facts:
        return f"--rank {args.rank} was given; {args.record} has the ranks {', '.join(map(str, sorted(record.facts)))}"
    if args.pdb and args.rank is None:
        return "--pdb was given without --rank. Fix: --rank 0 --pdb"
    if args.rank is not None and not record.has_data and not (args.to or args.pdb):
        return (
            f"--rank {args.rank} was given; {args.record} has the order of the calls, and not their results, so all "
            "ranks run together\n  fix: without --rank, or record with RINGTAPE_RECORD_DATA=1"
        )
    if args.to:
        place = place_of(args.to)
        if place.kind == "line" and record.any["program"]:
            found_file(place, record.any["program"], record.any["folder"])
        if args.first_nan or args.first_difference:
            return "--to was given with --first-nan or --first-difference, which run to the end; needed: one of them"
    if record.any["program"] is None:
        return f"{args.record} was recorded in an interactive session, which has no program to run"
    return ""


def _restart(record: Record, is_done: bool) -> None:
    """Start this process again with the variables of the record: NumPy and ringtape read them when they start."""
    wanted = {k: v for k, v in record.any["environment"].items() if k not in ("RINGTAPE_RECORD", "RINGTAPE_FAULTS")}
    now = dict(os.environ)
    now.pop("RINGTAPE_RECORD", None)
    now.pop("RINGTAPE_FAULTS", None)
    if any(now.get(name) != value for name, value in wanted.items()) and not is_done:
        sys.stdout.flush()
        again = [sys.executable, "-m", "collectives", *sys.argv[1:], "--started-again"]
        os.execve(sys.executable, again, now | wanted)
    for name in ("RINGTAPE_RECORD", "RINGTAPE_FAULTS"):
        os.environ.pop(name, None)


def _run(record: Record, args: argparse.Namespace, values: bool) -> tuple[list[RankRecords], Order]:
    """Run the ranks, and return their operations if `values` are wanted, and how their order differed."""
    found: list[RankRecords] = []
    is_threads = record.any["kind"] == "threads"
    if not record.has_data and not is_threads:
        return _together(record, args, values)
    for rank in [record.any["rank"]] if is_threads else sorted(record.facts) if args.rank is None else [args.rank]:
        own = RankRecords(rank)
        with _as_recorded(record.facts[rank]), replaying(record, rank) as order:
            # A thread of its own has its own tape, mesh and random state.
            thread = threading.Thread(target=_rank, args=(record, own, args, values, found), name=f"rank {rank}")
            thread.start()
            thread.join()
        if not is_threads or own.error:
            found.append(own)
    return found, order


def _together(record: Record, args: argparse.Namespace, values: bool) -> tuple[list[RankRecords], Order]:
    """Run ranks that were processes as threads, which communicate."""
    found = [RankRecords(rank) for rank in range(record.any["size"])]
    facts, stopped = record.any, list[int]()
    if any(each["arguments"] != facts["arguments"] for each in record.facts.values()):
        raise CommunicationError(
            f"the ranks of {record.folder} have different arguments; needed: equal ones, for all ranks run in one "
            "process\n  fix: record with RINGTAPE_RECORD_DATA=1"
        )
    with _as_recorded(facts), no_handlers_of_threads(), replaying(record) as order:
        code = _code(facts)

        def program(rank: int) -> None:
            own = found[rank]
            try:
                with recording_operations() if values else nullcontext() as operations:
                    if operations is not None:
                        own.records = operations.records
                    with _stopping(args, facts, rank):
                        _executed(code, facts)
            except BaseException as error:
                if isinstance(error, Stopped | BdbQuit):
                    stopped.append(rank)
                if stopped and isinstance(error, RankFailed):
                    print(f"replay: rank {rank} waits{_place_of(error).replace(chr(10), '')}", flush=True)
                else:
                    _note_end(own, f"rank {rank}", error)
                raise

        # Each rank has said how it ended; the error of one of them ends all.
        with suppress(Exception, SystemExit, Stopped, BdbQuit):
            OrderJob.run_processes(order, program)
    return found, order


def _stopping(args: argparse.Namespace, facts: dict[str, Any], rank: int | None) -> AbstractContextManager[None]:
    """Stop this rank where the options say so."""
    if args.rank not in (None, rank) or not (args.to or args.pdb):
        return nullcontext()
    place = place_of(args.to) if args.to else Place("line", _first_line(facts), facts["program"])
    file = found_file(place, facts["program"], facts["folder"]) if place.kind == "line" else ""
    return stopping(place, file, args.pdb)


def _first_line(facts: dict[str, Any]) -> int:
    """The first line of the program that runs."""
    return min((line for _, _, line in _code(facts).co_lines() if line), default=1)


def _note_end(own: RankRecords, who: str, error: BaseException) -> None:
    """Say how a rank ended."""
    if isinstance(error, Stopped):
        print(f"replay: {who} stops at {error}", flush=True)
    if isinstance(error, Stopped | BdbQuit):  # or the user has left the debugger
        return
    own.error = str(error) or type(error).__name__
    print(f"replay: {who} ends by {type(error).__name__}: {error}{_place_of(error)}", file=sys.stderr, flush=True)


def _place_of(error: BaseException) -> str:
    """The program's line at which an error was raised, unless its text ends with it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_own_file(f.filename) and f.lineno]
    at = short_site(frames[-1].filename, frames[-1].lineno or 0) if frames else ""
    return "" if not at or str(error).endswith(at) else f"\n  at {at}"


def _rank(
    record: Record, own: RankRecords, args: argparse.Namespace, values: bool, found: list[RankRecords]
) -> None:
    is_threads = record.any["kind"] == "threads"
    facts = record.facts[own.rank]
    try:
        with no_handlers_of_threads():
            if is_threads:
                _on_threads(record, args, values, found)
            elif values:
                with recording_operations() as operations:
                    own.records = operations.records
                    _program(facts)
            else:
                with _stopping(args, facts, own.rank):
                    _program(facts)
    except BaseException as error:
        _note_end(own, "the program" if is_threads else f"rank {own.rank}", error)


def _on_threads(record: Record, args: argparse.Namespace, values: bool, found: list[RankRecords]) -> None:
    def wrap(program: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*given: Any) -> Any:
            rank = int(world().rank)
            with recording_operations() if values else nullcontext() as own:
                if own is not None:
                    found.append(own)
                with _stopping(args, record.any, rank):
                    return program(*given)

        return recorded

    World.wrappers.append(wrap)
    try:
        _program(record.any)
    finally:
        World.wrappers.remove(wrap)


def _program(facts: dict[str, Any]) -> None:
    """Run the program as ``__main__``; an exit without an error is its end."""
    name = facts["module"]

    try:
        if name and not name.endswith("__main__"):
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(facts["program"], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _code(facts: dict[str, Any]) -> CodeType:
    with open(facts["program"], "rb") as file:
        return compile(file.read(), facts["program"], "exec", dont_inherit=True)


def _executed(code: CodeType, facts: dict[str, Any]) -> None:
    """Run the program on one thread of several, of which none has the module ``__main__`` for itself."""
    name = facts["module"]
    package = name.rpartition(".")[0] if name else None
    try:
        exec(code, {"__name__": "__main__", "__file__": facts["program"], "__package__": package})
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


@contextmanager
def _as_recorded(facts: dict[str, Any]) -> Iterator[None]:
    """Give the program its arguments and folders, as the record has them."""
    before, path, folder = sys.argv, sys.path[:], os.getcwd()
    sys.argv = [facts["program"], *facts["arguments"]]
    sys.path.insert(0, facts["folder"] if facts["module"] else os.path.dirname(facts["program"]))
    if os.path.isdir(facts["folder"]):
        os.chdir(facts["folder"])
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path
        os.chdir(folder)


def _is_bad(record: OperationRecord) -> bool:
    return record.value is not None and record.value.not_finite > 0


def _differs(of: RankRecords, other: RankRecords | None, at: int) -> bool:
    if other is None or at >= len(other.records):
        return other is not None
    one, two = of.records[at], other.records[at]
    return (one.name, one.direction, one.value) != (two.name, two.direction, two.value)


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
    scope = f" in {'.'.join(record.scope)}" if record.scope else ""
    at = short_site(record.file, record.line) if record.file else "an unknown line"
    value = record.error or shown_value(record.value)
    print(f"replay: first: {record.direction} {record.name}{scope} at {at}, on rank {of.rank}: {value}")
    print(f"replay: to stop there: --rank {of.rank} --to operation:{record.id} --pdb")
    return 1
