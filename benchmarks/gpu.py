"""Fused kernels, training steps and collectives on one NVIDIA GPU, beside eager PyTorch, in one run.

    python benchmarks/gpu.py --python-torch /path/to/an/environment/with/torch/bin/python
    python benchmarks/gpu.py --first --python-torch ... --json            what tells most, in some minutes
    python benchmarks/gpu.py --only gelu attention --rounds 9 --python-torch ... --json
    python benchmarks/gpu.py --roofline               what an H100 allows, calculated, beside the goals
    python benchmarks/gpu.py --cpu --small            the benchmark itself, on a machine without a GPU

kernels      each fused kernel forward and backward; `share` is that of the bandwidth of a copy on the device
adam         one step of AdamW on 100M parameters, beside the fused one of PyTorch
attention    causal, float16, forward and backward at 1,024 to 8,192 tokens, beside the flash kernel of PyTorch's SDPA
gpt          a step of a GPT (12 layers of width 768, 8 rows of 1,024 tokens), float32 with TF32 and float16
step         a step of a 64-64-64-10 network, whose time is the launching of kernels; and captured as a CUDA graph
all_reduce   between two ranks of this GPU, through IPC memory beside staging in host memory

Each library is a process of its own, and they take turns. A ratio is the peer's time over ours: the median over the
rounds. Each row is printed when it is known; a case that fails, or gives no answer within three minutes, is a row
with its error, and the others go on. The last lines name the goals that are missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "benchmarks" / "_peers"
sys.path[:0] = [str(PEERS), str(ROOT)]

from gpu_case import Adam, Attention, Rows, cases, moved_bytes, operations

TARGET_S = 0.2
"""About how long the calls that are timed together take."""
LIMIT_S = 180.0
"""How long a library may take for one answer: its first one compiles kernels."""
FIRST = ("4096", "gpt, float16", "64-64-64-10", "gelu, float16", "layer_norm, float16", "softmax", "rotary, float16",
         "activated_bias, float16", "sum_of_rows, float16")
"""The words of the cases of ``--first``."""

BYTES_PER_S = 3.35e12
"""The bandwidth of an H100's memory. A copy reaches about 0.9 of it."""
OPERATIONS_PER_S = {"float16": 989e12, "float32": 494e12}
"""The peak of its tensor cores, for float32 with TF32."""
FLASH_PER_S = {"forward": 370e12, "backward": 310e12}
"""About what PyTorch's flash kernel reaches on it, an estimate, with the products of a perfect kernel."""


class Ended(Exception):
    """A library's process has ended, or did not answer in time."""


class Failed(Exception):
    """A library has met an error in a case."""


class Library:
    """A process of one library, which prepares and times cases. It is started again after it has ended."""

    def __init__(self, name: str, python: str, options: Sequence[str]):
        self.name, self._python, self._options = name, python, options
        self._start()

    def _start(self) -> None:
        name, python, options = self.name, self._python, self._options
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
        self.about = self._answer()["about"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = threading.Timer(LIMIT_S, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        is_late = not late.is_alive()
        late.cancel()
        if not line:
            status = self._process.wait()
            raise Ended(f"{self.name}: no answer within {LIMIT_S:g} s" if is_late else f"{self.name}: status {status}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, and return the answer."""
        if self._process.poll() is not None:
            self._start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Ended(f"{self.name}: status {self._process.wait()}") from None
        return self._answer()

    def time(self, phase: str, repeat: int) -> float:
        """The seconds of a call of the case that was prepared."""
        answer = self.ask(time=phase, repeat=repeat)
        if "error" in answer:
            raise Failed(f"{self.name}: {answer['error']}")
        return float(answer["seconds"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


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
    once = max(lib.time(phase, 1) for lib in libraries)
    repeat = max(1, min(1000, int(TARGET_S / max(once, 1e-6))))
    found: list[list[float]] = [[] for _ in libraries]
    for at in range(rounds):
        pairs = list(zip(libraries, found, strict=True))
        for lib, times in pairs[:: -1 if at % 2 else 1]:
            times.append(lib.time(phase, repeat))
    return found


def measure(name: str, case: Any, libraries: Sequence[Library], rounds: int, copy_rate: float) -> dict[str, Any]:
    """The figures of one case, by phase. If the peer fails, those of ringtape alone, with the peer's error."""
    prepared = [_prepared(lib, name) for lib in libraries]
    if "error" in prepared[0]:
        return {name: {"error": prepared[0]["error"]}}
    figures: dict[str, Any] = {}
    for phase in prepared[0]["phases"]:
        row_name = name if phase == "step" else f"{name}, {phase}"
        beside = [lib for lib, answer in zip(libraries, prepared, strict=True) if phase in answer.get("phases", ())]
        problem = ""
        try:
            try:
                times = timed(beside, phase, rounds)
            except (Ended, Failed) as error:
                if len(beside) == 1 or str(error).startswith(beside[0].name):
                    raise
                problem, times = str(error), timed(beside[:1], phase, rounds)
        except (Ended, Failed) as error:
            figures[row_name] = {"error": str(error)}
            break
        row: dict[str, Any] = {"ours": statistics.median(times[0])}
        if len(times) > 1:
            row["peer"] = statistics.median(times[1])
            row["ratio"] = statistics.median(b / a for a, b in zip(*times, strict=True))
        elif problem or (errors := [answer["error"] for answer in prepared[1:] if "error" in answer]):
            row["peer_error"] = problem or errors[0]
        size = moved_bytes(case, phase)
        if size is not None:
            row["bytes_per_s"] = size / row["ours"]
            row["share"] = row["bytes_per_s"] / copy_rate if copy_rate else 1.0
        if len(losses := [answer["loss"] for answer in prepared if answer.get("loss")]) > 1:
            row["losses_differ_by"] = abs(losses[0] - losses[1])
        figures[row_name] = row
    return figures


def _prepared(library: Library, name: str) -> dict[str, Any]:
    try:
        return library.ask(case=name)
    except Ended as error:
        return {"error": str(error)}


def line_of(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
    return f"{name:48}" + "  ".join(cells)


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
        try:
            done = subprocess.run(
                [mpiexec, "-n", "2", sys.executable, str(PEERS / "gpu_all_reduce.py"), *options], env=environment,
                stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"all_reduce between two ranks": {"error": f"{transport}: {error}"}}
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


def roofline(is_small: bool) -> Iterator[dict[str, Any]]:
    """The least time of each case on an H100, which is that of its bytes or of its products, and the goal's."""
    for name, case in cases(is_small).items():
        for phase in ("forward", "backward") if isinstance(case, Rows | Attention) else ("step",):
            flops, moved = operations(case, phase), moved_bytes(case, phase) or 0.0
            by_memory_s = moved / BYTES_PER_S
            by_products_s = flops / OPERATIONS_PER_S[getattr(case, "dtype", "float16")]
            if not by_memory_s + by_products_s:
                continue  # the time of launches
            row = {"case": name if phase == "step" else f"{name}, {phase}", "bytes": moved, "flops": flops,
                   "least_s": max(by_memory_s, by_products_s),
                   "limit": "memory" if by_memory_s > by_products_s else "products"}  # fmt: skip
            if isinstance(case, Rows | Adam):
                row["goal_s"] = by_memory_s / (0.85 * 0.9)
            elif isinstance(case, Attention):
                row["goal_s"] = 1.5 * flops / FLASH_PER_S[phase]
            yield row


def print_roofline(is_small: bool) -> None:
    """Print the table of `roofline`."""
    print(f"{'case':44}{'MB':>10}{'GFLOP':>10}{'least us':>11}{'goal us':>11}  limit")
    for row in roofline(is_small):
        goal = f"{row['goal_s'] * 1e6:.1f}" if "goal_s" in row else ""
        moved = f"{row['bytes'] / 1e6:.1f}" if row["bytes"] else ""
        flops = f"{row['flops'] / 1e9:.1f}" if row["flops"] else ""
        print(f"{row['case']:44}{moved:>10}{flops:>10}{row['least_s'] * 1e6:11.1f}{goal:>11}  {row['limit']}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python-torch", metavar="PATH", help="interpreter that has torch; without, left out")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose names have one of these words")
    parser.add_argument("--first", action="store_true", help="the cases that tell most, for the first run on a machine")
    parser.add_argument("--rounds", type=int, default=7, help="rounds; each library runs once in each")
    parser.add_argument("--small", action="store_true", help="small sizes, for tests of the benchmark")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, for tests of the benchmark")
    parser.add_argument("--roofline", action="store_true", help="print what an H100 allows, calculated, and the goals")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer, ratio, share")
    args = parser.parse_args(arguments)
    if args.roofline:
        print_roofline(args.small)
        return
    args.only = [*(args.only or []), *FIRST] if args.first else args.only
    known = {name: case for name, case in cases(args.small).items()
             if name == "copy" or not args.only or any(word in name for word in args.only)}  # fmt: skip
    figures: dict[str, Any] = {}

    def add(rows: dict[str, Any]) -> None:
        """Keep figures, and print them at once: whatever fails later, they are known."""
        figures.update(rows)
        for name, row in rows.items():
            print(line_of(name, row), file=sys.stderr if args.json else sys.stdout, flush=True)

    options = ["--small"] * args.small + ["--cpu"] * args.cpu
    with ExitStack() as stack:
        libraries = [stack.enter_context(library("ringtape", sys.executable, options))]
        if args.python_torch:
            try:
                libraries.append(stack.enter_context(library("torch", args.python_torch, options)))
            except (Ended, OSError) as error:
                print(f"without torch: {error}", file=sys.stderr)
        print("beside each other: " + ", ".join(lib.about for lib in libraries), file=sys.stderr)
        rate = 0.0
        for name, case in known.items():
            add(measure(name, case, libraries, args.rounds, rate))
            rate = figures["copy"].get("bytes_per_s", 0.0)  # the first case
    if not args.only or args.first or any(word in "all_reduce" for word in args.only):
        add(all_reduce(args.small, args.cpu))
    if args.json:
        print(json.dumps(figures))
        return
    for line in missed(figures) if not args.small else ():
        print(f"missed: {line}")


if __name__ == "__main__":
    main()
