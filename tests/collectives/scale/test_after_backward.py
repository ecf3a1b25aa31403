"""Factors that come in after a loss: microbatches that each count as a whole batch, and gradients scaled by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim
from autograd.errors import GradientWarning, ScaleError, ScaleWarning
from collectives import I, R, Shard, V
from parallel import DataParallel

from .test_programs import scale

RNG = numpy.random.default_rng(3)
X, Y = RNG.normal(size=(36, 4)), RNG.normal(size=(36, 1))
WEIGHT = RNG.normal(size=(4, 1))


def caught(program: Callable[[cc.Mesh], Any], n: int) -> tuple[list[str], list[Any]]:
    def main() -> Any:
        with cc.Mesh(dp=n) as mesh:
            return program(mesh)

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        found = cc.run(main, n)
    return [str(each.message) for each in given if each.category is ScaleWarning], found


# -- microbatches ------------------------------------------------------------------------------------------------------
def rows(mesh: cc.Mesh, i: int, m: int) -> tuple[Any, Any]:
    """This rank's part of the i-th of m microbatches."""
    rank, n = int(mesh.axis("dp").rank), int(mesh.axis("dp").size)
    mine = slice(i * 36 // m, (i + 1) * 36 // m)
    return tuple(cc.from_local(a[mine][rank::n], {"dp": Shard(0)}) for a in (X, Y))


def accumulated(loss: Callable[[Any, Any, int], Any], m: int) -> Callable[[cc.Mesh], Any]:
    def program(mesh: cc.Mesh) -> Any:
        layer = nn.Linear(4, 1, bias=False, dtype=float)
        layer.weight.data = WEIGHT.copy()
        model = DataParallel(layer, "dp")
        with model.accumulate():
            for i in range(m):
                x, y = rows(mesh, i, m)
                with ag.Tape() as tape:
                    total = cc.all_reduce(loss((model(x) - y) ** 2, x, m), "dp", to=I)
                tape.backward(total)
        return model.parameters()[0].grad.numpy()

    return program


SERIAL = 2 * X.T @ (X @ WEIGHT - Y) / 36


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "loss",
    [
        lambda d, x, m: d.mean(),
        lambda d, x, m: d.sum() / x.global_shape[0],
        lambda d, x, m: d.sum() / (36 // m),
        lambda d, x, m: (d.mean() * -1.0) * -1.0,
    ],
)
def test_a_loss_of_each_microbatch(loss: Callable[[Any, Any, int], Any], n: int) -> None:
    (text,), found = caught(accumulated(loss, 3), n)
    numpy.testing.assert_allclose(found[0], 3 * SERIAL)
    assert "3 times too large" in text and "m = 3 times" in text and "fix: " in text
    cc.check(scale="error")
    try:
        with pytest.raises(ScaleError, match="m = 3 times"):
            caught(accumulated(loss, 3), n)
    finally:
        cc.check(scale="warn")


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "loss", [lambda d, x, m: d.sum() / 36, lambda d, x, m: d.mean() / m, lambda d, x, m: d.mean() * (1 / m)]
)
def test_right_microbatches(loss: Callable[[Any, Any, int], Any], n: int) -> None:
    texts, found = caught(accumulated(loss, 3), n)
    assert texts == []
    numpy.testing.assert_allclose(found[0], SERIAL)


def each(loss: Callable[..., Any], bounds: tuple[int, ...] = (0, 12, 24, 36)) -> Callable[[cc.Mesh], Any]:
    """The sum of the gradients of ``loss(logits, rows, indices of rows of all ranks)`` of the microbatches."""

    def program(mesh: cc.Mesh) -> Any:
        rank, n = int(mesh.axis("dp").rank), int(mesh.axis("dp").size)
        layer = nn.Linear(4, 3, bias=False, dtype=float)
        layer.weight.data = numpy.outer(numpy.arange(4) - 1.5, numpy.arange(3) - 0.7)
        model = DataParallel(layer, "dp")
        with model.accumulate():
            for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
                mine = numpy.arange(start, stop)[rank::n]
                x = cc.from_local(X[mine], {"dp": Shard(0)})
                with ag.Tape() as tape:
                    total = loss(model(x), x, mine, numpy.arange(start, stop))
                tape.backward(total)
        return model.parameters()[0].grad.numpy()

    return program


T, K = RNG.normal(size=(36, 3)), numpy.where(numpy.arange(36) % 5 == 3, -100, numpy.arange(36) % 3)


def shard(a: Any) -> Any:
    return cc.from_local(a, {"dp": Shard(0)})


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "cross_entropy": lambda z, i: nn.cross_entropy(z, shard(numpy.maximum(K[i], 0)), reduction="sum"),
    "CrossEntropyLoss": lambda z, i: nn.CrossEntropyLoss(reduction="sum")(z, shard(numpy.maximum(K[i], 0))),
    "smoothed": lambda z, i: nn.cross_entropy(
        z, shard(numpy.maximum(K[i], 0)), reduction="sum", label_smoothing=0.1),
    "nll_loss": lambda z, i: nn.nll_loss(
        ag.ops.log_softmax(z), shard(numpy.maximum(K[i], 0)), reduction="sum"),
    "mse_loss": lambda z, i: nn.mse_loss(z, shard(T[i]), reduction="sum"),
    "l1_loss": lambda z, i: nn.l1_loss(z, shard(T[i]), reduction="sum"),
    "binary_cross_entropy_with_logits": lambda z, i: nn.binary_cross_entropy_with_logits(
        z, shard((T[i] > 0) * 1.0), reduction="sum"),
}  # fmt: skip


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_nn_by_the_rows_of_their_microbatch(name: str, n: int) -> None:
    of = LOSSES[name]
    wrong = {
        "a shape": lambda z, x, i, whole: of(z, i) / x.global_shape[0],
        "a number": lambda z, x, i, whole: of(z, i) / len(whole),
        "behind the sum": lambda z, x, i, whole: 1 / len(whole) * cc.all_reduce(of(z, i), "dp", to=I),
    }
    for how, loss in wrong.items():
        texts, found = caught(each(loss), n)
        assert len(texts) == 1 and "3 times too large" in texts[0], (how, texts)
        right, of_right = caught(each(lambda z, x, i, whole: of(z, i) / 36), n)
        assert right == []
        numpy.testing.assert_allclose(found[0], 3 * of_right[0])


@pytest.mark.parametrize("n", [2, 3])
def test_tokens_of_their_microbatch(n: int) -> None:
    """Unequal numbers of labels that are not ignored, as a number or a sum over the ranks; and that of the batch."""

    def of(z: Any, i: Any) -> Any:
        return nn.cross_entropy(z, shard(K[i]), reduction="sum", ignore_index=-100)

    bounds, all_tokens = (0, 10, 24, 36), float((K != -100).sum())
    told = [
        lambda z, x, i, whole: of(z, i) / float((K[whole] != -100).sum()),
        lambda z, x, i, whole: of(z, i) / cc.all_reduce(ag.tensor(float((K[i] != -100).sum())), "dp", to=R),
        lambda z, x, i, whole: cc.all_reduce(of(z, i), "dp", to=I) / float((K[whole] != -100).sum()),
        lambda z, x, i, whole: cc.all_reduce(of(z, i), "dp", to=I)
        / cc.all_reduce(ag.tensor(float((K[i] != -100).sum())), "dp", to=I),
    ]
    for loss in told:
        texts, _ = caught(each(loss, bounds), n)
        assert len(texts) == 1 and "3 times too large" in texts[0], texts
    assert caught(each(lambda z, x, i, whole: of(z, i) / all_tokens, bounds), n)[0] == []


@pytest.mark.parametrize("n", [2, 3])
def test_several_losses_of_the_same_rows(n: int) -> None:
    """Two losses of one batch are right; of two microbatches each of them is told."""

    def program(mesh: cc.Mesh, bounds: tuple[int, ...]) -> None:
        rank = int(mesh.axis("dp").rank)
        model = DataParallel(nn.Linear(4, 3, dtype=float), "dp")
        with model.accumulate():
            for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
                i = numpy.arange(start, stop)[rank::n]
                for task in ("mse_loss", "cross_entropy"):
                    with ag.Tape() as tape:
                        x = shard(X[i])
                        loss = LOSSES[task](model(x), i) / x.global_shape[0]
                    tape.backward(loss)

    with scale("error"):
        assert caught(lambda mesh: program(mesh, (0, 36)), n)[0] == []
    (text,), _ = caught(lambda mesh: program(mesh, (0, 18, 36)), n)
    assert "2 times too large" in text


@pytest.mark.parametrize(("rows", "m"), [(12, 3), (9, 3), (36, 3)])
@pytest.mark.parametrize("is_labelled", [True, False])
def test_the_rows_of_all_microbatches_are_the_elements_of_one(rows: int, m: int, is_labelled: bool) -> None:
    """Of 3 outputs each; a sum over elements by the number of rows is right."""

    def loss(z: Any, x: Any, i: Any, whole: Any) -> Any:
        d = (z - shard(T[i])) ** 2 if is_labelled else (cc.cast(z, "dp", to=V) - T[i]) ** 2
        return cc.all_reduce(d.sum(), "dp", to=I) / rows

    with scale("error"):
        texts, _ = caught(each(loss, tuple(range(0, rows + 1, rows // m))), 2)
    assert texts == []


def test_means_of_unequal_microbatches() -> None:
    def loss(z: Any, x: Any, i: Any, whole: Any) -> Any:
        return nn.mse_loss(z, shard(T[i])) / 3

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        cc.run(lambda: on(each(loss, (0, 6, 24, 36))), 2)
    (text,) = [str(each.message) for each in given if each.category is GradientWarning]
    assert "of a small microbatch counts more" in text and "fix: divide the loss" in text
    assert caught(each(loss), 2)[0] == []


def on(program: Callable[[cc.Mesh], Any]) -> Any:
    with cc.Mesh(dp=2) as mesh:
        return program(mesh)


def test_one_microbatch() -> None:
    texts, found = caught(accumulated(lambda d, x, m: d.mean(), 1), 2)
    assert texts == []
    numpy.testing.assert_allclose(found[0], SERIAL)


# -- gradients by hand -------------------------------------------------------------------------------------------------
def scaled(scale: Callable[[Any, int], Any], dtype: Any = float, loss: Any = None) -> Callable[[cc.Mesh], Any]:
    def program(mesh: cc.Mesh) -> Any:
        n, rank = int(mesh.axis("dp").size), int(mesh.axis("dp").rank)
        w = ag.Parameter(WEIGHT.astype(dtype), name="w")
        optimizer = optim.SGD([w], lr=0.0)
        x, y = (cc.from_local(a[rank::n].astype(dtype), {"dp": Shard(0)}) for a in (X, Y))
        for _ in range(2):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                d = (x @ cc.cast(w, "dp", to=R) - y) ** 2
                total = cc.all_reduce(d.mean(), "dp", to=I) if loss is None else loss(d)
            tape.backward(total)
            scale(w, n)
            optimizer.step()

    return program


def divided(w: Any, n: int) -> None:
    w.grad = w.grad / n


def in_place(w: Any, n: int) -> None:
    w.grad.array[...] = w.grad.array / n


def multiplied(w: Any, n: int) -> None:
    w.grad = w.grad * n


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("scale", [divided, in_place, multiplied])
def test_a_gradient_scaled_by_hand(scale: Callable[[Any, int], None], dtype: str, n: int) -> None:
    (text,), _ = caught(scaled(scale, dtype), n)
    assert f"by {n} since backward" in text and "axis 'dp'" in text


def clipped(w: Any, n: int) -> None:
    optim.clip_grad_norm_([w], 0.1)


def halved_in_one_part(w: Any, n: int) -> None:
    w.grad = ag.tensor(w.grad.numpy().real / n + 1j * w.grad.numpy().imag, w.grad.layout)


@pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
@pytest.mark.parametrize("phase", [1, 1j, 0.6 + 0.8j])
@pytest.mark.parametrize("scale, told", [(divided, 1), (multiplied, 1), (halved_in_one_part, 0), (clipped, 0)])
def test_a_complex_gradient_scaled_by_hand(scale: Any, told: int, phase: complex, dtype: str, n: int) -> None:
    """With weights of zero the phase of the gradient is that of the targets, so that it may be purely imaginary."""
    if scale is halved_in_one_part and phase == 1:
        told = 1  # there is only one part

    def program(mesh: cc.Mesh) -> None:
        rank = int(mesh.axis("dp").rank)
        w = ag.Parameter(numpy.zeros((4, 1), dtype), name="w")
        optimizer = optim.SGD([w], lr=0.0)
        x, y = (cc.from_local(a[rank::n].astype(dtype), {"dp": Shard(0)}) for a in (X, phase * Y))
        for _ in range(2):
            optimizer.zero_grad()
            with ag.Tape() as tape:
                d = anp.abs(x @ cc.cast(w, "dp", to=R) - y) ** 2
                total = cc.all_reduce(d.mean(), "dp", to=I)
            tape.backward(total)
            scale(w, n)
            optimizer.step()

    assert len(caught(program, n)[0]) == told


def averaged(w: Any, n: int) -> None:
    w.grad = w.grad * 0.9


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("scale", [clipped, averaged, lambda w, n: None])
def test_other_changes(scale: Callable[[Any, int], None], n: int) -> None:
    assert caught(scaled(scale), n)[0] == []


@pytest.mark.parametrize("label", [I, V])
@pytest.mark.parametrize("alone", [False, True])
def test_an_error_of_a_gradient_scaled_by_hand_is_that_of_all_ranks(label: Any, alone: bool) -> None:
    """A rank that scales a gradient of its own alone raises no error, which the others would not."""

    def program() -> str:
        with cc.Mesh(dp=3) as mesh:
            rank = int(mesh.axis("dp").rank)
            w = ag.Parameter(WEIGHT * (1 if label is I else rank + 1), {"dp": label}, name="w")
            optimizer = optim.SGD([w], lr=0.0)
            x, y = (cc.from_local(a[rank::3], {"dp": Shard(0)}) for a in (X, Y))
            with ag.Tape() as tape:
                entered = cc.cast(w, "dp", to=R) if label is I else w
                rows = [cc.cast(a, "dp", to=V) for a in (x, y)]
                total = cc.all_reduce(((rows[0] @ entered - rows[1]) ** 2).sum(), "dp", to=I) / 36
            tape.backward(total)
            if not alone or not rank or label is I:
                w.grad = w.grad / 3
            try:
                optimizer.step()
            except ScaleError:
                return "ScaleError"
            return ""

    cc.check(scale="error")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = cc.run(program, 3)
    finally:
        cc.check(scale="warn")
    assert found == (["ScaleError"] * 3 if label is I else [""] * 3)
