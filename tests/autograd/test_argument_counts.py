"""Wrong numbers of arguments, of a transform or of a function that is given: a typed error with an example."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import optim
from autograd.errors import ArgumentError

X = numpy.array([1.0, 2.0])


def cube(x: Any) -> Any:
    return (x**3).sum()


@pytest.mark.parametrize("transform", [ag.hvp, ag.jvp])
def test_a_transform_that_is_called_like_grad(transform: Any) -> None:
    with pytest.raises(ArgumentError, match=r"nothing was given.*\n  fix: .vp\(f, \(x,\), \(dx,\)\)"):
        transform(cube)(X, X)
    assert numpy.allclose(transform(cube, (X,), (X,))[1], 6 * X * X if transform is ag.hvp else (3 * X**3).sum())


def parameter() -> ag.Parameter:
    w = ag.Parameter(X)
    with ag.Tape() as tape:
        loss = cube(w)
    tape.backward(loss)
    return w


def test_a_norm_that_takes_no_arguments() -> None:
    w = parameter()
    with pytest.raises(ArgumentError, match=r"norm=.*2 arguments.*\n  fix: def norm\(tensors, norm_type\)"):
        optim.clip_grad_norm_([w], 1.0, norm=lambda: 3.0)
    with pytest.raises(TypeError, match="unsupported operand"):  # an error of the function itself
        optim.clip_grad_norm_([w], 1.0, norm=lambda tensors, norm_type: 1.0 + None)
    optim.clip_grad_norm_([w], 1.0, norm=lambda tensors, norm_type: optim.global_norm(tensors, norm_type))
    assert numpy.isclose(optim.global_norm([w.grad]), 1.0)
