"""Train with compressed gradients: steps to the loss of exact training, bytes sent beside their formulas, and time.

    mpiexec -n 4 python benchmarks/compression.py              # most useful on several hosts with a slow network

Trains a classifier of the digits, and a small GPT on the text of this project's documentation, with each method and
each seed; `exact` is the all-reduce of the gradients. All methods of a seed have the same model and batches. The digits
are trained by SGD with momentum, the GPT by Adam (`CompressedAdam` where exact steps come first). The goal is the final
loss of exact training: the mean of its last `--window` steps. A run has reached it at the first step at which the mean
of its last `--window` losses is not above the goal; a method may take 1.5 times the steps that exact training takes.

The bytes are those of the requests that a rank passes to its communicator, as a ring or direct messages send them,
beside `Compression.bytes_sent`. Between the ranks of one host, exact sums use shared memory and send nothing. Times are
medians of the steps after the warm-up, on the slowest rank.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Python puts a script's own folder first on sys.path, where `import collectives` would find `collectives.py`.
sys.path = [str(HERE.parent), *(path for path in sys.path if Path(path).resolve() != HERE)]

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

# NumPy reads the number of threads when it is imported, so it must be imported after these assignments
import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from collectives.inspect.observing import observing
from collectives.transports.request import whole_bytes
from parallel import DataParallel
from parallel.approximate.compressed_adam import CompressedAdam
from parallel.approximate.compression import Compression
from parallel.approximate.low_rank import PowerSGD
from parallel.approximate.quantised import Float16, Int8, OneBit
from parallel.approximate.sparse import TopK

METHODS: dict[str, Callable[[int], Compression | None]] = {
    "exact": lambda start: None,
    "float16": lambda start: Float16(),
    "int8": lambda start: Int8(),
    "powersgd": lambda start: PowerSGD(rank=2, start_step=start),
    "1bit": lambda start: OneBit(momentum=0.9, start_step=start),
    "top1%": lambda start: TopK(0.01, start_step=start),
}
CONTEXT = 32


# -- the cases: a model, an optimizer, and batches of rows that all ranks know --------------------------------------


def digits(seed: int, steps: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("benchmarks/compression.py needs the data of scikit-learn")
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    x, y = (rows[:, :-1] / 16).astype(np.float32), rows[:, -1].astype(int)
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        chosen = generator.choice(len(x), batch, replace=False)
        yield x[chosen], y[chosen]


def text(seed: int, steps: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Windows of the documentation's text, and the characters that follow."""
    files = sorted((HERE.parent / "docs" / "guides").glob("*.md")) or sorted((HERE.parent / "docs").glob("*.md"))
    codes = np.frombuffer("".join(file.read_text() for file in files).encode("ascii", "replace"), np.uint8)
    codes = (codes % 128).astype(int)
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        starts = generator.integers(0, len(codes) - CONTEXT - 1, batch)[:, None] + np.arange(CONTEXT + 1)
        windows = codes[starts]
        yield windows[:, :-1], windows[:, 1:]


class GPT(nn.Module):
    """A decoder of characters: layers of causal attention."""

    def __init__(self, width: int = 64, layers: int = 2):
        self.tokens, self.places = nn.Embedding(128, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)

    def forward(self, x: Any) -> Any:
        h = self.tokens(x) + self.places(ag.constant(np.arange(CONTEXT)))
        for layer in self.layers:
            h = layer(h, is_causal=True)
        return anp.reshape(self.head(self.norm(h)), (-1, 128))


def make_case(case: str, method: Any) -> tuple[Any, optim.Optimizer]:
    """The model and its optimizer."""
    module = GPT() if case == "gpt" else nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DataParallel(module, "dp", reduction=method)
    if case != "gpt":
        return model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if method is not None and method.start_step:
        return model, CompressedAdam(model.parameters(), method, lr=1e-3)
    return model, optim.Adam(model.parameters(), lr=1e-3)


# -- one run -----------------------------------------------------------------------------------------------------------


class Traffic:
    """The bytes that a rank sends for its gradients: an observer that counts requests."""

    def __init__(self) -> None:
        self.bytes = 0.0

    def __call__(self, group: Any, request: Any, started: bool, run: Callable[[], Any]) -> Any:
        if request.call in ("all_reduce", "all_gather", "all_to_all") and "gradients" in group.name:
            twice = 2 if request.call == "all_reduce" else 1
            self.bytes += twice * whole_bytes(request, group.index, group.size) * (group.size - 1) / group.size
        return run()


def train(case: str, name: str, seed: int, steps: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train with one method: losses, bytes of each compressed step and their formula, and the time of a step."""
    method = METHODS[name](options.start)
    random.seed(seed)
    model, optimizer = make_case(case, method)
    traffic, losses, times, sent = Traffic(), [], [], []
    batches = (text if case == "gpt" else digits)(seed, steps, options.batch)
    with observing(traffic):
        for x, y in batches:
            cc.world().barrier()
            began, before = time.perf_counter(), traffic.bytes
            optimizer.zero_grad()
            with ag.Tape() as tape:
                xs, ys = (cc.shard(ag.tensor(a, layout={"dp": cc.R}), "dp") for a in (x, y))
                loss = nn.cross_entropy(model(xs), anp.reshape(ys, (-1,)), reduction="sum") / y.size
                loss = cc.all_reduce(loss, "dp", to=cc.I)
            tape.backward(loss)
            optimizer.step()
            times.append(time.perf_counter() - began)
            sent.append(traffic.bytes - before)
            losses.append(loss.item())
    shapes = [p.shape for p in model.parameters()]
    formula = 0.0
    if method is not None:
        formula = method.bytes_sent(shapes, cc.world().size)
    else:
        formula = 8 * (sum(map(np.prod, shapes)) + len(shapes)) * (1 - 1 / cc.world().size)
    mine = np.array([statistics.median(times[options.start + 1 :]), statistics.mean(sent[options.start + 1 :])])
    slowest, _ = np.reshape(cc.world().all_gather(mine, [2] * cc.world().size), (-1, 2)).max(axis=0)
    mean = float(np.reshape(cc.world().all_gather(mine, [2] * cc.world().size), (-1, 2))[:, 1].mean())
    return {"losses": losses, "step_s": float(slowest), "bytes": mean, "formula": float(formula)}


def averaged(losses: list[float], window: int) -> np.ndarray:
    """The means of all runs of `window` losses."""
    return np.convolve(losses, np.full(window, 1 / window), "valid")


def reached(losses: list[float], goal: float, window: int) -> int | None:
    """The number of steps until the mean of the last `window` losses is not above the goal."""
    (found,) = np.nonzero(averaged(losses, window) <= goal)
    return int(found[0]) + window if found.size else None


def program(options: argparse.Namespace) -> None:
    figures: dict[str, Any] = {}
    first = cc.world().index == 0
    with cc.Mesh(dp=-1):
        for case in options.cases:
            for seed in range(options.seeds):
                exact = train(case, "exact", seed, options.steps, options)
                goal = float(averaged(exact["losses"], options.window)[-1])
                at = reached(exact["losses"], goal, options.window) or options.steps
                for name in options.methods:
                    more = options.steps + options.steps // 2
                    run = exact if name == "exact" else train(case, name, seed, more, options)
                    steps = at if name == "exact" else reached(run["losses"], goal, options.window)
                    slower = steps / at if steps else float("inf")
                    off = run["bytes"] / run["formula"] - 1
                    gain = exact["step_s"] / run["step_s"]
                    if first:
                        print(
                            f"{case:7} seed {seed}  {name:9} goal {goal:.4f} after {steps or '-':>5} steps, "
                            f"{slower:5.2f} times exact; {run['bytes'] / 1e3:9.1f} kB a step, {off:+7.2%} of the "
                            f"formula; {1e3 * run['step_s']:7.2f} ms a step, {gain:5.2f} times as fast; to the goal "
                            f"{gain / slower:5.2f}", flush=True,
                        )  # fmt: skip
                    key = f"{case} {name} seed {seed}"
                    figures[f"{key}: steps"] = {"ours": steps, "peer": at, "ratio": 1 / slower}
                    figures[f"{key}: bytes"] = {
                        "ours": run["bytes"],
                        "peer": run["formula"],
                        "ratio": 1 / (1 + off) if off > -1 else None,
                    }
                    figures[f"{key}: step_s"] = {"ours": run["step_s"], "peer": exact["step_s"], "ratio": gain}
    if first and options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=["digits", "gpt"], default=["digits", "gpt"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="of exact training; the methods get 1.5 times as many")
    parser.add_argument("--start", type=int, default=60, help="exact steps before the first compressed one")
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32, help="rows of a global batch")
    parser.add_argument("--json", action="store_true", help="print one object: figure -> ours, peer, ratio")
    options = parser.parse_args()
    if options.steps <= options.start + 1:
        parser.error(f"--steps {options.steps}: needed: more than --start + 1, {options.start + 1}")
    program(options)
