"""Every collective and every cast of correct programs is spoiled, and the layers must say so.

The default run takes all mutants of data, tensor and sequence parallel programs; the slow one adds further shapes,
generated programs, and mutants on one rank only. No correct program may be refused by any layer.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from collectives.testing.proof import mutated

from ... import summary
from ...proofs.random_programs import generate
from ...proofs.random_programs.mutation import (
    KINDS,
    LAYERS,
    Fate,
    Report,
    false_alarm,
    fate,
    mutants,
    mutation_run,
)
from ...proofs.random_programs.shapes import OTHERS, SHAPES


@pytest.fixture(scope="module")
def report() -> Report:
    return mutation_run(SHAPES)


def test_mutants_of_training_programs_die(report: Report) -> None:
    """Of those that change a gradient, 95 % without the serial comparison, and all with it."""
    summary.line("mutation", f"data, tensor and sequence parallel programs\n{report}")
    assert len(report.changing()) >= 80
    assert report.share_without_serial() >= 0.95, str(report)
    assert report.survivors == []


def test_labels_do_not_see_scale(report: Report) -> None:
    """What is reported apart: a result that counts p times dies of the serial comparison, and of nothing else."""
    scaled = [f for f in report.fates if f.kind == "scale"]
    assert scaled and {f.layer for f in scaled} == {"serial"}


def test_the_boundary_and_the_digests_see_what_labels_do_not(report: Report) -> None:
    """A parameter whose gradient is never summed dies at the optimizer, one whose copies differ by its digest."""
    for kind, layers in (("declare", {"boundary", "labels"}), ("unequal", {"digest"})):
        found = [f for f in report.fates if f.kind == kind]
        assert found and {f.layer for f in found} == layers, [(f.what, f.layer, f.says) for f in found]


def test_every_kind_of_every_collective_is_there() -> None:
    """All four kinds for every collective that the programs use, and every collective in some program."""
    programs = {**SHAPES, **OTHERS}
    kinds = {(m.operation, m.kind) for p in programs.values() for m in mutants(p)}
    operations = {operation for operation, _ in kinds}
    assert {k for _, k in kinds} == set(KINDS)
    assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "hand_over", "broadcast", "scatter",
            "reduce", "cast"} <= operations  # fmt: skip
    for operation in operations - {"leaf"}:
        assert {k for o, k in kinds if o == operation} == {"delete", "double", "move", "retype", "scale"}, operation


def test_mutants_of_other_programs_die_with_the_serial_layer() -> None:
    """A permutation left out is labelled as if it were there: moves between ranks are what labels do not see."""
    report = mutation_run({name: OTHERS[name] for name in ("ZeRO-3", "Ulysses", "ring", "rooted")})
    summary.line("mutation", f"ZeRO-3, Ulysses, a ring, rooted data\n{report}")
    assert report.survivors == []
    assert {f.operation for f in report.only_serial if f.kind != "scale"} <= {"permute"}


def test_on_one_rank_only_nothing_lives_that_differs() -> None:
    """Ranks that differ in what they call are told so: never a hang, and never a result."""
    program = SHAPES["sequence parallel"]
    for m in mutants(program, rank=1):
        if m.kind != "scale":
            found = fate("sequence parallel", program, m)
            assert found.layer is not None or found.changes is False, found
            assert found.layer in (None, "labels", "shapes", "fingerprint"), found


@pytest.mark.parametrize("seed", [2])
def test_a_layer_that_sees_nothing_is_noticed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: without labels (everything is allowed) the share falls, so the report does measure them."""
    from ...proofs.random_programs import mutation

    name = list(SHAPES)[seed]
    before = mutation_run({name: SHAPES[name]}, ["delete", "retype"])
    true = mutation._killed

    def blind(program: Any, mutant: Any) -> Any:
        layer, says, ranks = true(program, mutant)
        return (None, says, ranks) if layer == "labels" else (layer, says, ranks)

    monkeypatch.setattr(mutation, "_killed", blind)
    after = mutation_run({name: SHAPES[name]}, ["delete", "retype"])
    assert before.share_without_serial() == 1.0 > after.share_without_serial()
    assert all(f.layer != "serial" or f.changes for f in after.fates)


def test_a_wrong_adjoint_is_an_alarm() -> None:
    """Planted: with a factor in the all-reduce's adjoint a correct program does not pass."""
    from collectives.declaration.collective import collectives

    true = collectives["cast I->R"]._adjoint
    with mutated("cast I->R", adjoint=lambda ct, call: true(ct, call) * 2):
        alarm = false_alarm(SHAPES["data parallel"])
    assert alarm is not None and alarm.startswith("serial: the gradient of w")


def alarms(count: int) -> None:
    for seed in range(count):
        program = generate(seed, trained=True)
        found = false_alarm(program)
        assert found is None, f"seed {seed}: {found}\n{program.source()}"
    summary.count("mutation, generated correct programs without a false alarm", "programs", count)


def test_no_false_alarm() -> None:
    for name, program in {**SHAPES, **OTHERS}.items():
        assert false_alarm(program) is None, name
    alarms(50)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_false_alarm_in_a_thousand() -> None:
    alarms(1000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_run() -> None:
    """All shapes, generated programs, and every mutant also on one rank only. Prints the tables."""
    by_hand = mutation_run({**SHAPES, **OTHERS}, one_rank=True)
    generated = mutation_run({f"seed {seed}": generate(seed, trained=True) for seed in range(150)})
    summary.line("mutation", f"all programs by hand, and on one rank only\n{by_hand}")
    summary.line("mutation", f"150 generated programs\n{generated}")
    assert generated.survivors == []
    assert not [f for f in by_hand.survivors if f.changes]


def test_report_as_json(report: Report) -> None:
    found = json.loads(report.json())
    assert found["share_without_serial"] == report.share_without_serial()
    assert found["survivors"] == []
    assert set(found["kinds"]) == set(KINDS)
    assert sum(row["mutants"] for row in found["kinds"].values()) == len(report.fates)


def test_the_table_adds_up(report: Report) -> None:
    for kind, row in report.table():
        assert sum(row[layer] for layer in (*LAYERS, "undetected")) == row["mutants"], kind
    lone = Report([Fate("p", "delete", "cast", "x", None, True)])
    assert lone.survivors and lone.share_without_serial() == 0.0
    assert "change a gradient and are not detected: 1" in str(lone)
