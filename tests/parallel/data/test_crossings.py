"""Options of different layers together, in one table: algorithm x ZeRO x optimizer x dtype x clipping, through a file.

Each case trains two steps on three ranks, saves, trains two steps more, and repeats these from the file in a model with
other weights and another optimizer. Both ways must end bitwise at the same loss, which is that of one process.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from collectives import I, Shard
from parallel import DataParallel

from ... import summary

RANKS, ROWS = 3, 13  # uneven parts
OPTIMIZERS = {
    "amsgrad": lambda ps: optim.Adam(ps, lr=0.01, amsgrad=True),
    "maximize": lambda ps: optim.SGD(ps, lr=0.01, momentum=0.9, maximize=True),
    "decay": lambda ps: optim.AdamW(ps, lr=0.01, weight_decay=0.1),
    "master": lambda ps: optim.MasterWeights(optim.Adam, ps, lr=0.01, amsgrad=True),
}
CASES = [
    case for case in product(("native", "reproducible", "hierarchical", "ring"), range(4), OPTIMIZERS,
                             ("float64", "float16"), (None, 3))
    if case[2] != "master" or (case[3] == "float16" and not case[1])
]  # fmt: skip
TOLERANCE = {"float64": 1e-10, "float16": 2e-2}

Case = tuple[str, int, str, str, "float | None"]


def model_of(seed: int, dtype: str) -> nn.Module:
    rng = numpy.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))
    for p in model.parameters():
        p.data[...] = 0.3 * rng.standard_normal(p.shape)
    return model.to(dtype)


def train(model: Any, optimizer: Any, dtype: str, clip: float | None, rank: int = -1) -> float:
    """Two steps; the loss of the second. A negative rank is one process."""
    rng = numpy.random.default_rng(0)
    rows, targets = rng.standard_normal((ROWS, 5)).astype(dtype), rng.integers(0, 3, ROWS)
    x, y = ag.tensor(rows), ag.tensor(targets)
    if rank >= 0:
        x, y = (cc.from_local(each[rank::RANKS], {"dp": Shard(0)}) for each in (rows, targets))
    loss: Any = None
    for _ in range(2):
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = nn.cross_entropy(model(x), y, reduction="sum")
            loss = (cc.all_reduce(loss, "dp", to=I) if rank >= 0 else loss) / ROWS
            scaled = optimizer.scale(loss) if hasattr(optimizer, "scale") else loss
        tape.backward(scaled)
        if clip is not None:
            optim.clip_grad_norm_(list(model.parameters()), 0.5, norm_type=clip)
        optimizer.step()
    return float(loss)


def fault(case: Case, path: Path) -> str:
    """The difference that a case finds; "" if there is none."""
    algorithm, zero, name, dtype, clip = case

    def made(seed: int) -> tuple[Any, Any]:
        model = DataParallel(model_of(seed, dtype), "dp", zero=zero)
        return model, OPTIMIZERS[name](model.parameters())

    def program() -> tuple[float, float]:
        rank = cc.world().index
        with cc.Mesh(dp=-1, algorithm=algorithm):
            model, optimizer = made(1)
            train(model, optimizer, dtype, clip, rank)
            nn.save({"optimizer": optimizer, "model": model}, path)
            whole = train(model, optimizer, dtype, clip, rank)
            model, optimizer = made(2)
            nn.load({"optimizer": optimizer, "model": model}, path)
            return whole, train(model, optimizer, dtype, clip, rank)

    serial = model_of(1, dtype)
    optimizer = OPTIMIZERS[name](serial.parameters())
    train(serial, optimizer, dtype, clip)
    expected = train(serial, optimizer, dtype, clip)
    for whole, resumed in cc.run(program, ranks=RANKS):
        if whole != resumed or not abs(whole - expected) <= TOLERANCE[dtype] * max(1.0, abs(expected)):
            return f"{case}: {whole}, resumed {resumed}, one process {expected}"
    return ""


def check(cases: list[Case], path: Path) -> None:
    faults = [found for case in cases if (found := fault(case, path))]
    summary.count("options of layers together", "right", len(cases) - len(faults))
    assert not faults, "\n".join(faults)


def test_some_options_together(tmp_path: Path) -> None:
    check(CASES[::11], tmp_path / "run.npz")


@pytest.mark.slow
def test_all_options_together(tmp_path: Path) -> None:
    check(CASES, tmp_path / "run.npz")


def test_a_planted_fault_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that forgets the averages of the gradients."""
    load = optim.Adam.prepare_state_dict
    monkeypatch.setattr(
        optim.Adam, "prepare_state_dict",
        lambda self, state: load(self, {**state, "first": [numpy.zeros_like(x) for x in state["first"]]}),
    )  # fmt: skip
    assert "resumed" in fault(("native", 0, "amsgrad", "float64", None), tmp_path / "run.npz")
