"""One process of `benchmarks/memory.py`: imports an engine, runs steps of a case, prints its peak memory as JSON.

The peak is the kernel's record of this process (VmHWM), reset after the import, less the memory that is resident then.
So it counts what a step needs on top of the engine: parameters, data, activations, gradients, buffers. Compiled code of
ringtape is loaded before the steps, as the peer's is, and is counted separately.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import engine_worker
from engine_worker import CASES


def status(name: str) -> int:
    """A figure of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}; needed: Linux")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--mode", default="")
    parser.add_argument("--steps", type=int, nargs="+", required=True, help="when to look, counted in steps")
    args = parser.parse_args()
    builders = {}
    engine_worker.serve = lambda **given: builders.update(given)
    importlib.import_module(f"engine_{args.engine}")
    case = CASES[args.case]
    compiled = 0
    if args.engine == "ringtape":
        from autograd.kernels.compiled import load

        before = status("VmRSS")
        load()
        compiled = status("VmRSS") - before
    baseline = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    step = builders[case.kind](case.sizes, args.mode).step
    found, done = [], 0
    for until in args.steps:
        for _ in range(until - done):
            step()
        done = until
        found.append({"steps": done, "peak": status("VmHWM") - baseline, "resident": status("VmRSS") - baseline,
                      "compiled": compiled})  # fmt: skip
    json.dump(found, sys.stdout)


main()
