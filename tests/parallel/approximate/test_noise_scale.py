"""The gradient noise scale against serial gradients of the ranks' rows, and against a case with known noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from parallel import DataParallel
from parallel.approximate.noise_scale import NoiseScale, gradient_noise_scale
from parallel.approximate.quantised import Float16

from ...on_mesh import on

pytestmark = pytest.mark.timeout(60)
FEATURES = 4


def make_model() -> nn.Module:
    random.seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 5, dtype=float), nn.Tanh(), nn.Linear(5, 3, dtype=float))


def batch(step: int, rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(100 * rows + step)
    return rng.normal(size=(rows, FEATURES)), rng.integers(0, 3, rows)


def mean_gradient(x: Any, y: Any) -> Any:
    model = make_model()
    with ag.Tape() as tape:
        loss = nn.cross_entropy(model(ag.tensor(x)), y)
    tape.backward(loss)
    return np.concatenate([p.grad.numpy().ravel() for p in model.parameters() if p.grad is not None])


def measure(mesh: cc.Mesh, noise: NoiseScale, rows: list[int], factor: Any = 1.0, **options: Any) -> DataParallel:
    """A backward pass and an update for each number of rows."""
    model = DataParallel(make_model(), "dp", reduction=noise, **options)
    for step, n in enumerate(rows):
        model.zero_grad()
        x, y = (cc.shard(ag.tensor(a, {"dp": cc.R}), "dp") for a in batch(step, n))
        with ag.Tape() as tape:
            loss = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum") * (factor / n), "dp", to=cc.I)
        tape.backward(loss)
        noise.update(x.shape[0], x.global_shape[0])
    return model


@pytest.mark.parametrize("bucket_bytes", [0, 1 << 20])
@pytest.mark.parametrize(("ranks", "rows"), [(2, [8]), (2, [9, 7]), (3, [10, 2, 17]), (5, [12, 3, 20])])
def test_the_estimates_are_those_of_the_ranks_gradients(ranks: int, rows: list[int], bucket_bytes: int) -> None:
    def program(mesh: cc.Mesh) -> Any:
        noise = NoiseScale(decay=0.8)
        measure(mesh, noise, rows, bucket_bytes=bucket_bytes)
        return noise.gradient_sq, noise.variance, noise.value, noise.state_dict()

    sums, weight = np.zeros(2), 0.0
    for step, n in enumerate(rows):
        x, y = batch(step, n)
        parts = [part for part in zip(np.array_split(x, ranks), np.array_split(y, ranks), strict=True) if len(part[0])]
        norms = [float((mean_gradient(*part) ** 2).sum()) for part in parts]
        whole = float((mean_gradient(x, y) ** 2).sum())
        pair = gradient_noise_scale(norms, [len(part[0]) for part in parts], whole, n)
        sums, weight = 0.8 * sums + np.array(pair), 0.8 * weight + 1
    expected = sums / weight
    for g, s, value, state in on(ranks, program):
        np.testing.assert_allclose([g, s], expected, rtol=1e-10)
        assert value == (s / g if g > 0 else math.inf)
        again = NoiseScale()
        again.load_state_dict(state)
        assert (again.gradient_sq, again.variance) == (g, s)


def test_microbatches_count_as_one_batch() -> None:
    def program(mesh: cc.Mesh) -> Any:
        noise = NoiseScale()
        model = DataParallel(make_model(), "dp", reduction=noise)
        mine = [np.array_split(a, 2)[int(mesh.axis("dp").rank)] for a in batch(0, 12)]
        with model.accumulate():
            for part in (slice(0, 2), slice(2, None)):
                x, y = (cc.from_local(a[part], {"dp": cc.Shard(0)}) for a in mine)
                with ag.Tape() as tape:
                    loss = nn.cross_entropy(model(x), y, reduction="sum") / 12
                    loss = cc.all_reduce(loss, "dp", to=cc.I)
                tape.backward(loss)
        noise.update(6, 12)
        whole = NoiseScale()
        measure(mesh, whole, [12])
        return noise.gradient_sq, noise.variance, whole.gradient_sq, whole.variance

    for g, s, whole_g, whole_s in on(2, program):
        np.testing.assert_allclose([g, s], [whole_g, whole_s], rtol=1e-10)


def test_a_factor_of_the_loss_does_not_change_the_scale() -> None:
    def program(mesh: cc.Mesh) -> Any:
        one, other = NoiseScale(), NoiseScale()
        measure(mesh, one, [8, 8, 8])
        measure(mesh, other, [8, 8, 8], factor=1024.0)
        return one.value, other.value

    (one, other), *_ = on(2, program)
    assert math.isclose(one, other, rel_tol=1e-12)


def test_the_estimates_are_unbiased_for_a_linear_regression() -> None:
    """For normal x the gradient of ``(x w - y)^2 / 2`` is d, the error of w, and S = (D + 1)|d|^2 + D sigma^2."""
    rng = np.random.default_rng(0)
    trials, dims, sigma, batches = 4000, 6, 1.5, [1, 2, 5, 4]
    d = rng.normal(size=dims)
    big = sum(batches)
    x = rng.normal(size=(trials, big, dims))
    gradients = x * (x @ d + sigma * rng.normal(size=(trials, big)))[..., None]
    edges = np.cumsum([0, *batches])
    small = [gradients[:, a:b].mean(axis=1) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    norms = np.stack([(g**2).sum(axis=1) for g in small], axis=1)
    totals = (gradients.mean(axis=1) ** 2).sum(axis=1)
    found = np.array([gradient_noise_scale(n, batches, t, big) for n, t in zip(norms.tolist(), totals, strict=True)])
    expected = np.array([d @ d, (dims + 1) * (d @ d) + dims * sigma**2])
    deviation = found.std(axis=0) / math.sqrt(trials)
    assert (np.abs(found.mean(axis=0) - expected) < 4 * deviation).all()
    assert (deviation < 0.05 * expected).all()


def test_one_process_has_nothing_to_estimate_and_a_compression_may_be_wrapped() -> None:
    def program(mesh: cc.Mesh) -> Any:
        noise = NoiseScale(Float16())
        wrapped = measure(mesh, noise, [8, 1])
        plain = DataParallel(make_model(), "dp", reduction=Float16())
        for step, n in enumerate([8, 1]):
            plain.zero_grad()
            x, y = (cc.shard(ag.tensor(a, {"dp": cc.R}), "dp") for a in batch(step, n))
            with ag.Tape() as tape:
                loss = cc.all_reduce(nn.cross_entropy(plain(x), y, reduction="sum") / n, "dp", to=cc.I)
            tape.backward(loss)
        for p, q in zip(wrapped.parameters(), plain.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None
            np.testing.assert_array_equal(p.grad.numpy(), q.grad.numpy())
        return noise.value

    assert math.isnan(on(1, program)[0])
    assert all(math.isfinite(value) or value == math.inf for value in on(2, program))


def test_an_overflow_and_a_rank_alone_are_left_out() -> None:
    def program(mesh: cc.Mesh) -> Any:
        noise = NoiseScale()
        with np.errstate(all="ignore"):
            measure(mesh, noise, [1])
            measure(mesh, noise, [8], factor=math.nan)
        assert math.isnan(noise.value) and "nan" in repr(noise)
        measure(mesh, noise, [8])
        return noise.variance

    assert all(math.isfinite(value) for value in on(3, program))


def test_what_is_refused() -> None:
    def wrong(global_rows: Any, **words: Any) -> Callable[[cc.Mesh], None]:
        def program(mesh: cc.Mesh) -> None:
            noise = NoiseScale()
            model = DataParallel(make_model(), "dp", reduction=noise)
            x, y = (cc.shard(ag.tensor(a, {"dp": cc.R}), "dp") for a in batch(0, 8))
            with ag.Tape() as tape:
                loss = cc.all_reduce(nn.cross_entropy(model(x), y, reduction="sum") / 8, "dp", to=cc.I)
            tape.backward(loss)
            noise.update(x.shape[0], global_rows(x), **words)

        return program

    with pytest.raises(ag.OptionError, match="global_rows=4 was given, and the ranks have 8 rows together"):
        on(2, wrong(lambda x: 4))
    with pytest.raises(ag.LayoutError, match=r"global_rows(.|\n)*fix: x.global_shape\[0\]"):
        on(2, wrong(lambda x: x.shape[0]))
    with pytest.raises(ag.OptionError, match="loss_scale"):
        on(2, wrong(lambda x: 8, loss_scale=math.nan))
    with pytest.raises(ag.ArgumentError, match=r"needed: an object with reduce\(bucket, group\)"):
        NoiseScale("exact")  # type: ignore[arg-type]
    with pytest.raises(ag.OptionError, match="decay"):
        NoiseScale(decay=1.0)
    with pytest.raises(ag.OptionError, match="load_state_dict"):
        NoiseScale().load_state_dict({"sums": [1.0, 1.0]})
    with pytest.raises(ag.OptionError, match="needed: smaller ones than the big one"):
        gradient_noise_scale(1.0, 8, 1.0, 8)
    with pytest.raises(ag.ShapeError, match="2 norms and 1 small batches"):
        gradient_noise_scale([1.0, 2.0], [4], 1.0, 8)
    with pytest.raises(ag.OptionError, match="small_norms_sq=-1"):
        gradient_noise_scale([-1.0], [4], 1.0, 8)
