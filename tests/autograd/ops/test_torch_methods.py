"""Methods of torch's tensors: their values are NumPy's, and gradients flow through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd.errors import ArgumentError, ShapeError

A = numpy.arange(24.0).reshape(2, 3, 4)
MASK = A % 3 == 0
CASES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "view": (lambda x: x.view(6, -1), A.reshape(6, 4)),
    "view of a tuple": (lambda x: x.view((4, 6)), A.reshape(4, 6)),
    "permute": (lambda x: x.permute(2, 0, 1), A.transpose(2, 0, 1)),
    "permute by a tuple": (lambda x: x.permute((1, 0, 2)), A.transpose(1, 0, 2)),
    "transpose": (lambda x: x.transpose(1, 2), A.swapaxes(1, 2)),
    "transpose from the end": (lambda x: x.transpose(-2, -1), A.swapaxes(1, 2)),
    "unsqueeze": (lambda x: x.unsqueeze(-1), A[..., None]),
    "split by a size": (lambda x: x.split(3, dim=2)[1], A[..., 3:]),
    "split by sizes": (lambda x: x.split([1, 2], 1)[1], A[:, 1:]),
    "chunk": (lambda x: x.chunk(3, dim=-1)[1], A[..., 2:4]),
    "masked_fill": (lambda x: x.masked_fill(MASK, -numpy.inf), numpy.where(MASK, -numpy.inf, A)),
    "contiguous": (lambda x: x.contiguous(), A),
    "detach": (lambda x: x.detach(), A),
    "clone": (lambda x: x.clone(), A),
}


@pytest.mark.parametrize("name", CASES)
def test_a_method_is_torchs(name: str) -> None:
    call, wanted = CASES[name]
    x = ag.Parameter(A)
    with ag.Tape() as tape:
        y = call(x)
        assert (ag.stop_gradient(y).numpy() == wanted).all() and y.shape == wanted.shape
        used = (ag.stop_gradient(y).numpy() != -numpy.inf) * 2.0
        loss = (y.masked_fill(used == 0, 0.0) * used).sum() + 0.0 * x.sum()
    tape.backward(loss)
    counted = numpy.isin(A, wanted) * 2.0 * (name != "detach")
    assert x.grad is not None and (x.grad.numpy() == counted).all()


def test_the_rest() -> None:
    x = ag.tensor(A)
    assert (x.dim(), x.numel()) == (3, 24)
    assert [part.shape[2] for part in x.split(3, 2)] == [3, 1] and [p.shape[2] for p in x.chunk(3, 2)] == [2, 2]
    assert ag.tensor(A[0]).transpose((0, 1)).shape == (3, 4)  # NumPy's: these axes in this order
    for call, kind, text in (
        (lambda: x.view("float32"), ShapeError, "view|shape"), (lambda: x.view(3.5), ArgumentError, "view"),
        (lambda: x.split([1, 1], 1), ShapeError, "sizes"), (lambda: x.split(0), ShapeError, "size of 0"),
        (lambda: x.chunk(0), ShapeError, "0 parts"), (lambda: x.split(1.5), ArgumentError, "size 1.5"),
        (lambda: x.split(2, 5), ShapeError, "dim|axis"),
    ):  # fmt: skip
        with pytest.raises((kind, ArgumentError), match=text):
            call()
