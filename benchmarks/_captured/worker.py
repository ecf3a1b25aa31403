"""One program of one engine in its own process: ``worker.py --engine jax --program lstm --mode MODE``.

The engine "ringtape" has the modes "captured" and "step". The process prints one line of JSON: the version of the
engine, and the losses of the steps that `LOOKED_AT` names, by which the driver sees that all engines do the same work.
Then, for every line ``round`` on its standard input, it runs steps for some hundredths of a second and prints the
median time of a step in microseconds: processor time, measured for groups of steps, because to ask for it takes one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent / "_peers")
sys.path.append(str(HERE.parent))  # at the end: `collectives.py` there is a benchmark

from engine_worker import THREADS

LOOKED_AT = (0, 1, 11)
"""The steps whose losses are compared: the first two, and one whose loss depends on many steps before it."""

WARM_UP = 24
ROUND_S, GROUP_S = 0.04, 0.002


def ringtape_step(program: str, mode: str) -> tuple[Callable[[int], Any], str]:
    """The step of a program in ringtape, captured or as it is, and what to call it."""
    from before import check_tree

    check_tree()
    import autograd as ag
    from _captured.ringtape_steps import program as made
    from autograd import kernels

    if hasattr(kernels, "keep_freed_memory"):
        kernels.keep_freed_memory()
    found = made(program)
    step, batches = ag.capture(found.step) if mode == "captured" else found.step, found.batches
    return lambda i: step(*batches[i % len(batches)]).data, "ringtape"


def main() -> None:
    """Run the worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--mode", default="")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # one thread, whatever an engine starts
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name, value in THREADS.items():
        assert os.environ.get(name) == value, f"{name} must be {value} before the engine is loaded"
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not get between the answers
    if args.engine == "ringtape":
        step, version = ringtape_step(args.program, args.mode)
    else:
        engine = importlib.import_module(f"_captured.{args.engine}_steps")
        step, version = engine.step(args.program), engine.version
    wall_clock, clock = time.perf_counter, time.process_time
    losses, times = {}, []
    for i in range(WARM_UP):
        start = wall_clock()
        loss = step(i)
        times.append(wall_clock() - start)
        if i in LOOKED_AT:
            losses[i] = float(loss)
    print(json.dumps({"version": version, "losses": losses}), file=answers, flush=True)
    of_step = min(times[-8:])
    group = max(1, round(GROUP_S / of_step))
    count = max(3, round(ROUND_S / (group * of_step)))
    done = WARM_UP
    for line in sys.stdin:
        if line.strip() != "round":
            break
        times = []
        wall, cpu = wall_clock(), clock()
        for _ in range(count):
            start = clock()
            for i in range(done, done + group):
                step(i)
            times.append((clock() - start) / group)
            done += group
        wall, cpu = wall_clock() - wall, clock() - cpu
        # Whatever number of threads a library reports, one thread cannot use more processor time than wall time.
        assert cpu < 1.2 * wall + 0.02, f"{cpu / wall:.1f} threads were at work; needed: one"
        print(statistics.median(times) * 1e6, file=answers, flush=True)


if __name__ == "__main__":
    main()
