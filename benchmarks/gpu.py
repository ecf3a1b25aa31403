"""Fused kernels, training steps and collectives on one NVIDIA GPU, beside eager PyTorch, in one run.

    python benchmarks/gpu.py --python-torch /path/to/an/environment/with/torch/bin/python
    python benchmarks/gpu.py --only gelu attention --rounds 9 --python-torch ... --json
    python benchmarks/gpu.py --cpu --small            the benchmark itself, on a machine without a GPU

kernels      each fused kernel forward and backward; `share` is that of the bandwidth of a copy on the device
adam         one step of AdamW on 100M parameters, beside the fused one of PyTorch
attention    causal, float16, forward and backward at 1,024 to 8,192 tokens, beside the flash kernel of PyTorch's SDPA
gpt          a step of a GPT (12 layers of width 768, 8 rows of 1,024 tokens), float32 with TF32 and float16
step         a step of a 64-64-64-10 network, whose time is the launching of kernels; and captured as a CUDA graph
all_reduce   between two ranks of this GPU, through IPC memory beside staging in host memory

Each library is a process of its own, and they take turns. A ratio is the peer's time over ours: the median over the
rounds. The last lines name the goals that are missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "benchmarks" / "_peers"
sys.path[:0] = [str(PEERS), str(ROOT)]

from gpu_case import cases, moved_bytes

TARGET_S = 0.2
"""About how long the calls that are timed together take."""


class Library:
    """A process of one library, which prepares and times cases."""

    def __init__(self, name: str, python: str, options: Sequence[str]):
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if name == "ringtape":
            environment["PYTHONPATH"] = path
        else:
            environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, str(PEERS / f"gpu_{name}.py"), *options], env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.about = self._answer(name)["about"]

    def _answer(self, name: str = "") -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"gpu.py: the process of {name or self.about} has ended; see above")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def library(name: str, python: str, options: Sequence[str]) -> Iterator[Library]:
    """A library's process, which ends with the block."""
    made = Library(name, python, options)
    try:
        yield made
    finally:
        made.close()


def timed(libraries: Sequence[Library], phase: str, rounds: int) -> list[list[float]]:
    """The seconds of a call of each library in each round; no library always comes first."""
    once = max(lib.ask(time=phase, repeat=1)["seconds"] for lib in libraries)
    repeat = max(1, min(1000, int(TARGET_S / max(once, 1e-6))))
    found: list[list[float]] = [[] for _ in libraries]
    for at in range(rounds):
        pairs = list(zip(libraries, found, strict=True))
        for lib, times in pairs[:: -1 if at % 2 else 1]:
            times.append(lib.ask(time=phase, repeat=repeat)["seconds"])
    return found


def measure(name: str, case: Any, libraries: Sequence[Library], rounds: int, copy_rate: float) -> dict[str, Any]:
    """The figures of one case, by phase."""
    prepared = [lib.ask(case=name) for lib in libraries]
    if "error" in prepared[0]:
        return {name: {"error": prepared[0]["error"]}}
    figures: dict[str, Any] = {}
    for phase in prepared[0]["phases"]:
        beside = [lib for lib, answer in zip(libraries, prepared, strict=True) if phase in answer.get("phases", ())]
        times = timed(beside, phase, rounds)
        row: dict[str, Any] = {"ours": statistics.median(times[0])}
        if len(times) > 1:
            row["peer"] = statistics.median(times[1])
            row["ratio"] = statistics.median(b / a for a, b in zip(*times, strict=True))
        elif errors := [answer["error"] for answer in prepared[1:] if "error" in answer]:
            row["peer_error"] = errors[0]
        size = moved_bytes(case, phase)
        if size is not None:
            row["bytes_per_s"] = size / row["ours"]
            row["share"] = row["bytes_per_s"] / copy_rate if copy_rate else 1.0
        if len(losses := [answer["loss"] for answer in prepared if answer.get("loss")]) > 1:
            row["losses_differ_by"] = abs(losses[0] - losses[1])
        figures[name if phase == "step" else f"{name}, {phase}"] = row
    return figures


def all_reduce(is_small: bool, is_cpu: bool) -> dict[str, Any]:
    """The time of a sum over two ranks of this GPU by each transport, by its size."""
    sys.path.insert(0, str(ROOT))
    from collectives.job.launcher import mpiexec_beside

    mpiexec = mpiexec_beside() or "mpiexec"
    found: dict[str, dict[str, float]] = {}
    for transport in ("ipc", "staged"):
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "RINGTAPE_DEVICE_TRANSPORT": transport, "PYTHONPATH": path,
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # fmt: skip
        options = ["--small"] * is_small + ["--cpu"] * is_cpu
        done = subprocess.run(
            [mpiexec, "-n", "2", sys.executable, str(PEERS / "gpu_all_reduce.py"), *options], env=environment,
            stdout=subprocess.PIPE, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode:
            return {"all_reduce between two ranks": {"error": f"{transport}: status {done.returncode}; see above"}}
        found[transport] = json.loads(done.stdout)
    return {f"all_reduce of {size} bytes, IPC beside staging": {
        "ours": found["ipc"][size], "peer": found["staged"][size], "ratio": found["staged"][size] / found["ipc"][size],
    } for size in found["ipc"]}  # fmt: skip


def missed(figures: dict[str, Any]) -> list[str]:
    """The goals that the figures miss, in words."""
    found = []

    def need(name: str, key: str, least: float) -> None:
        if name in figures and figures[name].get(key, least) < least:
            found.append(f"{name}: {key} {figures[name][key]:.2f}, goal {least:.3g}")

    for name in figures:
        if "share" in figures[name]:
            need(name, "share", 0.85)
        if name.startswith("attention"):
            need(name, "ratio", 1 / 1.5)
    for name in ("gpt, float32", "gpt, float16", "adam, 100M parameters", "64-64-64-10 step"):
        need(name, "ratio", 1.0)
    need("64-64-64-10 step, captured", "ratio", 3.0)
    return found + [f"{name}: {row['error']}" for name, row in figures.items() if "error" in row]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", metavar="PATH", help="interpreter that has torch; without, left out")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose names have one of these words")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; each library runs once in each")
    parser.add_argument("--small", action="store_true", help="small sizes, for tests of the benchmark")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, for tests of the benchmark")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer, ratio, share")
    args = parser.parse_args(arguments)
    known = {name: case for name, case in cases(args.small).items()
             if name == "copy" or not args.only or any(word in name for word in args.only)}  # fmt: skip
    figures: dict[str, Any] = {}
    options = ["--small"] * args.small + ["--cpu"] * args.cpu
    with ExitStack() as stack:
        libraries = [stack.enter_context(library("ringtape", sys.executable, options))]
        if args.python_torch:
            libraries.append(stack.enter_context(library("torch", args.python_torch, options)))
        print("beside each other: " + ", ".join(lib.about for lib in libraries), file=sys.stderr)
        rate = 0.0
        for name, case in known.items():
            rows = measure(name, case, libraries, args.rounds, rate)
            figures |= rows
            rate = figures["copy"].get("bytes_per_s", 0.0)  # the first case
            print(f"{name}: measured", file=sys.stderr)
    if not args.only or any(word in "all_reduce" for word in args.only):
        figures |= all_reduce(args.small, args.cpu)
    if args.json:
        print(json.dumps(figures))
        return
    for name, row in figures.items():
        cells = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
        print(f"{name:48}" + "  ".join(cells))
    for line in missed(figures) if not args.small else ():
        print(f"missed: {line}")


if __name__ == "__main__":
    main()
