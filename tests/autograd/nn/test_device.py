"""Modules, losses and transforms on a device: the values of the CPU, and nothing crosses between host and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn

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
