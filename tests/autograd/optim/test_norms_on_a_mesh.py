"""Norms over the ranks: copies count once, parts and Varying values are summed, and a wrong `norm=` is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import optim
from collectives import I, R, V
from collectives.checks import modes

pytestmark = pytest.mark.timeout(60)
A, B, C = np.arange(1.0, 8.0), np.arange(3.0), np.arange(4.0) - 1.5


def parameters(mesh: Any) -> list[ag.Parameter]:
    """Parts along both axes, parts along "tp" only, values of each rank of "dp", and copies."""
    both = cc.shard(cc.shard(ag.tensor(A, {"dp": R, "tp": R}), "dp"), "tp")
    own = (1.0 + int(mesh.axis("dp").rank)) * B
    return [
        ag.Parameter(both), ag.Parameter(cc.shard(ag.tensor(C, {"dp": I, "tp": R}), "tp")),
        ag.Parameter(own, {"dp": V}), ag.Parameter(B),
    ]  # fmt: skip


def on(body: Any, **sizes: int) -> list[Any]:
    def program() -> Any:
        with cc.Mesh(**sizes) as mesh:
            return body(mesh)

    return cc.run(program, math.prod(sizes.values()))


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_is_that_of_all_elements_together(order: float) -> None:
    whole = np.concatenate([A, C, B, 2 * B, B])
    found = on(lambda mesh: optim.global_norm(parameters(mesh), order), dp=2, tp=3)
    assert len(set(found)) == 1
    assert math.isclose(found[0], float(np.linalg.norm(whole, order)), rel_tol=1e-12)


def test_a_gradient_that_one_rank_lacks_is_no_hang() -> None:
    def body(mesh: Any) -> float:
        w, v = ag.Parameter(B, {"dp": V}), ag.Parameter(B)
        w.labelled(mesh.grid), v.labelled(mesh.grid)
        if int(mesh.ranks.rank):
            w.grad = ag.tensor(2 * B, {"dp": V})
        v.grad = ag.tensor(B.copy(), {"dp": I})  # clipped in place
        return optim.clip_grad_norm_([w, v], 1.0)

    assert on(body, dp=2) == [pytest.approx(math.sqrt(4 * 5.0 + 5.0))] * 2


def clip(norm: Any) -> Any:
    """Clip the gradients of a model with parts and copies on two ranks, three times."""

    def body(mesh: Any) -> Any:
        w = ag.Parameter(cc.shard(ag.tensor(A, {"tp": R}), "tp"), name="w")
        b = ag.Parameter(B, name="b")
        for _ in range(3):
            w.zero_grad(), b.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce((w * w).sum(), "tp", to=I) / 2 + (b * b).sum() / 2
            tape.backward(loss)
            total = optim.clip_grad_norm_([w, b], 1.0, norm=norm)
        return total, w.grad.numpy(), b.grad.numpy()  # type: ignore[union-attr]

    return on(body, tp=2)


def counts_copies_twice(gradients: Any, order: float) -> float:
    """Sum all squares over the ranks, also those of the copies: the same wrong number on all ranks."""
    squares = sum(float((g.array**2).sum()) for g in gradients)
    return math.sqrt(cc.all_reduce(ag.tensor(squares), "tp", to=I).item())


def test_a_norm_that_counts_copies_twice_is_refused_and_the_fix_is_exact() -> None:
    right = math.sqrt(float((A**2).sum() + (B**2).sum()))
    with pytest.raises(ag.OptionError) as error:
        clip(counts_copies_twice)
    for word in ("norm= returned ", f"hold together is {right:.6g}", "copies (R, I) count once",
                 "fix: leave norm= out", "test_norms_on_a_mesh.py:"):  # fmt: skip
        assert word in str(error.value)
    fixed = clip(None)
    for total, _, b in fixed:
        assert math.isclose(total, right)
        np.testing.assert_allclose(b, B / right, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate([w for _, w, _ in fixed]), A / right, rtol=1e-5)


@pytest.mark.parametrize("norm", [
    lambda gradients, order: float(np.linalg.norm(gradients[0].array)),
    lambda gradients, order: math.sqrt(sum(float((g.array**2).sum()) for g in gradients)),
])  # fmt: skip
def test_a_norm_without_the_other_ranks_differs_between_them(norm: Any) -> None:
    with pytest.raises(cc.ReplicaMismatch, match="fix: leave norm= out"):
        clip(norm)


def test_off_compares_no_norm() -> None:
    mode = modes.check_mode()
    cc.check("off")
    try:
        assert clip(counts_copies_twice)[0][0] > 0
    finally:
        cc.check(mode)


@pytest.mark.parametrize("make", [lambda p: optim.LARS(p, 0.1), lambda p: optim.LAMB(p, 0.1)])
def test_large_batch_optimizers_of_parts_are_those_of_the_whole(make: Any) -> None:
    def body(mesh: Any) -> Any:
        w = ag.Parameter(cc.shard(ag.tensor(A, {"tp": R}), "tp"))
        optimizer = make([w])
        for _ in range(3):
            w.zero_grad()
            with ag.Tape() as tape:
                loss = cc.all_reduce((w * w * w).sum(), "tp", to=I)
            tape.backward(loss)
            optimizer.step()
        return w.numpy()

    (serial,) = on(body, tp=1)
    np.testing.assert_allclose(np.concatenate(on(body, tp=3)), serial, rtol=1e-12)
