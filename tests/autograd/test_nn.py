"""Modules and losses: what is kept for a loss' adjoint."""

from __future__ import annotations

import numpy
import pytest

import autograd as ag
from autograd import nn


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_what_cross_entropy_keeps_serves_every_backward(reduction: str) -> None:
    rng = numpy.random.default_rng(4)
    w = ag.Parameter(rng.standard_normal((6, 4)))
    labels = numpy.array([0, 3, 1, 1, 0, 2])
    with ag.Tape() as tape:
        loss = nn.cross_entropy(w, labels, reduction=reduction).sum()
    tape.backward(loss, retain=True)
    once = w.grad.numpy().copy()  # type: ignore[union-attr]
    tape.backward(loss)
    numpy.testing.assert_array_equal(w.grad.numpy(), 2 * once)  # type: ignore[union-attr]
    soft = numpy.exp(w.numpy()) / numpy.exp(w.numpy()).sum(axis=1, keepdims=True)
    numpy.testing.assert_allclose(once, soft - numpy.eye(4)[labels], rtol=1e-12, atol=1e-15)
    no_tape = nn.cross_entropy(w.numpy(), labels, reduction=reduction).sum()
    numpy.testing.assert_allclose(no_tape, loss.item(), rtol=1e-14)
