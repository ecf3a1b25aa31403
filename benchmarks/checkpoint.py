"""Save and load the state of a run: seconds beside torch.distributed.checkpoint, and beside a plain write.

    python benchmarks/checkpoint.py --python-torch PATH [--mib 500] [--rounds 3] [--folder DIR]

Two ranks hold the halves of parameters and of the two moments of AdamW. Both systems write to one folder, and to the
disk (fsync). Their processes alternate: each round runs ours, then the peer, `--repeats` times each. Times are medians.
The files are in the page cache when they are loaded. "first load" is the first one of each process, which takes new
memory from the system; "load" has those after two of them. Our processes keep the memory that they free
(`kernels.keep_freed_memory`), as programs that train do. "plain" writes the same bytes by each rank to a file of its
own, with fsync. "stopped" is the time for which a save in the background stops the program, after the first one, which
takes new memory and has a row of its own.

Ratios: save and load: the peer's time by ours; plain: its time by that of our save; stopped: that of a save by it;
memory: 1 by what a save needs, in parts of a rank's own values. More is better.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "_peers"
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def result(command: list[str]) -> dict[str, Any]:
    """The JSON line that a worker prints."""
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD}, check=False)
    lines = [line for line in found.stdout.splitlines() if line.startswith("{")]
    if found.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed:\n{found.stdout}{found.stderr}")
    made: dict[str, Any] = json.loads(lines[-1])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Save and load the state of a run.")
    parser.add_argument("--python-torch", metavar="PATH", help="an interpreter that has torch")
    parser.add_argument("--mib", type=int, default=500, help="of parameters and optimizer state, on both ranks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="in each round")
    parser.add_argument("--folder", help="on the disk to measure; by default that of temporary files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if MPIEXEC is None:
        raise SystemExit("benchmarks/checkpoint.py needs mpiexec: pip install mpich")
    ours: dict[str, list[float]] = {}
    peer: dict[str, list[float]] = {}
    memory = 0.0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sizes = [folder, str(options.mib), str(options.repeats)]
        for k in range(options.rounds):
            ringtape = [MPIEXEC, "-n", "2", sys.executable, str(PEERS / "checkpoint_ringtape.py")]
            found = result([*ringtape, *sizes, str(1000 * k)])
            memory = max(memory, found.pop("memory"))
            for name, times in found.items():
                ours.setdefault(name, []).extend(times)
            if options.python_torch:
                torch = [options.python_torch, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
                for name, times in result([*torch, str(PEERS / "checkpoint_torch.py"), *sizes]).items():
                    peer.setdefault(name, []).extend(times)
    mine = {name: statistics.median(times) for name, times in ours.items()}
    rows = {name: (mine[name], statistics.median(times)) for name, times in peer.items()}
    rows["plain write"] = mine["save"], mine["plain"]
    rows["stopped by a background save"] = mine["stopped"], mine["save"]
    rows["stopped by the first one"] = mine["first stopped"], mine["save"]
    figures = {name: {"ours": a, "peer": b, "ratio": b / a} for name, (a, b) in rows.items()}
    figures["memory of a save"] = {"ours": memory, "peer": 1.0, "ratio": 1 / max(memory, 1e-9)}
    if options.json:
        print(json.dumps(figures))
        return
    repeats = options.rounds * options.repeats
    print(f"{options.mib} MiB of parameters and AdamW's moments, 2 ranks, medians of {repeats}")
    for name, each in figures.items():
        print(f"{name:30} ours {each['ours']:8.3f}   other {each['peer']:8.3f}   ratio {each['ratio']:6.2f}")


if __name__ == "__main__":
    main()
