"""Products of matrices in ringtape's machine code, beside those of NumPy's BLAS.

    python benchmarks/products.py --rounds 9 --json

Each shape is ``m x k @ k x n`` of one dtype; "t" says which operands lie transposed in memory. Both products run from
tables of a captured step, on one thread, and take turns. GFLOP/s count ``2 m k n``; the ratio is the time of the BLAS
over that of ringtape's product, the median over the rounds: above 1 ours is faster. A captured step takes ours where it
has the bits of NumPy's and is faster. Shapes for which ours has other bits are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path = [str(ROOT), str(ROOT / "benchmarks" / "_peers"), *sys.path[1:]]

import numpy as np
from machine import print_machine

from autograd.compiler.linear_algebra import rows_of_product
from autograd.compiler.machine import Operand, Row, Table

SHAPES = [
    ("f4", 32, 64, 64, "nt"), ("f4", 64, 64, 256, "nn"), ("f4", 64, 256, 64, "nt"),
    ("f4", 32, 784, 128, "nn"), ("f4", 32, 784, 128, "nt"), ("f4", 784, 32, 128, "tn"), ("f4", 16, 72, 1936, "nn"),
    ("f4", 256, 128, 512, "nn"), ("f4", 256, 512, 128, "nt"), ("f4", 128, 256, 512, "tn"),
    ("f4", 1024, 256, 1024, "nn"), ("f4", 1024, 1024, 256, "nt"), ("f4", 256, 1024, 1024, "tn"),
    ("f8", 64, 20, 20, "nt"), ("f8", 256, 128, 512, "nn"), ("f8", 512, 512, 512, "nt"),
]  # fmt: skip
LEAST_S = 1e-3  # of one timing


def arrays(dtype: str, m: int, k: int, n: int, form: str) -> list[Any]:
    """The operands and the result."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    return [*(np.asarray(x, order="F" if to == "t" else "C") for x, to in zip((a, b), form, strict=True)),
            np.empty((m, n), dtype)]  # fmt: skip


def runner(row: Row, xs: Sequence[Any], times: int) -> Callable[[], int]:
    """A function that makes a call several times."""
    table = Table()
    for _ in range(times):
        table.add(row, [x.ctypes.data for x in xs])
    return table.finish()


def seconds(run: Callable[[], int]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(shape: tuple[str, int, int, int, str], rounds: int) -> dict[str, float] | None:
    """The figures of a shape; None if no product of ours has the bits of the BLAS."""
    dtype, m, k, n, _ = shape
    xs = arrays(*shape)
    rows = rows_of_product(*map(Operand.of, xs))
    if rows[1] is None:
        return None
    times = max(1, round(LEAST_S / seconds(runner(rows[0], xs, 1))))
    runs = [runner(row, xs, times) for row in rows if row is not None]
    peer, ours = zip(*([seconds(run) / times for run in runs] for _ in range(rounds)), strict=True)
    rate = 2e-9 * m * k * n
    return {
        "ours": rate / statistics.median(ours), "peer": rate / statistics.median(peer),
        "ratio": statistics.median(x / y for x, y in zip(peer, ours, strict=True)),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    print_machine()
    found = {}
    for shape in SHAPES:
        dtype, m, k, n, form = shape
        name = f"{dtype} {m} x {k} @ {k} x {n}, {form}"
        figures = measure(shape, args.rounds)
        if figures is None:
            print(f"{name}: other bits, or no vectors of 64 bytes", file=sys.stderr)
            continue
        found[f"{name}, GFLOP/s"] = figures
        if not args.json:
            print(f"{name:34} ours {figures['ours']:6.1f}  BLAS {figures['peer']:6.1f}  ratio {figures['ratio']:5.2f}")
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
