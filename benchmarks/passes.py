"""Where the processor time of a GPT's step goes: each fused kernel, beside a copy of the bytes that it must move.

    python benchmarks/passes.py --json

One process trains the GPT of `examples/gpt.py` (4 layers of width 256, 8 rows of 128 tokens, float32, one thread). Each
call of a kernel is timed inside the step. `bytes` counts its operands and results once: forward x and y, backward the
cotangent, x and its cotangent. `ours` is the time of a step in the kernel, `peer` that of copies that move as many
bytes, and `ratio` peer over ours: at 1 it is as fast as a copy, and the rest is arithmetic or a pass too many.
Attention is mostly matrix products; `the rest` is the products of linear layers, sums, and the engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path = [str(ROOT), str(ROOT / "benchmarks" / "_peers"), str(ROOT / "examples"), *sys.path[1:]]

import gpt
import numpy as np
from machine import print_machine

import autograd as ag
from autograd import kernels, optim, random
from autograd.engine.primitive import registry

KERNELS = {"layer_norm": "norms", "gelu": "activations", "self_attention": "attention", "cross_entropy": "losses"}
ROWS, TOKENS, CLASSES = 8, 128, 104
CONFIG = gpt.Config(CLASSES, width=256, heads=4, layers=4)


class Spent:
    """The processor time and the bytes of each kernel."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = defaultdict(int)
        self.bytes: dict[str, int] = defaultdict(int)

    def clear(self) -> None:
        self.ns.clear()
        self.bytes.clear()

    def timed(self, name: str, f: Callable[..., Any], moved: Callable[..., int]) -> Callable[..., Any]:
        """A function that does the same, and adds to what was spent."""

        def run(*args: Any, **options: Any) -> Any:
            start = time.process_time_ns()
            result = f(*args, **options)
            self.ns[name] += time.process_time_ns() - start
            self.bytes[name] += moved(args, result)
            return result

        return run

    def watch(self) -> None:
        """Time all calls of kernels from now on."""
        for name, file in KERNELS.items():
            key = np.ndarray, f"{file}.{name}"
            kernel = kernels._KERNELS[key]
            assert kernel is not None
            kernels._KERNELS[key] = kernel._replace(
                forward=self.timed(name, kernel.forward, lambda args, result: _bytes(*args[0], result[0])),
                backward=self.timed(name, kernel.backward, lambda args, result: _bytes(args[0], *args[2], *result)),
            )
        rotary: Any = registry["rotary"]  # without a kernel on the host
        rotary.composition = self.timed("rotary", rotary.composition, lambda args, result: _bytes(*args, result))
        adam: Any = import_module("autograd.optim.adam")
        adam._on_host = self.timed("Adam", adam._on_host, lambda args, result: 7 * args[0].nbytes)


def _bytes(*arrays: Any) -> int:
    return sum(x.nbytes for x in arrays if isinstance(x, np.ndarray) and x.dtype == np.float32)


def products_s(repeats: int = 3) -> float:
    """The processor time of the matrix products of a step's linear layers, alone: forward and both adjoints."""
    rng, rows, width, total = np.random.default_rng(0), ROWS * TOKENS, CONFIG.width, 0.0
    for n, m in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width), (width, CLASSES)):
        x, w, ct = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, n), (n, m), (rows, m)))
        best = []
        for _ in range(repeats):
            start = time.process_time_ns()
            x.dot(w), ct.dot(w.T), x.T.dot(ct)
            best.append(time.process_time_ns() - start)
        total += min(best) * 1e-9 * (1 if m == CLASSES else CONFIG.layers)
    return total


def copy_s_per_byte() -> float:
    """The processor time of a copy for each byte that it reads or writes, with arrays of a layer's size."""
    source = np.ones((ROWS * TOKENS, CONFIG.width), np.float32)
    target, best = np.empty_like(source), []
    for _ in range(20):
        start = time.process_time_ns()
        for _ in range(20):
            np.copyto(target, source)
        best.append(time.process_time_ns() - start)
    return min(best) * 1e-9 / 20 / (2 * source.nbytes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="steps that are measured (at least 1)")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (us), ratio")
    args = parser.parse_args(arguments)
    if args.steps < 1:
        parser.error("--steps: at least 1")
    kernels.keep_freed_memory()
    model, total_loss = gpt.gpt(CONFIG, random.Key(0)), gpt.Loss()
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, CLASSES, (2, ROWS, TOKENS))

    def step() -> None:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = total_loss(model(x), y) / y.size
        tape.backward(loss)
        optimizer.step()

    spent = Spent()
    step()
    spent.watch()
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(args.steps + 2):
        spent.clear()
        start = time.process_time_ns()
        step()
        found["a step"].append(time.process_time_ns() - start)
        for name, ns in spent.ns.items():
            found[name].append(ns)
    per_byte = copy_s_per_byte()
    times = {name: 1e-3 * statistics.median(ns[2:]) for name, ns in found.items()}
    times["products of linear layers, alone"] = 1e6 * products_s()
    times["the rest"] = 2 * times["a step"] - sum(times.values())
    figures: dict[str, dict[str, float]] = {}
    for name, us in times.items():
        figures[name] = {"ours": us, "share": us / times["a step"]}
        if name in spent.bytes:
            copy_us = 1e6 * per_byte * spent.bytes[name]
            figures[name] |= {"peer": copy_us, "ratio": copy_us / us}
    if args.json:
        print(json.dumps(figures))
        return
    print_machine()
    print(f"{'':34}{'us':>9}{'share':>8}{'copy us':>9}{'ratio':>7}")
    for name, row in figures.items():
        beside = f"{row['peer']:9.0f}{row['ratio']:7.2f}" if "peer" in row else ""
        print(f"{name:34}{row['ours']:9.0f}{row['share']:8.3f}{beside}")


if __name__ == "__main__":
    main()
