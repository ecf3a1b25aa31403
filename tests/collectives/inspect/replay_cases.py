"""Programs that were changed after they were recorded, of which a replay tells, and programs that were not.

``python -m tests.collectives.inspect.replay_cases`` runs all of them under mpiexec, and prints the counts. A change is
of the text, an argument, a variable, a file of data, or a module beside the program. Records are of the order and of
the data, on 2 to 5 ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...forks import run_python
from ..launch import launch_command

PROGRAMS = Path(__file__).parent / "programs"
RANKS = (2, 3, 4, 5)
KINDS = ("order", "data")
LIMIT_S = 200


class Change(NamedTuple):
    """A change of `replay_base`: of its text or that of the module, or else of its argument, variable or data."""

    kind: str
    old: str = ""
    new: str = ""
    file: str = "replay_base.py"
    argument: str = "3"
    scale: str = ""
    row: int = -1
    least: int = 2
    """The least number of ranks on which it is a change."""


CHANGES: dict[str, Change] = {
    "learning rate": Change("text", "lr=0.1", "lr=0.1001"),
    "from step 2 on": Change("text", "/ 14", "/ (14 if step < 2 else 15)"),
    "rows of the last rank": Change("text", "* SCALE", "* SCALE + (rank == size - 1)"),
    "a sum that cancels": Change("text", "    # own values", "    mine += (rank == 0) - 1.0 * (rank == 1)"),
    "elements in another order": Change("text", "    # own values", "    mine = mine[::-1].copy()"),
    "equal calls in another order": Change(
        "text", "first = group.all_reduce(mine * 2)\n    second = group.all_reduce(mine * 3)",
        "second = group.all_reduce(mine * 3)\n    first = group.all_reduce(mine * 2)",
    ),
    "another operation": Change("text", 'all_reduce(mine, "sum")', 'all_reduce(mine, "max")'),
    "rows and columns change places": Change("text", "np.outer(np.arange(64.0), np.ones(64))",
                                             "np.outer(np.ones(64), np.arange(64.0))"),
    "another sign": Change("text", "np.outer(np.arange(64.0), np.ones(64)).ravel() + rank",
                           "-(np.outer(np.arange(64.0), np.ones(64)).ravel() + rank)"),
    "another root of a broadcast": Change("text", "broadcast(mine.copy(), ROOT)", "broadcast(mine.copy(), 1)"),
    "another root of a reduce": Change("text", "group.reduce(mine, 0)", "group.reduce(mine, 1)"),
    "another dtype": Change("text", "all_gather(mine, [4] * size)", "all_gather(mine.astype('float32'), [4] * size)"),
    "other parts": Change("text", "[2] * size)\n    group.send", "[1, 3] + [2] * (size - 2))\n    group.send"),
    "another receiver": Change(
        "text", "group.send(mine, (rank + 1) % size)\n    received = group.recv(np.empty(4), (rank - 1)",
        "group.send(mine, (rank - 1) % size)\n    received = group.recv(np.empty(4), (rank + 1)", least=3,
    ),
    "another message": Change("text", "group.send(mine,", "group.send(mine + (rank == 1),"),
    "a started call": Change("text", '"all_reduce", mine * 5', '"all_reduce", mine * (5 + (rank == 0))'),
    "an exchange": Change("text", "bytes([rank, 7])", "bytes([rank, 8])"),
    "another group": Change("text", "cc.Mesh(a=1, b=-1)", "cc.Mesh(a=-1, b=1)"),
    "more at the end": Change("text", "    cc.in_order(", "    group.barrier()\n    cc.in_order("),
    "less at the end": Change("text", "last = group.all_reduce(mine * replay_helper.FACTOR)", "last = total.numpy()"),
    "an error": Change("text", "    texts = group", "    [][rank]\n    texts = group"),
    "an error of one rank": Change("text", "    texts = group", "    [0] * 4 if rank else [][0]\n    texts = group"),
    "one step more": Change("argument", argument="4"),
    "one step less": Change("argument", argument="2"),
    "a variable": Change("variable", scale="1.5"),
    "the first row of data": Change("data", row=0),
    "the last row of data": Change("data", row=6),
    "a module": Change("module", "7.0", "7.5", "replay_helper.py"),
    "a module's comment": Change("module", "FACTOR = 7.0", "FACTOR = 7.0  # of the last sum", "replay_helper.py"),
}  # fmt: skip
"""By name. Those of text and module are replayed by the program that is named; without its name they are refused."""

SAME_COMMUNICATION = frozenset(("a module's comment",))
"""Changes of the text after which the program communicates as before: the text is told, and no difference."""

UNCHANGED = ("plain", "clock", "hashes", "seeded", "dropout", "loader", "temporary", "environment", "zero1", "zero3",
             "accumulated", "ring", "automatic", "trainer", "saved", "worlds", "meshes", "block")  # fmt: skip
"""The functions of `replay_unchanged`."""


class Told(NamedTuple):
    """What a replay said."""

    status: int
    out: str

    @property
    def is_told(self) -> bool:
        return self.status != 0 and "differ" in self.out


def replayed(record: Path, folder: Path, *options: str, **variables: str) -> Told:
    arguments = ("-m", "collectives", "replay", str(record), *options)
    done = run_python(*arguments, folder=folder, limit_s=LIMIT_S, **variables)
    return Told(done.returncode, done.stdout + done.stderr)


def recorded(folder: Path, ranks: int, kind: str, program: str, argument: str, **variables: str) -> Path:
    """Copy a program with what it needs to a folder, and record it there."""
    folder.mkdir(parents=True)
    for name in ("replay_base.py", "replay_helper.py", "replay_unchanged.py"):
        shutil.copy(PROGRAMS / name, folder)
    np.save(folder / "data.npy", np.random.default_rng(0).normal(size=(6, 7, 3)))
    record = folder / "run.rtr"
    if argument != "block":
        variables |= {"RINGTAPE_RECORD": str(record), "RINGTAPE_RECORD_DATA": str(int(kind == "data"))}
    with contextlib.chdir(folder):
        done = launch_command([program, argument], ranks, limit_s=LIMIT_S, **variables)
    assert done.code == 0, done.out + done.err
    return record


def changed(change: Change, folder: Path, record: Path) -> str:
    """Make a change, replay the record, and undo the change. What is wrong with that; "" if it was told."""
    path, data = folder / change.file, folder / "data.npy"
    text, rows = path.read_text(), np.load(data)
    assert change.old in text
    path.write_text(text.replace(change.old, change.new))
    if change.row >= 0:
        rows[1, change.row, 0] += 1e-6
    np.save(data, rows)
    variables = {"SCALE": change.scale} if change.scale else {}
    try:
        is_text = bool(change.old)
        named = ["--program", str(folder / "replay_base.py")] if is_text else []
        arguments = ["--", change.argument] if change.argument != "3" else []
        told = replayed(record, folder, *named, *arguments, **variables)
        if is_text:
            refused = replayed(record, folder)
            if refused.status != 2 or change.file not in refused.out or "fix: --program" not in refused.out:
                return f"not refused without a name: {refused}"
            if f"changed since the record: the text of {change.file}" not in told.out:
                return f"the text is not told: {told}"
    finally:
        path.write_text(text)
        rows[1, change.row, 0] -= 1e-6 if change.row >= 0 else 0
        np.save(data, np.random.default_rng(0).normal(size=(6, 7, 3)))
    return "" if told.is_told else f"not told: {told}"


def changed_programs(
    ranks: Iterable[int] = RANKS, kinds: Iterable[str] = KINDS, names: Iterable[str] = tuple(CHANGES)
) -> Iterator[tuple[str, str]]:
    """Each changed program with what is wrong, "" if its replay tells of the change."""
    names = list(names)
    with tempfile.TemporaryDirectory() as temporary:
        for n in ranks:
            for kind in kinds:
                folder = Path(temporary, f"{kind}-{n}")
                record = recorded(folder, n, kind, "replay_base.py", "3")
                again = replayed(record, folder)
                yield f"no change, {kind}, {n} ranks", "" if again.status == 0 else str(again)
                for name in names:
                    change = CHANGES[name]
                    if n >= change.least:
                        problem = changed(change, folder, record)
                        is_same = name in SAME_COMMUNICATION and "not told: Told(status=0" in problem
                        yield f"{name}, {kind}, {n} ranks", "" if is_same else problem


def unchanged_programs(
    ranks: Iterable[int] = RANKS, kinds: Iterable[str] = KINDS, names: Iterable[str] = UNCHANGED
) -> Iterator[tuple[str, str]]:
    """Each unchanged program with what its replay told falsely."""
    names = list(names)
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory() as elsewhere:
        for n in ranks:
            for kind in kinds:
                for name in names:
                    folder = Path(temporary, f"{name}-{kind}-{n}")
                    saved = {"SAVED": str(folder), "BLOCK": "", "BLOCK_DATA": ""}
                    if name == "block":
                        saved |= {"BLOCK": str(folder / "run.rtr"), "BLOCK_DATA": str(int(kind == "data"))}
                    try:
                        record = recorded(folder, n, kind, "replay_unchanged.py", name, **saved)
                    except AssertionError as error:
                        yield f"{name}, {kind}, {n} ranks", f"not recorded: {error}"
                        continue
                    told = replayed(record, Path(elsewhere), **saved, TMPDIR=elsewhere, UNRELATED="1")
                    is_equal = told.status == 0 and "differ" not in told.out
                    yield f"{name}, {kind}, {n} ranks", "" if is_equal else str(told)


def main() -> int:
    """Run all cases, and print those that are wrong and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    wrong = 0
    for title, cases, all_names in (
        ("changed", changed_programs, list(CHANGES)), ("unchanged", unchanged_programs, list(UNCHANGED)),
    ):  # fmt: skip
        names = [name for name in all_names if name in args.only] if args.only else all_names
        found = list(_printed(cases(args.ranks, KINDS, names))) if names else []
        bad = sum(bool(problem) for _, problem in found)
        print(f"{title} programs: {len(found)}, as they should be: {len(found) - bad}", flush=True)
        wrong += bad
    return int(wrong > 0)


def _printed(cases: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, problem in cases:
        if problem:
            print(f"WRONG: {name}: {problem}", flush=True)
        yield name, problem


if __name__ == "__main__":
    sys.exit(main())
