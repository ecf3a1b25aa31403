"""Sequences are [tokens, batch, width] by default, and attention returns a pair, as in torch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn

X = numpy.random.default_rng(0).standard_normal((2, 5, 8))
F: dict[str, Any] = {"dtype": float}


def outputs(made: Any, x: Any, is_batch_first: bool) -> Any:
    ag.random.seed(0)
    y = made(batch_first=is_batch_first)(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("made", [
    lambda **words: nn.MultiheadAttention(8, 2, **F, **words),
    lambda **words: nn.TransformerEncoderLayer(8, 2, 4, dropout=0.0, **F, **words),
    lambda **words: nn.LSTM(8, 3, 2, bidirectional=True, **F, **words),
])  # fmt: skip
def test_the_batch_is_the_second_dimension_by_default(made: Any) -> None:
    wanted = outputs(made, X, True)
    found = outputs(lambda batch_first: made(), X.swapaxes(0, 1), False)
    numpy.testing.assert_allclose(found.numpy().swapaxes(0, 1), wanted.numpy(), rtol=1e-12)
    numpy.testing.assert_allclose(outputs(made, X[0], False).numpy(), wanted.numpy()[0], rtol=1e-12)
    with pytest.raises(ag.ShapeError, match="fix: batch_first=True"):
        outputs(made, X[None], False)


def test_attention_returns_a_pair() -> None:
    attend = nn.MultiheadAttention(8, 2, batch_first=True, **F)
    y, weights = attend(X)  # of a batch of two, the output alone would be taken apart here
    assert y.shape == (2, 5, 8) and weights.shape == (2, 5, 5)
    numpy.testing.assert_allclose(weights.numpy().sum(-1), 1)
    for given in (X,), (X, X), (X, X, X), (X, X.copy(), X.copy()):
        same, none = attend(*given, need_weights=False)
        assert none is None
        numpy.testing.assert_allclose(same.numpy(), y.numpy(), rtol=1e-12)
    assert attend(X, average_attn_weights=False)[1].shape == (2, 2, 5, 5)
    with pytest.raises(ag.ArgumentError, match="batch_first=3 was given; needed: True or False"):
        nn.MultiheadAttention(8, 2, batch_first=3)
