"""Where parameters start: the distributions' moments and bounds, orthogonality, the truncated normal's quantiles."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn, random
from autograd.errors import RingtapeError, SavedArrayError, ShapeError
from autograd.random.normal_quantile import cumulative, quantile

KEY = random.Key(7, "w")


def fresh(*shape: int) -> ag.Parameter:
    return ag.Parameter(numpy.zeros(shape, numpy.float32))


@pytest.mark.parametrize("start, std, bound", [
    (lambda p: nn.init.xavier_uniform_(p, key=KEY), math.sqrt(2 / 500), math.sqrt(6 / 500)),
    (lambda p: nn.init.xavier_normal_(p, 3.0, KEY), 3 * math.sqrt(2 / 500), None),
    (lambda p: nn.init.kaiming_uniform_(p, math.sqrt(5), key=KEY), 1 / math.sqrt(3 * 300), 1 / math.sqrt(300)),
    (lambda p: nn.init.kaiming_uniform_(p, mode="fan_out", nonlinearity="relu", key=KEY), math.sqrt(2 / 200),
     math.sqrt(6 / 200)),
    (lambda p: nn.init.kaiming_normal_(p, nonlinearity="tanh", key=KEY), 5 / 3 / math.sqrt(300), None),
    (lambda p: nn.init.uniform_(p, -0.5, 0.5, KEY), 1 / math.sqrt(12), 0.5),
    (lambda p: nn.init.normal_(p, 0.0, 0.02, KEY), 0.02, None),
])  # fmt: skip
def test_moments_and_bounds(start: Any, std: float, bound: float | None) -> None:
    p = start(fresh(300, 200))  # [in, out]
    x = p.numpy().astype(float)
    assert p.dtype == numpy.float32
    assert abs(x.std() / std - 1) < 0.02 and abs(x.mean()) < 5 * std / math.sqrt(x.size)
    if bound is not None:
        assert bound * 0.99 < abs(x).max() <= bound * (1 + 1e-6)


def test_fans_of_convolutions() -> None:
    assert nn.init.fans(fresh(8, 3, 5, 5)) == (75, 200)
    with pytest.raises(ShapeError, match="fan"):
        nn.init.xavier_uniform_(fresh(8))


def test_constants() -> None:
    assert (nn.init.ones_(fresh(3)).numpy() == 1).all() and not nn.init.zeros_(nn.init.ones_(fresh(3))).numpy().any()
    assert (nn.init.constant_(fresh(2, 2), 0.25).numpy() == 0.25).all()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (3, 2, 2, 2)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    x = nn.init.orthogonal_(ag.Parameter(numpy.zeros(shape)), 2.0, KEY).numpy().reshape(shape[0], -1)
    product = x.T @ x if x.shape[0] >= x.shape[1] else x @ x.T
    numpy.testing.assert_allclose(product, 4 * numpy.eye(len(product)), atol=1e-12)


def test_the_quantile_is_the_normal_distributions() -> None:
    exact = NormalDist()
    p = numpy.concatenate([numpy.linspace(0.001, 0.999, 500), 2.0 ** -numpy.linspace(3, 53, 100)])
    wanted = [exact.inv_cdf(float(value)) for value in p]
    numpy.testing.assert_allclose(quantile(p), wanted, rtol=1e-13, atol=1e-15)
    for x in (-8.0, -3.3, -1.0, -0.1, 0.0, 0.4, 2.0, 6.0):
        assert math.isclose(cumulative(x), math.erfc(-x / math.sqrt(2)) / 2, rel_tol=1e-12)
    assert cumulative(-50.0) == 0.0 and cumulative(50.0) == 1.0


@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (-0.5, 3.0), (1.5, 1.75), (-40.0, 0.0), (-9.0, 9.0)])
def test_a_truncated_normal_is_one(low: float, high: float) -> None:
    n = 100_000
    x = random.truncated_normal(KEY, n, mean=0.25, std=0.5, low=0.25 + low / 2, high=0.25 + high / 2)
    z = (x - 0.25) / 0.5
    assert low - 1e-12 <= z.min() and z.max() <= high + 1e-12
    exact = NormalDist()
    a, b = exact.cdf(low), exact.cdf(high)
    ranks = (numpy.array([exact.cdf(v) for v in z[:5000]]) - a) / (b - a)  # uniform, if it is what it says
    counts = numpy.histogram(ranks, 20, (0, 1))[0]
    assert ((counts - 250) ** 2 / 250).sum() < 19 + 5 * math.sqrt(38)
    half = random.truncated_normal(KEY, (n,), mean=0.25, std=0.5, low=0.25 + low / 2, high=0.25 + high / 2,
                                   part=(slice(n // 2, n),))  # fmt: skip
    numpy.testing.assert_array_equal(half, x[n // 2 :])


def test_what_cannot_start() -> None:
    for call in (
        lambda: random.truncated_normal(KEY, 3, low=2.0, high=1.0), lambda: random.truncated_normal(KEY, 3, std=0.0),
        lambda: random.truncated_normal(KEY, 3, low=50.0, high=51.0), lambda: nn.init.calculate_gain("swish"),
        lambda: nn.init.kaiming_normal_(fresh(2, 2), mode="fan"),
    ):  # fmt: skip
        with pytest.raises(RingtapeError, match="needed|nothing"):
            call()
    p = ag.Parameter(numpy.ones((2, 2)))
    with ag.Tape() as tape:
        y = (p * p).sum()
        with pytest.raises(SavedArrayError):
            nn.init.zeros_(p)
    tape.backward(y)
    nn.init.zeros_(p)


def test_every_layer_starts_from_its_own_numbers_and_a_seed_repeats_them() -> None:
    def values() -> list[Any]:
        random.seed(3)
        layers = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv2d(2, 2, 3), nn.Embedding(4, 4), nn.LSTMCell(3, 2),
                  nn.MultiheadAttention(4, 2)]  # fmt: skip
        return [p.numpy().copy() for layer in layers for p in layer.parameters()]

    first, second = values(), values()
    for a, b in zip(first, second, strict=True):
        numpy.testing.assert_array_equal(a, b)
    assert (first[0] != first[2]).all() and (first[0] != first[1][:4]).any()
