"""Every fault that a pair can have is planted at 3 ranks, and the registry's checks name the collective that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from collectives import I, P, R, V
from collectives.declaration.call import Call
from collectives.declaration.collective import collectives
from collectives.testing import Case, Failure, Setting, check, mutated
from collectives.testing.registry_cases import cases

from ... import summary

RANKS = 3
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


# -- nonlinear ones, whose rules read the operand and the result too ---------------------------------------------


def at_operand(change: Callable[[Any, Any], Any]) -> Callable[[Rule], Rule]:
    """The rule reads another operand or result: `change` makes both of the true ones."""
    return lambda true: lambda ct, call, x, y: true(ct, call, *change(x, y))


def winner_of(name: str) -> Callable[[Rule], Rule]:
    """The winner is looked for by the result of another collective."""
    def wrong(true: Rule, ct: Any, call: Call, x: Any, y: Any) -> Any:
        if not hasattr(x, "layout"):
            return true(ct, call, x, other(name)._forward(x, call))
        return true(ct, call, x, type(y)(other(name)._forward(x.array, call), y.layout))

    return lambda true: lambda *args: wrong(true, *args)


def whole_to_each_winner(true: Rule) -> Rule:
    def wrong(ct: Any, call: Call, x: Any, y: Any) -> Any:
        a, b = (z.array if hasattr(z, "layout") else z for z in (x, y))
        return true(ct, call, x, y) * other("all_reduce")((a == b).astype(a.dtype), call.but(to=R))

    return wrong


def share_without_sum(true: Rule) -> Rule:
    """to=R: every rank uses its own cotangent only."""
    return lambda ct, call, x, y: true(other("relabel")(ct, call.but(to=I)) if hasattr(ct, "layout") else ct,
                                       call.but(to=I), x, y)


def detached(x: Any, y: Any) -> Any:
    return ag.stop_gradient(x), y


def divided(ct: Any, call: Call, x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return other("all_reduce")(ct, call.but(to=R)) * (y / x)


# -- halos and one-sided reads -----------------------------------------------------------------------------------


def own_cells(call: Call) -> Any:
    start = call.options.before
    return (*(slice(None),) * call.dim, slice(start, start + call.extents[call.group.rank]))


def cropped(ct: Any, call: Call) -> Any:
    return ct[own_cells(call)] * 1.0


def overwritten(true: Rule) -> Rule:
    """What a neighbour sends replaces the owner's cotangent where it should be added."""
    def wrong(ct: Any, call: Call) -> Any:
        ghosts, touched = ct.copy(), np.ones_like(ct)
        ghosts[own_cells(call)] = touched[own_cells(call)] = 0
        return np.where(true(touched, call) > 0, true(ghosts, call), ct[own_cells(call)])

    return wrong


def other_borders(true: Rule) -> Rule:
    def wrong(x: Any, call: Call) -> Any:
        return true(x, call.but(options=call.options._replace(periodic=not call.options.periodic)))

    return wrong


def mirrored(true: Rule) -> Rule:
    """The neighbours before and after are taken for each other."""
    def wrong(x: Any, call: Call) -> Any:
        y = true(np.flip(x, call.dim), call.but(options=call.options._replace(
            before=call.options.after, after=call.options.before)))
        return np.flip(y, call.dim).copy()

    return wrong


def with_runs(change: Callable[[Any, Call], Any]) -> Callable[[Rule], Rule]:
    return lambda true: lambda x, call: true(
        x, call.but(options=call.options._replace(runs=tuple(change(call.options.runs, call)))))


def averaged(true: Rule) -> Rule:
    return lambda ct, call: true(ct, call) / np.maximum(true(np.ones_like(ct), call), 1)


MUTANTS = [
    Mutant("all_reduce", "to=R: the sum is missing", where(to_r, identity)),
    Mutant("all_reduce", "a factor p", times(RANKS)),
    Mutant("reproducible_sum", "a factor p", times(RANKS)),
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
    Mutant("scan", "not reversed", always(other("scan"))),
    Mutant("scan", "the identity", always(identity)),
    Mutant("scan", "without this rank",
           always(lambda ct, call: other("exscan")(ct, call.but(options=call.options._replace(backwards=True))))),
    Mutant("scan", "from the last rank to the first",
           lambda true: lambda x, call: true(x, call.but(options=call.options._replace(backwards=True))), "forward"),
    Mutant("exscan", "not reversed", always(other("exscan"))),
    Mutant("exscan", "this rank counts too",
           always(lambda ct, call: other("scan")(ct, call.but(options=call.options._replace(backwards=True))))),
    Mutant("exscan", "this rank counts too", always(collectives["scan"]._forward), "forward"),
    Mutant("all_max", "the wrong winner", winner_of("all_min")),
    Mutant("all_max", "every winner gets the whole cotangent", whole_to_each_winner),
    Mutant("all_max", "to=R: not summed", share_without_sum),
    Mutant("all_max", "every rank gets the cotangent", at_operand(lambda x, y: (y, y))),
    Mutant("all_max", "the smallest", always(collectives["all_min"]._forward), "forward"),
    Mutant("all_min", "the wrong winner", winner_of("all_max")),
    Mutant("all_min", "a factor p", lambda true: lambda ct, *rest: true(ct * float(RANKS), *rest)),
    Mutant("all_min", "the largest", always(collectives["all_max"]._forward), "forward"),
    Mutant("all_prod", "y / x: a zero is not legal", always(divided)),
    Mutant("all_prod", "this rank's factor counts too", lambda true: lambda ct, call, x, y: true(ct, call, x, y) * x),
    Mutant("all_prod", "the sum's adjoint", at_operand(lambda x, y: (x * 0 + 1.0, y))),
    Mutant("all_prod", "the others are constants", at_operand(detached)),
    Mutant("all_prod", "to=R: not summed", share_without_sum),
    Mutant("all_prod", "the sum", always(collectives["all_reduce"]._forward), "forward"),
    Mutant("halo_exchange", "cropped: the ghosts' cotangents are dropped", always(cropped)),
    Mutant("halo_exchange", "a factor 2", times(2)),
    Mutant("halo_exchange", "an open border in place of a periodic one", other_borders, "forward"),
    Mutant("halo_exchange", "an open border in place of a periodic one", other_borders),
    Mutant("halo_exchange", "the neighbours are exchanged", mirrored, "forward"),
    Mutant("add ghosts", "overwritten, not added", overwritten, "forward"),
    Mutant("add ghosts", "dropped in the second derivative", zeros),
    Mutant("get", "dropped", zeros),
    Mutant("get", "a factor p", times(RANKS)),
    Mutant("get", "added at the wrong rank", with_runs(
        lambda runs, call: [((r + 1) % RANKS, min(at, 4), n) for r, at, n in runs])),
    Mutant("get", "read in reverse order", with_runs(lambda runs, call: runs[::-1]), "forward"),
    Mutant("accumulate", "a mean in place of the sum", averaged, "forward"),
    Mutant("accumulate", "dropped in the second derivative", zeros),
    *(Mutant(name, "forward mode drops the tangent", lambda true: lambda t, *rest: true(t * 0, *rest), "tangent")
      for name in ("all_reduce", "cast I->R", "all_gather", "reduce_scatter", "shard", "all_to_all", "permute",
                   "broadcast", "reduce", "scatter", "gather", "scan", "exscan", "halo_exchange", "get")),
    *(Mutant(name, "forward mode drops the tangent", lambda true: lambda t, *rest: true(t * 0, *rest), "derivative")
      for name in ("all_max", "all_min", "all_prod")),
]  # fmt: skip


def work_of(collective: str) -> list[tuple[Case, Setting]]:
    """The cases that are about one collective; for those that only adjoints call, those of its pair."""
    reached = {"keep on the root": "broadcast"}.get(collective, collective)
    setting = Setting({"a": RANKS}, ["a"])
    return [(c, setting) for c in cases(setting, 2) if isinstance(c, Case) and reached in c.covers]


def plant(mutant: Mutant) -> list[Failure]:
    collective = collectives[mutant.collective]
    true: Any = {"forward": collective._forward, "adjoint": collective._adjoint, "tangent": collective.tangent,
                 "derivative": collective._derivative}[mutant.rule]  # fmt: skip
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
    summary.line("planted faults found", f"{mutant.collective:<18}{mutant.fault:<48}{', '.join(found)}")


@pytest.fixture
def undivided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cc, "mean", cc.all_reduce)
    yield


def test_mean_without_the_division_is_killed(undivided: None) -> None:
    failures = [f for f in check(work_of("all_reduce"), RANKS) if f.case.startswith("mean ")]
    assert {"forward", "adjoint", "tangent"} <= {f.check for f in failures}
    found = ", ".join(sorted({f.check for f in failures}))
    summary.line("planted faults found", f"{'mean':<18}{'not divided':<48}{found}")
