"""Ranks whose results depend on different operands: all of them run the same backward, with the right gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd.engine.tensor import Tensor
from collectives import I, R, Shard, V
from collectives.declaration.collective import collectives
from collectives.testing.proof import Case, Plan, Setting, operand, prepare
from collectives.testing.registry_cases import cases

Work = list[tuple[Case, Setting, Plan]]


def work(ranks: int) -> Work:
    """One case of every collective and pair of layouts, in a world of so many ranks."""
    setting = Setting({"a": ranks}, ["a"])
    return [(case, setting, prepare(case, setting)) for case in cases(setting, 2) if isinstance(case, Case)]


def used_separately(all_cases: Work) -> Work:
    """The cases whose result each rank uses separately, so not I, P or Rooted."""
    return [w for w in all_cases if w[0].gives in (R, V) or isinstance(w[0].gives, Shard)]


def communicates(case: Case) -> bool:
    return any(collectives[name].communicates for name in case.covers)


def gradient(case: Case, setting: Setting, plan: Plan, mesh: Any, idle: int, without: int) -> Any:
    """The gradient of <ct, F x> where rank `idle` leaves the result out, and `without`'s operand needs no gradient."""
    rank = mesh.ranks.rank
    x = operand(case, setting, plan, mesh, requires_grad=rank != without)
    with ag.Tape() as tape:
        y = case.call(x, ("a",))
        weights = Tensor(plan.ct[rank], mesh.grid.layout([V]))
        part = ag.tensor(np.zeros((), case.dtype)) if rank == idle else (y * weights).sum()
        loss = cc.all_reduce(part, "a", to=I)
    tape.backward(loss)
    return None if x.grad is None or x.grad.absent else x.grad.local.copy()


def expected(case: Case, setting: Setting, plan: Plan, idle: int) -> list[Any]:
    """The dense answer: the idle rank's cotangent is zero."""
    cts = [ct * 0 if rank == idle else ct for rank, ct in enumerate(plan.ct)]
    return setting.apply(case.adjoint, cts) if case.tangent is None else setting.apply(case.adjoint, plan.x, cts)


def program(cases_: Work, some: bool = False) -> list[list[Any]]:
    """This rank's gradients, for every idle rank and every rank without, -1 for none; or for some of them."""
    ranks = cc.world().size
    found = []
    with cc.Mesh(a=ranks) as mesh:
        for i, (case, setting, plan) in enumerate(cases_):
            chosen = pairs(ranks, i if some else None)
            found.append([gradient(case, setting, plan, mesh, idle, without) for idle, without in chosen])
    return found


def pairs(ranks: int, only: int | None = None) -> list[tuple[int, int]]:
    """(idle, without): each rank in each part, and two ranks in both; or those of one rank, which goes round."""
    chosen = range(ranks) if only is None else [only % ranks]
    return [pair for r in chosen for pair in ((r, -1), (-1, r), (r, (r + 1) % ranks))]


def faults(cases_: Work, found: list[list[list[Any]]], some: bool = False) -> list[str]:
    """Errors in the gradients of all ranks, which `program` has returned."""
    wrong = []
    for i, (case, setting, plan) in enumerate(cases_):
        epsilon = float(np.finfo(case.dtype).eps)
        tolerance = max(1e-12, 4 * epsilon if epsilon > 1e-5 else 50 * epsilon)
        for k, (idle, without) in enumerate(pairs(setting.ranks, i if some else None)):
            for rank, want in enumerate(expected(case, setting, plan, idle)):
                got = found[rank][i][k]
                want = None if rank == without else want
                if want is None:
                    same = got is None
                elif got is None:
                    same = not want.any()  # nothing depends on it on this rank, and nothing was sent
                else:
                    same = np.allclose(got, want, rtol=tolerance, atol=tolerance)
                if not same:
                    wrong.append(f"{case.name}, {idle=}, {without=}: rank {rank} has {got}, not {want}")
    return wrong


def told(case: Case, setting: Setting, plan: Plan, mesh: Any, odd: int) -> str:
    """The errors that rank `odd`, which alone records nothing, and the other ranks raise."""
    x = operand(case, setting, plan, mesh)
    try:
        with ag.Tape():
            if mesh.ranks.rank == odd:
                with ag.no_grad():
                    case.call(x, ("a",))
            else:
                case.call(x, ("a",))
    except cc.CollectiveMismatch as error:
        return str(error)
    return ""
