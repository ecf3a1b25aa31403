"""``python -m collectives show program.py -o out.html``: runs a program and writes the page of its ranks.

Under mpiexec its ranks are those of the job. With ``--ranks`` the program runs on threads, as `cc.run` runs a function.
Otherwise it runs on one rank; if it calls `cc.run` itself, each such run has a page, the second one ``out-2.html``.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from autograd.errors import ArgumentError

from ..inspect.recorder import recording_operations
from ..page.document import page
from ..page.show import show
from ..world import World, run, world

__all__ = ["SUMMARY", "add_arguments", "main", "no_handlers_of_threads"]

T = TypeVar("T")

SUMMARY = "Run a program and write an HTML page on which every operation of its ranks can be followed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `show`."""
    parser.add_argument("program", help="the Python file to run")
    parser.add_argument("--ranks", type=int, metavar="N", help="run the program on N threads (not under mpiexec)")
    parser.add_argument("-o", "--output", default="ranks.html", metavar="FILE", help="the page (default ranks.html)")
    parser.add_argument("--steps", type=_steps, metavar="A:B", help="show the steps from A to before B, counted from 0")
    parser.add_argument("--only", type=_ranks, metavar="RANKS", help="show these ranks, as 0,3")
    parser.add_argument("--no-values", action="store_true", help="leave the values of arrays out of the page")
    parser.epilog = "The arguments after -- are the program's own."
    parser.set_defaults(arguments=[])


def main(args: argparse.Namespace) -> int:
    """Run the program. Returns 0, or 2 for invalid options. A program's error is raised once the page is there."""
    size = world().size
    if problem := _problem(args, size):
        print(f"show: {problem}", file=sys.stderr)
        return 2
    with _arguments(args.program, args.arguments):
        if size > 1:
            _shown(args, args.output, lambda: runpy.run_path(args.program, run_name="__main__"))
        elif args.ranks is None:
            _alone(args)
        else:
            with open(args.program, "rb") as file:
                code = compile(file.read(), args.program, "exec")
            # a namespace for each thread: there is one module `__main__`
            names = {"__name__": "__main__", "__file__": args.program, "__builtins__": __builtins__}
            with no_handlers_of_threads():
                run(_shown, args.ranks, args, args.output, lambda: exec(code, {**names}))
    return 0


@contextmanager
def no_handlers_of_threads() -> Iterator[None]:
    """Programs set handlers of signals, which Python allows in the main thread alone: those of ranks are left out."""
    set_handler = signal.signal

    def kept(number: Any, handler: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        return set_handler(number, handler) if is_main else signal.getsignal(number)

    with patch.object(signal, "signal", kept):
        yield


def _shown(args: argparse.Namespace, path: str, execute: Callable[[], T]) -> T | None:
    """Run a program on this rank, and write the page. Rank 0 says so."""
    title = os.path.basename(args.program)
    recorded = show(path, title=title, only=args.only, steps=args.steps, values=not args.no_values)
    found = None
    try:
        with recorded:
            found = _result(execute)
    except BaseException:
        if recorded.page is not None:
            _say(f"the page of the failed program is {path}")
        raise
    if recorded.page is not None:
        _say(f"{path}, {len(recorded.page.html.encode()):,} bytes")
    return found


def _alone(args: argparse.Namespace) -> None:
    """Run a program on one rank. Each run of functions on threads has a page; without one, the program itself has."""
    paths: list[str] = []

    def wrap(program: Callable[..., Any]) -> Callable[..., Any]:
        name, extension = os.path.splitext(args.output)
        path = args.output if not paths else f"{name}-{len(paths) + 1}{extension}"
        paths.append(path)
        return lambda *given: _shown(args, path, lambda: program(*given))

    World.wrappers.append(wrap)
    options: dict[str, Any] = {"only": args.only, "steps": args.steps}
    says = f"{args.output}"
    try:
        with recording_operations(values=not args.no_values) as found:
            _result(lambda: runpy.run_path(args.program, run_name="__main__"))
    except BaseException:
        options, says = {}, f"the page of the failed program is {args.output}"
        raise
    finally:
        World.wrappers.remove(wrap)
        if not paths:
            title = os.path.basename(args.program)
            made = page([found], args.output, title=title, values=not args.no_values, **options)
            _say(f"{says}, {len(made.html.encode()):,} bytes")


def _result(execute: Callable[[], T]) -> T | None:
    """The result of a program; an exit without an error is its end."""
    try:
        return execute()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return None


def _say(text: str) -> None:
    print(f"show: {text}", file=sys.stderr, flush=True)


@contextmanager
def _arguments(program: str, arguments: list[str]) -> Iterator[None]:
    """Give a program its arguments and its folder, as ``python program arguments`` does."""
    before, path = sys.argv, sys.path[:]
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, path


def _problem(args: argparse.Namespace, size: int) -> str:
    if args.ranks is not None and args.ranks < 1:
        return f"--ranks {args.ranks} was given; needed: at least 1"
    if args.ranks is not None and size > 1 and args.ranks != size:
        return f"--ranks {args.ranks} was given; mpiexec has started {size}. Fix: leave --ranks out"
    if not os.path.isfile(args.program):
        return f"{args.program} is not a file"
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
        return f"-o {args.output} was given; there is no folder {folder}"
    ranks = size if size > 1 else args.ranks
    if args.only is not None and ranks is not None and max(args.only) >= ranks:
        return f"--only {','.join(map(str, args.only))} was given; the ranks are 0 to {ranks - 1}"
    return ""


def _ranks(text: str) -> list[int]:
    """The ranks of ``0,3``."""
    ranks = [int(part) for part in text.split(",")]
    if min(ranks) < 0:
        raise ArgumentError(f"the ranks {text} were given; needed: numbers from 0")
    return sorted(set(ranks))


def _steps(text: str) -> tuple[int, int]:
    """The steps of ``2:5``, ``2:`` or ``:5``; a number alone is one step."""
    first, colon, last = text.partition(":")
    begin = int(first or 0)
    steps = begin, int(last) if last else sys.maxsize if colon else begin + 1
    if not 0 <= steps[0] < steps[1]:
        raise ArgumentError(f"the steps {text} were given; needed: A:B with 0 <= A < B")
    return steps
