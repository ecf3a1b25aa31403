"""Algorithm x stage of ZeRO x ranks x division x buckets x dtype x microbatches: the cases of `test_seams`.

A case trains two steps with random data and compares the gradients of the first step and the weights after the second
with those of a serial run in float64. The rows of a batch and the rows of the parameters are divided evenly, unevenly,
or so that ranks have none.

As a program it runs cases on the ranks of mpiexec, as on one host, where the ranks share memory, and as on hosts of
their own. The argument is that of `selection`; 0 stands for all cases.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim
from autograd.whole import whole_of
from collectives.algorithms import OPERATIONS, algorithms_of
from parallel import DataParallel
from parallel.data import buckets
from parallel.data.buckets import is_on_one_host

ALGORITHMS = ("native", "auto", *dict.fromkeys(name for each in OPERATIONS for name in algorithms_of(each)),
              "reproducible:tree", "hierarchical:native,recursive_doubling")  # fmt: skip
WIDTHS = {"even": (12, 24, 12), "uneven": (5, 7, 10), "empty": (2, 1, 3)}  # of the layers: rows of the parameters
ROWS = {"even": 12, "uneven": 7, "empty": 2}  # of a batch
BUCKETS: dict[str, dict[str, Any]] = {
    "one": {}, "several": {"bucket_bytes": 300, "first_bucket_bytes": 60}, "none": {"bucket_bytes": 0},
}  # fmt: skip
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2}


class Case(NamedTuple):
    algorithm: str
    zero: int
    parts: str
    buckets: str
    dtype: str = "float64"
    microbatches: int = 1


class Model(nn.Module):
    """Layers in a list, a parameter outside of it, and one that nobody uses."""

    def __init__(self, parts: str, dtype: str):
        generator = np.random.default_rng(7)

        def parameter(*shape: int) -> ag.Parameter:
            return ag.Parameter(generator.standard_normal(shape).astype(np.float16).astype(dtype))

        widths = WIDTHS[parts]
        self.layers = nn.ModuleList([nn.Linear(*each, dtype=dtype) for each in zip(widths, widths[1:], strict=False)])
        for layer in self.layers:
            for p in layer.parameters():
                p.array[...] = generator.standard_normal(p.shape).astype(np.float16)
        self.scale = parameter(widths[-1])
        self.never = parameter(3, 2)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = anp.tanh(layer(x))
        return x * self.scale


def train(case: Case, model: Any, place: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The gradients of the first step, and the weights after the second. `place` is (rank, ranks), None for all."""
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    first: dict[str, Any] = {}
    generator = np.random.default_rng(8)
    for _ in range(2):
        whole = generator.standard_normal((ROWS[case.parts], WIDTHS[case.parts][0])).astype(np.float16)
        optimizer.zero_grad()
        with model.accumulate() if place is not None and case.microbatches > 1 else nullcontext():
            for rows in np.array_split(whole.astype(case.dtype), case.microbatches):
                with ag.Tape() as tape:
                    if place is None:
                        loss = (model(rows) ** 2).sum() / len(whole)
                    else:
                        mine = cc.from_local(np.array_split(rows, place[1])[place[0]], {"dp": cc.Shard(0)})
                        loss = cc.all_reduce((model(mine) ** 2).sum() / len(whole), "dp", to=cc.I)
                tape.backward(loss)
        if not first:
            first = {name: None if p.grad is None else whole_of(p.grad.array, p.layout, "test", name)
                     for name, p in model.named_parameters()}  # fmt: skip
        optimizer.step()
    return first, {name: whole_of(p.array, p.layout, "test", name) for name, p in model.named_parameters()}


@cache
def serial(parts: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = Case("native", 0, parts, "one")
    return train(case, Model(parts, "float64"), None)


def difference(case: Case, found: tuple[dict[str, Any], dict[str, Any]]) -> str:
    """Where a rank's gradients and weights are not those of one process; "" where they are."""
    tolerance = TOLERANCES[case.dtype]
    for what, ours, theirs in zip(("gradient", "weight"), found, serial(case.parts), strict=True):
        scale = max(float(np.linalg.norm(x)) for x in theirs.values() if x is not None)
        for name, y in theirs.items():
            x = ours[name]
            if (x is None) != (y is None):
                return f"{what} of {name}: {x} instead of {y}"
            if y is None:
                continue
            if x.dtype != case.dtype:
                return f"{what} of {name} is {x.dtype}"
            error = np.linalg.norm(x.astype(float) - y)
            if not error <= tolerance * max(float(np.linalg.norm(y)), 0.1 * scale):
                return f"{what} of {name} is off by {error:.1e}"
    return ""


def distributed(case: Case) -> str:
    """Run a case on the current world, and compare it. The optimizer's checks see wrong gradients, too."""
    with cc.Mesh(dp=-1, algorithm=case.algorithm) as mesh:
        model = DataParallel(Model(case.parts, case.dtype), "dp", zero=case.zero, **BUCKETS[case.buckets])
        found = train(case, model, (mesh.ranks.index, mesh.ranks.size))
    return difference(case, found)


def wrong_on_threads(case: Case, ranks: int) -> str:
    try:
        found = cc.run(lambda: distributed(case), ranks)
    except Exception as error:  # a refusal is a failure of the case
        return f"{ranks} ranks, {case}: {type(error).__name__}: {str(error)[:600]}"
    wrong = {f"rank {rank}: {text}" for rank, text in enumerate(found) if text}
    return f"{ranks} ranks, {case}: {sorted(wrong)}" if wrong else ""


def full_table() -> Iterator[Case]:
    for algorithm, zero, parts, lots in product(ALGORITHMS, range(4), WIDTHS, BUCKETS):
        yield Case(algorithm, zero, parts, lots)
        yield Case(algorithm, zero, parts, lots, microbatches=2)
    for algorithm, zero, parts, dtype in product(ALGORITHMS, range(4), WIDTHS, ("float32", "float16")):
        yield Case(algorithm, zero, parts, "several", dtype)


def selection(seed: int, every: int = 1) -> list[Case]:
    """One case of every algorithm and stage, or of some: which one goes round."""
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in full_table():
        groups.setdefault((case.algorithm, case.zero), []).append(case)
    lists = list(groups.values())[seed % every :: every]
    return [found[(7 * n + seed) % len(found)] for n, found in enumerate(lists)]


def main(every: int) -> None:
    number = 0
    for case in selection(1, every) if every else full_table():
        for started in (False, True):
            # the buckets of other algorithms are started on one host, too
            if started and case.algorithm not in ("native", "auto", "shared"):
                continue
            buckets.is_on_one_host = (lambda group: False) if started else is_on_one_host
            text = distributed(case)
            assert not text, f"{case} {started=}: {text}"
            number += 1
    cc.in_order(f"{number} cases equal")  # one rank prints: lines of several may be mixed


if __name__ == "__main__":
    main(int(sys.argv[1]))
