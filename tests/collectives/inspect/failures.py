"""Seeded failures over MPI, recorded and replayed: is the replay bitwise, and does it name the operation and the rank?

    python -m tests.collectives.inspect.failures --seeds 0:100

A seed determines the fault (a NaN on one rank, a mismatch, a deadlock, a wrong sum, an exception), its rank, step and
place, the number of ranks, the algorithm, ZeRO, and the kind of the record. The job is `failing_program.py`. A wrong
sum is a bit of a result that is inverted on one rank. It is found by the order, or, of a record with its data, by the
first difference from the record of a job without a fault.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...forks import run_python
from ..launch import Outcome, launch

__all__ = ["FAULTS", "Case", "Verdict", "case_of", "judged"]

FAULTS = ("nan", "mismatch", "deadlock", "wrong sum", "exception")
PROGRAM = "failing_program.py"
_PLACES = {"nan": ("input", "output", "loss"), "wrong sum": ("",)}


class Case(NamedTuple):
    """A job that fails: its fault, the rank, step and place of it, and how the job runs and is recorded."""

    fault: str
    rank: int
    step: int
    place: str
    ranks: int
    algorithm: str
    zero: int
    has_data: bool

    def launched(self, folder: Path, fault: bool = True) -> Outcome:
        """Run the job, with its fault or without, and record it."""
        variables = {"RINGTAPE_RECORD": str(folder), "RINGTAPE_RECORD_DATA": str(int(self.has_data))}
        name = self.fault if fault and self.fault != "wrong sum" else "none"
        if fault and self.fault == "wrong sum":
            at = self.step * (1 if self.zero else 2) + 1  # the sum of the loss; the other one is that of the gradients
            variables["RINGTAPE_FAULTS"] = f"corrupt:{self.rank}@{at},of=all_reduce"
        given = name, str(self.rank), str(self.step), self.place or "none", self.algorithm, str(self.zero)
        return launch(PROGRAM, self.ranks, *given, limit_s=200, **variables)

    @property
    def line(self) -> int:
        """The line of the program that fails."""
        text = f"# {self.fault} {self.place}" if self.fault == "nan" else f"# {self.fault}"
        lines = (Path(__file__).parent / "programs" / PROGRAM).read_text().splitlines()
        return next(n for n, line in enumerate(lines, 1) if line.endswith(text))


class Verdict(NamedTuple):
    """Whether the replay had the bits of the job until the failure, whether it named it, and its output."""

    is_bitwise: bool
    is_named: bool
    output: str


def case_of(seed: int) -> Case:
    """The case of a seed. The faults take turns.

    Examples
    --------
    >>> case_of(0) == case_of(0), case_of(3).fault
    (True, 'wrong sum')
    """
    draw, fault = random.Random(seed), FAULTS[seed % len(FAULTS)]
    ranks = draw.choice((2, 3))
    place = draw.choice(_PLACES.get(fault, ("begin", "forward", "end")))
    algorithm = draw.choice(("native", "auto", "ring", "reproducible"))
    return Case(fault, draw.randrange(ranks), draw.randrange(5), place, ranks, algorithm, draw.choice((0, 1, 3)),
                draw.random() < 0.5)  # fmt: skip


def replayed(folder: Path, *options: str) -> str:
    done = run_python("-m", "collectives", "replay", str(folder), *options, limit_s=200)
    return done.stdout + done.stderr


def steps(text: str, rank: int) -> list[str]:
    """The steps that a rank has printed."""
    return [line for line in text.splitlines() if line.startswith(f"rank {rank}: step ")]


def judged(case: Case, folder: Path) -> Verdict:
    """Record a job that fails, replay it, and judge the replay."""
    done = case.launched(folder / "run")
    found = again = replayed(folder / "run")
    rank, at = case.rank, f"{PROGRAM}:{case.line if case.fault != 'wrong sum' else 0}"
    end = None if case.has_data or case.fault != "wrong sum" else case.step  # then the sum is right in the replay
    is_bitwise = all(
        steps(again, each)[:end] == steps(done.out, each)[:end] and len(steps(done.out, each)) >= min(case.step, 4)
        for each in range(case.ranks)
    )
    if case.fault == "nan":
        found = replayed(folder / "run", "--first-nan")
        pattern = rf"first: forward sqrt at {at}, on rank {rank}:"
    elif case.fault == "wrong sum":
        happened = re.search(r"injected fault on rank \d+: .* at (\S+:\d+)", done.err)
        at = happened[1] if happened is not None else "no fault"
        pattern = rf"on rank {rank}, all_reduce float32\[1\] ha[sd] another result than .* \(at {at}, "
        if case.has_data:
            case.launched(folder / "right", fault=False)
            found = replayed(folder / "run", "--first-difference", str(folder / "right"))
            pattern = rf"first: forward all_reduce.* at {at}, on rank {rank}:"
    elif case.fault == "mismatch":
        pattern = rf"rank {rank}: barrier\(.*\n +at {at}\n"
    elif case.fault == "deadlock":
        pattern = rf"rank {rank} waits in recv from rank \d+ on 'world' at {at}\n"
        if case.has_data:
            pattern = rf"replay of rank {rank}: recv float64\[3\] .* is not in the record(.*\n)+? +at {at}\n"
    else:
        pattern = rf"rank {rank} ends by ValueError: no data in step {case.step}\n +at {at}\n"
    return Verdict(is_bitwise, re.search(pattern, found) is not None, done.out + done.err + again + found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the cases of some seeds, and print them and their count. Returns 1 if fewer than 95 % are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="the first one, and the one after the last")
    parser.add_argument("--output", action="store_true", help="print the output of cases that are not right")
    args = parser.parse_args(arguments)
    first, last = map(int, args.seeds.split(":"))
    bitwise = named = 0
    for seed in range(first, last):
        case = case_of(seed)
        with tempfile.TemporaryDirectory() as folder:
            verdict = judged(case, Path(folder))
        bitwise, named = bitwise + verdict.is_bitwise, named + verdict.is_named
        print(f"{seed}: bitwise {verdict.is_bitwise}, named {verdict.is_named}, {case}", flush=True)
        if args.output and not (verdict.is_bitwise and verdict.is_named):
            print(verdict.output, flush=True)
    print(f"{last - first} failures: {bitwise} replayed bitwise until the failure, {named} named")
    return int(named < 0.95 * (last - first))


if __name__ == "__main__":
    sys.exit(main())
