"""Memory of a training step: ringtape compared with PyTorch eager, and ringtape after ten thousand steps.

    python benchmarks/memory.py --python-torch /path/to/an/environment/with/torch/bin/python

Each figure is measured in its own process: the peak of resident memory minus the resident memory after the import. The
cases are those of `benchmarks/engine.py`. For the step of a transformer block (float32, width 256, 4 heads, causal) the
peer runs with scaled_dot_product_attention and with plain attention. For the training step of the small network, memory
is measured after 1,000 and after 10,000 steps, without a mesh and on a mesh. A ratio is the peer's bytes divided by
ours; for the loop it is the earlier peak divided by the later one, so 1 means that nothing grows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PEERS = Path(__file__).resolve().parent / "_peers"
sys.path.insert(0, str(PEERS))

from engine_worker import THREADS
from machine import print_machine

BLOCKS = {"gpt-8x128": "GPT block, 8 x 128 tokens", "gpt-1x1024": "GPT block, 1 x 1,024 tokens"}
STEPS = 5


def look(python: str, engine: str, case: str, mode: str, *steps: int) -> list[dict[str, Any]]:
    """Peak and resident bytes of one process after each of the given numbers of steps."""
    environment = dict(os.environ, **THREADS)
    environment.pop("PYTHONPATH", None)
    if engine == "ringtape":
        environment["PYTHONPATH"] = str(PEERS.parent.parent)
    command = [python, str(PEERS / "memory_worker.py"), "--engine", engine, "--case", case, "--mode", mode, "--steps"]
    done = subprocess.run([*command, *map(str, steps)], check=False, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{engine}, {case}: its process ended with status {done.returncode}; see above")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", default=sys.executable, metavar="PATH", help="interpreter that has torch")
    parser.add_argument("--loop", type=int, default=10_000, help="steps of the loop")
    parser.add_argument("--only", nargs="+", choices=[*BLOCKS, "loop"], default=[*BLOCKS, "loop"], metavar="CASE")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (bytes), ratio")
    args = parser.parse_args()
    print_machine()
    figures = {}
    for case in [case for case in BLOCKS if case in args.only]:
        found = look(sys.executable, "ringtape", case, "plain", STEPS)[0]
        ours = found["peak"]
        for mode, name in (("sdpa", "SDPA"), ("manual", "plain attention")):
            peer = look(args.python_torch, "torch", case, mode, STEPS)[0]["peak"]
            figures[f"peak of a {BLOCKS[case]}, against torch, {name}"] = {
                "ours": ours, "peer": peer, "ratio": peer / ours, "compiled": found["compiled"]
            }  # fmt: skip
    if "loop" in args.only:
        for mode, name in (("plain", "no mesh"), ("mesh", "mesh dp=1")):
            early, late = look(sys.executable, "ringtape", "64-64-64-10", mode, args.loop // 10, args.loop)
            figures[f"{args.loop:,} steps of 64-64-64-10, {name}, against a tenth of them"] = {
                "ours": late["peak"], "peer": early["peak"], "ratio": early["peak"] / late["peak"]
            }  # fmt: skip
    if args.json:
        print(json.dumps(figures))
        return
    width = max(map(len, figures))
    print(f"{'':{width}}  {'MiB':>7}  {'peer MiB':>8}  {'ratio':>6}")
    for name, figure in figures.items():
        ours, peer = (figure[who] / 2**20 for who in ("ours", "peer"))
        print(f"{name:{width}}  {ours:7.1f}  {peer:8.1f}  {figure['ratio']:6.3f}")
    compiled = max(figure.get("compiled", 0) for figure in figures.values())
    if compiled:
        print(f"{'of Numba and compiled loops, before the first step':{width}}  {compiled / 2**20:7.1f}")


if __name__ == "__main__":
    main()
