"""Cross-entropy and negative log-likelihood of all shapes and kinds of target, against a loop over the rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.testing import check_grads
from collectives import I, R

SHAPES = {"[C]": (4,), "[N, C]": (5, 4), "[N, C, d]": (5, 4, 3), "[N, C, d, e]": (2, 4, 3, 2)}
IGNORED = 2
_rng = numpy.random.default_rng(5)
WEIGHT = _rng.random(4) + 0.5


def data(shape: tuple[int, ...], kind: str) -> tuple[Any, Any]:
    """Logits, and a target: labels, or probabilities."""
    rng = numpy.random.default_rng(len(shape))
    x = rng.standard_normal(shape)
    if kind == "labels":
        return x, rng.integers(0, 4, shape[:1] * (len(shape) > 1) + shape[2:])
    p = rng.random(shape)
    return x, p / p.sum(min(len(shape) - 1, 1), keepdims=True)


def reference(
    x: Any, t: Any, weight: Any, ignored: int, smoothing: float, reduction: str, of_logits: bool = True
) -> Any:
    """Torch's definition, row by row."""
    at = min(len(x.shape) - 1, 1)
    rows = np.reshape(np.moveaxis(x, at, -1), (-1, 4))
    is_labels = t.dtype.kind == "i"
    targets = t.reshape(-1) if is_labels else numpy.moveaxis(t, at, -1).reshape(-1, 4)
    w = numpy.ones(4) if weight is None else weight
    losses, counts = [], []
    for i, target in enumerate(targets):
        log_p = rows[i] - np.log(np.sum(np.exp(rows[i]))) if of_logits else rows[i]
        if is_labels and target == ignored:
            losses.append(0.0 * rows[i, 0])
            counts.append(0.0)
            continue
        q = numpy.eye(4)[target] if is_labels else target
        losses.append(-np.sum(w * (q * (1 - smoothing) + smoothing / 4) * log_p))
        counts.append(w[target] if is_labels else 1.0)
    if reduction == "none":
        return np.reshape(np.stack(losses), tuple(n for i, n in enumerate(x.shape) if i != at))
    total = sum(losses)
    return total / sum(counts) if reduction == "mean" else total


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_values_and_gradients(name: str, kind: str) -> None:
    x, t = data(SHAPES[name], kind)
    for weight, smoothing, reduction in itertools.product((None, WEIGHT), (0.0, 0.2), ("mean", "sum", "none")):
        for ignored in (-100, IGNORED) if kind == "labels" else (-100,):
            f = nn.CrossEntropyLoss(weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
            compare(lambda x, f=f: f(x, t), x, (t, weight, ignored, smoothing, reduction))
            if kind == "labels" and not smoothing:
                g = nn.NLLLoss(weight, ignore_index=ignored, reduction=reduction)
                compare(lambda x, g=g: g(x, t), x, (t, weight, ignored, 0.0, reduction, False))


def compare(f: Any, x: Any, words: tuple[Any, ...]) -> None:
    expected = numpy.asarray(reference(x, *words))
    numpy.testing.assert_allclose(numpy.asarray(f(x)), expected, rtol=1e-12, atol=1e-14)
    ct = _rng.standard_normal(expected.shape)
    found, wanted = ag.vjp(f, x)[1](ct), ag.vjp(lambda x: reference(x, *words), x)[1](ct)
    numpy.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)
    along = _rng.standard_normal(x.shape)
    tangent = numpy.asarray(ag.jvp(f, (x,), (along,))[1])
    assert numpy.sum(tangent * ct) == pytest.approx(numpy.sum(found * along), rel=1e-9, abs=1e-10)


def test_derivatives_of_probabilities_to_order_2() -> None:
    x, t = data((2, 4, 3), "probabilities")
    check_grads(lambda x, t: nn.cross_entropy(x, t, WEIGHT, label_smoothing=0.1), x, t, order=2)


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("kind", ["labels", "probabilities"])
def test_of_sharded_rows(kind: str, dim: int) -> None:
    """Rows that are divided among three ranks unevenly, along the first dimension or along one after the classes."""
    x, t = data((5, 4, 7), kind)
    dim_of_target = dim if kind == "probabilities" else max(dim - 1, 0)
    plain = {"weight": None}
    for words in (plain, {"weight": WEIGHT}) if kind == "probabilities" else (plain, {**plain, "label_smoothing": 0.1}):
        serial = ag.grad(lambda x, words=words: nn.cross_entropy(x, t, **words))(x)

        def program(words: Any = words) -> Any:
            with cc.Mesh(dp=-1):
                w = ag.Parameter(x)
                shards = cc.shard(ag.tensor(t, {"dp": R}), "dp", dim=dim_of_target)
                with ag.Tape() as tape:
                    logits = cc.shard(cc.cast(w, "dp", to=R), "dp", dim=dim)
                    loss = cc.all_reduce(nn.cross_entropy(logits, shards, **words), "dp", to=I)
                    each = nn.cross_entropy(logits, shards, reduction="none", **words)
                assert each.layout["dp"].dim == max(dim - 1, 0)
                tape.backward(loss)
                return w.grad.numpy()

        for found in cc.run(program, 3):
            numpy.testing.assert_allclose(found, serial, rtol=1e-11, atol=1e-14)


LOSSES: dict[str, Any] = {
    "cross_entropy": lambda x, t, **o: nn.cross_entropy(x, t, **o),
    "cross_entropy, smoothed": lambda x, t, **o: nn.cross_entropy(x, t, label_smoothing=0.1, **o),
    "cross_entropy, weights": lambda x, t, **o: nn.cross_entropy(x, t, WEIGHT, **o),
    "cross_entropy, weights, smoothed": lambda x, t, **o: nn.cross_entropy(x, t, WEIGHT, label_smoothing=0.1, **o),
    "nll_loss": lambda x, t, **o: nn.nll_loss(x, t, **o),
    "nll_loss, weights": lambda x, t, **o: nn.nll_loss(x, t, WEIGHT, **o),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_a_mean_over_no_row_is_nan_with_gradient_0(name: str) -> None:
    """Where all labels are ignored, as in torch: serial, and over shards with the sum and the count of all ranks."""
    f = LOSSES[name]
    for shape in ((3, 4), (3, 4, 2), (4,)):
        x, t = data(shape, "labels")
        t = numpy.full_like(t, -100)
        assert numpy.isnan(f(x, t))
        assert not ag.grad(lambda x, t=t: f(x, t))(x).any()
        assert not ag.grad(lambda x, t=t: f(x, t, reduction="sum") / 0.0)(x).any()

    def program() -> Any:
        with cc.Mesh(dp=-1):
            w = ag.Parameter(data((5, 4), "labels")[0])
            labels = cc.shard(ag.tensor(numpy.full(5, -100), {"dp": R}), "dp")
            with ag.Tape() as tape:
                rows = cc.shard(cc.cast(w, "dp", to=R), "dp")
                total = f(rows, labels, reduction="sum") / cc.all_reduce((labels != -100).sum(), "dp", to=R)
                loss = cc.all_reduce(total, "dp", to=I)
            tape.backward(loss)
            return w.grad.numpy()

    for found in cc.run(program, 3):
        assert not found.any(), found


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = numpy.ones((2, 3, 4))
    for loss in (nn.cross_entropy, nn.nll_loss):
        with pytest.raises(ag.ShapeError, match=r"fix: logits.reshape\(-1, 4\)"):
            loss(x, numpy.ones((2, 3), int))
    with pytest.raises(ag.DtypeError, match="integers, or probabilities of shape"):
        nn.cross_entropy(numpy.ones((2, 3)), numpy.ones(2))
    with pytest.raises(ag.ShapeError, match="one per class"):
        nn.cross_entropy(numpy.ones((2, 3)), numpy.ones((2, 3)), numpy.ones(2))
    with pytest.raises(ag.OptionError, match="ignore no row"):
        nn.cross_entropy(numpy.ones((2, 3)), numpy.ones((2, 3)), ignore_index=1)
