"""The cost of an audit: training steps of torch that `audit collect` keeps, beside the same steps without it.

    python benchmarks/audited_step.py --python-torch PATH

A perceptron of 1.6 million parameters trains with AdamW on 256 rows, on one process and with DDP on two. Each kind runs
in processes of its own, in turn; all steps but the first three are measured, and all are collected. `median` is the
ratio of the median steps, and `low` that of the lowest tenths, for a machine with other load. The files are written by
a thread, so the ratio is near 1 where a core is free.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("_peers") / "audited_step_torch.py"


def times(python: str, ranks: int, steps: int, rows: int, folder: str | None) -> list[float]:
    """The milliseconds of the steps; they are collected into a folder, if there is one."""
    start = [python] if ranks == 1 else [python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command = [*start, str(WORKER), str(steps), str(rows)]
    if folder is not None:
        command = [sys.executable, "-m", "collectives", "audit", "collect", "-o", folder, "--steps", str(steps), "--",
                   *command]  # fmt: skip
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))) if folder is not None else ""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{command}:\n{run.stderr[-2000:]}")
    return list(json.loads(run.stdout.strip().splitlines()[-1])[3:])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", default=sys.executable, metavar="PATH")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    found = {}
    for ranks, name in ((1, "one process"), (2, "DDP on two")):
        kinds: dict[str, list[float]] = {"plain": [], "collected": []}
        for _ in range(args.starts):
            for kind, each in kinds.items():
                with tempfile.TemporaryDirectory() as folder:
                    of = folder if kind == "collected" else None
                    each += times(args.python_torch, ranks, args.steps, args.rows, of)
        low = {kind: sorted(each)[len(each) // 10] for kind, each in kinds.items()}
        median = {kind: statistics.median(each) for kind, each in kinds.items()}
        found[name] = {"ours": median["collected"], "peer": median["plain"],
                       "ratio": median["plain"] / median["collected"], "median": median["collected"] / median["plain"],
                       "low": low["collected"] / low["plain"]}  # fmt: skip
    if args.json:
        print(json.dumps(found))
        return
    for name, of in found.items():
        print(f"{name:12} step {of['peer']:.1f} ms, collected {of['ours']:.1f} ms: {of['median']:.2f} times, "
              f"of the lowest tenths {of['low']:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
