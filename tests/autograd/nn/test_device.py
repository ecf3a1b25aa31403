"""Modules, losses and transforms on a device: the values of the CPU, and nothing crosses between host and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import data, nn

from ..arrays.devices import DEVICES, Device


@pytest.fixture(params=DEVICES)
def there(request: pytest.FixtureRequest) -> Any:
    with request.param.as_cuda():
        yield request.param


def normal(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


class Tokens(nn.Module):
    """An embedding, a transformer layer and a projection."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.TiedLinear(self.embedding)

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(self.embedding(x)))


INDICES = numpy.array([[1, 4, 4], [0, 10, 2]])
MODULES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "linear": (lambda: nn.Linear(5, 3), normal(4, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), normal(4, 5)),
    "rms norm": (lambda: nn.RMSNorm(5), normal(4, 5)),
    "batch norm": (lambda: nn.BatchNorm1d(5), normal(4, 5)),
    "batch norm, images": (lambda: nn.BatchNorm2d(3), normal(2, 3, 4, 4)),
    "batch norm, evaluated": (lambda: nn.BatchNorm1d(5).eval(), normal(4, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), normal(2, 4, 3)),
    "embedding": (lambda: nn.Embedding(11, 4), INDICES),
    "embedding, padding": (lambda: nn.Embedding(11, 4, padding_idx=4), INDICES),
    "dropout": (lambda: nn.Dropout(0.3), normal(40, 5)),
    "activations": (lambda: nn.Sequential(
        nn.GELU(), nn.SiLU(), nn.Softplus(), nn.LeakyReLU(), nn.Tanh(), nn.Sigmoid(), nn.ReLU(), nn.GELU("tanh"),
        nn.Softmax(-1), nn.LogSoftmax(-1), nn.Identity(), nn.Flatten()), normal(4, 5)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2)),
                    normal(2, 2, 8, 8)),
    "convolution of rows": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3, stride=2, groups=2), nn.MaxPool1d(2)),
                            normal(2, 2, 9)),
    "recurrent": (lambda: nn.LSTM(5, 3), normal(4, 2, 5)),
    "cells": (lambda: nn.GRUCell(5, 3), normal(4, 5)),
    "self-attention": (lambda: nn.SelfAttention(4, rotary=100.0), normal(2, 6, 3, 8)),
    "a transformer": (Tokens, INDICES),
}  # fmt: skip


def gradients(model: nn.Module, x: Any) -> list[Any]:
    """The output, the gradients of all parameters and of the input, and the buffers after the call."""
    leaf = ag.tensor(x, requires_grad=x.dtype.kind == "f")
    with ag.Tape() as tape:
        y = model(leaf)
        y = y[0] if isinstance(y, tuple) else y
        loss = (y * y).sum()
    tape.backward(loss)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [y, *grads, *([] if leaf.grad is None else [leaf.grad]), *model.buffers()]


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, there: Device) -> None:
    make, x = MODULES[name]
    ag.random.seed(0)
    model = make()
    ag.random.seed(1)
    expected = gradients(model, x)
    model.zero_grad()
    ag.random.seed(0)
    model = make().to(device="cuda")
    ag.random.seed(1)
    moved = there.move(x)
    if name == "self-attention":
        model(moved)  # makes the tables of angles
    with there.without_crossings(moves=name in DRAWN):
        found = gradients(model, moved)
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(there.values(a), getattr(b, "array", b), rtol=2e-4, atol=1e-5)


DRAWN = ("dropout", "a transformer")
"""Modules with dropout: without a kernel, the random numbers are made on the host and moved."""


LOGITS, LABELS = normal(6, 4), numpy.array([0, 3, 1, -100, 2, 2])
WEIGHT = numpy.array([1.0, 0.5, 2.0, 0.1], numpy.float32)
LOSSES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "cross-entropy": (nn.CrossEntropyLoss, LABELS),
    "cross-entropy, smoothed": (lambda: nn.CrossEntropyLoss(label_smoothing=0.1), LABELS),
    "cross-entropy, weights": (lambda: nn.CrossEntropyLoss(WEIGHT, ignore_index=2, reduction="sum"), abs(LABELS) % 4),
    "cross-entropy, a mean with weights": (lambda: nn.CrossEntropyLoss(WEIGHT), LABELS),
    "nll": (lambda: nn.NLLLoss(WEIGHT), LABELS),
    "mse": (nn.MSELoss, normal(6, 4, seed=1)),
    "l1": (nn.L1Loss, normal(6, 4, seed=1)),
    "smooth l1": (lambda: nn.SmoothL1Loss(beta=0.5), normal(6, 4, seed=1)),
    "binary": (lambda: nn.BCEWithLogitsLoss(WEIGHT, pos_weight=WEIGHT), abs(normal(6, 4, seed=1)) % 1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, there: Device) -> None:
    make, target = LOSSES[name]
    expected = ag.value_and_grad(lambda x: make()(x, target))(LOGITS)
    loss, x, labels = make().to(device="cuda"), there.move(LOGITS), there.move(target)
    with there.without_crossings():
        found = ag.value_and_grad(lambda z: loss(z, labels))(x)
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(there.values(a), getattr(b, "array", b), rtol=1e-5, atol=1e-6)


def test_attention_with_masks(there: Device) -> None:
    x, padding = normal(2, 5, 8), numpy.arange(10).reshape(2, 5) % 4 == 3
    future = numpy.triu(numpy.ones((5, 5), bool), 1)
    ag.random.seed(0)
    expected = nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x, key_padding_mask=padding, attn_mask=future)
    ag.random.seed(0)
    attend = nn.MultiheadAttention(8, 2, batch_first=True).cuda()
    moved, masks = there.move(x), (there.move(padding), there.move(future))
    with there.without_crossings():
        found = attend(moved, moved, moved, key_padding_mask=masks[0], attn_mask=masks[1])
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(there.values(a), b.array, rtol=1e-5, atol=1e-6)


def energy(w: Any, x: Any) -> Any:
    return (np.tanh(x @ w) ** 2).sum()


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda w, x: ag.grad(energy)(w, x),
    "forward mode": lambda w, x: ag.jvp(lambda v: energy(v, x), (w,), (w,))[1],
    "hessian-vector product": lambda w, x: ag.hvp(lambda v: energy(v, x), (w,), (w,))[1],
    "hessian": lambda w, x: ag.hessian(lambda v: energy(v, x))(w),
    "jacobian": lambda w, x: ag.jacobian(lambda v: np.tanh(x @ v))(w),
    "checkpoint": lambda w, x: ag.grad(lambda v: ag.checkpoint(energy)(v, x))(w),
    "Gauss-Newton": lambda w, x: ag.make_ggnvp(lambda v: np.tanh(x @ v).sum(1), lambda y: (y * y).sum())(w)(w),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, there: Device) -> None:
    w, x = normal(4, 3).astype(float), normal(5, 4, seed=1).astype(float)
    expected = TRANSFORMS[name](w, x)
    moved = there.move(w), there.move(x)
    with there.without_crossings():
        found = TRANSFORMS[name](*moved)
    numpy.testing.assert_allclose(there.values(found), getattr(expected, "array", expected), rtol=1e-12)


def test_recomputed_dropout_repeats_its_mask(there: Device) -> None:
    found = []
    for place in (lambda x: x, there.move):
        ag.random.seed(0)
        drop = nn.Dropout(0.5)
        found.append(ag.grad(lambda z: (ag.checkpoint(lambda y: drop(y * y))(z)).sum())(place(normal(20))))  # noqa: B023
    numpy.testing.assert_array_equal(there.values(found[1]), found[0])


def test_batches_on_a_device(there: Device) -> None:
    """Of host data a batch is moved; a data set of a device's arrays stays there, and only the indices are moved."""
    x, y = normal(7, 3), numpy.arange(7)
    expected = [(a.numpy(), b.numpy()) for a, b in data.DataLoader(data.TensorDataset(x, y), batch_size=3)]
    on_device = data.DataLoader(data.TensorDataset(there.move(x), there.move(y)), batch_size=3)
    with there.without_crossings(moves=True):
        found = [list(loader) for loader in (data.DataLoader(data.TensorDataset(x, y), 3, device="cuda"), on_device)]
    for batches in found:
        for batch, host in zip(batches, expected, strict=True):
            for a, b in zip(batch, host, strict=True):
                numpy.testing.assert_array_equal(there.values(a), b)
    images, key = normal(3, 2, 6, 6), ag.random.Key(0)
    for augment in (data.random_flip, lambda z, k: data.random_crop(z, 4, k, padding=1)):
        numpy.testing.assert_array_equal(there.values(augment(there.move(images), key)), augment(images, key))


def test_labels_and_indices_of_a_device_are_not_looked_at(there: Device) -> None:
    """A read of the indices would make the host wait for the device at each step."""
    with pytest.raises(ag.OptionError, match="num_classes was not given"):
        nn.functional.one_hot(there.move(LABELS))
    with there.without_crossings(moves=True):
        found = nn.functional.one_hot(there.move([0, 2]), 3)
    assert there.values(found).tolist() == [[1, 0, 0], [0, 0, 1]]
