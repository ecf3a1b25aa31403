"""Run programs by words of their names: ``python -m tests.collectives.scale.written_programs WORDS -n 2 3``."""

from __future__ import annotations

import argparse
import json
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy

from . import PROGRAMS
from .harness import Program, difference, outcome, ratios


def result(row: Program, n: int) -> tuple[str, str, str]:
    """What is told of a program, beside what should be; the gradients by those of one process; and the first line."""
    _, found = outcome(row, n, "off")
    told, _ = outcome(row, n)
    strict, _ = outcome(row, n, "error")
    off = numpy.inf if found is None else difference(row.serial, n, found)
    if row.is_right:
        judged = "passed" if not told and not strict else "falsely told"
        judged = "NOT RIGHT" if off > 1e-9 else judged
    else:
        judged = "told" if told else "unknowable" if row.reason(n) else "silent"
        judged = "NOT WRONG" if off < 1e-6 else judged
    of = {} if found is None else ratios(row.serial, n, found)
    factors = ", ".join(f"{name} {numpy.nanmin(v):.3g}..{numpy.nanmax(v):.3g}" for name, v in of.items()
                        if not numpy.isnan(v).all())  # fmt: skip
    return judged, factors, (told or strict or [""])[0].split("\n")[0][:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="programs whose name has all of these words, or the whole name")
    parser.add_argument("-n", type=int, nargs="+", help="numbers of ranks of dp; all of the program's by default")
    parser.add_argument("--faults", action="store_true", help="only what is not as it should be")
    parser.add_argument("--json", type=Path, help="write all results to a file, too")
    parser.add_argument("--traceback", action="store_true", help="with the traceback of a program that fails")
    chosen = parser.parse_args()
    names = [name for name in PROGRAMS if name in chosen.words] or [
        name for name in PROGRAMS if all(word in name for word in chosen.words)]  # fmt: skip
    counts: Counter[tuple[int, str, str]] = Counter()
    kept: list[Any] = []
    for name in names:
        row = PROGRAMS[name]
        for n in row.ranks:
            if chosen.n and n not in chosen.n:
                continue
            try:
                judged, factors, first = result(row, n)
            except Exception as error:
                if chosen.traceback:
                    traceback.print_exception(error, limit=-4)
                judged, factors, first = "BROKEN", "", f"{type(error).__name__}: {error}"
            kind = "right" if row.is_right else "wrong"
            counts[n, kind, judged] += 1
            kept.append([name, n, kind, judged, factors, first, row.reason(n)])
            if not chosen.faults or judged not in ("passed", "told", "unknowable"):
                print(f"{kind} {judged:12} n={n} {name} | {factors} | {first}", flush=True)
    for (n, kind, judged), count in sorted(counts.items()):
        print(f"n={n} {kind} {judged}: {count}")
    if chosen.json:
        chosen.json.write_text(json.dumps(kept))


main()
