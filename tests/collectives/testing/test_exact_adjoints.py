"""Exact proofs of adjoints: the matrices of collectives and of their adjoints, from the declarations themselves.

A collective on p ranks is a linear map of all ranks' numbers, so its matrix proves it. It runs on all unit vectors,
which stand beside each other along a last dimension, and its adjoint on all unit cotangents. The numbers are small
integers, so ``<F x, y> = <x, F* y>`` is compared exactly, for every pair of units. The unit vectors of copies (R, I)
are copies, too. A pairing sums the ranks' products; where both sides are copies (I) it is that of one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd.arrays.shape_only import Shaped
from autograd.engine.tensor import Tensor
from autograd.layouts.layout import I, R, Rooted, Shard, dual_label
from collectives.testing.proof import Case, Setting
from collectives.testing.registry_cases import cases

Values = list[Any]


def units(label: Any, shapes: Any) -> Values:
    """By rank: its part of all unit vectors of a layout, None where it has none."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    if label is R or label is I:
        starts, n = [0] * len(sizes), sizes[0]
    elif isinstance(label, Rooted):
        starts, n = [0] * len(sizes), sizes[label.root]
    else:
        starts, n = [sum(sizes[:rank]) for rank in range(len(sizes))], sum(sizes)
    found: Values = []
    for rank, (shape, size, start) in enumerate(zip(shapes, sizes, starts, strict=True)):
        is_absent = isinstance(label, Rooted) and label.root != rank
        found.append(None if is_absent else np.eye(n)[start : start + size].reshape(*shape, n))
    return found


def tensor(case: Case, values: Values, rank: int) -> Any:
    """The operand of a case on a rank."""
    n = next(x.shape[-1] for x in values if x is not None)
    shape = (*case.shapes[rank], n)
    whole = None
    if isinstance(case.takes, Shard):
        whole = [*shape]
        whole[case.takes.dim] = sum(each[case.takes.dim] for each in case.shapes)
    array = Shaped(shape, np.float64, "it is rooted elsewhere") if values[rank] is None else values[rank].copy()
    return ag.tensor(array, layout={"p": case.takes}, global_shape=whole, requires_grad=True)


def matrices(case: Case, mutant: Callable[[Values], Values] = lambda gs: gs) -> tuple[Any, Any, Values]:
    """The matrices of ``<F x, y>`` and ``<x, F* y>`` over all units x and y, and the results of F on each rank."""
    xs = units(case.takes, case.shapes)

    def forward(values: Values) -> Any:
        with ag.Tape() as tape:
            x = tensor(case, values, cc.world().rank)
            y = case.call(x, ("p",))
        return tape, x, y

    def results() -> tuple[Any, Any]:
        with cc.Mesh(p=len(case.shapes)):
            y = forward(xs)[2]
            return y.shape[:-1], None if y.absent else y.array

    shapes, fs = zip(*cc.run(results, len(case.shapes)), strict=True)
    cts = units(dual_label(case.gives), shapes)
    m = next(y.shape[-1] for y in cts if y is not None)
    zeros = [None if x is None else np.zeros((*x.shape[:-1], m)) for x in xs]

    def adjoint() -> Any:
        rank = cc.world().rank
        with cc.Mesh(p=len(case.shapes)):
            tape, x, y = forward(zeros)
            ct = Shaped(y.shape, np.float64, "it is rooted elsewhere") if cts[rank] is None else cts[rank].copy()
            tape.backward(*(([y], [Tensor(ct, y.layout.dual)]) if y.tape is not None else ((),)))
            return np.zeros(x.shape) if x.grad is None else None if x.grad.absent else x.grad.array

    gs = mutant(cc.run(adjoint, len(case.shapes)))
    return paired(list(fs), cts, case.gives), paired(xs, gs, case.takes), list(fs)


def paired(xs: Values, ys: Values, label: Any) -> Any:
    products = [x.reshape(-1, x.shape[-1]).T @ y.reshape(-1, y.shape[-1]) for x, y in zip(xs, ys, strict=True)
                if x is not None and y is not None]  # fmt: skip
    return products[0] if label is I else sum(products)


def linear(p: int) -> list[Case]:
    """The cases of the registry that are linear over the integers, on arrays that are not empty."""
    found = [each for each in cases(Setting({"p": p}, ["p"])) if isinstance(each, Case)]
    return [each for each in found if each.tangent is None and each.dtype is np.float64 and all(each.shapes)
            and all(map(np.prod, each.shapes)) and "mean" not in each.name and "like=" not in each.name]  # fmt: skip


@pytest.mark.parametrize("p", range(1, 9))
def test_adjoints_are_exact(p: int) -> None:
    wrong, covered = [], set()
    table = linear(p)
    for case in table:
        forward, backward, results = matrices(case)
        covered.update(case.covers)
        if not np.array_equal(forward, backward):
            wrong.append(case.name)
        if case.gives is R or case.gives is I:  # the label is sound
            wrong += [f"{case.name}: the copies differ"] * any(not np.array_equal(y, results[0]) for y in results)
    assert not wrong
    assert len(table) >= 80
    assert covered >= {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
                       "all_to_all", "permute", "halo_exchange"}  # fmt: skip


@pytest.mark.parametrize("p", (2, 3))
@pytest.mark.parametrize("factor", ("p", "1 / p", "-1"))
def test_a_factor_is_refuted(p: int, factor: str) -> None:
    by = {"p": p, "1 / p": 1 / p, "-1": -1}[factor]
    for case in linear(p):
        forward, backward, _ = matrices(case, lambda gs: [None if g is None else by * g for g in gs])
        assert not np.array_equal(forward, backward) or not forward.any(), case.name


@pytest.mark.parametrize("p", (2, 3))
def test_a_lost_gradient_is_refuted(p: int) -> None:
    """Rank 0 gives zeros. Where its gradient is an addend (P), the whole sum is wrong."""
    refuted = 0
    for case in linear(p):
        if "all_gather" in case.covers or "all_reduce" in case.covers:
            forward, backward, _ = matrices(case, lambda gs: [np.zeros_like(gs[0]), *gs[1:]])
            refuted += not np.array_equal(forward, backward)
    assert refuted >= 10
