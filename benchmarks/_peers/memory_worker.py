"""Worker of `benchmarks/memory.py`: import an engine, run steps of a case, and print the peak memory as JSON.

The peak is the kernel's record for this process (VmHWM), reset after the import, minus the memory that is resident
then. So it counts parameters, data, activations, gradients and buffers. Code that ringtape compiles is loaded before
the reset, like the compiled code of the peer, and counted separately.
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
    parser.add_argument("--steps", type=int, nargs="+", required=True, help="numbers of steps after which to measure")
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
