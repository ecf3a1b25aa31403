"""What `repr` shows of tensors and tapes, and the methods of torch's tensors that need no other name here."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from collectives import P, R, Shard


def test_repr_shows_what_the_elements_do_not() -> None:
    assert repr(ag.tensor([1.0, 2.0])) == "Tensor([1., 2.])"
    assert repr(ag.tensor(numpy.ones(1, "f"))) == "Tensor([1.], dtype=float32)"
    assert repr(ag.Parameter([1.0], name="w")) == "Parameter([1.], name='w')"

    def program() -> list[str]:
        with cc.Mesh(dp=2):
            x = cc.shard(ag.tensor(numpy.arange(3.0), {"dp": R}), "dp")
            unagreed = ag.tensor(numpy.ones(2), {"dp": Shard(0)})
            return [repr(x), repr(unagreed), repr(ag.tensor(numpy.ones(1), {"dp": P}))]

    assert cc.run(program, 2)[1] == [
        "Tensor([2.], layout={dp: Shard(0)}, global_shape=(3,))",
        "Tensor([1., 1.], layout={dp: Shard(0)})",
        "Tensor(this rank's addend: [1.], layout={dp: P})",
    ]


def test_repr_of_a_tape() -> None:
    w, tape = ag.Parameter([1.0]), ag.Tape()
    assert repr(tape) == "<Tape, not entered>"
    with tape:
        y = w * 2.0
        assert repr(tape) == "<Tape, recording, 1 operations>"
    assert repr(tape) == "<Tape, recorded, 1 operations>"
    tape.backward(y, numpy.ones(1))
    assert repr(tape) == "<Tape, released, 0 operations>"


def test_detach_and_clone() -> None:
    w = ag.Parameter([2.0])
    with ag.Tape() as tape:
        y = (w.clone() * w.detach()).sum()
    tape.backward(y)
    assert w.grad is not None and w.grad.item() == 2.0
    copy: Any = w.clone()
    w.data -= 1.0
    assert copy.numpy().tolist() == [2.0] and w.numpy().tolist() == [1.0]


@pytest.mark.parametrize("x", [ag.tensor([1.0]), ag.tensor(1.0)])
def test_device(x: Any) -> None:
    assert x.device == "cpu"
