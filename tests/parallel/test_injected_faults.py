"""Faults at seeded operations of a Trainer's steps on threads: the error is typed, and it names the rank.

The default tests run one mesh. All meshes: ``pytest -m slow tests/parallel/test_injected_faults.py``.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

import collectives as cc
from autograd import nn, optim, random
from autograd.errors import CommunicationError, DeadlockError, RankFailed, ReplicaMismatch
from collectives.testing import faults
from parallel import Trainer

from .models import gpt
from .test_trainer import PLAN

CONFIG = gpt.Config(vocabulary=13, width=12, heads=2, layers=2, dropout=0.1)
MESHES: dict[str, dict[str, Any]] = {
    "pp, tp": {"pp": 2, "tp": 2, "schedule": "zb-h1"}, "dp": {"dp": 2}, "pp": {"pp": 2}, "tp": {"tp": 2},
    "cp": {"cp": 2}, "pp, dp, ZeRO-1": {"pp": 2, "dp": 2, "zero": 1}, "ZeRO-3": {"dp": 3, "zero": 3},
}  # fmt: skip
SAYS = {"kill": (RankFailed, "rank {} of .* was killed by"), "stop": (DeadlockError, "rank {} waits in .* was stopped"),
        "drop": (DeadlockError, "rank {}|for rank {}|from rank {}")}  # fmt: skip


def program(options: dict[str, Any]) -> list[float]:
    """Two steps of a small GPT."""
    sizes = {axis: n for axis, n in options.items() if axis in ("pp", "dp", "tp", "cp")}
    rest = {name: value for name, value in options.items() if name not in sizes}

    def model() -> nn.Sequential:
        return gpt.gpt(CONFIG, random.Key(1), np.float64)

    trainer = Trainer(
        model, gpt.Loss(), cc.Mesh.fit(**sizes), PLAN, optimizer=lambda p: optim.AdamW(p, lr=1e-2), clip=0.5,
        microbatches=2, **rest,
    )  # fmt: skip
    rng = np.random.default_rng(3)
    return [float(trainer.step(*rng.integers(0, CONFIG.vocabulary, (2, 8, 4)))) for _ in range(2)]


def ranks_of(mesh: str) -> int:
    return math.prod(MESHES[mesh].get(axis, 1) for axis in ("pp", "dp", "tp", "cp"))


@cache
def operations(mesh: str) -> int:
    """How many operations each rank makes at least."""
    with faults.injected() as injection:
        cc.run(program, ranks_of(mesh), MESHES[mesh])
    return min(counts[""] for counts in injection.counts.values())


def check(mesh: str, seed: int) -> None:
    # ZeRO-3 starts its last gathers ahead of a step that does not follow, so that nobody misses what is dropped there
    kinds = ("kill", "stop") if mesh == "ZeRO-3" else ("kill", "stop", "drop")
    plan = faults.plan(seed, ranks_of(mesh), operations(mesh), kinds)
    (fault,) = plan
    kind, says = SAYS[fault.kind]
    with faults.injected(plan) as injection, pytest.raises(kind, match=says.replace("{}", str(fault.rank))) as caught:
        cc.run(program, ranks_of(mesh), MESHES[mesh])
    assert type(caught.value) is kind and injection.happened[0].startswith(repr(fault))


@pytest.mark.parametrize("seed", range(6))
def test_a_fault_of_a_step_is_named(seed: int) -> None:
    check("pp, tp", seed)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_faults_of_all_meshes_are_named(mesh: str) -> None:
    for seed in range(60):
        check(mesh, seed)


def test_corrupted_sums_of_gradients_are_found() -> None:
    with faults.injected("corrupt:1@1,of=all_reduce"), pytest.raises(ReplicaMismatch, match="rank 1"):
        cc.run(program, 2, {"dp": 2})


def writeable_after_a_death(options: dict[str, Any], at: int) -> list[bool]:
    """Which parameters can be written to while a rank handles the error of another one's death."""

    def train() -> list[bool]:
        layers = nn.Sequential(nn.Linear(4, 8, dtype=float), nn.Tanh(), nn.Linear(8, 2, dtype=float))
        sizes = {axis: n for axis, n in options.items() if axis != "zero"}
        trainer = Trainer(
            lambda: layers, nn.CrossEntropyLoss(reduction="sum"), cc.Mesh(**sizes), zero=options.get("zero", 0),
            optimizer=lambda p: optim.AdamW(p, lr=1e-2), microbatches=2,
        )  # fmt: skip
        try:
            for _ in range(2):
                trainer.step(np.ones((8, 4)), np.arange(8) % 2)
        except RankFailed:
            pass
        return [bool(p.array.flags.writeable) for p in trainer.parameters.values()]

    with cc.World("threads", 4, policy="raise") as world, faults.injected(faults.Kill(3, at)):
        return [each for found in world.run(train) for each in found or ()]


@pytest.mark.parametrize("options", [{"pp": 2, "dp": 2}, {"pp": 2, "dp": 2, "zero": 1}, {"dp": 4}], ids=str)
def test_survivors_can_write_to_their_parameters(options: dict[str, Any]) -> None:
    for at in (2, 5, 8):
        assert all(writeable_after_a_death(options, at))


@pytest.mark.slow
def test_survivors_can_write_to_their_parameters_after_a_death_anywhere() -> None:
    for options in ({"pp": 2, "dp": 2}, {"pp": 2, "dp": 2, "zero": 1}, {"dp": 4}, {"dp": 4, "zero": 3}):
        for at in range(1, 8):
            assert all(writeable_after_a_death(options, at)), (options, at)


@pytest.mark.parametrize("ranks, rank", [(2, 1), (3, 0), (3, 2)])
def test_a_corrupted_order_of_buckets_is_found(ranks: int, rank: int) -> None:
    """It used to be a PositionError of a list, without a rank, or a sweep in another order than that of the others."""
    fault = faults.Corrupt(rank, at=1, of="broadcast", bits=1)
    with faults.injected(fault) as injection, pytest.raises(
        CommunicationError, match=rf"order of the gradients of \d+ parameters .*rank {rank} has received one from "
        r"rank 0 .*each number from 0 to \d+ once\n.*\n  fix: start again",
    ):  # fmt: skip
        cc.run(program, ranks, {"dp": ranks})
    assert len(injection.happened) == 1
