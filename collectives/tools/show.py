"""``python -m collectives show program.py -o out.html``: runs a program and writes the page of its ranks.

Under mpiexec its ranks are those of the job. Without mpiexec the program runs on threads, ``--ranks`` of them, as
`cc.run` runs a function. A program that calls `cc.run` itself records with ``cc.show`` inside the function.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autograd.errors import ArgumentError

from ..page.show import show
from ..world import run, world

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = "Run a program and write an HTML page on which every operation of its ranks can be followed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `show`."""
    parser.add_argument("program", help="the Python file to run")
    parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads (default 1; not under mpiexec)")
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
    threads = 1 if size > 1 else args.ranks or 1
    with _arguments(args.program, args.arguments):
        if threads == 1:
            _record(args, lambda: runpy.run_path(args.program, run_name="__main__"))
        else:
            with open(args.program, "rb") as file:
                code = compile(file.read(), args.program, "exec")
            run(_record, threads, args, lambda: exec(code, _names(args.program)))
    return 0


def _names(path: str) -> dict[str, Any]:
    """A namespace for the program on one thread. It is not the module ``__main__``, of which there is one."""
    return {"__name__": "__main__", "__file__": path, "__builtins__": __builtins__}


def _record(args: argparse.Namespace, execute: Callable[[], Any]) -> None:
    """Run the program on this rank and write the page."""
    title = os.path.basename(args.program)
    recorded = show(args.output, title=title, only=args.only, steps=args.steps, values=not args.no_values)
    try:
        with recorded:
            try:
                execute()
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise
    except BaseException:
        if recorded.page is not None:
            print(f"show: the page of the failed program is {args.output}", file=sys.stderr, flush=True)
        raise
    if recorded.page is not None:
        print(f"show: {args.output}, {len(recorded.page.html.encode()):,} bytes", file=sys.stderr)
        if not recorded.page.records:
            print(
                "show: the program ran no operation on these ranks\n"
                "  fix: if it calls cc.run, write `with cc.show(path):` inside the function that cc.run gets",
                file=sys.stderr,
            )


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
    ranks = size if size > 1 else args.ranks or 1
    if args.only is not None and max(args.only) >= ranks:
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
