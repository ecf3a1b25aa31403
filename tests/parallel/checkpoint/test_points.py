"""Runs that stop at a seeded step and go on, on the same mesh or another: the GPT, and a classifier of the digits.

By default four seeds of each; ``pytest -m slow`` runs the twenty.
"""

from __future__ import annotations

import random as stdlib_random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import data, nn, optim, random
from parallel import Trainer

from .layouts import AXES, LAYOUTS, batch, on_threads, ranks_of, trainer

pytest.importorskip("safetensors", reason="safetensors is not installed")

SMALL = [name for name, layout in LAYOUTS.items() if ranks_of(layout) <= 4]
SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))]
STEPS = 6


def points(seed: int, layouts: list[str]) -> tuple[str, str, int]:
    """Two layouts, and the step after which a run goes from the first to the second."""
    rng = stdlib_random.Random(seed)
    return rng.choice(layouts), rng.choice(layouts), rng.randint(1, STEPS - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_gpt(seed: int, tmp_path: Path) -> None:
    a, b, taken = points(seed, SMALL)

    def first() -> list[float]:
        made, losses = trainer(LAYOUTS[a]), []
        for k in range(STEPS):
            losses.append(made.step(*batch(k)))
            if k + 1 == taken:
                made.save(tmp_path)
        return losses

    def rest(name: str) -> list[float]:
        made = trainer(LAYOUTS[name])
        assert made.load(tmp_path).step == taken
        return [made.step(*batch(k)) for k in range(taken, STEPS)]

    right = on_threads(LAYOUTS[a], first)[taken:]
    assert on_threads(LAYOUTS[a], lambda: rest(a)) == right
    assert on_threads(LAYOUTS[b], lambda: rest(b)) == pytest.approx(right, rel=1e-10)


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    datasets = pytest.importorskip("sklearn.datasets")
    found = datasets.load_digits()
    return found.data[:200] / 16, found.target[:200]


def classifier() -> nn.Sequential:
    key = random.Key(3)
    return nn.Sequential(
        nn.Linear(64, 24, dtype=float, key=key.fold("a")), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(24, 24, dtype=float, key=key.fold("b")), nn.ReLU(), nn.Linear(24, 10, dtype=float, key=key.fold("c")),
    )  # fmt: skip


class Digits:
    """A run with a loader that shuffles. `losses` are those of all steps, also of the run before."""

    def __init__(self, layout: dict[str, Any], bits: str | None):
        sizes = {axis: n for axis, n in layout.items() if axis in AXES}
        self.trainer = Trainer(
            classifier, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(**sizes), microbatches=4, bits=bits, clip=1.0,
            zero=layout.get("zero", 0), optimizer=lambda p: optim.AdamW(p, lr=1e-2),
        )  # fmt: skip
        self.loader = data.DataLoader(data.TensorDataset(*digits()), 24, shuffle=True, key=random.Key(0, "order"))
        self.losses: list[float] = []

    def train(self, until: int, save_at: int = 0, folder: Path | None = None) -> list[float]:
        while self.trainer.steps < until:
            for x, y in self.loader:
                self.losses.append(self.trainer.step(x.array, y.array))
                if self.trainer.steps == save_at and folder is not None:
                    self.trainer.save(folder, loader=self.loader, losses=self.losses)
                if self.trainer.steps == until:
                    break
        return self.losses


OF_DIGITS: dict[str, dict[str, Any]] = {
    "1": {"dp": 1}, "dp2": {"dp": 2}, "dp3 zero 1": {"dp": 3, "zero": 1}, "dp2 zero 3": {"dp": 2, "zero": 3},
    "pp2": {"pp": 2}, "pp2 dp2 zero 2": {"pp": 2, "dp": 2, "zero": 2}, "dp4 zero 2": {"dp": 4, "zero": 2},
}  # fmt: skip


@pytest.mark.parametrize("bits", [None, "same"])
@pytest.mark.parametrize("seed", SEEDS)
def test_digits(seed: int, bits: str | None, tmp_path: Path) -> None:
    a, b, taken = points(100 + seed, list(OF_DIGITS))
    taken += 5  # in the second epoch, too
    until = taken + 6
    right = on_threads(OF_DIGITS[a], lambda: Digits(OF_DIGITS[a], bits).train(until, taken, tmp_path))

    def rest(layout: dict[str, Any]) -> list[float]:
        run = Digits(layout, bits)
        run.losses = run.trainer.load(tmp_path, loader=run.loader).values["losses"]
        return run.train(until)

    assert on_threads(OF_DIGITS[a], lambda: rest(OF_DIGITS[a])) == right
    found = on_threads(OF_DIGITS[b], lambda: rest(OF_DIGITS[b]))
    assert found == right if bits == "same" else found == pytest.approx(right, rel=1e-10)
