"""Float16 parameters with float32 master weights: skipped steps, clipping, accumulation, state, and user mistakes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from collectives import I, R, Shard, V
from parallel import DataParallel

from ...on_mesh import on_mesh

pytestmark = pytest.mark.timeout(60)
Half = np.float16


def backward(opt: Any, make: Any) -> None:
    with ag.Tape() as tape:
        loss = opt.scale(make())
    tape.backward(loss)


def draw(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


# -- on one process ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "numbers"), [
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}), (optim.AdamW, {"lr": 0.01}), (optim.LAMB, {"lr": 0.01}),
    (optim.LARS, {"lr": 0.5}), (optim.Adam, {"lr": 0.01, "amsgrad": True, "maximize": True}),
])  # fmt: skip
def test_masters_follow_the_float32_run_of_the_same_gradients(kind: Any, numbers: Any) -> None:
    start = draw(0, 5, 3)
    w16 = ag.Parameter(start.astype(Half))
    w32 = ag.Parameter(start.astype(Half).astype(np.float32))
    ours, theirs = optim.MasterWeights(kind, [w16], **numbers), kind([w32], **numbers)
    for i in range(6):
        g = draw(i + 1, 5, 3).astype(Half)
        w32.grad = ag.tensor(g.astype(np.float32))
        w16.grad = ag.tensor(g * Half(2.0**5))
        ours.scaler.value, ours.scaler.was_used = 2.0**5, True
        assert ours.step() and w16.grad is None
        theirs.step()
        np.testing.assert_array_equal(ours.parameters[0].numpy(), w32.numpy())
        np.testing.assert_array_equal(w16.numpy(), w32.numpy().astype(Half))


def test_scaling_saves_gradients_that_float16_rounds_to_zero() -> None:
    x = np.full((4, 1), 2.0**-14, Half)

    def learned(scale: float) -> Any:
        w = ag.Parameter(np.ones((1, 1), Half))
        opt = optim.MasterWeights(optim.SGD, [w], lr=2.0**28, scaler=optim.LossScaler(scale))
        backward(opt, lambda: (anp.multiply(ag.tensor(x) @ w, Half(2.0**-14))).sum())
        assert opt.step()
        return float(opt.parameters[0].numpy()[0, 0])

    assert learned(1.0) == 1.0
    assert learned(2.0**14) == 1.0 - 4.0


def test_small_updates_add_up_in_the_master_weight() -> None:
    w = ag.Parameter(np.ones(3, Half))
    opt = optim.MasterWeights(optim.SGD, [w], lr=2.0**-13)
    for _ in range(64):
        backward(opt, w.sum)
        assert opt.step()
    np.testing.assert_array_equal(w.numpy(), np.full(3, 1 - 2.0**-7, Half))


def test_the_scale_falls_at_an_overflow_and_grows_after_an_interval() -> None:
    w = ag.Parameter(np.ones(3, Half))
    scaler = optim.LossScaler(2.0**15, growth_interval=2)
    opt = optim.MasterWeights(optim.Adam, [w], lr=0.5, scaler=scaler)
    seen = []
    for factor in (100.0, 1.0, 1.0, 1.0):
        before = w.numpy().copy()
        backward(opt, lambda factor=factor: (w * factor).sum())
        stepped = opt.step()
        assert stepped == (not np.array_equal(before, w.numpy()))
        seen.append((stepped, scaler.value))
    assert seen == [(False, 2.0**14), (True, 2.0**14), (True, 2.0**15), (True, 2.0**15)]
    assert (opt.skipped, opt.steps, opt.optimizer.counts) == (1, 3, [3])  # type: ignore[attr-defined]


def test_accumulation_with_one_scale_is_the_gradient_of_the_sum() -> None:
    w = ag.Parameter(draw(0, 4).astype(Half))
    opt = optim.MasterWeights(optim.SGD, [w], lr=1.0, scaler=optim.LossScaler(64.0))
    parts = [draw(i, 4).astype(Half) for i in range(1, 4)]
    for i, part in enumerate(parts):
        backward(opt, lambda part=part: (w * ag.tensor(part)).sum())
        if i == 1:
            opt.unscale()  # moves what is there; the rest is added to it
            assert w.grad is None
    start = opt.parameters[0].numpy().copy()
    assert opt.step()
    np.testing.assert_allclose(start - opt.parameters[0].numpy(), sum(p.astype(np.float32) for p in parts), rtol=2e-3)


@pytest.mark.parametrize("given", ["parameters", "masters"])
def test_clipping_sees_unscaled_gradients(given: str) -> None:
    w, b = ag.Parameter(np.zeros(2, Half)), ag.Parameter(np.zeros(1, np.float32))
    opt = optim.MasterWeights(optim.SGD, [w, b], lr=1.0, scaler=optim.LossScaler(1024.0))
    backward(opt, lambda: (w * 3.0).sum().astype(np.float32) + (b * 4.0).sum())
    norm = optim.clip_grad_norm_([w, b] if given == "parameters" else opt.parameters, 1.0)
    assert math.isclose(norm, math.sqrt(9 + 9 + 16), rel_tol=1e-6)
    assert opt.step()
    np.testing.assert_allclose(w.numpy(), -3 / norm, rtol=1e-3)
    np.testing.assert_allclose(b.numpy(), -4 / norm, rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_clipping_an_overflow_skips_the_step() -> None:
    w = ag.Parameter(np.ones(2, Half))
    opt = optim.MasterWeights(optim.SGD, [w], lr=1.0)
    rows = ag.tensor(np.full((3, 2), 1e3, Half))
    backward(opt, lambda: (rows @ w[:, None]).astype(np.float32).sum())
    assert not math.isfinite(optim.clip_grad_norm_([w], 1.0))
    assert not opt.step()
    np.testing.assert_array_equal(w.numpy(), 1.0)


def test_the_state_continues_a_run_bitwise() -> None:
    def make() -> tuple[Any, Any]:
        w = ag.Parameter(draw(0, 3).astype(Half))
        return w, optim.MasterWeights(optim.Adam, [w], lr=0.1, scaler=optim.LossScaler(64.0, growth_interval=3))

    def train(w: Any, opt: Any, n: int) -> None:
        for _ in range(n):
            backward(opt, lambda: (w * w).sum())
            opt.step()

    w, opt = make()
    train(w, opt, 5)
    saved = opt.state_dict()
    other, again = make()
    again.load_state_dict(saved)
    np.testing.assert_array_equal(other.numpy(), w.numpy())
    train(w, opt, 4)
    train(other, again, 4)
    assert again.scaler.state_dict() == opt.scaler.state_dict()
    np.testing.assert_array_equal(again.parameters[0].numpy(), opt.parameters[0].numpy())


def test_weights_that_are_loaded_into_the_model_reach_the_masters() -> None:
    model = nn.Linear(3, 2).half()
    opt = optim.MasterWeights(optim.SGD, model.parameters(), lr=0.0)
    model.load_state_dict({"weight": np.full((3, 2), 5.0, Half), "bias": np.full(2, 6.0, Half)})
    backward(opt, lambda: model(ag.tensor(np.ones((1, 3), Half))).sum() * 1e-3)
    assert opt.step()
    np.testing.assert_array_equal(model.weight.numpy(), 5.0)
    np.testing.assert_array_equal(opt.parameters[1].numpy(), 6.0)


@pytest.mark.parametrize("make", [optim.MasterWeights, optim.Offload])
def test_a_state_has_weights_that_were_assigned(make: Any) -> None:
    w = ag.Parameter(np.ones(2, "float16"), name="w")
    optimizer = make(optim.SGD, [w], lr=0.1)
    w.data = np.full(2, 5.0, "float16")
    optimizer.load_state_dict(optimizer.state_dict())
    assert w.numpy().tolist() == [5.0, 5.0]


def test_groups_schedules_and_numbers() -> None:
    w, v = ag.Parameter(np.ones(2, Half), name="w"), ag.Parameter(np.ones((), Half), name="v")
    groups = [{"params": [w]}, {"params": [v], "lr": 0.25}]
    opt = optim.MasterWeights(optim.SGD, groups, lr=optim.schedules.exponential_lr(0.5, 0.5))
    assert [g["lr"] for g in opt.param_groups] == [0.5, 0.25]
    for _ in range(2):
        backward(opt, lambda: w.sum() + v * 1.0)
        assert opt.step()
    np.testing.assert_array_equal(w.numpy(), 0.25)
    assert float(v.numpy()) == 0.5
    assert "MasterWeights(SGD" in repr(opt) and opt.lr == 0.25
    opt.lr = 1.0
    assert opt.optimizer.lr == 1.0


def test_what_is_refused() -> None:
    w = ag.Parameter(np.ones(2, Half), name="w")
    opt = optim.MasterWeights(optim.SGD, [w], lr=1.0)
    with ag.Tape() as tape:
        loss = w.sum()
    tape.backward(loss)
    with pytest.raises(ag.OptionError, match=r"was not scaled(.|\n)*fix: loss = opt.scale\(loss\)"):
        opt.step()
    with pytest.raises(ag.OptionError, match="w has a master weight of another optimizer"):
        optim.MasterWeights(optim.SGD, [w], lr=1.0)
    with pytest.raises(ag.OptionError, match="belongs to another optimizer"):
        optim.MasterWeights(optim.SGD, [ag.Parameter(np.ones(2, Half))], scaler=opt.scaler)
    with pytest.raises(ag.OptionError, match="given twice"):
        other = ag.Parameter(np.ones(2, Half))
        optim.MasterWeights(optim.SGD, [other, other])
    with pytest.raises(ag.ArgumentError, match="needed: Parameters"):
        optim.MasterWeights(optim.SGD, [ag.tensor(np.ones(2, Half), requires_grad=True)])
    with pytest.raises(ag.ArgumentError, match="needed: a Tensor"):
        opt.scale(1.0)  # type: ignore[arg-type]
    with pytest.raises(ag.OptionError, match="init_scale"):
        optim.LossScaler(math.inf)
    opt.zero_grad()
    with ag.Tape() as tape:
        loss = w.sum()
    with pytest.raises(ag.TapeError, match="outside the tape's block"):
        tape.backward(opt.scale(loss))
    big = ag.Parameter(np.full(2, 6e4, Half), name="big")
    opt = optim.MasterWeights(optim.SGD, [big], lr=1e5, scaler=optim.LossScaler(1.0))
    backward(opt, lambda: (big * -1.0)[0])
    with pytest.raises(ag.OptionError, match=r"big of shape \(2,\) has a weight of 160000; the largest"):
        opt.step()


def test_a_model_that_is_not_finite_is_no_overflow() -> None:
    w = ag.Parameter(np.ones(1, Half))
    opt = optim.MasterWeights(optim.SGD, [w], scaler=optim.LossScaler(4.0))
    for _ in range(2):
        backward(opt, lambda: (w * math.nan).sum())
        assert not opt.step()
    backward(opt, lambda: (w * math.nan).sum())
    with pytest.raises(ag.AnomalyError, match="loss scale 1, the least one"):
        opt.step()


def test_an_optimizer_that_is_dropped_frees_its_parameters() -> None:
    w = ag.Parameter(np.ones(2, Half))
    optim.MasterWeights(optim.SGD, [w])
    optim.MasterWeights(optim.SGD, [w])


# -- on ranks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["I", "V", "Shard", "Rooted and I"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(kind: str, ranks: int) -> None:
    def body(mesh: cc.Mesh) -> Any:
        rank = int(mesh.axis("a").rank)
        bad = rank == ranks - 1
        b = ag.Parameter(np.ones(2, Half), name="b")
        layout: Any = {"V": {"a": V}, "Shard": {"a": Shard(0)}, "Rooted and I": {"a": cc.Rooted(ranks - 1)}}.get(kind)
        w = b if layout is None else ag.Parameter(np.ones(2, Half), layout, name="w")
        opt = optim.MasterWeights(optim.Adam, [w] if w is b else [b, w], lr=0.25)
        done = []
        for step in range(3):
            factor = 1e3 if step == 1 and bad else 1e-2 * (rank + 1)

            def loss(factor: float = factor, step: int = step) -> Any:
                entered = cc.cast(b, "a", to=R) * ag.tensor(np.full(2, 1e-2 * (rank + 1) if layout else factor, Half))
                total = cc.all_reduce(entered.sum(), "a", to=I)
                if kind == "Rooted and I":
                    own = (w * (1e3 if step == 1 else 1e-2)).sum()
                    return total + cc.broadcast(own, "a", root=ranks - 1, to=I)
                if layout:
                    own = w * ag.tensor(np.full(2, factor * (1 + rank), Half))
                    total = total + cc.all_reduce(own.sum(), "a", to=I)
                return total

            backward(opt, loss)
            done.append((opt.step(), opt.scaler.value, b.numpy()[0].item()))
        return done, None if kind.startswith("Rooted") else w.numpy()[0].item()

    results = on_mesh(body, a=ranks)
    assert len({str(done) for done, _ in results}) == 1
    (first, scale, b0), (second, halved, b1), (third, _, b2) = results[0][0]
    assert (first, second, third) == (True, False, True)
    assert halved == scale / 2 and b0 == b1 != b2
    assert {x for _, x in results} <= {None, 0.5}


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_of_float16_gradients_are_rounded_once(ranks: int) -> None:
    parts = draw(3, ranks, 700).astype(Half) * Half(100)

    def body(mesh: cc.Mesh) -> Any:
        w = ag.Parameter(np.zeros(700, Half))
        with ag.Tape() as tape:
            mine = ag.tensor(parts[int(mesh.axis("dp").rank)])
            loss = cc.all_reduce((cc.cast(w, "dp", to=R) * mine).sum(), "dp", to=I)
        tape.backward(loss)
        assert w.grad is not None
        return w.grad.numpy()

    expected = parts.astype(np.float32).sum(axis=0).astype(Half)
    for ours in on_mesh(body, dp=ranks):
        np.testing.assert_array_equal(ours, expected)


def test_a_sum_over_the_ranks_that_overflows_is_seen_by_all() -> None:
    def body(mesh: cc.Mesh) -> Any:
        w = ag.Parameter(np.ones(1, Half))
        opt = optim.MasterWeights(optim.SGD, [w], scaler=optim.LossScaler(4e4, max_scale=1e5))
        one = ag.tensor(np.ones(1, np.float32) * (1 + 0.1 * int(mesh.axis("dp").rank)), {"dp": V})
        backward(opt, lambda: cc.all_reduce((cc.cast(w, "dp", to=R) * one).sum(), "dp", to=I))
        return opt.step()

    assert on_mesh(body, dp=2) == [False, False]
    assert on_mesh(body, dp=1) == [True]


def test_the_master_weights_of_parts_and_their_state_are_those_of_the_whole() -> None:
    start = draw(0, 7, 2).astype(Half)

    def body(mesh: cc.Mesh) -> Any:
        w = ag.Parameter(cc.shard(ag.tensor(start, {"tp": R}), "tp"), name="w")
        b = ag.Parameter(start[0].copy(), name="b")
        opt = optim.MasterWeights(optim.LAMB, [w, b], lr=0.1, scaler=optim.LossScaler(1024.0))
        for _ in range(4):
            backward(opt, lambda: cc.all_reduce((w * w).sum(), "tp", to=I) + (b * b).sum())
            assert optim.clip_grad_norm_([w, b], 1.0) > 1
            assert opt.step()
        saved = opt.state_dict()
        opt.load_state_dict(saved)
        return w.numpy(), b.numpy(), saved["masters"]

    ((whole, b, masters),) = on_mesh(body, tp=1)
    results = on_mesh(body, tp=3)
    np.testing.assert_allclose(np.concatenate([w for w, _, _ in results]), whole, rtol=2e-3)
    for _, own, state in results:
        np.testing.assert_allclose(own, b, rtol=2e-3)
        assert state[0].dtype == np.float32
        np.testing.assert_allclose(state[0], masters[0], rtol=2e-3)


def test_ranks_with_different_scales_are_told() -> None:
    def body(mesh: cc.Mesh) -> None:
        w = ag.Parameter(np.ones(1, Half))
        scaler = optim.LossScaler(4.0 + 4.0 * int(mesh.axis("dp").rank))
        opt = optim.MasterWeights(optim.SGD, [w], scaler=scaler)
        for _ in range(2):
            one = ag.tensor(np.ones(1, Half) * Half(1 + int(mesh.axis("dp").rank)), {"dp": V})
            backward(opt, lambda one=one: cc.all_reduce((cc.cast(w, "dp", to=R) * one).sum(), "dp", to=I))
            opt.step()

    with pytest.raises(cc.ReplicaMismatch):
        on_mesh(body, dp=2)


@pytest.mark.parametrize("ranks", [1, 3])
def test_float16_with_masters_learns_what_float32_learns(ranks: int) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 8)) * 2
    labels = rng.integers(0, 4, 96)
    x = centres[labels] + rng.normal(size=(96, 8))

    def body(mesh: cc.Mesh, dtype: Any = Half) -> float:
        random.seed(0)
        layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        model = DataParallel(layers.to(dtype=dtype), "dp")
        opt = optim.MasterWeights(optim.SGD, model.parameters(), lr=0.5, momentum=0.9)
        rows = cc.shard(ag.tensor(x.astype(dtype), {"dp": R}), "dp")
        ys = cc.shard(ag.tensor(labels, {"dp": R}), "dp")
        for _ in range(25):
            with ag.Tape() as tape:
                mine = nn.cross_entropy(model(rows).astype(np.float32), ys, reduction="sum") / 96
                loss = cc.all_reduce(mine, "dp", to=I)
                scaled = opt.scale(loss)
            tape.backward(scaled)
            optim.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
        return float(loss.item())

    (wide,) = on_mesh(lambda mesh: body(mesh, np.dtype(np.float32)), dp=1)
    losses = on_mesh(body, dp=ranks)
    assert len(set(losses)) == 1 and wide < 0.2
    assert abs(losses[0] - wide) < 0.02 * max(wide, 0.1) + 2e-3
