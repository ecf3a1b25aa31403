"""Worker of `checking.py` for one world: time calls in every mode by turns, and print one JSON object on rank 0.

    checking_worker.py local|mpi ROUNDS CALLS
"""

from __future__ import annotations

import ast
import inspect
import json
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from collectives.checks import modes
from collectives.declaration import prepared
from collectives.declaration.prepared import Prepared

SIZE_BYTES = 4096
BARE, UNCHECKED = "bare transport", "without the check"
LATER = "first, after its 1000 calls"  # over MPI; on threads every call is compared
MODES = ("off", "first", "always", "ranks")


def run_unchecked() -> Callable[..., Any]:
    """`Prepared.run` without its statement that compares the call with the other ranks'."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(Prepared.run)))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    left = [statement for statement in function.body if "modes.limit" not in ast.unparse(statement)]
    assert len(left) == len(function.body) - 1
    function.body = left
    made: dict[str, Any] = {}
    exec(compile(tree, __file__, "exec"), vars(prepared), made)
    return made["run"]  # type: ignore[no-any-return]


def chunk(name: str, group: Any, flat: Any, x: Any, calls: int) -> float:
    """Microseconds per call."""
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
    """Microseconds per call, by name and round. All ranks call it."""
    times: dict[str, list[float]] = {name: [] for name in (BARE, UNCHECKED, *MODES, *more)}
    original, unchecked = Prepared.run, run_unchecked()
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
                    Prepared.run = unchecked  # type: ignore[method-assign]
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
