"""The code that the workers of `benchmarks/engine.py` share: cases, data, and the protocol with the driver.

A worker imports one engine, builds the step of one case, checks that it runs on one thread, and prints one line of
JSON: the losses and norms of gradients of the first and the last warm-up step, by which the driver checks that all
engines do the same work. Then, for every line ``round`` on its standard input, it runs N steps and prints the median
time of a step in microseconds. So the processes stay alive and take turns.

This module needs NumPy only, because the peers' environments may have none of ringtape's other requirements.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
BATCH = 32
RATE = 0.01
MOMENTUM = 0.9

# One thread for the library that computes matrix products, which reads these variables when it is loaded.
THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")


class Case(NamedTuple):
    """A case: its kind (the worker's function that builds it), its sizes, and the steps of a round and the warm-up."""

    kind: str
    sizes: tuple[int, ...]
    steps: int
    warm_up: int


CASES = {
    "64-64-64-10": Case("mlp", (64, 64, 64, 10), 100, 60),
    "784-128-10": Case("mlp", (784, 128, 10), 100, 60),
    "chain": Case("chain", (1000,), 30, 30),
    "gpt-8x128": Case("gpt", (8, 128, 256, 4), 3, 6),
    "gpt-1x1024": Case("gpt", (1, 1024, 256, 4), 3, 6),
    "cross-entropy": Case("cross_entropy", (1024, 8192), 3, 6),
    "cnn": Case("cnn", (256, 16, 32), 10, 20),
    "adam": Case("adam", (1_000_000,), 30, 30),
}


class Work(NamedTuple):
    """A step, and `look`, which maps the step's result to numbers to compare between engines."""

    step: Callable[[], Any]
    look: Callable[[Any], Mapping[str, float]]


@dataclass(frozen=True)
class Problem:
    """Data and initial weights, the same for all engines; weights are (in, out)."""

    widths: tuple[int, ...]
    x: Array
    y: Array
    weights: list[Array]
    biases: list[Array]


def problem(widths: tuple[int, ...]) -> Problem:
    """A network of the given widths, from a fixed seed."""
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


def block(sizes: tuple[int, ...]) -> tuple[Array, Array, dict[str, Array]]:
    """A GPT block's input, the cotangent of its output, and its parameters by name; matrices are (in, out)."""
    batch, tokens, width, _ = sizes
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    parameters = {
        "ln1.weight": 1 + 0.1 * normal(width), "ln1.bias": 0.1 * normal(width),
        "qkv.weight": normal(width, 3 * width) * width**-0.5, "qkv.bias": 0.1 * normal(3 * width),
        "out.weight": normal(width, width) * width**-0.5, "out.bias": 0.1 * normal(width),
        "ln2.weight": 1 + 0.1 * normal(width), "ln2.bias": 0.1 * normal(width),
        "up.weight": normal(width, 4 * width) * width**-0.5, "up.bias": 0.1 * normal(4 * width),
        "down.weight": normal(4 * width, width) * (4 * width) ** -0.5, "down.bias": 0.1 * normal(width),
    }  # fmt: skip
    parameters = {name: a.astype(np.float32) for name, a in parameters.items()}
    return normal(batch, tokens, width), normal(batch, tokens, width), parameters


def logits(sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """Logits and labels."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(sizes).astype(np.float32), rng.integers(0, sizes[1], sizes[0])


def images(sizes: tuple[int, ...]) -> tuple[Array, Array, dict[str, Array]]:
    """Images of 8 x 8 points, labels, and the parameters of two convolutions and a linear layer (in, out)."""
    batch, first, second = sizes
    rng = np.random.default_rng(0)

    def uniform(fan_in: int, *shape: int) -> Array:
        return rng.uniform(-(fan_in**-0.5), fan_in**-0.5, shape).astype(np.float32)

    parameters = {
        "0.weight": uniform(9, first, 1, 3, 3), "0.bias": uniform(9, first),
        "1.weight": uniform(9 * first, second, first, 3, 3), "1.bias": uniform(9 * first, second),
        "2.weight": uniform(4 * second, 4 * second, 10), "2.bias": uniform(4 * second, 10),
    }  # fmt: skip
    return rng.standard_normal((batch, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, batch), parameters


def adam_state(sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """A parameter and its gradient."""
    rng = np.random.default_rng(0)
    return rng.standard_normal(sizes).astype(np.float32), rng.standard_normal(sizes).astype(np.float32)


CHAIN = (1.0001, 0.0001)
"""One step of the chain is ``x = x * a + b``: two operations."""


def norm(x: Any) -> float:
    """The Euclidean norm, in double precision."""
    return float(np.linalg.norm(np.asarray(x, np.float64)))


def loss_only(loss: Any) -> Mapping[str, float]:
    """The numbers to compare of a training step: its loss, which depends on all steps before it."""
    return {"loss": float(loss)}


def serve(**builders: Callable[[tuple[int, ...], str], Work]) -> None:
    """Run the worker. `builders` maps the kind of a case to a function of (sizes, mode)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--mode", default="")
    parser.add_argument("--steps", type=int, default=0)
    args = parser.parse_args()
    for name, value in THREADS.items():
        assert os.environ.get(name) == value, f"{name} must be {value} before the engine is loaded"
    # Output that libraries print must not get between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    case = CASES[args.case]
    step, look = builders[case.kind](case.sizes, args.mode)
    found = {f"first {k}": v for k, v in look(step()).items()}
    for _ in range(case.warm_up - 2):
        step()
    found |= {f"last {k}": v for k, v in look(step()).items()}
    print(json.dumps(found), file=answers, flush=True)
    clock = time.perf_counter_ns
    for line in sys.stdin:
        if line.strip() != "round":
            break
        times = []
        wall, cpu = clock(), time.process_time_ns()
        for _ in range(args.steps or case.steps):
            start = clock()
            step()
            times.append(clock() - start)
        wall, cpu = clock() - wall, time.process_time_ns() - cpu
        # Whatever number of threads a library reports, one thread cannot use more processor time than wall time.
        assert cpu < 1.2 * wall + 2e7, f"{cpu / wall:.1f} threads were at work; needed: one"
        print(statistics.median(times) / 1e3, file=answers, flush=True)
