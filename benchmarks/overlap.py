"""Overlap of communication and compute: how much of a nonblocking all-reduce is hidden behind compute, over MPI.

    mpiexec -n 4 python benchmarks/overlap.py             # most useful on several hosts with a slow network

Each round measures, one after the other and each from a barrier on: the all-reduce alone; the compute alone; both,
while the tape lets the transport make progress after each operation (a poke); both without pokes; and both with raw
mpi4py (`Iallreduce` before and `Wait` after the compute, as is usually advised). The same is measured for the backward
pass, where the adjoint starts its all-reduce at the place of the wait, and waits at the place of the start. A time is
that of the slowest rank; figures are medians over the rounds.

The hidden share is (alone + compute - both) / alone, where alone is the time of the all-reduce alone. If hosts share
cores, the processor time of the transfer reduces it. "waited" is the time in the wait itself, after the compute.

The compute is a chain of recorded operations, calibrated to take `--factor` times as long as the all-reduce. Each
operation takes about `--operation-ms`, and pending communication makes no progress during an operation. By default the
operations are those of a simulated accelerator and take no processor time, as on hosts that do not share the cores of
one machine. With ``--compute matrix`` they are matrix products, on the same processors that move the data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Python puts a script's own folder first on sys.path, where `import collectives` would find `collectives.py`.
sys.path = [str(HERE.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
for name in THREADS:
    os.environ[name] = "1"

# NumPy reads the number of threads when it is imported, so it must be imported after these assignments
import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd.engine.state import state
from autograd.extend import op

SIDE = 192  # the matrices of the compute are SIDE x SIDE


class Device:
    """A simulated accelerator: every operation takes a given time, forward and backward, and no processor time.

    One operation can be queued behind the running one, as in a stream. A launch returns when the previous operation is
    done, so work on the host between two launches is free if it is shorter than an operation.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.busy_until = 0.0
        self.operation = op("device operation (benchmark)", "a", self.launch, self.launch)

    def launch(self, x: Any, *_: Any) -> Any:
        before = self.busy_until
        self.busy_until = max(time.perf_counter(), before) + self.seconds
        self._wait_until(before)
        return x

    def synchronize(self) -> None:
        self._wait_until(self.busy_until)

    @staticmethod
    def _wait_until(moment: float) -> None:
        left = moment - time.perf_counter()
        if left > 0:
            time.sleep(left)


def slowest(mine: float) -> float:
    """The largest time of all ranks."""
    return float(max(np.frombuffer(b, np.float64)[0] for b in cc.world().exchange(np.array([mine]).tobytes())))


def timed(function: Callable[[], Any]) -> float:
    """The time of the slowest rank in seconds, from a barrier on."""
    cc.world().barrier()
    start = time.perf_counter()
    function()
    return slowest(time.perf_counter() - start)


class Bench:
    """One payload and one amount of compute."""

    def __init__(self, nbytes: int, operation_s: float, kind: str):
        generator = np.random.default_rng(cc.world().rank)
        self.payload = ag.tensor(generator.standard_normal(nbytes // 4).astype(np.float32), requires_grad=True)
        self.cotangent = ag.tensor(generator.standard_normal(nbytes // 4).astype(np.float32))
        self.weight = ag.tensor((generator.standard_normal((SIDE, SIDE)) / SIDE**0.5).astype(np.float32))
        self.small = ag.tensor(generator.standard_normal((SIDE, SIDE)).astype(np.float32), requires_grad=True)
        once = statistics.median(timed(lambda: [self.small @ self.weight for _ in range(20)]) / 20 for _ in range(5))
        self.rows = max(1, round(operation_s / once)) * SIDE
        self.wide = ag.tensor(generator.standard_normal((self.rows, SIDE)).astype(np.float32), requires_grad=True)
        self.device = Device(operation_s) if kind == "device" else None
        self.steps = 1
        self.waited = 0.0  # seconds spent in the wait of the last run of both

    def compute(self) -> Any:
        """A chain of matrix products and nonlinearities."""
        y: Any = self.wide
        for _ in range(self.steps):
            y = anp.maximum(y @ self.weight, 0.0) if self.device is None else self.device.operation(y)
        return y

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device is not None:
            self.device.synchronize()

    def calibrate(self, seconds: float) -> None:
        """Set the number of steps so that the forward compute takes the given time."""
        self.steps = 4
        with ag.Tape():
            self.compute()
        once = statistics.median(timed(self.recorded) for _ in range(3)) / 4
        self.steps = max(2, round(seconds / once))

    def recorded(self) -> None:
        with ag.Tape():
            self.compute()
            self.synchronize()

    # -- forward ---------------------------------------------------------------------------------------------------
    def alone(self) -> None:
        with ag.Tape():
            cc.all_reduce_async(self.payload, "dp").wait()

    def both(self) -> None:
        with ag.Tape():
            handle: Any = cc.all_reduce_async(self.payload, "dp")
            self.compute()
            self.synchronize()
            start = time.perf_counter()
            handle.wait()
        self.waited = time.perf_counter() - start

    def both_raw(self) -> None:
        from mpi4py import MPI

        given = self.payload.local.copy()
        taken = np.empty_like(given)
        with ag.Tape():
            request = MPI.COMM_WORLD.Iallreduce(given, taken)
            self.compute()
            self.synchronize()
            start = time.perf_counter()
            request.Wait()
        self.waited = time.perf_counter() - start

    # -- backward --------------------------------------------------------------------------------------------------
    def tape(self, communicates: bool, computes: bool) -> Callable[[], None]:
        """Record a forward pass, and return a function that runs its backward pass."""
        with ag.Tape() as tape:
            handle: Any = cc.all_reduce_async(self.payload, "dp") if communicates else None
            y = self.compute() if computes else None
            handle = handle.wait() if communicates else None
        outputs = [x for x in (handle, y) if x is not None]
        cotangents = [self.cotangent if x is handle else x.local for x in outputs]
        cotangents = [
            ag.tensor(np.array(c.local), layout={"dp": x.layout["dp"] if x is y else cc.P})
            for c, x in zip(map(ag.tensor, cotangents), outputs, strict=True)
        ]

        def backward() -> None:
            tape.backward(outputs, cotangents)
            self.synchronize()

        return backward


def without_poke(function: Callable[[], Any]) -> Any:
    mesh = state.mesh
    before, mesh.progress = mesh.progress, None
    try:
        return function()
    finally:
        mesh.progress = before


def measure(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Seconds by name and round."""
    times: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds)

    for k in range(rounds + 1):
        if k == 1:
            times.clear()  # the first round is a warm-up
        note("alone", timed(bench.alone))
        note("compute", timed(bench.recorded))
        for name, run in (
            ("both", bench.both),
            ("both, no poke", lambda: without_poke(bench.both)),
            ("both, raw", bench.both_raw),
        ):
            note(name, timed(run))
            note(f"{name}, waited", slowest(bench.waited))
        note("back alone", timed(bench.tape(True, False)))
        note("back compute", timed(bench.tape(False, True)))
        note("back both", timed(bench.tape(True, True)))
        backward = bench.tape(True, True)
        note("back both, no poke", timed(lambda: without_poke(backward)))  # noqa: B023 - called at once
        for x in (bench.payload, bench.wide):
            x.zero_grad()
    return times


def share(rounds: dict[str, list[float]], both: str, prefix: str = "") -> float:
    """The hidden share of the all-reduce: the median over the rounds of the share within a round."""
    each = zip(rounds[f"{prefix}alone"], rounds[f"{prefix}compute"], rounds[both], strict=True)
    return statistics.median((alone + compute - b) / alone for alone, compute, b in each)


def main() -> None:
    """Measure, and print a table or JSON on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=8.0, help="size of the all-reduce")
    parser.add_argument("--factor", type=float, default=2.0, help="time of the compute over that of the all-reduce")
    parser.add_argument("--compute", choices=("matrix", "device"), default="device")
    parser.add_argument("--operation-ms", type=float, default=2.0, help="approximate time of one operation")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer (s), ratio")
    args = parser.parse_args()
    world = cc.world()
    if world.size == 1:
        raise SystemExit("there is only one rank; needed: at least 2. Fix: mpiexec -n 4 python benchmarks/overlap.py")
    assert all(os.environ[name] == "1" for name in THREADS)
    cc.check("off")  # comparing calls would turn every start into a barrier
    with cc.Mesh(dp=-1):
        bench = Bench(int(args.mib * 2**20), args.operation_ms / 1000, args.compute)
        bench.alone()
        alone = statistics.median(timed(bench.alone) for _ in range(5))
        bench.calibrate(args.factor * alone)
        rounds = measure(bench, args.rounds)
    times = {name: statistics.median(found) for name, found in rounds.items()}
    if world.rank:
        return
    size = f"{args.mib:g} MiB all-reduce on {world.size} ranks, {args.compute} compute"
    figures = {}
    for way, prefix, peer in (("forward", "", "both, raw"), ("backward", "back ", "back both, no poke")):
        figures[f"{size}, hidden behind compute, {way}"] = {
            "ours": times[f"{prefix}both"],
            "peer": times[peer],
            "ratio": statistics.median(p / o for p, o in zip(rounds[peer], rounds[f"{prefix}both"], strict=True)),
            "hidden_share": share(rounds, f"{prefix}both", prefix),
            "hidden_share_without_poke": share(rounds, f"{prefix}both, no poke", prefix),
            "hidden_share_of_peer": share(rounds, peer, prefix),
            "alone_s": times[f"{prefix}alone"],
            "compute_s": times[f"{prefix}compute"],
        }
        if not prefix:
            figures[f"{size}, hidden behind compute, {way}"]["waited_s"] = times["both, waited"]
    if args.json:
        print(json.dumps(figures))
        return
    each = f"{args.operation_ms:g} ms" if bench.device is not None else f"{bench.rows} x {SIDE} by {SIDE}"
    print(f"{size} of {bench.steps} steps, {each} each; medians of {args.rounds} rounds, ms")
    for way, prefix in (("forward", ""), ("backward", "back ")):
        print(f"{way}: alone {times[prefix + 'alone'] * 1e3:.1f}, compute {times[prefix + 'compute'] * 1e3:.1f}")
        names = {"poked": "both", "without poke": "both, no poke"} | ({"raw mpi4py": "both, raw"} if not prefix else {})
        for title, name in names.items():
            hidden = share(rounds, prefix + name, prefix)
            waited = "" if prefix else f"   waited {times[name + ', waited'] * 1e3:6.1f}"
            print(f"  both, {title:<13}{times[prefix + name] * 1e3:8.1f}   hidden {hidden:6.1%}{waited}")


if __name__ == "__main__":
    main()
