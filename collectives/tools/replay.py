"""``python -m collectives replay run.rtr``: runs a recorded program again, in one process, with equal bits.

Ranks that were processes are replayed one after another. Ranks that were threads are all replayed together, as the
program starts them. None of them waits for another one.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autograd.errors import CommunicationError, short_site
from autograd.records.text import shown_value

from ..inspect.record import OperationRecord, RankRecords
from ..inspect.recorder import recording_operations
from ..transports.recording import bits
from ..transports.replay import Record, replaying
from ..world import World
from .show import no_handlers_of_threads

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Run a recorded program again in one process, with the bits that it had."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `replay`."""
    parser.add_argument("record", help="the folder that cc.record or RINGTAPE_RECORD wrote")
    parser.add_argument("--rank", type=int, metavar="R", help="replay this rank alone, if the ranks were processes")
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
        found = _run(record, args, values=args.first_nan or other is not None)
        if args.first_nan:
            return _named("no value that is not finite", _first(found, lambda of, k: _is_bad(of.records[k])))
        if other is not None:
            theirs = {of.rank: of for of in _run(other, args, values=True)}
            return _named("no difference", _first(found, lambda of, k: _differs(of, theirs.get(of.rank), k)))
        return int(any(of.error for of in found))
    except CommunicationError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2


def _problem(args: argparse.Namespace, record: Record) -> str:
    if args.rank is not None and args.rank not in record.facts:
        return f"--rank {args.rank} was given; {args.record} has the ranks {', '.join(map(str, sorted(record.facts)))}"
    if args.pdb and args.rank is None:
        return "--pdb was given without --rank. Fix: --rank 0 --pdb"
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


def _run(record: Record, args: argparse.Namespace, values: bool) -> list[RankRecords]:
    """Run the ranks, and return their operations if `values` are wanted."""
    found: list[RankRecords] = []
    is_threads = record.any["kind"] == "threads"
    for rank in [record.any["rank"]] if is_threads else sorted(record.facts) if args.rank is None else [args.rank]:
        own = RankRecords(rank)
        with _as_recorded(record.facts[rank]), replaying(record, rank):
            # A thread of its own has its own tape, mesh and random state.
            thread = threading.Thread(target=_rank, args=(record, own, args, values, found), name=f"rank {rank}")
            thread.start()
            thread.join()
        if not is_threads or own.error:
            found.append(own)
    return found


def _rank(
    record: Record, own: RankRecords, args: argparse.Namespace, values: bool, found: list[RankRecords]
) -> None:
    is_threads = record.any["kind"] == "threads"
    try:
        with no_handlers_of_threads():
            if is_threads:
                _on_threads(record, args, values, found)
            elif values:
                with recording_operations() as operations:
                    own.records = operations.records
                    _program(record.facts[own.rank])
            else:
                _program(record.facts[own.rank], args.pdb)
    except BaseException as error:
        own.error = str(error) or type(error).__name__
        who = "the program" if is_threads else f"rank {own.rank}"
        print(f"replay: {who} ends by {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _on_threads(record: Record, args: argparse.Namespace, values: bool, found: list[RankRecords]) -> None:
    def wrap(program: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*given: Any) -> Any:
            with recording_operations() as own:
                found.append(own)
                return program(*given)

        return recorded if values else program

    World.wrappers.append(wrap)
    try:
        _program(record.any, args.pdb)
    finally:
        World.wrappers.remove(wrap)


def _program(facts: dict[str, Any], is_debugged: bool = False) -> None:
    """Run the program as ``__main__``; an exit without an error is its end."""
    name = facts["module"]

    try:
        if is_debugged:
            import pdb

            with open(facts["program"], "rb") as file:
                code = compile(file.read(), facts["program"], "exec")
            pdb.Pdb(nosigint=True).run(code, {"__name__": "__main__", "__file__": facts["program"]})
        elif name and not name.endswith("__main__"):
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(facts["program"], run_name="__main__")
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
            if is_it(of, k):
                places.append((calls, bool(record.calls), of.rank, of, record))
                break
            calls += len([call for call in record.calls if not call.is_control])
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
    return 1
