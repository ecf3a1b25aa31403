"""One world of `checking.py`: times calls in every mode, in turns, and prints one JSON object on rank 0.

    checking_worker.py local|mpi ROUNDS CALLS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd.engine.events import listeners
from collectives.checks import modes
from collectives.collective import Prepared

SIZE_BYTES = 4096
BARE, UNCHECKED = "bare transport", "without the check"
LATER = "first, after its 1000 calls"  # over MPI; on threads every call is compared
MODES = ("off", "first", "always", "ranks")


def run_unchecked(self: Any, x: Any, recorded: Any, operand: Any = None) -> Any:
    """`Prepared.run` as it would be if there were no checking at all."""
    if listeners:
        return self._run_between_events(x, operand)
    if self.collective._forward is self._rule:
        if self._is_identity:
            return x
        request = self._request
        if request and x.flags.c_contiguous:
            y = self.group.run_again(request, x if self._is_flat else x.reshape(-1), self._answer)
            return y if self._result_shape is None else y.reshape(self._result_shape)
    return self._run_rule(x)


def chunk(name: str, group: Any, flat: Any, x: Any, calls: int) -> float:
    """Microseconds a call."""
    group.barrier()
    if name == BARE:
        start = time.perf_counter()
        for _ in range(calls):
            group.all_reduce(flat)
        return (time.perf_counter() - start) / calls * 1e6
    with ag.Tape():
        start = time.perf_counter()
        for _ in range(calls):
            cc.all_reduce(x, "dp")
        return (time.perf_counter() - start) / calls * 1e6


def measure(rounds: int, calls: int, *more: str) -> dict[str, list[float]]:
    """Microseconds a call, by name and round. Every rank calls it."""
    times: dict[str, list[float]] = {name: [] for name in (BARE, UNCHECKED, *MODES, *more)}
    original = Prepared.run
    with cc.Mesh(dp=-1) as mesh:
        group = mesh.axis("dp").group
        flat = np.ones(SIZE_BYTES // 4, np.float32)
        x = ag.tensor(flat)
        for nth in range(rounds + 1):
            for name in times:
                group.barrier()
                mode = name.partition(",")[0]
                # `first` compares while the number of a group's calls is below its limit
                modes._limits["first"] = 0.0 if name == LATER else float("inf")
                cc.check(mode if mode in modes.MODES else "off")
                if name == UNCHECKED:
                    Prepared.run = run_unchecked  # type: ignore[method-assign]
                group.barrier()
                took = chunk(name, group, flat, x, calls)
                group.barrier()
                Prepared.run = original  # type: ignore[method-assign]
                if nth:  # the first round warms up
                    times[name].append(took)
    return times


def main(world: str, rounds: int, calls: int) -> None:
    """Measure on threads or on processes."""
    found = cc.run(measure, 2, rounds, calls)[0] if world == "local" else measure(rounds, calls, LATER)
    if world == "local" or cc.world().rank == 0:
        print(json.dumps({name: statistics.median(values) for name, values in found.items()} | {
            "rounds": [[values[k] for values in found.values()] for k in range(rounds)]}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
