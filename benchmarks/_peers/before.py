"""Comparing this tree of ringtape with another one in the same run: the option ``--before`` and its figures.

Both trees run the same worker script, which uses public names only, and they take turns. The processes are started
several times, because two processes of the same program differ in speed by where their memory lies. A ratio is the time
before over the time now, so above 1 this tree is faster: the median over the rounds of all starts. Beside it stand the
smallest and the largest median of one start. Where 1 lies between them, no change was seen.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Rounds = Sequence[Sequence[float]]  # seconds (or microseconds) of each start, of each of its rounds


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison."""
    group = parser.add_argument_group("comparison with another tree, in the place of the peers")
    group.add_argument("--before", type=tree, metavar="TREE", help="directory of another checkout of ringtape")
    group.add_argument("--python-before", default=sys.executable, metavar="PATH", help="interpreter for that tree")
    group.add_argument("--starts", type=int, default=5, help="how often the processes are started (default 5)")


def tree(path: str) -> str:
    """The path of a checkout, absolute; refuses what is none."""
    root = Path(path).resolve()
    missing = [name for name in ("autograd", "collectives", "parallel") if not (root / name / "__init__.py").exists()]
    if missing:
        raise argparse.ArgumentTypeError(f"{root} is no checkout of ringtape: it has no package {missing[0]}")
    return str(root)


def check_tree() -> None:
    """The tree that is measured is the first of PYTHONPATH, whatever is installed in the interpreter."""
    import autograd

    asked = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    found = os.path.dirname(os.path.dirname(os.path.realpath(autograd.__file__)))
    assert found == os.path.realpath(asked), f"autograd was imported from {found}; needed: {asked}"


def figure(now: Rounds, before: Rounds) -> dict[str, float]:
    """One figure: both times, the ratio, and the smallest and largest median ratio of one start.

    >>> figure([[1.0, 2.0, 1.0]], [[2.0, 2.0, 3.0]])
    {'ours': 1.0, 'peer': 2.0, 'ratio': 2.0, 'low': 2.0, 'high': 2.0}
    """
    ratios = [[b / n for n, b in zip(ns, bs, strict=True)] for ns, bs in zip(now, before, strict=True)]
    medians = [statistics.median(of_start) for of_start in ratios]
    return {
        "ours": statistics.median(t for of_start in now for t in of_start),
        "peer": statistics.median(t for of_start in before for t in of_start),
        "ratio": statistics.median(r for of_start in ratios for r in of_start),
        "low": min(medians),
        "high": max(medians),
    }


def table(figures: Mapping[str, Mapping[str, float]]) -> str:
    """The figures as text."""
    width = max((len(name) for name in figures), default=0)
    lines = [f"{'':{width}}  {'now us':>9}  {'before us':>9}  {'ratio':>6}  {'low':>6}  {'high':>6}"]
    for name, row in figures.items():
        slower = "  slower" if row["high"] < 1 else ""
        lines.append(f"{name:{width}}  {row['ours']:9.1f}  {row['peer']:9.1f}  {row['ratio']:6.3f}  {row['low']:6.3f}  "
                     f"{row['high']:6.3f}{slower}")  # fmt: skip
    return "\n".join(lines)
