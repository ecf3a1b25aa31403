"""Programs of `Trainer` at the seams of its options, each against one process: a table, and random ones.

The table has programs that were refused, or trained another model. The random ones are drawn from seeds; all of them:
``pytest -m slow tests/parallel/test_trainer_seams.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from parallel import Column, Experts, Recompute, Ring, Row, Trainer, Ulysses, Vocabulary
from parallel.pipeline.stages import parameter_costs

from .trainer_programs import OPTIMIZERS, Program, check, drawn

pytestmark = pytest.mark.timeout(240)
MLPS = {"0.f.0": Column("tp"), "0.f.2": Row("tp"), "1.f.0": Column("tp"), "1.f.2": Row("tp")}


def program(sizes: dict[str, int], blocks: list[str], plan: dict[str, Any] | None = None, **fields: Any) -> Program:
    options = {"microbatches": 1, "clip": 0.5, "seed": 3, **fields.pop("options", {})}
    given = {"is_embedded": False, "head": "linear", "rows": 4, "tokens": 4, "dropout": 0.2, **fields}
    return Program(11, sizes, blocks, plan or {}, options, **given)


ATTENTION = {"0.qkv": Column("tp", blocks=3, unit=2), "0.proj": Row("tp", unit=2)}
HEAD = {"1": Vocabulary("tp"), "loss.rows": Vocabulary("tp")}
TABLE: dict[str, Program] = {
    # the stages follow from whole parameters, not from this rank's parts
    "uneven widths in stages": program(
        {"pp": 2, "tp": 3}, ["linear"] * 4, {"0": Column("tp"), "1": Row("tp")}, width=4, head="none"),
    "uneven heads in stages": program({"pp": 2, "tp": 2}, ["attention", "mlp"], ATTENTION, heads=3),
    # a stage without parameters
    **{
        f"a last stage without parameters, zero={zero}": program(
            {"pp": 2, "dp": 2}, ["linear", "tanh"], head="none", options={"zero": zero, "microbatches": 2})
        for zero in range(4)
    },
    "a first stage without parameters": program({"pp": 2, "dp": 2}, ["tanh"], options={"microbatches": 2}),
    **{
        f"a stage with a tied head only, zero={zero}": program(
            {"pp": 2, "dp": 2}, ["tanh"], is_embedded=True, head="tied", options={"zero": zero})
        for zero in range(3)
    },
    "three stages, one with parameters": program({"pp": 3}, ["dropout", "tanh"], options={"microbatches": 3}),
    **{
        f"{name} with a stage without parameters": program(
            {"pp": 2, "tp": 2}, ["mlp", "dropout", "tanh"], {"0.f.0": Column("tp"), "0.f.2": Row("tp")}, head="none",
            optimizer=name)
        for name in OPTIMIZERS
    },
    # a rank without a row
    "a rank without a row": program({"dp": 2, "tp": 2}, ["mlp"], {**HEAD, "0.f.0": Column("tp"), "0.f.2": Row("tp")},
                                    rows=3, options={"microbatches": 3}),
    "a rank without a row and a head": program({"dp": 3, "tp": 3}, ["attention"], {**ATTENTION, **HEAD}, rows=2),
    "a rank without a row and a token": program({"dp": 2, "cp": 3}, ["attention"], {"0.attend": Ring("cp", False)},
                                                rows=1, tokens=2),
    "a rank without a row of experts": program({"dp": 2, "ep": 2}, ["experts"], {"0.f.0": Experts("ep")}, rows=3,
                                               options={"microbatches": 2}),
    # one rank along an axis
    "zigzag on one rank": program({"cp": 1}, ["attention"], {"0.attend": Ring("cp")}, rotary=True),
    "zigzag on one rank of a mesh": program({"dp": 2, "cp": 1}, ["attention"], {"0.attend": Ring("cp")}),
    "ulysses on one rank": program({"cp": 1, "tp": 2}, ["attention"], {"0.attend": Ulysses("cp"), **ATTENTION}),
    "zero without an axis of rows": program({"tp": 2}, ["mlp"], {"0.f.0": Column("tp"), "0.f.2": Row("tp")},
                                            options={"zero": 2, "bucket_bytes": 64}),
    # parameters that not all ranks or microbatches use
    **{
        f"parameters used in one place, zero={zero}, buckets of {size}": program(
            {"dp": 3}, ["rare", "linear", "unused"], rows=3, tokens=2,
            options={"zero": zero, "bucket_bytes": size, "first_bucket_bytes": size, "microbatches": 2})
        for zero, size in ((0, 64), (1, 0), (1, 64), (2, 64), (2, 1 << 20))
    },
    **{
        f"a first stage that one microbatch does not use, {schedule}": program(
            {"pp": 2}, ["rare", "linear"], head="none", rows=5, tokens=3,
            options={"microbatches": 5, "schedule": schedule})
        for schedule in ("1f1b", "zb-h1")
    },
    # layers in two places
    "a module in two layers of ZeRO-3": program({"dp": 2}, ["shared", "linear", "shared"], options={"zero": 3}),
    # a first layer that communicates and is computed again, while the gradients of weights come later
    "recomputed, communicating first layer": program(
        {"dp": 2, "cp": 2}, ["attention", "mlp"], {"0.attend": Ring("cp"), "0": Recompute()},
        options={"schedule": "zb-h1", "microbatches": 2}),
    "the same in stages": program(
        {"pp": 2, "tp": 2}, ["mlp", "mlp"], {**MLPS, "0": Recompute()},
        options={"schedule": "zb-h1", "microbatches": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.filterwarnings("ignore::autograd.errors.GradientWarning")
def test_programs_at_the_seams(name: str) -> None:
    check(TABLE[name])


CP = {"0.attend": Ring("cp")}
REFUSED: dict[str, tuple[Program, str, list[dict[str, Any]]]] = {
    "ZeRO-3 with gradients of weights that come later": (
        program({"dp": 2, "pp": 2}, ["linear", "linear"], options={"zero": 3, "schedule": "zb-h1"}),
        "fix: zero=2, or schedule='1f1b'", [{"zero": 2}, {"schedule": "1f1b"}]),
    "ZeRO-3 with a tied head": (
        program({"dp": 2, "pp": 2}, ["tanh"], is_embedded=True, head="tied", options={"zero": 3}), "fix: zero=2",
        [{"zero": 2}]),
    "tokens that zigzag order does not divide": (
        program({"cp": 2}, ["attention"], CP, tokens=6), r"fix: padding to 8 tokens, .* Ring\(axis, zigzag=False\)",
        [{"tokens": 8}, {"plan": {"0.attend": Ring("cp", zigzag=False)}}]),
    "fewer heads than ranks": (
        program({"cp": 3}, ["attention"], {"0.attend": Ulysses("cp")}, tokens=6), r"fix: .*Ring\(axis\)",
        [{"plan": CP}]),
    "more microbatches than rows": (
        program({"dp": 2}, ["linear"], options={"microbatches": 5}), "at least 5 rows", [{"microbatches": 4}]),
    "heads that are cut": (
        program({"tp": 2}, ["attention"], {"0.qkv": Column("tp", blocks=3), "0.proj": Row("tp")}, heads=3),
        r"fix: Column\('tp', blocks=3, unit=2\), and the same unit in the Row", [{"plan": ATTENTION}]),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_the_fixes_of_refused_programs(what: str) -> None:
    """Each error offers a fix, and the program with it trains as one process does."""
    p, text, fixes = REFUSED[what]
    with pytest.raises(ag.RingtapeError, match=f"(?s){text}"):
        check(p)
    for fix in fixes:
        options = p.options | {name: value for name, value in fix.items() if name in p.options}
        check(replace(p, **{name: value for name, value in fix.items() if name not in p.options}, options=options))


SEEDS = (5, 7, 10, 14, 24, 29, 36, 42, 63, 110, 206, 225, 259, 282, 372)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore::autograd.errors.GradientWarning", "ignore::autograd.errors.ReplicaWarning")
def test_random_programs(seed: int) -> None:
    p = drawn(seed)
    try:
        check(p)
    except Exception as error:
        error.add_note(str(p))
        raise


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 50))
@pytest.mark.filterwarnings("ignore::autograd.errors.GradientWarning", "ignore::autograd.errors.ReplicaWarning")
def test_many_random_programs(first: int) -> None:
    failed = []
    for seed in range(first, first + 50):
        try:
            check(drawn(seed))
        except Exception as error:
            failed.append(f"{drawn(seed)}\n{type(error).__name__}: {error}")
    assert not failed, "\n\n".join(failed)


FAULTS: dict[str, tuple[str, str, Any]] = {
    "costs of parts": (
        "parallel.pipeline.stages._elements", "uneven widths in stages", lambda p, axis: float(p.array.size)),
    "a cotangent by chance": (
        "parallel.pipeline.transfers.is_inexact", "a first stage that one microbatch does not use, 1f1b",
        lambda dtype: False),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, mutant = FAULTS[fault]
    monkeypatch.setattr(place, mutant)
    with pytest.raises(Exception):  # noqa: B017  # wrong gradients, or ranks that differ
        check(TABLE[name])


def deferred() -> list[Any]:
    """A value of a recomputed communication without an operand on the tape, whose cotangent comes in the first part."""

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            w, v = ag.Parameter(np.array([1.0, 2.0])), ag.Parameter(np.array([3.0, -1.0]))
            rank = mesh.axis("dp").rank
            layer = ag.checkpoint(lambda: cc.all_reduce(cc.cast(w, "dp", to=cc.R) * rank, "dp", to=cc.R))
            with ag.Tape() as tape:
                y = layer()
                loss = cc.all_reduce((y * y * cc.cast(v, "dp", to=cc.R) * (1 + rank)).sum(), "dp", to=cc.I)
            rest = tape.backward(loss, wanted=[y], defer=True)
            assert rest is not None
            rest()
            assert w.grad is not None and v.grad is not None
            return w.grad.numpy().tolist(), v.grad.numpy().tolist()

    return cc.run(program, 2)


def test_the_rest_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ([18.0, -12.0], [3.0, 12.0])  # of 3 v w^2: 6 v w, and 3 w^2
    assert deferred() == [expected, expected]
    monkeypatch.setattr("autograd.engine.deferral._ancestors", lambda nodes, start, values: set())
    assert deferred()[0] == ([0.0, 0.0], expected[1])


def test_costs_of_parts_whose_extents_are_not_agreed() -> None:
    """The ranks along the other axes add up what they hold, so that all of them divide the layers alike."""

    def costs() -> list[float]:
        with cc.Mesh(pp=1, tp=3) as mesh:
            own = 1 + int(mesh.axis("tp").rank)
            layer = nn.Linear(2, own, bias=False)
            layer.weight = ag.Parameter(np.ones((2, own), "float32"), {"tp": cc.V})
            return parameter_costs([layer, nn.Tanh(), nn.Linear(3, 1)], "pp")

    assert cc.run(costs, 3) == [[12.0, 1.0, 4.0]] * 3


def test_an_optimizer_of_no_parameters_is_refused_elsewhere() -> None:
    with pytest.raises(ag.ShapeError, match="needed: at least one"):
        optim.SGD([], lr=0.1)
    with cc.Mesh(dp=1), pytest.raises(ag.ShapeError, match="needed: at least one"):
        optim.SGD([], lr=0.1)


def test_explain_a_stage_without_parameters() -> None:
    def explained() -> Any:
        p = replace(TABLE["a last stage without parameters, zero=0"])
        trainer = Trainer(p.model, p.loss(), cc.Mesh.fit(**p.sizes), p.plan, optimizer=optim.AdamW, microbatches=2)
        plan = trainer.explain(*p.batch(0))
        trainer.step(*p.batch(0))
        trainer.optimizer.load_state_dict(trainer.optimizer.state_dict())
        return [(rank.parameters, rank.optimizer) for rank in plan.ranks]

    for found in cc.run(explained, 4):
        assert [parameters > 0 and state > 0 for parameters, state in found].count(True) == 2
        assert found.count((0, 0)) == 2
