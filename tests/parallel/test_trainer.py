"""Every mesh trains the same model: all gradients, and the losses of ten steps, are those of one process.

The default tests run a few meshes. All meshes of up to eight ranks: ``pytest -m full tests/parallel/test_trainer.py``.
"""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim, random
from collectives import Shard
from parallel import Column, Experts, Recompute, Ring, Row, Sequence, Trainer, Vocabulary, memory_of

from ..collectives.launch import launch_command
from .models import gpt

pytestmark = pytest.mark.timeout(300)
CONFIG = gpt.Config(vocabulary=13, width=24, heads=12, layers=8, dropout=0.2)
ROWS, TOKENS, STEPS = 16, 16, 10
PLAN = {
    "*.table": Vocabulary("tp"), "*.qkv": Column("tp", blocks=3), "*.proj": Row("tp"), "*.mlp.up": Column("tp"),
    "*.mlp.down": Row("tp"), "*.out": Vocabulary("tp"), "loss.rows": Vocabulary("tp"), "*.attend": Ring("cp"),
}  # fmt: skip
SEQUENCE = PLAN | {
    "*.table": Vocabulary("tp", to=Shard(1)), "*.proj": Row("tp", to=Shard(1)), "*.mlp.down": Row("tp", to=Shard(1)),
    "*.norm*": Sequence("tp"),
}  # fmt: skip


EXPERTS = PLAN | {"*.mlp": Experts("ep")}
for _name in ("*.mlp.up", "*.mlp.down"):
    EXPERTS[_name.replace("*", "[1357]")] = EXPERTS.pop(_name)
EXPERTS["[2468].mlp"] = EXPERTS.pop("*.mlp")


def model(experts: int = 0) -> nn.Sequential:
    """The GPT with weights that make every gradient matter."""
    layers = gpt.gpt(replace(CONFIG, experts=experts), random.Key(1), np.float64)
    rng = np.random.default_rng(2)
    for p in layers.parameters():
        p.array = p.array + 0.05 * rng.standard_normal(p.array.shape)
    return layers


def batch(step: int) -> Any:
    rng = np.random.default_rng([3, step])
    return rng.integers(0, CONFIG.vocabulary, (2, ROWS, TOKENS))


def trained(steps: int = STEPS, plan: Any = PLAN, made: Any = model, **options: Any) -> Any:
    """The largest difference of a gradient before the first step, and the losses of the steps."""
    sizes = {axis: n for axis, n in options.items() if axis in ("pp", "dp", "ep", "cp", "tp")}
    rest = {name: value for name, value in options.items() if name not in sizes}

    def program() -> Any:
        mesh = cc.Mesh.fit(**sizes)
        trainer = Trainer(
            made, gpt.Loss(), mesh, plan, optimizer=lambda p: optim.AdamW(p, lr=1e-2), clip=0.5,
            **{"microbatches": 2, **rest},
        )  # fmt: skip
        report = trainer.verify(*batch(0))
        return report.largest, [trainer.step(*batch(step)) for step in range(steps)]

    if cc.world().size > 1:  # under mpiexec
        return program()
    found = cc.run(program, math.prod(sizes.values()))
    assert all(losses == found[0][1] for _, losses in found)
    return found[0]


@cache
def alone(steps: int, microbatches: int = 2) -> list[float]:
    return trained(steps, microbatches=microbatches, dp=1)[1]


@cache
def alone_with_experts(steps: int) -> list[float]:
    return trained(steps, plan=EXPERTS, made=partial(model, 4), dp=1)[1]


def check(steps: int, **options: Any) -> None:
    largest, losses = trained(steps, **options)
    assert largest <= 1e-10
    experts = options.get("plan") is EXPERTS
    serial = alone_with_experts(steps) if experts else alone(steps, options.get("microbatches", 2))
    assert losses == pytest.approx(serial, rel=1e-10)


@pytest.mark.parametrize("sizes", [
    {"pp": 2, "cp": 2}, {"pp": 2, "dp": 2, "tp": 2}, {"dp": 3},
], ids=str)  # fmt: skip
def test_a_mesh_trains_as_one_process(sizes: dict[str, int]) -> None:
    check(2, **sizes)


def test_sequence_parallel_with_recomputed_blocks() -> None:
    check(2, plan=SEQUENCE | {f"{i}": Recompute() for i in range(1, 9)}, dp=2, tp=2)


def test_experts() -> None:
    check(2, plan=EXPERTS, made=partial(model, 4), dp=2, ep=2)


@pytest.mark.parametrize("stage", [*(pytest.param(stage, marks=pytest.mark.full) for stage in (1, 2)), 3])
def test_sharded_state(stage: int) -> None:
    check(2, zero=stage, dp=2, tp=2)


@cache
def explained(layers: int, **sizes: int) -> Any:
    def program() -> Any:
        config = replace(CONFIG, layers=layers)
        trainer = Trainer(
            lambda: gpt.gpt(config, random.Key(1), np.float64), gpt.Loss(), cc.Mesh.fit(**sizes), PLAN, microbatches=4,
            optimizer=lambda p: optim.AdamW(p),
        )  # fmt: skip
        plan = trainer.explain(*batch(0))
        trainer.step(*batch(0))
        memory = memory_of(trainer.pipeline.wrapped, trainer.optimizer)
        own = plan.ranks[int(trainer.mesh.ranks.rank)]
        assert (own.parameters, own.gradients, own.optimizer) == memory[:3]
        assert trainer.pipeline.record.held == plan.simulation.held[trainer.pipeline.rank]
        return plan

    return cc.run(program, math.prod(sizes.values()))[0]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_memory_falls_with_the_stages(stages: int) -> None:
    """Of blocks: a rank has 1 / stages of the parameters, and the activations of as many microbatches as 1F1B needs."""
    eight, four = explained(8, dp=1).ranks[0], explained(4, dp=1).ranks[0]
    parameters, activations = (eight.parameters - four.parameters) / 4, (eight.activations - four.activations) / 4
    plan = explained(8, pp=stages)
    for rank, of in enumerate(plan.ranks):
        blocks = len([name for name in of.layers if name.isdigit() and 1 <= int(name) <= 8])
        ends = (eight.activations - 8 * activations) * (1 if stages == 1 else 0)
        predicted = blocks * activations * min(4, stages - rank) + ends
        if rank not in (0, stages - 1) or stages == 1:  # the first and the last stage have the embedding and the head
            assert of.parameters == pytest.approx(blocks * parameters, rel=0.1)
            assert of.activations == pytest.approx(predicted, rel=0.1)
    assert sum(of.peak for of in plan.ranks) < 2.5 * eight.peak


def small(mesh: Any, plan: Any = (), **options: Any) -> Trainer:
    """A trainer of two layers."""

    def layers() -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(4, 4, dtype=float, key=random.Key(i)) for i in range(2)))

    given = {"optimizer": lambda p: optim.SGD(p, lr=0.1), **options}
    return Trainer(layers, nn.CrossEntropyLoss(reduction="sum"), mesh, dict(plan), **given)


X, Y = np.random.default_rng(5).standard_normal((6, 4)), np.arange(6) % 4
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "each rank gives its own rows": (
        lambda: small(cc.Mesh.fit(dp=2)).step(X + int(cc.world().rank), Y), cc.CollectiveMismatch, "the whole batch"),
    "an axis that divides nothing": (
        lambda: small(cc.Mesh(data=2)), ag.OptionError, "'data' of 2 ranks, which divides nothing.*fix: batch='data'"),
    "an optimizer in the place of a function": (
        lambda: small(cc.Mesh.fit(dp=2), optimizer=optim.SGD([ag.Parameter(X)], lr=0.1)), ag.ArgumentError, "fix: "),
    "a module in the place of a function": (
        lambda: Trainer(nn.Sequential(nn.ReLU()), nn.CrossEntropyLoss(reduction="sum"), cc.Mesh.fit(dp=2),
                        optimizer=optim.SGD), ag.ArgumentError, "fix: Trainer\\(lambda"),
    "a mean": (lambda: Trainer(nn.Sequential, nn.CrossEntropyLoss(), cc.Mesh.fit(dp=2), optimizer=optim.SGD),
               ag.OptionError, "reduction='mean'.*fix: reduction='sum'"),
    "a row layer without a column layer": (
        lambda: small(cc.Mesh.fit(tp=2), {"0": Row("tp")}).step(X, Y), ag.LayoutError, "fix: a layer of style Column"),
    "a class in the place of a style": (
        lambda: small(cc.Mesh.fit(tp=2), {"0": Column}), ag.ArgumentError, "Column"),
    "more microbatches than rows": (
        lambda: small(cc.Mesh.fit(dp=2), microbatches=7).step(X, Y), ag.ShapeError, "at least 7 rows"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_programs_are_refused(what: str) -> None:
    program, error, text = WRONG[what]
    with pytest.raises(error, match=f"(?s){text}"):
        cc.run(program, 2)


def test_the_fix_of_an_axis_that_divides_nothing() -> None:
    found = cc.run(lambda: small(cc.Mesh(data=2), batch="data").step(X, Y), 2)
    assert found == [pytest.approx(cc.run(lambda: small(cc.Mesh.fit(dp=1)).step(X, Y), 1)[0])] * 2


FAULTS = {
    "a gradient that counts twice": ("parallel.pipeline.run.Pipeline.step", lambda step: (
        lambda self, x, y, scale: step(self, x, y, scale * (2 if self._on is not None else 1)))),
    "a tied weight's cotangent that is lost": (
        "parallel.pipeline.run._Run._return_ties", lambda _: lambda self: self.ties.clear()),
    "a norm of some of the gradients": ("autograd.optim.clip_grad_norm_", lambda clip: (
        lambda parameters, largest: clip(list(parameters)[:2], largest) if cc.world().size > 1 else clip(
            parameters, largest))),
    "a mask of the first microbatch": ("parallel.pipeline.run.seed_of_layers", lambda number: (
        lambda seed, step, microbatch: number(seed, step, 0))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serial = alone(2)
    place, mutant = FAULTS[fault]
    monkeypatch.setattr(place, mutant(_resolved(place)))
    largest, losses = trained(2, pp=2)
    assert largest > 1e-6 or losses != pytest.approx(serial, rel=1e-10)


def _resolved(path: str) -> Any:
    """The object with a dotted name."""
    found = importlib.import_module("autograd" if path.startswith("autograd") else "parallel.pipeline.run")
    for name in path.split(".")[1 if path.startswith("autograd") else 3 :]:
        found = getattr(found, name)
    return found


OVER_MPI: dict[int, list[dict[str, Any]]] = {
    2: [{"cp": 2, "zero": 2}, {"pp": 2, "schedule": "zb-h1", "microbatches": 4}],
    3: [{"dp": 3}, {"pp": 3}, {"tp": 3}],
    4: [{"dp": 2, "tp": 2, "plan": SEQUENCE}, {"pp": 2, "cp": 2}, {"pp": 2, "dp": 2}, {"pp": 4}],
}


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_over_mpi(ranks: int) -> None:
    found = launch_command(["-m", __name__], ranks, limit_s=100)
    assert found.code == 0, found.out + found.err
    for line, options in zip(found.out.splitlines(), OVER_MPI[ranks], strict=True):
        largest, losses = json.loads(line)
        assert largest <= 1e-10, options
        assert losses == pytest.approx(alone(2, options.get("microbatches", 2)), rel=1e-10), options


@pytest.mark.full
@pytest.mark.parametrize("sizes", [
    dict(zip(("pp", "dp", "cp", "tp"), sizes, strict=True))
    for sizes in product(range(1, 9), repeat=4)
    if 1 < math.prod(sizes) <= 8 and sizes[2] in (1, 2, 4, 8) and CONFIG.heads % sizes[3] == 0
], ids=lambda sizes: "x".join(map(str, sizes.values())))  # fmt: skip
def test_all_meshes(sizes: dict[str, int]) -> None:
    check(STEPS, **{axis: n for axis, n in sizes.items() if n > 1})


@pytest.mark.full
@pytest.mark.parametrize("sizes", [
    dict(zip(("pp", "dp", "ep", "cp", "tp"), sizes, strict=True))
    for sizes in product((1, 2, 4), repeat=5) if sizes[2] > 1 and math.prod(sizes) <= 8
], ids=lambda sizes: "x".join(map(str, sizes.values())))  # fmt: skip
def test_all_meshes_of_experts(sizes: dict[str, int]) -> None:
    check(STEPS, plan=EXPERTS, made=partial(model, 4), **{axis: n for axis, n in sizes.items() if n > 1})


@pytest.mark.full
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"])
@pytest.mark.parametrize("sizes", [{"pp": 2}, {"pp": 4}, {"pp": 2, "dp": 2, "tp": 2}], ids=str)
def test_all_schedules(schedule: str, sizes: dict[str, int]) -> None:
    check(STEPS, schedule=schedule, microbatches=8, **sizes)


if __name__ == "__main__":  # test_over_mpi
    for options in OVER_MPI[cc.world().size]:
        line = json.dumps(trained(2, **options))
        if cc.world().rank == 0:
            print(line, flush=True)
