"""What the workers of `benchmarks/engine.py` share: the cases, the data, and the protocol.

A worker imports one engine, builds one step, checks that it has one thread, and prints one line of JSON with its first
and last loss of the warm-up, by which the driver sees that all of them compute the same thing. Then, for every line
``round`` on its standard input, it runs N steps and prints the median time of one in microseconds. So the processes
stay alive and take turns.

It needs NumPy only: the peer's interpreter may have nothing else of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
WARM_UP = 60
BATCH = 32
RATE = 0.01
MOMENTUM = 0.9

# One thread for whatever library does the matrix products; read when it is loaded.
THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")

CASES = {"64-64-64-10": (64, 64, 64, 10), "784-128-10": (784, 128, 10)}


@dataclass(frozen=True)
class Problem:
    """Data and first weights, the same for all: weights are (in, out)."""

    widths: tuple[int, ...]
    x: Array
    y: Array
    weights: list[Array]
    biases: list[Array]


def problem(case: str) -> Problem:
    """The named case, from a fixed seed."""
    widths = CASES[case]
    rng = np.random.default_rng(0)

    def uniform(bound: float, *shape: int) -> Array:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    return Problem(
        widths,
        rng.standard_normal((BATCH, widths[0])).astype(np.float32),
        rng.integers(0, widths[-1], BATCH),
        [uniform(n**-0.5, n, m) for n, m in zip(widths, widths[1:], strict=False)],
        [uniform(n**-0.5, m) for n, m in zip(widths, widths[1:], strict=False)],
    )


def serve(build: Callable[[Problem, str], Callable[[], Any]]) -> None:
    """Run the worker. `build(problem, mode)` returns the step, whose result is the loss as something `float` takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--mode", default="")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    for name, value in THREADS.items():
        assert os.environ.get(name) == value, f"{name} must be {value} before the engine is loaded"
    # What libraries print must not come between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    step = build(problem(args.case), args.mode)
    first = float(step())
    for _ in range(WARM_UP - 2):
        step()
    print(json.dumps({"first": first, "last": float(step())}), file=answers, flush=True)
    clock = time.perf_counter_ns
    for line in sys.stdin:
        if line.strip() != "round":
            break
        times = []
        wall, cpu = clock(), time.process_time_ns()
        for _ in range(args.steps):
            start = clock()
            step()
            times.append(clock() - start)
        wall, cpu = clock() - wall, time.process_time_ns() - cpu
        # Whatever a library says of its threads: one thread cannot use more processor time than there was.
        assert cpu < 1.2 * wall + 2e7, f"{cpu / wall:.1f} threads were at work; needed: one"
        print(statistics.median(times) / 1e3, file=answers, flush=True)
