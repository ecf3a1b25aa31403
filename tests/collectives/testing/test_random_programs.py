"""Random SPMD programs: every gradient equals that of the program's dense meaning, and none hangs.

The programs are graphs of local operations, collectives and casts over 1 to 8 ranks and 1 to 3 axes, made by Hypothesis
from the rules in `proofs.random_programs.rules`. The dense meaning has no ranks, and its derivatives no adjoints.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from autograd.layouts.layout import I, P, R, Rooted, Shard, V
from collectives.declaration.collective import collectives
from collectives.testing.proof import mutated

from ... import summary
from ...proofs.random_programs import (
    Illegal,
    LeafForm,
    Program,
    Statement,
    dense,
    faults,
    generate,
    is_correct,
    kinds,
    shrink,
)
from ...proofs.random_programs.execute import TOLERANCE, gradient_faults, objective_faults
from ...proofs.random_programs.form import COMMUNICATION, LOCAL
from ...proofs.random_programs.mutation import meant_labels
from ...proofs.random_programs.shapes import OTHERS, SHAPES
from ...proofs.random_programs.strategies import minimal, programs
from ...proofs.random_programs.unlabelled import unlabelled
from ..launch import launch

ROOT = Path(__file__).resolve().parents[3]


def thoroughly(examples: int) -> Any:
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def is_faulty(program: Program) -> bool:
    """Wrong in any way, or refused."""
    try:
        return bool(faults(program))
    except Exception:
        return True


class Account:
    """What the programs that ran were made of."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def add(self, program: Program) -> None:
        self.ran.update([f"on {program.ranks} ranks", f"on {len(program.axes)} axes"])
        self.seen.update(s.operation for s in program.statements)
        self.seen.update(f"leaf {x.word}" for leaf in program.leaves if leaf.role != "data" for x in leaf.labels)
        self.seen["several axes at once"] += any(len(s.axes) > 1 for s in program.statements)

    def missing(self) -> list[str]:
        """The operations, labels, worlds and meshes that did not occur."""
        leaves = [f"leaf {x.word}" for x in (R, I, V, P, Shard(0), Rooted(0))]
        worlds = [f"on {n} ranks" for n in range(1, 9)] + [f"on {n} axes" for n in (1, 2, 3)]
        return [name for name in (*LOCAL, *COMMUNICATION, *leaves, "several axes at once") if not self.seen[name]] + [
            name for name in worlds if not self.ran[name]
        ]


def check(program: Program) -> None:
    if is_faulty(program):
        small = shrink(program, is_faulty)
        print(small.source())  # to paste
        raise AssertionError("\n".join(faults(small)))  # or what it raises


MOVES = ("cast", "hand_over", "permute", "all_to_all", "matmul", "scatter", "gather")


def test_random_programs() -> None:
    """Of any kind, on several axes, and with many moves; together they have every operation, label and mesh."""
    account = Account()

    def check_and_count(program: Program) -> None:
        check(program)
        account.add(program)

    for examples, strategy in (
        (70, programs()),
        (12, programs(ranks=(6, 8), axes=(2, 3))),
        (12, programs(ranks=(2, 7), operations=MOVES)),
    ):
        thoroughly(examples)(given(strategy)(check_and_count))()
    assert account.missing() == []
    for key, number in account.ran.items():
        summary.count(f"random programs, tolerance {TOLERANCE:.0e}", key, number)
    for name in (*COMMUNICATION, *LOCAL):
        summary.count("random programs, operations", name, account.seen[name])


def test_an_operation_that_is_never_drawn_is_noticed() -> None:
    assert {"all_reduce", "several axes at once", "on 8 ranks"} <= set(Account().missing())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@thoroughly(4000)
@given(programs(statements=12))
def test_thousands_of_random_programs(program: Program) -> None:
    check(program)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@thoroughly(1000)
@given(programs(ranks=(5, 8), axes=(2, 3), statements=16))
def test_a_thousand_larger_ones(program: Program) -> None:
    check(program)


@pytest.mark.parametrize("name", [*SHAPES, *OTHERS])
def test_programs_by_hand(name: str) -> None:
    assert faults({**SHAPES, **OTHERS}[name]) == []


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_on_processes(ranks: int) -> None:
    outcome = launch("random_programs.py", ranks, "0", "12", limit_s=100, forked=False, RINGTAPE_CHECK="always",
                     OPENBLAS_NUM_THREADS="1")  # fmt: skip
    assert not outcome.is_late and f"PROGRAMS 12 on {ranks} ranks, 0 wrong" in outcome.out, outcome.out + outcome.err
    assert outcome.code == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_more_on_processes(ranks: int) -> None:
    outcome = launch("random_programs.py", ranks, "100", "400", limit_s=800, RINGTAPE_CHECK="always",
                     OPENBLAS_NUM_THREADS="1")  # fmt: skip
    assert not outcome.is_late and f"PROGRAMS 300 on {ranks} ranks, 0 wrong" in outcome.out, outcome.out + outcome.err


# -- the reference itself ----------------------------------------------------------------------------------------------


def test_the_dense_meaning_has_the_gradient_of_its_own_objective() -> None:
    """Central differences of `dense`'s objective, and adjoints written by hand (`unlabelled`), against its gradient."""
    for seed in range(25):
        program = generate(seed, ranks=(1, 6))
        ranks = unlabelled(program, meant_labels(program))
        assert gradient_faults(program, dense(program), ranks) == []
        assert objective_faults(program, dense(program), ranks) == []


def test_central_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    from ...proofs.random_programs import serial

    program = SHAPES["sequence parallel"]
    answer, true = dense(program), serial.addends
    for leaf in program.leaves:
        if leaf.role == "data":
            continue
        for element in np.ndindex(*answer.gradients[leaf.name].shape):
            found = []
            for step in (1e-6, -1e-6):

                def moved(x: Any, *rest: Any, step: float = step, leaf: Any = leaf, element: Any = element) -> Any:
                    values = true(x, *rest)
                    if x.name == leaf.name:
                        values[element] += step
                    return values

                monkeypatch.setattr(serial, "addends", moved)
                found.append(dense(program).objective)
                monkeypatch.setattr(serial, "addends", true)
            slope = (found[0] - found[1]) / 2e-6
            assert abs(slope - answer.gradients[leaf.name][element]) < 1e-6 * max(1, abs(slope))


def test_the_rules_refuse() -> None:
    program = SHAPES["data parallel"]
    for i, s in enumerate(program.statements):
        if s.operation == "cast":  # a weight that is not entered
            without = program.statements[:i] + (Statement(s.name, "scale", s.operands),) + program.statements[i + 1 :]
            with pytest.raises(Illegal, match="Shard with other|Invariant with another"):
                kinds(program._replace(statements=without))
    assert is_correct(program) and not is_correct(program._replace(statements=program.statements[:-2]))


# -- what is printed is what runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_source_runs_when_pasted(seed: int) -> None:
    program = generate(seed, ranks=(2, 4))
    out = io.StringIO()
    names: dict[str, Any] = {}
    with redirect_stdout(out):
        exec(program.source(), names)
    import collectives as cc

    results = cc.run(names["program"], program.ranks)
    answer = dense(program)
    for x in program.leaves:
        if x.role != "data" and all(label is I for label in x.labels):
            for found in results:
                g = np.zeros(x.shape) if found[x.name] is None else found[x.name].numpy()
                np.testing.assert_allclose(g, answer.gradients[x.name].reshape(x.shape), atol=1e-9)
    assert out.getvalue().startswith("[{")


def test_programs_are_the_same_for_the_same_seed() -> None:
    assert generate(11) == generate(11) != generate(12)


# -- faults are found, and made small ----------------------------------------------------------------------------


PLANTED = [  # of the rules of a collective: which, and what is planted in its place
    ("all_reduce", "adjoint", lambda true: lambda ct, call: ct),  # the sum is missing
    ("cast I->R", "adjoint", lambda true: lambda ct, call: ct),
    ("reduce_scatter", "adjoint", lambda true: lambda ct, call: true(ct, call) * 2),  # a factor
    ("all_to_all", "forward", lambda true: lambda x, call: true(x, call)[::-1]),  # in the wrong order
    ("scatter", "adjoint", lambda true: lambda ct, call: true(ct, call.but(root=0))),  # the wrong root
    ("permute", "adjoint", lambda true: lambda ct, call: collectives_permute(ct, call)),  # not reversed
]


def collectives_permute(ct: Any, call: Any) -> Any:
    return collectives["permute"](ct, call)


@pytest.mark.parametrize(("name", "rule", "plant"), PLANTED, ids=[f"{n} {r}" for n, r, _ in PLANTED])
def test_a_planted_fault_is_found_and_made_small(name: str, rule: str, plant: Any) -> None:
    collective = collectives[name]
    true = collective._forward if rule == "forward" else collective._adjoint
    statement = "cast" if name == "cast I->R" else name
    with mutated(name, **{rule: plant(true)}):
        small = minimal(is_faulty, ranks=(2, 4), axes=(1, 2), statements=6,
                        operations=("tanh", "add", "cast", statement, statement, statement))  # fmt: skip
        assert is_faulty(small)
    assert not is_faulty(small)
    assert len(small.statements) <= 6, small.source()
    assert small.ranks <= 4


def test_a_wrong_label_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives["reduce"], "gives", lambda call, layout, k, shape: V)
    assert is_faulty(minimal(is_faulty, ranks=(2, 3), axes=(1, 1)))


def python(code: str) -> Any:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


def test_hypothesis_is_optional() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from tests.proofs.random_programs import faults, generate\n"
        "import tests.proofs.random_programs.mutation\n"
        "assert not faults(generate(seed=1))\n"
        "try: import tests.proofs.random_programs.strategies\n"
        "except ImportError as error: print(error)\n"
    )
    done = python(code)
    assert "needs Hypothesis" in done.stdout and "pip install hypothesis" in done.stdout, done.stderr


def test_users_load_no_proofs() -> None:
    done = python("import re, sys, collectives.testing, collectives.tools.check, autograd.testing.listing\n"
                  "print([m for m in sys.modules if re.search('programs|hypothesis|mutation|proofs', m)])")  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


def test_a_gradient_that_vanishes_by_cancellation_is_right() -> None:
    """The rows of a softmax sum to 1, so that the objective does not depend on w but by rounding."""
    w = LeafForm("w", (4,), (I,), "watched")
    program = Program(("a",), (2,), (w,), (Statement("y", "softmax", ("w",)), Statement("z", "sum", ("y",))))
    for seed in range(40):
        assert faults(program._replace(seed=seed)) == []
