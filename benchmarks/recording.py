"""The cost of a record: time and bytes of a training step with its data, with its order alone, and without a record.

    mpiexec -n 2 python benchmarks/recording.py

It trains the network of the digits and the GPT of ``examples/train_gpt.py`` with data parallelism. The three kinds take
turns in one run, a chunk of steps each, so that other load on the machine affects all of them. A ratio is the median
over the rounds of the ratio within a round. A low ratio is that of the lowest tenths: for a machine with other load,
with short chunks (``--steps 4 --rounds 400``). Checking is off, as it is after the first 1,000 calls of a channel. Set
OPENBLAS_NUM_THREADS=1 where several ranks share a machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent / "examples")  # `collectives.py` here is a benchmark

import numpy as np

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from collectives.transports.record_file import read_record
from parallel import DataParallel

KINDS = {"without": None, "order": False, "data": True}


def digits(mesh: cc.Mesh) -> Callable[[], Any]:
    """A step of the network for images of 8 by 8 pixels, with 64 images on each rank."""
    key, rng = random.Key(0), np.random.default_rng(int(mesh.ranks.rank))
    layers = nn.Linear(64, 128, key=key.fold("a")), nn.ReLU(), nn.Linear(128, 10, key=key.fold("b"))
    model = DataParallel(nn.Sequential(*layers), "dp")
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = rng.normal(size=(64, 64)).astype(np.float32), rng.integers(0, 10, 64)

    def step() -> None:
        x, y = (cc.from_local(each, {"dp": cc.Shard(0)}) for each in (images, labels))
        optimizer.zero_grad()
        with ag.Tape() as tape:
            mine = nn.cross_entropy(model(x), y, reduction="sum") / y.global_shape[0]
            loss = cc.all_reduce(mine, "dp", to=cc.I)
        tape.backward(loss)
        optimizer.step()
        loss.item()

    return step


def gpt_of(mesh: cc.Mesh, width: int, layers: int) -> Callable[[], Any]:
    """A step of the GPT of the examples, with 8 rows of 64 tokens on each rank."""
    import gpt

    rng = np.random.default_rng(int(mesh.ranks.rank))
    model = DataParallel(gpt.gpt(gpt.Config(65, width, 4, layers), random.Key(0), np.float32), "dp")
    optimizer, total = optim.AdamW(model.parameters(), lr=1e-3), gpt.Loss()
    tokens = rng.integers(0, 65, (2, 8, 64))

    def step() -> None:
        x, y = (cc.from_local(each, {"dp": cc.Shard(0)}) for each in tokens)
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = cc.all_reduce(total(model(x), y), "dp", to=cc.I) / 1024
        tape.backward(loss)
        optimizer.step()
        loss.item()

    return step


def measured(step: Callable[[], Any], mesh: cc.Mesh, rounds: int, steps: int) -> dict[str, float]:
    """The milliseconds of a step of each kind, their ratios to those without a record, and the bytes of a step."""
    group = mesh.axis("dp").group
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sizes: dict[str, list[int]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for nth in range(rounds + 1):
            for kind, data in KINDS.items():
                with nullcontext() if data is None else cc.record(f"{folder}/{kind}", data):
                    for _ in range(1 + nth % 2):  # the first calls of a kind are named in the file
                        step()
                    group.barrier()
                    begin = time.perf_counter()
                    for _ in range(steps):
                        step()
                    took = time.perf_counter() - begin
                    group.barrier()
                if nth:
                    times[kind].append(1e3 * took / steps)
                if data is not None:
                    sizes[kind].append(size_of(Path(folder, kind)))
    found = {}
    for kind, each in times.items():
        found[f"{kind}_ms"] = statistics.median(each)
        if kind != "without":
            pairs = zip(each, times["without"], strict=True)
            found[f"{kind}_ratio"] = statistics.median(a / b for a, b in pairs)
            found[f"{kind}_low_ratio"] = low(each) / low(times["without"])
            found[f"{kind}_bytes"] = float(sizes[kind][1] - sizes[kind][0])  # of one step more
    return found


def size_of(folder: Path) -> int:
    """The bytes of a record: its entries, and their results without the rest of the block that has the last ones."""
    ranks = [path for path in folder.iterdir() if path.suffix != ".data"]
    return sum(path.stat().st_size + sum(len(entry.data) for entry in read_record(str(path))) for path in ranks)


def low(times: list[float]) -> float:
    """The lowest tenth of the times: those that other load on the machine has left alone."""
    return sorted(times)[len(times) // 10]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table or JSON on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--steps", type=int, default=50, help="steps of the digits in a round; of the GPT a tenth")
    parser.add_argument("--digits", action="store_true", help="leave the GPT out")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one object: figure -> the table's columns")
    args = parser.parse_args(arguments)
    cc.check("off")
    with cc.Mesh(dp=-1) as mesh:
        of = f"{int(mesh.ranks.size)} ranks"
        found = {f"digits, {of}": measured(digits(mesh), mesh, args.rounds, args.steps)}
        if not args.digits:
            step = gpt_of(mesh, args.width, args.layers)
            found[f"GPT, {of}"] = measured(step, mesh, args.rounds, max(1, args.steps // 10))
        if int(mesh.ranks.rank):
            return
    if args.json:
        print(json.dumps(found))
        return
    for name, row in found.items():
        print(f"{name:16}" + "  ".join(f"{k} {v:.4g}" for k, v in row.items()))


if __name__ == "__main__":
    main()
