"""`nn.functional` has torch's meaning: a weight [out, in], padding of the last dimension first, masks of True."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.nn import functional as F
from collectives import R

_rng = numpy.random.default_rng(0)
X = _rng.standard_normal((2, 3, 4))


def same(found: Any, wanted: Any) -> None:
    numpy.testing.assert_allclose(numpy.asarray(found), numpy.asarray(wanted), rtol=1e-12, atol=1e-14)


def test_linear_takes_torchs_weight() -> None:
    layer = nn.Linear(4, 4, dtype=float)
    assert layer.bias is not None
    same(F.linear(X, layer.weight.T, layer.bias).numpy(), layer(X).numpy())
    table = _rng.standard_normal((7, 4))
    same(F.linear(X, table), X @ table.T)  # tied embeddings
    same(ag.grad(lambda w: (F.linear(X, w) ** 2).sum())(table), ag.grad(lambda w: ((X @ w.T) ** 2).sum())(table))
    with pytest.raises(ag.ShapeError, match=r"\[out, 4\]\n  fix: weight.T"):
        F.linear(X, table.T)


def test_the_functions_are_those_of_nn() -> None:
    for name in set(nn.functional.__all__) & set(nn.__all__):
        assert getattr(nn, name) is getattr(F, name), name


def test_pad_begins_at_the_last_dimension() -> None:
    same(F.pad(X, (1, 2)), numpy.pad(X, ((0, 0), (0, 0), (1, 2))))
    same(F.pad(X, (1, 2, 0, 3), value=5.0), numpy.pad(X, ((0, 0), (0, 3), (1, 2)), constant_values=5))
    for mode, theirs in ("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"):
        same(F.pad(ag.tensor(X), (2, 1), mode).numpy(), numpy.pad(X, ((0, 0), (0, 0), (2, 1)), theirs))
    for wrong in (1,), (1,) * 8, (-1, 1):
        with pytest.raises(ag.ShapeError, match="needed: pairs"):
            F.pad(X, wrong)
    with pytest.raises(ag.OptionError, match="mode='edge'"):
        F.pad(X, (1, 1), "edge")


def test_one_hot() -> None:
    same(F.one_hot(numpy.array([[0, 2]]), 4), [[[1, 0, 0, 0], [0, 0, 1, 0]]])
    assert F.one_hot(numpy.array([1, 0])).dtype == numpy.int64
    for labels, n in ([0, 3], 3), ([-1], 3):
        with pytest.raises(ag.ShapeError, match="num_classes"):
            F.one_hot(numpy.array(labels), n)
    with pytest.raises(ag.DtypeError, match="float64"):
        F.one_hot(numpy.ones(2))

    def program() -> Any:
        with cc.Mesh(dp=-1):
            part = cc.shard(ag.tensor(numpy.array([0, 2, 1]), {"dp": R}), "dp")
            with pytest.raises(ag.OptionError, match="num_classes"):  # the largest element may be on another rank
                F.one_hot(part)
            return cc.all_gather(F.one_hot(part, 3), "dp").numpy()

    same(cc.run(program, 2)[0], numpy.eye(3)[[0, 2, 1]])


def test_attention() -> None:
    q, k, v = _rng.standard_normal((3, 2, 2, 5, 4))
    scores = q @ k.swapaxes(-1, -2) / 2.0
    seen = numpy.tril(numpy.ones((5, 5), bool))
    weights = numpy.exp(numpy.where(seen, scores, -numpy.inf))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    same(F.scaled_dot_product_attention(q, k, v, seen), wanted)
    same(F.scaled_dot_product_attention(q, k, v, is_causal=True), wanted)
    same(F.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0], seen), wanted[0, 0])
    same(F.scaled_dot_product_attention(4 * q, k, v, seen, scale=0.125), wanted)
    assert F.scaled_dot_product_attention(q, k, v, dropout_p=1.0).sum() == 0
    with pytest.raises(ag.ShapeError, match="as many keys as queries"):  # torch aligns the first ones
        F.scaled_dot_product_attention(q[:, :, 1:], k, v, is_causal=True)
    with pytest.raises(ag.ShapeError, match="enable_gqa=True"):
        F.scaled_dot_product_attention(q, k[:, :1], v[:, :1])
    assert F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True).shape == q.shape


def test_layers_as_functions() -> None:
    images, weight = _rng.standard_normal((2, 3, 5, 6)), _rng.standard_normal((4, 3, 2, 2))
    same(F.conv2d(images, weight, None, 2, 1), nn.convolution(images, weight, None, 2, 1))
    same(F.max_pool2d(images, 2), nn.MaxPool2d(2)(images))
    words: Any = {"padding": 1, "count_include_pad": False}
    same(F.avg_pool2d(images, 2, **words), nn.AvgPool2d(2, **words)(images))
    same(F.max_pool1d(X, 2), nn.MaxPool1d(2)(X))
    same(F.avg_pool1d(X, 2), nn.AvgPool1d(2)(X))
    same(F.leaky_relu(X, 0.3), nn.LeakyReLU(0.3)(X))
    same(F.layer_norm(X, (4,), numpy.full(4, 2.0)), 2 * nn.LayerNorm(4, elementwise_affine=False)(X))
    same(F.rms_norm(X, [4]), nn.RMSNorm(4, elementwise_affine=False)(X))
    with pytest.raises(ag.ShapeError, match="4 dimensions"):
        F.conv2d(X, weight)
    for inplace in (nn.ReLU, nn.SiLU, nn.LeakyReLU, nn.Dropout):
        with pytest.raises(ag.OptionError, match="fix: leave it out"):
            inplace(inplace=True)


def test_ignored_labels_of_the_default() -> None:
    logits, labels = _rng.standard_normal((6, 3)), numpy.array([0, -100, 2, 1, -100, 0])
    rows = labels != -100
    wanted = F.cross_entropy(logits[rows], labels[rows])
    g = ag.grad(lambda x: F.cross_entropy(x, labels))(logits)
    same(F.cross_entropy(logits, labels), wanted)
    same(F.cross_entropy(logits, labels, numpy.ones(3)), wanted)
    same(F.cross_entropy(logits, labels, reduction="sum"), wanted * 4)
    same(F.cross_entropy(logits, labels, reduction="none")[rows].mean(), wanted)
    same(g[rows], ag.grad(lambda x: F.cross_entropy(x, labels[rows]))(logits[rows]))
    assert not g[~rows].any()
    with pytest.raises(ag.ShapeError, match=r"0\.\.2"):
        F.cross_entropy(logits, numpy.array([0, -100, 3, 1, -100, 0]))
    with pytest.raises(ag.ArgumentError, match="fix: reduction='mean'"):
        F.cross_entropy(logits, labels, "mean")
