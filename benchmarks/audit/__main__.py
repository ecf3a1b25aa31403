"""Sweep the operations of another system, and list those whose value or gradient differs from the serial one.

    python -m benchmarks.audit dtensor --python PATH
    python -m benchmarks.audit shard_map --python PATH

Each operation is called with its operands laid out in several ways over the ranks, in even, uneven and empty parts, and
with the extrema on each rank. The value, the gradients of the operands for a random cotangent, the same gradients of a
sweep that is itself recorded, and the gradients of their dot product with random vectors are compared with those of the
same call without ranks. A case that differs is made small: layouts become replicated, sizes smaller, numbers rounder,
as long as it differs and the serial gradient is that of central differences. A program of at most 15 lines shows it. It
is listed as confirmed if ranks in processes of their own, which run the program, find it.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .processes import Worker
from .sweep import Found, confirmed, progress, shared, sweep


def main() -> None:
    """Sweep, confirm, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=("dtensor", "shard_map"))
    parser.add_argument("--python", required=True, metavar="PATH", help="an interpreter that has the system")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="workers at the same time")
    parser.add_argument("--only", default="", metavar="REGEX", help="calls that this expression is found in")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="each N-th case, from the K-th one")
    parser.add_argument("--seconds", type=float, default=1e9, help="time for the cases; the rest is unchecked")
    parser.add_argument("--programs", type=Path, metavar="FOLDER", help="write the programs there")
    parser.add_argument("--json", action="store_true", help="print one object")
    args = parser.parse_args()
    system: Any = importlib.import_module(f"benchmarks.audit.{args.system}")
    part, parts = map(int, args.part.split("/"))
    cases = itertools.islice((c for c in system.cases() if re.search(args.only, c.call)), part, None, parts)
    command = [args.python, str(Path(__file__).with_name(f"{args.system}_worker.py")), str(args.ranks)]
    workers = [Worker(command) for _ in range(args.jobs)]
    start = time.monotonic()
    ask = shared([worker.ask for worker in workers])
    counts, found = sweep(system, ask, args.ranks, cases, args.jobs, args.seconds, progress)
    found.sort(key=lambda f: (f.difference.stage, f.case.call))
    with ThreadPoolExecutor(args.jobs) as pool:
        failed = list(pool.map(lambda f: "" if f.documented else confirmed(f, ask), found))
    for worker in workers:
        worker.end()
    counts["distinct"] = len(found)
    counts["excluded by documentation"] = sum(f.documented is not None for f in found)
    counts["not confirmed"] = sum(map(bool, failed))
    counts["confirmed"] = len(found) - counts["excluded by documentation"] - counts["not confirmed"]
    counts["seconds"] = round(time.monotonic() - start)
    if args.programs:
        args.programs.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(f for f in found if f.program):
            (args.programs / f"{number:03}.py").write_text(one.program)
    report(f"{system.NAME} {workers[0].version}, {args.ranks} ranks", counts, found, failed, args.json)


def report(title: str, counts: Counter[str], found: list[Found], failed: list[str], as_json: bool) -> None:
    """Print what was found."""
    rows = [
        {"call": f.case.text(), "layouts": f.case.layouts, "mode": f.case.mode, "sizes": dict(f.case.sizes),
         "cases": f.count, "stage": f.difference.stage, "operand": f.difference.operand, "program": f.program,
         "documented": f.documented and f.documented.page, "not confirmed": reason}
        for f, reason in zip(found, failed, strict=True)
    ]  # fmt: skip
    if as_json:
        print(json.dumps({"system": title, "counts": counts, "found": rows}, indent=1))
        return
    print(title)
    for name, count in counts.items():
        print(f"  {count:7} {name}")
    for row in rows:
        verdict = row["not confirmed"] or row["documented"] or "confirmed"
        where = " ".join([*row["layouts"], row["mode"]])
        print(f"{row['stage']:29} {row['call']:45} {where:12} {row['cases']:4} {verdict}")


if __name__ == "__main__":
    sys.exit(main())
