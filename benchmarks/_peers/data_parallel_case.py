"""The code that the workers of `benchmarks/data_parallel.py` share: models, batches, and the protocol with the driver.

A model is a description (sizes) and its initial weights by name; each worker builds it in its own library. Matrices are
(in, out). Rank r of every world has the same batches, so all libraries do the same work, and the driver compares their
losses.

A worker connects to the driver's socket, a file, which processes in other network namespaces reach too. It sends one
line of JSON with its rank and the global losses of the first steps. Then it answers requests, one line of JSON each:

    {"do": "steps", "count": N}   run N steps; the answer is their time in seconds
    {"do": NAME, ...}             a function of the worker

This module needs NumPy only, because a peer's environment has none of ringtape's other requirements.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# One thread for the libraries that compute, which read these variables when they are loaded.
THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")
RATE, BETAS, EPS = 1e-3, (0.9, 0.999), 1e-8  # of Adam
BATCHES = 4  # of each rank, in turn
WARM_UP = 10  # steps


class MLP(NamedTuple):
    """Layers of the given widths with ReLU between them, and softmax cross-entropy."""

    widths: tuple[int, ...] = (784, 512, 512, 10)
    batch: int = 128


class GPT(NamedTuple):
    """A GPT: learned positions, blocks with norms first, tanh GELU, causal attention, a head of its own."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 128
    vocabulary: int = 256
    batch: int = 8


class RotaryGPT(NamedTuple):
    """The model of `examples/gpt.py`: rotary positions, and a head that is tied to the embedding."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 128
    vocabulary: int = 104
    batch: int = 8


class Small(NamedTuple):
    """Many small parameters with given cotangents: a step only sums their gradients over the ranks."""

    parameters: int = 200
    elements: int = 256


Case = MLP | GPT | RotaryGPT | Small
CASES: dict[str, Case] = {"mlp": MLP(), "gpt": GPT(), "small": Small(), "train_gpt": RotaryGPT(),
                          "tiny-mlp": MLP((64, 64, 64, 10), 32), "tiny-gpt": GPT(2, 32, 4, 32, 64, 4)}  # fmt: skip


def weights(case: Case) -> dict[str, Array]:
    """The initial weights by name, the same on every rank."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 0.02) -> Array:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    found: dict[str, Array] = {}
    if isinstance(case, Small):
        return {f"p{i}": normal(case.elements) for i in range(case.parameters)}
    if isinstance(case, MLP):
        for i, (n, m) in enumerate(zip(case.widths, case.widths[1:], strict=False)):
            found |= {f"{i}.weight": normal(n, m, scale=n**-0.5), f"{i}.bias": normal(m)}
        return found
    w = case.width
    if isinstance(case, RotaryGPT):
        found["0.table.weight"] = normal(case.vocabulary, w)
        for i in range(1, case.layers + 1):
            found |= {
                f"{i}.norm1.weight": 1 + normal(w), f"{i}.norm1.bias": normal(w),
                f"{i}.qkv.weight": normal(w, 3 * w), f"{i}.qkv.bias": normal(3 * w),
                f"{i}.proj.weight": normal(w, w), f"{i}.proj.bias": normal(w),
                f"{i}.norm2.weight": 1 + normal(w), f"{i}.norm2.bias": normal(w),
                f"{i}.mlp.up.weight": normal(w, 4 * w), f"{i}.mlp.up.bias": normal(4 * w),
                f"{i}.mlp.down.weight": normal(4 * w, w), f"{i}.mlp.down.bias": normal(w),
            }  # fmt: skip
        last = case.layers + 1
        return found | {f"{last}.norm.weight": 1 + normal(w), f"{last}.norm.bias": normal(w)}
    found |= {"tokens": normal(case.vocabulary, w), "positions": normal(case.context, w)}
    for i in range(case.layers):
        found |= {
            f"{i}.ln1.weight": 1 + normal(w), f"{i}.ln1.bias": normal(w),
            f"{i}.qkv.weight": normal(w, 3 * w), f"{i}.qkv.bias": normal(3 * w),
            f"{i}.out.weight": normal(w, w), f"{i}.out.bias": normal(w),
            f"{i}.ln2.weight": 1 + normal(w), f"{i}.ln2.bias": normal(w),
            f"{i}.up.weight": normal(w, 4 * w), f"{i}.up.bias": normal(4 * w),
            f"{i}.down.weight": normal(4 * w, w), f"{i}.down.bias": normal(w),
        }  # fmt: skip
    return found | {"ln.weight": 1 + normal(w), "ln.bias": normal(w), "head.weight": normal(w, case.vocabulary)}


def batches(case: Case, rank: int) -> list[tuple[Array, Array]]:
    """The inputs and labels of a rank; of small parameters, the cotangents."""
    rng = np.random.default_rng([1, rank])
    if isinstance(case, Small):
        return [(rng.standard_normal((case.parameters, case.elements)).astype(np.float32), np.zeros(1, np.int64))]
    if isinstance(case, MLP):
        return [(rng.standard_normal((case.batch, case.widths[0])).astype(np.float32),
                 rng.integers(0, case.widths[-1], case.batch)) for _ in range(BATCHES)]  # fmt: skip
    shape = case.batch, case.context
    return [(rng.integers(0, case.vocabulary, shape), rng.integers(0, case.vocabulary, shape)) for _ in range(BATCHES)]


class Worker(NamedTuple):
    """A rank of a world that is ready to train.

    `step` takes the number of a step and returns its loss on this rank, in the library's own type. `total` makes of it
    the mean over the ranks as a float. `more` has further requests by name: functions of a request's other entries.
    """

    rank: int
    size: int
    about: str
    step: Callable[[int], Any]
    total: Callable[[Any], float]
    barrier: Callable[[], None]
    more: dict[str, Callable[..., Any]]


def arguments() -> argparse.Namespace:
    """The command line of a worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--mode", default="", help="the size of buckets; of ringtape also an algorithm, 'capture'")
    parser.add_argument("--connect", required=True, help="the driver's socket, a file")
    parser.add_argument("--token", default="")
    parser.add_argument("--cores", default="", help="rank r runs on the r-th core of this list")
    args = parser.parse_args()
    for name, value in THREADS.items():
        assert os.environ.get(name) == value, f"{name} must be {value} before the library is loaded"
    return args


def use_core(args: argparse.Namespace, rank: int) -> None:
    """Keep this process, with all its threads, on the core of its rank."""
    if args.cores and hasattr(os, "sched_setaffinity"):
        cores = [int(core) for core in args.cores.split(",")]
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def serve(args: argparse.Namespace, worker: Worker) -> None:
    """Run the first steps, and answer requests until the connection closes."""
    losses = [worker.total(worker.step(i)) for i in range(WARM_UP)]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(args.connect)
    lines = connection.makefile("rw")

    def say(answer: Any) -> None:
        lines.write(json.dumps(answer) + "\n")
        lines.flush()

    say({"token": args.token, "rank": worker.rank, "size": worker.size, "about": worker.about, "losses": losses})
    done, clock = WARM_UP, time.perf_counter
    for line in lines:
        request = json.loads(line)
        what = request.pop("do")
        if what in worker.more:
            say(worker.more[what](**request))
            continue
        worker.barrier()
        start = clock()
        for i in range(done, done + request["count"]):
            worker.step(i)
        worker.barrier()
        say(clock() - start)
        done += request["count"]
