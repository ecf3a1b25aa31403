"""Refusals of wrong arguments, each of which one raise makes."""

from __future__ import annotations

import numpy
import pytest

import autograd as ag
import autograd.numpy as np


def test_an_argument_that_only_numpy_has_is_refused() -> None:
    x = ag.tensor(numpy.ones(2))
    with pytest.raises(ag.RingtapeError, match="full_like.*device"):
        numpy.full_like(x, 1.0, device="cpu")


def test_indices_of_take_are_integers() -> None:
    with pytest.raises(ag.ArgumentError, match="take: indices of float64 were given; indices must be of integers"):
        np.take(ag.tensor(numpy.ones(3)), numpy.array([0.0, 1.0]))


@pytest.mark.parametrize("given", [numpy.ones(2), ag.tensor(numpy.ones(2))], ids=["an array", "a Tensor"])
def test_a_positional_argument_too_many_is_refused(given: object) -> None:
    with pytest.raises(ag.ArgumentError, match="exp: 1 operands are needed; also given: ndarray"):
        np.exp(given, numpy.ones(2))
