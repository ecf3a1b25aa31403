"""Rounding error of a sum as its order, algorithm, number of ranks or bucket size changes.

The addends are models of the gradients of microbatches: N arrays of random numbers, each scaled differently,
distributed over the ranks in contiguous shares. An ordinary sum adds each rank's share in order and all-reduces the
result, bucket by bucket. A reproducible sum takes the balanced tree over the global numbers of the addends. The exact
sum is that of `math.fsum`. One setting changes at a time; all others stay as in the baseline. The ranks are threads.

    python benchmarks/drift.py --algorithm ring --ranks 4 --plot drift.png
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
# Python puts a script's own folder first on sys.path, where `import collectives` would find `collectives.py`.
sys.path = [str(HERE.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]

import collectives as cc
from collectives.algorithms.selected import Channel, Selected
from collectives.algorithms.table import algorithms_of, check_name

Array = np.ndarray[Any, Any]
ORDERS = ("as given", "reversed", "shuffled", "small first", "large first")


class Setup(NamedTuple):
    """How a sum is taken."""

    order: str = "as given"
    algorithm: str = "ring"
    ranks: int = 4
    bucket: int = 0  # elements; 0 for one bucket


class Row(NamedTuple):
    """The errors of one way of summing. `changed` counts the elements whose bits differ from the baseline's."""

    varied: str
    value: str
    max_ulps: float
    rms_ulps: float
    changed: int
    reproducible_max_ulps: float
    reproducible_rms_ulps: float
    reproducible_changed: int


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--addends", type=int, default=48, help="how many arrays are summed (default 48)")
    parser.add_argument("--elements", type=int, default=2000, help="the length of each (default 2000)")
    parser.add_argument("--dtype", choices=("float16", "float32", "float64"), default="float32")
    parser.add_argument("--algorithm", default="ring", help="of the baseline (default ring)")
    parser.add_argument("--ranks", type=int, default=4, help="of the baseline (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object in the place of the table")
    parser.add_argument("--plot", metavar="PNG", help="draw the table (needs matplotlib)")
    return parser


def ordinary_sum(addends: Array, setup: Setup) -> Array:
    """Sum each rank's share in order, then all-reduce each bucket."""
    placed = addends[order_of(addends, setup.order)]

    def program() -> Array:
        group = Selected(Channel(cc.world()), setup.algorithm)
        share = np.array_split(placed, group.size)[group.rank]
        mine = np.zeros(addends.shape[1], addends.dtype)
        for addend in share:
            mine += addend
        size = setup.bucket or max(mine.size, 1)
        return np.concatenate([group.all_reduce(mine[at : at + size]) for at in range(0, mine.size, size)])

    return cc.run(program, setup.ranks)[0]


def reproducible_sum(addends: Array, setup: Setup, base: Setup) -> Array:
    """The tree over the addends' numbers; the order only decides which rank holds which addend.

    Where the algorithm of the ordinary sum changes, the nodes of the tree are sent as for short arrays.
    """
    order = order_of(addends, setup.order)
    way = "reproducible" if setup.algorithm == base.algorithm else "reproducible:tree"

    def program() -> Array:
        group = cc.world()
        mine = np.array_split(order, group.size)[group.rank]
        size = setup.bucket or max(addends.shape[1], 1)
        with cc.Mesh(ranks=-1):
            buckets = [
                cc.reproducible_sum(addends[mine, at : at + size], mine.tolist(), "ranks", algorithm=way).numpy()
                for at in range(0, addends.shape[1], size)
            ]
        return np.concatenate(buckets)

    return cc.run(program, setup.ranks)[0]


def order_of(addends: Array, order: str) -> np.ndarray:
    """The numbers of the addends in the order in which they are added."""
    numbers = np.arange(len(addends))
    sizes = np.abs(addends.astype(np.float64)).mean(axis=1)
    return {"as given": numbers, "reversed": numbers[::-1], "small first": np.argsort(sizes, kind="stable"),
            "large first": np.argsort(-sizes, kind="stable"),
            "shuffled": np.random.default_rng(len(addends)).permutation(numbers)}[order]  # fmt: skip


def exact_sum(addends: Array) -> np.ndarray:
    """Correctly rounded to float64, element by element."""
    return np.array([math.fsum(column) for column in addends.T.astype(np.float64).tolist()])


def ulps(total: Array, exact: np.ndarray) -> np.ndarray:
    """The error of each element in units of the last place of the exact sum in the total's dtype."""
    place = np.spacing(np.abs(exact).astype(total.dtype)).astype(np.float64)
    return np.abs(total.astype(np.float64) - exact) / place


def variations(base: Setup, elements: int) -> Iterator[tuple[str, str, Setup]]:
    """The setting that changes, its value, and the setup that results."""
    yield "baseline", f"{base.order}, {base.algorithm}, {base.ranks} ranks, one bucket", base
    for order in ORDERS:
        if order != base.order:
            yield "order", order, base._replace(order=order)
    for name in ("native", *algorithms_of("all_reduce")):
        if name not in (base.algorithm, "hierarchical", "reproducible"):
            yield "algorithm", name, base._replace(algorithm=name)
    for ranks in range(1, 9):
        if ranks != base.ranks:
            yield "ranks", str(ranks), base._replace(ranks=ranks)
    for parts in (2, 3, 7, 16):
        bucket = max(1, elements // parts)
        yield "bucket", f"{bucket} elements", base._replace(bucket=bucket)


def make_addends(count: int, elements: int, dtype: Any, seed: int) -> Array:
    """Normal numbers around one, each array scaled by a factor between 1/8 and 8.

    Around zero the sums of a few elements would cancel, and those elements would have the largest error.
    """
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.uniform(-3, 3, (count, 1))
    return ((1 + rng.standard_normal((count, elements))) * sizes).astype(dtype)


def measure(addends: Array, base: Setup) -> list[Row]:
    """All variations of one baseline."""
    exact, rows = exact_sum(addends), []
    first: list[Array] = []
    for varied, value, setup in variations(base, addends.shape[1]):
        totals = [ordinary_sum(addends, setup), reproducible_sum(addends, setup, base)]
        first = first or totals
        found: list[Any] = []
        for total, reference in zip(totals, first, strict=True):
            error = ulps(total, exact)
            found += [float(error.max()), float(np.sqrt((error**2).mean())), int((total != reference).sum())]
        rows.append(Row(varied, value, *found))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = f"{'':10}{'':44}{'ordinary':^27}{'reproducible':^27}\n{'varied':10}{'to':44}" + (
        f"{'max ulps':>9}{'rms':>8}{'changed':>10}" * 2)  # fmt: skip
    lines = [f"{row.varied:10}{row.value:44}{row.max_ulps:9.2f}{row.rms_ulps:8.3f}{row.changed:10d}"
             f"{row.reproducible_max_ulps:9.2f}{row.reproducible_rms_ulps:8.3f}{row.reproducible_changed:10d}"
             for row in rows]  # fmt: skip
    return "\n".join([head, *lines])


def plot(rows: Sequence[Row], title: str, path: str) -> None:
    """Draw the rows: one panel for each thing that varies."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    knobs = list(dict.fromkeys(row.varied for row in rows if row.varied != "baseline"))
    base = rows[0]
    widths = [1 + sum(row.varied == knob for row in rows) for knob in knobs]
    figure, (panels,) = plt.subplots(
        1, len(knobs), sharey=True, figsize=(14, 4.8), width_ratios=widths, squeeze=False
    )
    for knob, panel in zip(knobs, panels, strict=True):
        shown = [base, *(row for row in rows if row.varied == knob)]
        at = np.arange(len(shown))
        for name, color, marker, shift, fields in (
            ("ordinary", "tab:red", "o", -0.1, ("max_ulps", "rms_ulps", "changed")),
            ("reproducible", "tab:blue", "s", 0.1,
             ("reproducible_max_ulps", "reproducible_rms_ulps", "reproducible_changed")),
        ):  # fmt: skip
            most, rms, changed = ([getattr(row, field) for row in shown] for field in fields)
            panel.plot(at + shift, most, marker, color=color, label=f"{name}: largest error")
            panel.plot(at + shift, rms, marker, color=color, fillstyle="none", label=f"{name}: rms error")
            for i, count in enumerate(changed):
                panel.annotate(str(count), (at[i] + shift, most[i]), (0, 6 if shift < 0 else -13), color=color,
                               textcoords="offset points", ha="center", fontsize=7)  # fmt: skip
        names = ["baseline", *(row.value.removesuffix(" elements") for row in shown[1:])]
        panel.set_xticks(at, names, rotation=45, ha="right", fontsize=8)
        panel.set_title({"bucket": "bucket (elements)"}.get(knob, knob))
        panel.set_xlim(-0.6, len(shown) - 0.4)
        panel.set_ylim(0, 1.15 * max(max(row.max_ulps, row.reproducible_max_ulps) for row in rows) or 1.0)
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("error in ulps")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, loc="lower center", fontsize=8, frameon=False)
    figure.suptitle(f"{title}; small numbers: elements whose bits differ from the baseline", fontsize=10)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON, and draw the plot if one is asked for."""
    args = options().parse_args(arguments)
    if min(args.addends, args.elements, args.ranks) < 1:
        raise SystemExit("drift.py: --addends, --elements and --ranks must be at least 1")
    base = Setup(algorithm=check_name(args.algorithm, "all_reduce"), ranks=args.ranks)
    rows = measure(make_addends(args.addends, args.elements, args.dtype, args.seed), base)
    title = f"{args.addends} addends of {args.elements} {args.dtype}"
    if args.json:
        print(json.dumps({"addends": args.addends, "elements": args.elements, "dtype": args.dtype, "seed": args.seed,
                          "rows": [row._asdict() for row in rows]}))  # fmt: skip
    else:
        print(f"{title}, against the exact sum; {rows[0].value}; one thing changed at a time\n")
        print(table(rows))
    if args.plot:
        try:
            plot(rows, title, args.plot)
        except ImportError:
            print("drift.py: --plot needs matplotlib: pip install matplotlib")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
