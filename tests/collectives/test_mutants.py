"""Every fault that a pair can have is planted at 3 ranks, and the registry's checks name the collective that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import collectives as cc
from collectives import I, P, R, V
from collectives.primitive import Call, collectives
from collectives.registry_cases import cases
from collectives.testing import Case, Failure, Setting, check, mutated

RANKS = 3
KILLED: list[tuple[str, str, str]] = []
Rule = Callable[..., Any]


class Mutant(NamedTuple):
    """A fault: in which rule of which collective, and how to make it of the true rule."""

    collective: str
    fault: str
    make: Callable[[Rule], Rule]
    rule: str = "adjoint"


def other(name: str) -> Any:
    return collectives[name]


def where(holds: Callable[[Call], bool], wrong: Rule) -> Callable[[Rule], Rule]:
    """The fault only where the call is of one kind."""
    return lambda true: lambda x, call: wrong(x, call) if holds(call) else true(x, call)


def always(wrong: Rule) -> Callable[[Rule], Rule]:
    return lambda true: wrong


def times(factor: float) -> Callable[[Rule], Rule]:
    return lambda true: lambda x, call: true(x, call) * factor


def to_r(call: Call) -> bool:
    return call.to is R


def to_i(call: Call) -> bool:
    return call.to is I


def of(label: Any) -> Callable[[Call], bool]:
    return lambda call: call.source is label


def identity(x: Any, call: Call) -> Any:
    return x


def zeros(true: Rule) -> Rule:
    """The ranks still communicate, and then the result is dropped."""
    return lambda x, call: true(x, call) * 0


def at_root(root: int) -> Callable[[Rule], Rule]:
    return lambda true: lambda x, call: true(x, call.but(root=root))


def no_sum_on_root(ct: Any, call: Call) -> Any:
    return other("keep on the root")(ct, call.but(source=I))


def reversed_parts(true: Rule) -> Rule:
    return lambda x, call: np.flip(true(x, call), axis=call.dim) if type(x) is np.ndarray else true(x, call)


MUTANTS = [
    Mutant("all_reduce", "to=R: the sum is missing", where(to_r, identity)),
    Mutant("all_reduce", "a factor p", times(RANKS)),
    Mutant("all_reduce", "a mean in place of the sum", times(1 / RANKS)),
    Mutant("all_reduce", "to=I: summed once more",
           where(to_i, lambda ct, call: other("all_reduce")(other("relabel")(ct, call.but(to=V)), call.but(to=R)))),
    Mutant("all_reduce", "to=I: kept on the first rank only",
           where(to_i, lambda ct, call: other("cast to P")(ct, call.but(source=I, to=P)))),
    Mutant("all_reduce", "the sum is missing", always(identity), "forward"),
    Mutant("cast I->R", "the sum is missing", always(identity)),
    Mutant("cast I->R", "a mean in place of the sum", times(1 / RANKS)),
    Mutant("cast R->I", "every rank's copy counts: a factor p", always(identity)),
    Mutant("cast R->I", "summed over the ranks", lambda true: lambda ct, call: ct * RANKS),
    Mutant("cast to P", "R: every rank's copy counts", where(of(R), identity)),
    Mutant("cast to P", "I: kept on the first rank once more",
           where(of(I), lambda ct, call: other("cast to P")(ct, call.but(source=R, to=P)))),
    Mutant("cast to P", "every rank's copy is added", always(identity), "forward"),
    Mutant("relabel", "dropped", zeros),
    Mutant("relabel", "a factor p", times(RANKS)),
    Mutant("all_gather", "to=R: own part without the sum",
           where(to_r, lambda ct, call: other("shard")(ct, call.but(source=R, to=V)))),
    Mutant("all_gather", "to=R: a mean in place of the sum", times(1 / RANKS)),
    Mutant("all_gather", "to=I: the sum of equal copies", where(to_i, lambda ct, call: other("reduce_scatter")(
        other("relabel")(ct, call.but(to=V)), call.but(source=P, to=V)))),
    Mutant("all_gather", "joined in reverse order", reversed_parts, "forward"),
    Mutant("reduce_scatter", "padded with zeros, not gathered",
           always(lambda ct, call: other("pad")(ct, call.but(source=V, to=P)))),
    Mutant("reduce_scatter", "a factor p", times(RANKS)),
    Mutant("reduce_scatter", "this rank's own part, without the sum",
           always(collectives["shard"]._forward), "forward"),
    Mutant("shard", "I: padded with zeros, not gathered",
           where(of(I), lambda ct, call: other("pad")(ct, call.but(source=V, to=P)))),
    Mutant("shard", "R: gathered, not padded",
           where(of(R), lambda ct, call: other("all_gather")(ct, call.but(source=V, to=R)))),
    Mutant("pad", "dropped in the second derivative", zeros),
    Mutant("pad", "a factor p in the second derivative", times(RANKS)),
    Mutant("all_to_all", "the dimensions are not exchanged", always(other("all_to_all"))),
    Mutant("all_to_all", "the identity", always(identity)),
    Mutant("permute", "the permutation is not reversed", always(other("permute"))),
    Mutant("permute", "the identity", always(identity)),
    Mutant("permute", "a mean in place of a move", times(1 / RANKS)),
    Mutant("send", "the cotangent is received and dropped", zeros),
    Mutant("send", "the cotangent is not received", always(lambda ct, call: ct)),
    Mutant("recv", "the cotangent is not sent", always(lambda ct, call: None)),
    Mutant("recv", "a factor p", lambda true: lambda ct, call: true(ct * RANKS, call)),
    Mutant("recv", "zeros are sent", lambda true: lambda ct, call: true(ct * 0, call)),
    Mutant("broadcast", "to=R: not summed", where(to_r, no_sum_on_root)),
    Mutant("broadcast", "to=R: summed on the wrong root",
           lambda true: lambda ct, call: true(ct, call.but(root=(call.root + 1) % RANKS))),
    Mutant("broadcast", "to=I: summed over equal copies", where(to_i, lambda ct, call: other("reduce")(
        other("relabel")(ct, call.but(to=V)), call.but(source=P)))),
    Mutant("keep on the root", "dropped in the second derivative", zeros),
    Mutant("reduce", "broadcast from the first rank always", at_root(0)),
    Mutant("reduce", "a mean in place of the copies", times(1 / RANKS)),
    Mutant("scatter", "gathered on the first rank always", at_root(0)),
    Mutant("scatter", "dropped", zeros),
    Mutant("gather", "scattered from the first rank always", at_root(0)),
    Mutant("gather", "a factor p", times(RANKS)),
    *(Mutant(name, "forward mode drops the tangent", lambda true: lambda t, *rest: true(t * 0, *rest), "tangent")
      for name in ("all_reduce", "cast I->R", "all_gather", "reduce_scatter", "shard", "all_to_all", "permute",
                   "broadcast", "reduce", "scatter", "gather")),
]  # fmt: skip


def work_of(collective: str) -> list[tuple[Case, Setting]]:
    """The cases that are about one collective; for those that only adjoints call, those of its pair."""
    reached = {"keep on the root": "broadcast"}.get(collective, collective)
    setting = Setting({"a": RANKS}, ["a"])
    return [(c, setting) for c in cases(setting, 2) if isinstance(c, Case) and reached in c.covers]


def plant(mutant: Mutant) -> list[Failure]:
    collective = collectives[mutant.collective]
    true = {"forward": collective._forward, "adjoint": collective._adjoint, "tangent": collective.tangent}[mutant.rule]
    with mutated(mutant.collective, **{mutant.rule: mutant.make(true)}):
        return check(work_of(mutant.collective), RANKS)


@pytest.mark.parametrize("collective", sorted({m.collective for m in MUTANTS}))
def test_unmutated_passes(collective: str) -> None:
    work = work_of(collective)
    assert work
    assert check(work, RANKS) == []


def test_every_collective_has_a_mutant() -> None:
    without = {name for case in cases(Setting({"a": 3}, ["a"]), 2) if isinstance(case, Case) for name in case.covers}
    assert without <= {m.collective for m in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.collective}: {m.fault}")
def test_mutant_is_killed(mutant: Mutant) -> None:
    failures = plant(mutant)
    assert failures, "the mutant survived"
    about = {f"{case.name} {setting}" for case, setting in work_of(mutant.collective)}
    assert {failure.case for failure in failures} <= about, failures  # named by a case of that very collective
    found = sorted({failure.check for failure in failures})
    KILLED.append((mutant.collective, mutant.fault, ", ".join(found)))


@pytest.fixture
def undivided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cc, "mean", cc.all_reduce)
    yield


def test_mean_without_the_division_is_killed(undivided: None) -> None:
    failures = [f for f in check(work_of("all_reduce"), RANKS) if f.case.startswith("mean ")]
    assert {"forward", "adjoint", "tangent"} <= {f.check for f in failures}
    KILLED.append(("mean", "not divided", ", ".join(sorted({f.check for f in failures}))))


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the table; the last of this file."""
    if not KILLED:
        pytest.skip("no mutant ran")
    with capsys.disabled():
        print(f"\nmutants killed: {len(KILLED)}")
        for collective, fault, found in KILLED:
            print(f"  {collective:<18}{fault:<48}{found}")
