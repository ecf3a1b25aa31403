"""Ownership of results: a collective that moves data owns its result, and a cast is a view, on any number of ranks.

The cases are those of the registry, with contiguous operands, recorded and not; and the started calls, the algorithms,
and axes of one rank beside others. As a program it runs them on the ranks of mpiexec: every how manyth one of the
registry, as its argument says.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import autograd as ag
import collectives as cc
from autograd.engine.tensor import Tensor
from collectives import I, P, R, V
from collectives.algorithms import OPERATIONS, algorithms_of
from collectives.declaration.collective import collectives
from collectives.testing import Case, Setting, prepare
from collectives.testing.proof import operand
from collectives.testing.registry_cases import cases

# the identity casts; "cast to P" keeps one copy, and "shard" and "pad" cut and fill
VIEWS = {"cast I->R", "cast R->I", "relabel"}


def shares(y: Any, x: Any) -> bool:
    """Whether an array sees what is written to the other; both are changed, and get their values back."""
    if y.size == 0 or x.size == 0:
        return False
    for a, b in ((x, y), (y, x)):
        if a.flags.writeable:
            before, kept = b.copy(), a.copy()
            a[...] = a + 1
            changed = not np.array_equal(b, before)
            a[...] = kept
            if changed:
                return True
    return bool(np.shares_memory(y, x))


def wrong(where: str, is_view: bool, x: Any, y: Any) -> list[str]:
    if x.absent or y.absent or not x.size or not y.size:
        return []
    found = shares(y.array, x.array)
    return [] if found == is_view else [f"{where}: the result {'shares' if found else 'does not share'} memory with x"]


def of_case(case: Case, setting: Setting, mesh: cc.Mesh) -> list[str]:
    """Run a case of the registry, and say what is wrong with the ownership of its results."""
    covers = set(case.covers)
    moves = not any(collectives[name].silent or collectives[name].free for name in covers)
    if not moves and not covers <= VIEWS:
        return []
    plan, found = prepare(case, setting), []
    for recorded in (True, False):
        given = operand(case, setting, plan, mesh, requires_grad=False)
        x = given if given.absent else Tensor(np.array(given.array, order="C"), given.layout)
        if recorded:
            with ag.Tape():
                y = case.call(x, setting.axes)
        else:
            with ag.no_grad():
                y = case.call(x, setting.axes)
        found += wrong(f"{case.name} {setting} {recorded=}", not moves, x, y)
    return found


def settings(ranks: int) -> list[Setting]:
    beside = {"a": 1, "b": ranks}
    return [Setting({"a": ranks}, ["a"]), Setting(beside, ["a"]), Setting(beside, ["b"]), Setting(beside, ["a", "b"])]


def of_registry(every: int = 1) -> list[str]:
    """All cases of this world's size."""
    found = []
    for setting in settings(cc.world().size):
        with cc.Mesh(**setting.sizes) as mesh:
            all_cases = [case for case in cases(setting, 1) if isinstance(case, Case)]
            for case in all_cases[::every]:
                found += of_case(case, setting, mesh)
    return found


STARTED: dict[str, Any] = {
    "all_reduce": lambda x: cc.all_reduce_async(x, "a", algorithm="native"),
    "all_gather": lambda x: cc.all_gather_async(x, "a", algorithm="native"),
    "reduce_scatter": lambda x: cc.reduce_scatter_async(x, "a", algorithm="native"),
    "all_to_all": lambda x: cc.all_to_all_async(x, "a", 0, 0),
    "broadcast": lambda x: cc.broadcast_async(x, "a", 0, algorithm="native"),
    "reduce": lambda x: cc.reduce_async(x, "a", 0, algorithm="native"),
    "permute to self": lambda x: cc.permute_async(x, "a", [(r, r) for r in range(cc.world().size)]),
    "permute": lambda x: cc.permute_async(x, "a", [(r, (r + 1) % cc.world().size) for r in range(cc.world().size)]),
}
BLOCKING: dict[str, Any] = {
    "all_reduce": lambda x, name: cc.all_reduce(x, "a", algorithm=name),
    "all_gather": lambda x, name: cc.all_gather(x, "a", algorithm=name),
    "reduce_scatter": lambda x, name: cc.reduce_scatter(x, "a", algorithm=name),
    "broadcast": lambda x, name: cc.broadcast(x, "a", 0, algorithm=name),
    "reduce": lambda x, name: cc.reduce(x, "a", 0, algorithm=name),
}


def of_started_and_algorithms() -> list[str]:
    """Each call twice, since the second one repeats what the first has prepared."""
    found = []
    with cc.Mesh(a=-1):
        for name, start in STARTED.items():
            x = Tensor(np.arange(12.0) + cc.world().index, ag.tensor(np.zeros(12)).layout)
            handle = start(x)
            x.array[...] = -99  # the operand belongs to the caller from here on
            y = handle.wait()
            if not y.absent and (y.array < 0).any():
                found.append(f"{name}_async: it has sent what was written later")
            found += wrong(f"{name}_async", False, x, y)
        for operation in OPERATIONS:
            for algorithm in ("native", "auto", *algorithms_of(operation)):
                for _ in range(2):
                    x = Tensor(np.arange(12.0) + cc.world().index, ag.tensor(np.zeros(12)).layout)
                    y = BLOCKING[operation](x, algorithm)
                    found += wrong(f"{operation} by {algorithm}", False, x, y)
    return found


def of_sweeps() -> list[str]:
    """Gradients and tangents belong to the caller, too."""
    found = []
    with cc.Mesh(a=-1) as mesh:
        table: dict[str, tuple[Any, Any]] = {
            "all_reduce": (V, lambda x: cc.all_reduce(x, "a")),
            "all_reduce to I": (V, lambda x: cc.all_reduce(x, "a", to=I)),
            "all_gather": (V, lambda x: cc.all_gather(x, "a")),
            "scan": (V, lambda x: cc.scan(x, "a")),
            "cast": (I, lambda x: cc.cast(x, "a", to=R)),
            "cast to P": (R, lambda x: cc.cast(x, "a", to=P)),
        }
        for name, (label, f) in table.items():
            values = np.arange(12.0) if label is not V else np.arange(12.0) + mesh.ranks.index
            x = ag.tensor(values, layout={"a": label}, requires_grad=True)
            y, pullback = ag.vjp(f, x)
            ct = ag.tensor(np.ones(y.shape), layout=y.layout.dual)
            dx = ag.tensor(np.ones(12), layout=x.layout)
            with ag.Tape() as tape:
                z = f(x)
            tape.backward([z], [ct])
            for what, given, made in (("cotangent", ct, pullback(ct)), ("tangent", dx, ag.jvp(f, (x,), (dx,))[1]),
                                      ("gradient", ct, x.grad)):  # fmt: skip
                found += wrong(f"{what} of {name}", False, given, made)
    return found


def check_all(every: int = 1) -> None:
    found = [*of_registry(every), *of_started_and_algorithms(), *of_sweeps()]
    assert not found, f"{len(found)} wrong\n" + "\n".join(found[:40])


if __name__ == "__main__":
    check_all(int(sys.argv[1]))
    print("owned")
