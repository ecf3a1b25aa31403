"""Norms over the ranks: copies count once, parts and Varying values are summed, and a wrong `norm=` is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import optim
from collectives import I, R, Rooted, Shard, V
from collectives.checks import modes

from ...on_mesh import on_mesh

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


@pytest.mark.parametrize("size", [1.0, 1e200, 1e-200])
@pytest.mark.parametrize("order", [0.5, 1.0, 2.0, 3.0, math.inf])
def test_the_norm_is_that_of_all_elements_together(order: float, size: float) -> None:
    """Also where the powers of elements do not fit: the ranks divide by the largest element of all of them."""
    whole = np.concatenate([A, C, B, 2 * B, B])

    def norm(mesh: Any) -> float:
        given = parameters(mesh)
        for p in given:
            p.data = p.data * size
        return optim.global_norm(given, order)

    found = on_mesh(norm, dp=2, tp=3)
    assert len(set(found)) == 1
    assert math.isclose(found[0], float(np.linalg.norm(whole, order)) * size, rel_tol=1e-12)


def test_a_gradient_that_one_rank_lacks_is_no_hang() -> None:
    def body(mesh: Any) -> float:
        w, v = ag.Parameter(B, {"dp": V}), ag.Parameter(B)
        w.labelled(mesh.grid), v.labelled(mesh.grid)
        if int(mesh.ranks.rank):
            w.grad = ag.tensor(2 * B, {"dp": V})
        v.grad = ag.tensor(B.copy(), {"dp": I})  # clipped in place
        return optim.clip_grad_norm_([w, v], 1.0)

    assert on_mesh(body, dp=2) == [pytest.approx(math.sqrt(4 * 5.0 + 5.0))] * 2


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

    return on_mesh(body, tp=2)


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


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_clipping_a_mix_of_layouts_counts_each_logical_element_once(order: float) -> None:
    """I, Shard on each axis and on both, V, V and Shard, Rooted, Rooted and Shard, and one without a gradient."""
    rng = np.random.default_rng(0)
    whole = {name: rng.normal(size=(7,)) for name in ("i", "s", "t", "both", "root", "root_t")}
    own, own_t = rng.normal(size=(2, 4)), rng.normal(size=(2, 7))
    elements = np.concatenate([*whole.values(), own.ravel(), own_t.ravel()])
    norm = float(np.linalg.norm(elements, order))

    def body(mesh: Any) -> Any:
        dp, tp = int(mesh.axis("dp").rank), int(mesh.axis("tp").rank)

        def part(x: Any, axis: str, rank: int) -> Any:
            return np.array_split(x, mesh.axis(axis).size)[rank]

        shard, root = Shard(0), Rooted(1)
        given: list[tuple[Any, dict[str, Any]]] = [
            (whole["i"], {}), (part(whole["s"], "dp", dp), {"dp": shard}), (part(whole["t"], "tp", tp), {"tp": shard}),
            (part(part(whole["both"], "dp", dp), "tp", tp), {"dp": shard, "tp": shard}),
            (own[dp], {"dp": V}), (part(own_t[dp], "tp", tp), {"dp": V, "tp": shard}),
            (whole["root"], {"dp": root}), (part(whole["root_t"], "tp", tp), {"dp": root, "tp": shard}),
            (whole["i"], {}),
        ]  # fmt: skip
        ps = [ag.Parameter(np.zeros_like(g), layout) for g, layout in given]
        for p, (g, layout) in zip(ps[:-1], given, strict=False):
            p.labelled(mesh.grid)
            if dp == 1 or not any(isinstance(label, Rooted) for label in layout.values()):
                p.grad = ag.tensor(g.copy(), p.layout)
        found = optim.clip_grad_norm_(ps, 1.0, order)
        return found, [None if p.grad is None else p.grad.numpy().copy() for p in ps], [g for g, _ in given]

    for found, clipped, given in on_mesh(body, dp=2, tp=3):
        assert math.isclose(found, norm, rel_tol=1e-12)
        assert clipped[-1] is None
        for have, g in zip(clipped[:-1], given, strict=False):
            if have is not None:
                np.testing.assert_allclose(have, g / (norm + 1e-6), rtol=1e-12)


@pytest.mark.parametrize("make", [lambda p: optim.LARS(p, 0.1), lambda p: optim.LAMB(p, 0.1)])
def test_a_rooted_parameter_is_stepped_by_its_root_alone(make: Any) -> None:
    def body(mesh: Any) -> Any:
        w = ag.Parameter(A.copy(), {"pp": Rooted(1)})
        optimizer = make([w])
        for _ in range(2):
            w.zero_grad()
            with ag.Tape() as tape:
                loss = cc.broadcast((w * w * w).sum(), "pp", root=1, to=I)
            tape.backward(loss)
            optimizer.step()
        return None if int(mesh.axis("pp").rank) != 1 else w.numpy()

    def alone(mesh: Any) -> Any:
        w = ag.Parameter(A.copy())
        optimizer = make([w])
        for _ in range(2):
            w.grad = ag.tensor(3 * w.numpy() ** 2, {"pp": I})
            optimizer.step()
        return w.numpy()

    np.testing.assert_allclose(on_mesh(body, pp=3)[1], on_mesh(alone, pp=1)[0], rtol=1e-12)


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

    (serial,) = on_mesh(body, tp=1)
    np.testing.assert_allclose(np.concatenate(on_mesh(body, tp=3)), serial, rtol=1e-12)


@pytest.mark.parametrize("norm_type", [2.0, 3.0, np.inf])
def test_stages_have_parameters_of_their_own_layouts(norm_type: float) -> None:
    """The ranks along "pp" hold different parameters: those of one stage are divided, those of the other are not."""
    rng = np.random.default_rng(0)
    whole, other, third = (rng.standard_normal(n) for n in (6, 3, 4))

    def program() -> tuple[float, list[float]]:
        with cc.Mesh(pp=3, tp=2) as mesh:
            stage, part = (int(mesh.axis(name).rank) for name in ("pp", "tp"))
            own = {"pp": cc.V}
            if stage == 0:
                mine = [ag.Parameter(whole[3 * part : 3 * part + 3], own | {"tp": cc.Shard(0)}, global_shape=(6,)),
                        ag.Parameter(other, own)]  # fmt: skip
            else:
                mine = [ag.Parameter(third * stage, own)]
            for p in mine:
                p.grad = ag.tensor(p.numpy(), p.labelled(mesh.grid))
            total = optim.clip_grad_norm_(mine, 0.5, norm_type)
            return total, [float(np.abs(p.grad.numpy()).max()) for p in mine]

    found = cc.run(program, 6)
    everything = np.concatenate([whole, other, third, 2 * third])
    expected = float(np.linalg.norm(everything, norm_type))
    assert len({total for total, _ in found}) == 1
    assert found[0][0] == pytest.approx(expected, rel=1e-14)
    scale = 0.5 / (expected + 1e-6)
    assert found[5][1] == [pytest.approx(float(np.abs(2 * third).max()) * scale, rel=1e-12)]
