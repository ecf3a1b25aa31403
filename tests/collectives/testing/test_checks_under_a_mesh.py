"""`check_grads` and `check_adjoint` of distributed functions: right ones pass, wrong ones fail, on all ranks alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.testing import GradientMismatch, check_adjoint, check_grads
from collectives import I, P, R, Rooted, V

X = numpy.random.default_rng(0).standard_normal((4, 6, 3))
CHECKS: list[Callable[..., None]] = [check_adjoint, check_grads]


def outcomes(rank_main: Callable[[], Any], ranks: int) -> list[str]:
    """The errors of all ranks; "" for a rank without one."""

    def guarded() -> str:
        try:
            rank_main()
        except GradientMismatch as error:
            return str(error)
        return ""

    return cc.run(guarded, ranks)


# -- a collective of the user's, with a right adjoint and with wrong ones ----------------------------------------------
def shift(by: int, back: int, own_rank_only: bool = False) -> Callable[[Any], Any]:
    """A shift along `dp` whose adjoint shifts by `back`; `own_rank_only` plants the fault on rank 2 alone."""

    def moved(x: Any, call: Any, k: int) -> Any:
        n = call.group.size
        every = call.group.all_gather(x.ravel(), [x.size] * n).reshape((n, *x.shape))
        return every[(call.group.index - (0 if own_rank_only and k < 0 and call.group.index == 2 else k)) % n]

    there = cc.Collective(f"shift {by} {back} {own_rank_only}", takes=(V,), gives=V, registered=False)
    again = cc.Collective(f"adjoint {by} {back} {own_rank_only}", takes=(V,), gives=V, registered=False)
    there.forward(lambda x, call: moved(x, call, by))
    again.forward(lambda x, call: moved(x, call, back))
    there.adjoint(lambda ct, call: again(ct, call))
    again.adjoint(lambda ct, call: there(ct, call))
    return lambda x: np.sin(cc.apply(there, x, "dp")) * 2.0


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_shift_of_varying_values(check: Callable[..., None], ranks: int) -> None:
    def rank_main(f: Callable[[Any], Any]) -> None:
        with cc.Mesh(dp=-1) as mesh:
            x = X[int(mesh.axis("dp").rank), 0]
            check(f, ag.Parameter(x, {"dp": V}))
            check(f, x)  # a plain array is Varying

    assert outcomes(lambda: rank_main(shift(1, -1)), ranks) == [""] * ranks
    assert outcomes(lambda: rank_main(lambda x: cc.permute(x, "dp", [(r, (r + 1) % ranks) for r in range(ranks)])),
                    ranks) == [""] * ranks  # fmt: skip
    texts = outcomes(lambda: rank_main(shift(1, 0)), ranks)  # the identity as adjoint
    assert all(texts) if ranks > 1 else not any(texts)
    texts = outcomes(lambda: rank_main(shift(1, 1)), ranks)  # the shift as its own adjoint
    assert all(texts) if ranks > 2 else not any(texts)


@pytest.mark.parametrize("check", CHECKS)
def test_a_fault_on_one_rank_raises_on_all_of_them(check: Callable[..., None]) -> None:
    def rank_main() -> None:
        with cc.Mesh(dp=-1) as mesh:
            check(shift(1, -1, True), ag.Parameter(X[int(mesh.axis("dp").rank), 0], {"dp": V}))

    assert all("argument 0 of shape (3, 3) {dp: V} (first index: the ranks along 'dp')" in t
               for t in outcomes(rank_main, 3))  # fmt: skip


# -- every label of an argument and of a result ------------------------------------------------------------------------
def argument(label: Any, mesh: Any, axis: str) -> Any:
    """A value of 6 x 3 elements with a label along one axis, and I along the others."""
    place = int(mesh.axis(axis).rank)
    others = dict.fromkeys(mesh.names, I)
    if label == "shard":
        with_r = ag.tensor(X[0], {**others, axis: R})
        return ag.Parameter(cc.shard(with_r, axis))
    return ag.tensor(X[0] if label in (R, I) else X[place], {**others, axis: label})


def to_replicated(x: Any, label: Any, axis: str) -> Any:
    if label == "shard":
        return cc.all_gather(x, axis, dim=0)
    if label is V:
        return cc.all_reduce(np.sin(x), axis, to=R)
    if isinstance(label, Rooted):
        return cc.broadcast(x, axis, label.root, to=R)
    return {P: lambda: cc.all_reduce(x, axis, to=R), I: lambda: cc.cast(x, axis, to=R), R: lambda: x}[label]()


def result(y: Any, label: Any, axis: str) -> Any:
    """A Replicated value of 6 x 3 elements with another label."""
    weights = ag.tensor(X[int(cc.current_mesh().axis(axis).rank)], {**dict.fromkeys(cc.current_mesh().names, I), axis: V})
    y = np.tanh(y)
    if label == "shard":
        return cc.shard(y, axis)
    if label is P:
        return cc.cast(y * weights, axis, to=P)
    if isinstance(label, Rooted):
        return cc.reduce(y * weights, axis, label.root)
    return {R: lambda: y, V: lambda: y * weights, I: lambda: cc.all_reduce(y * weights, axis, to=I)}[label]()


LABELS = [R, P, I, V, "shard", Rooted(1)]


@pytest.mark.parametrize("given", LABELS, ids=str)
@pytest.mark.parametrize("sizes", [{"dp": 3}, {"tp": 2, "dp": 2}], ids=str)
def test_every_label(given: Any, sizes: dict[str, int]) -> None:
    def rank_main() -> None:
        with cc.Mesh(**sizes) as mesh:
            x = argument(given, mesh, "dp")
            for gives in LABELS:
                check_adjoint(lambda x, gives=gives: result(to_replicated(x, given, "dp"), gives, "dp"), x)

    ranks = int(numpy.prod(list(sizes.values())))
    assert outcomes(rank_main, ranks) == [""] * ranks
