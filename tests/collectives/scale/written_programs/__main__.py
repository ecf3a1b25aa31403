"""Run programs by their names, or by words of them: ``python -m tests.collectives.scale.written_programs WORDS -n 2 3``."""

from __future__ import annotations

import argparse
import traceback

import numpy

from . import PROGRAMS
from .harness import difference, outcome, ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="programs whose name has all of these words, or the whole name")
    parser.add_argument("-n", type=int, nargs="+", help="numbers of ranks of dp; all of the program's by default")
    parser.add_argument("--table", action="store_true", help="only the programs for which it is not as it should be")
    parser.add_argument("--counts", action="store_true", help="only the counts")
    parser.add_argument("--traceback", action="store_true", help="with the traceback of a program that fails")
    chosen = parser.parse_args()
    names = [name for name in PROGRAMS if name in chosen.words] or [
        name for name in PROGRAMS if all(word in name for word in chosen.words)]  # fmt: skip
    counts: dict[tuple[int, str], int] = {}
    for name in names:
        row = PROGRAMS[name]
        for n in chosen.n or row.ranks:
            if n not in row.ranks:
                continue
            try:
                _, found = outcome(row, n, "off")
                told, _ = outcome(row, n)
                strict, _ = outcome(row, n, "error")
                off = numpy.inf if found is None else difference(row, n, found)
            except Exception as error:
                if chosen.traceback:
                    traceback.print_exception(error, limit=-4)
                print(f"BROKEN  n={n} {name}: {type(error).__name__}: {str(error)[:200]}")
                counts[n, "broken"] = counts.get((n, "broken"), 0) + 1
                continue
            factors = {} if found is None else ratios(row, n, found)
            if row.is_right:
                result = "passed" if not told and not strict else "falsely told"
                result = "NOT RIGHT" if off > 1e-9 else result
            else:
                result = "told" if told else ("unknowable" if row.silent else "silent")
                result = "NOT WRONG" if off < 1e-6 else result
            counts[n, result] = counts.get((n, result), 0) + 1
            if chosen.counts or chosen.table and result in ("passed", "told", "unknowable"):
                continue
            factor = {k: f"{numpy.nanmin(v):.3g}..{numpy.nanmax(v):.3g}" for k, v in factors.items()
                      if not numpy.isnan(v).all()}  # fmt: skip
            first = (told or strict or [""])[0].split("\n")[0][:150]
            print(f"{'right' if row.is_right else 'wrong'} {result:12} n={n} {name} | {factor} | {first}", flush=True)
    for (n, result), count in sorted(counts.items()):
        print(f"n={n} {result}: {count}")


main()
