"""``mpiexec -n N python -m collectives tune``: measure once, and store the table of choices for ``algorithm="auto"``.

It runs with as many ranks and hosts as the jobs that will use the table. With sizes of axes (``dp=4 tp=2``) it measures
the groups of each axis, all of them at once, as in a program; without, the group of all ranks.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path
from typing import Any

from autograd.errors import ArgumentError

from ..algorithms.choices import default_path, shape_of, stored, tabulated
from ..algorithms.fit import BUDGET_BYTES, BUDGET_S
from ..mesh import Mesh
from ..world import world

__all__ = ["SUMMARY", "add_arguments", "main"]

SUMMARY = 'Measure and store the table of choices for algorithm="auto"; run it under mpiexec, as the job.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `tune`."""
    parser.add_argument("axes", nargs="*", metavar="AXIS=SIZE", help="the axes of the mesh (default: all ranks)")
    parser.add_argument(
        "--to", type=Path, metavar="PATH", help="the file (default: RINGTAPE_ALGORITHMS, else the user's cache)"
    )


def main(args: argparse.Namespace) -> int:
    """Measure each axis, store its table, and print it on rank 0."""
    everyone = world()
    path = default_path() if args.to is None else args.to
    mesh = Mesh(**_sizes(args.axes))
    measured = set()
    for name in mesh.names:
        axis: Any = mesh.axis(name)
        channel = axis.using("ring").channel  # of the algorithms; no table is read
        # the groups of one axis can have different shapes; that of rank 0 is stored, and decides on all ranks
        shape = everyone.exchange(shape_of(channel.base, channel.levels).encode())[0].decode()
        if axis.size == 1 or shape in measured:
            continue
        measured.add(shape)
        note = f"{date.today()}, {axis!r}; at most {BUDGET_BYTES / 1e6:g} MB from each rank, about {BUDGET_S:g} s"
        choices = tabulated(channel.fit, note)
        if everyone.index == 0:
            stored(path, shape, choices)
            print("\n  ".join([f"axis {name!r}: {shape}", *choices.lines()]), flush=True)
    everyone.barrier()
    if everyone.index == 0:
        print(f"stored in {path}" if everyone.size > 1 else "one rank: nothing to measure", flush=True)
    return 0


def _sizes(given: list[str]) -> dict[str, int]:
    sizes = {}
    for text in given or ["ranks=-1"]:
        name, is_given, size = text.partition("=")
        if not is_given or not name.isidentifier() or not size.lstrip("-").isdecimal():
            raise ArgumentError(f"tune {text} was given; needed: AXIS=SIZE, for example dp=4")
        sizes[name] = int(size)
    return sizes
