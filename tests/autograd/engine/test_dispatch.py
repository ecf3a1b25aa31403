"""The core: how much there is to read, and what its one text of dispatch must tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import ops, optim
from autograd.engine.dispatch import source
from autograd.layouts.layout import I, R, V
from autograd.layouts.rank_values import RankFloat, RankInt

FOLDER = Path(ag.__file__).parent
CORE = ("tensor", "tape", "dispatch", "primitive", "layout", "inference")
"""What is read, in this order, to know what happens when an operation is called, in a sweep, and to the labels."""


def test_the_text_of_a_call_is_short_too() -> None:
    """It is generated, and what is generated is to be read when something goes wrong in it.

    Of several operands the way of Tensors and the way of a Tensor beside numbers stand in it, written once.
    """
    for n, free in ((1, ()), (2, ()), (2, (1,)), (2, (0, 1)), (3, (0,))):
        text = source(n, free)
        compile(text, "text", "exec")
        assert len(text.splitlines()) < 80 + 20 * n + (n > 1) * (40 + 10 * n)


def test_numbers_that_differ_between_ranks_have_labels_of_their_own() -> None:
    with cc.Mesh(dp=1):
        for order in (1, -1):
            x = ag.tensor(numpy.ones(3 if order == 1 else 5), {"dp": R}, requires_grad=True)
            numbers = [(2, R), (RankInt(2, ["dp"]), V), (2.0, R), (RankFloat(2.0, ["dp"]), V)]
            for number, label in numbers[::order]:
                for y in (x * number, number * x):
                    assert y.layout == {"dp": label}, (number, label)


@pytest.mark.parametrize("integers_first", [True, False])
def test_a_count_and_a_parameter_have_the_same_label_and_not_the_same_meaning(integers_first: bool) -> None:
    """I of an integer is a constant; I of a parameter does not mix with Varying. Layouts and shapes are the same."""
    n = 4 if integers_first else 6
    with cc.Mesh(dp=1):
        x = ag.tensor(numpy.ones(n), {"dp": V})
        count, w = ag.tensor(numpy.ones(n, int), {"dp": I}), ag.tensor(numpy.ones(n), {"dp": I})

        def integers() -> None:
            assert (x * count).layout == {"dp": V}

        def parameters() -> None:
            with pytest.raises(ag.LayoutError):
                _ = x * w

        for check in (integers, parameters) if integers_first else (parameters, integers):
            check()


def test_a_leaf_used_before_its_mesh_is_labelled_when_it_meets_it() -> None:
    w = ag.Parameter([1.0, 2.0])
    with ag.Tape() as tape:
        before = w * w
        assert before.layout is None and w.layout is None
        with cc.Mesh(dp=1):
            loss = (w * w).sum()
            assert loss.layout == {"dp": I}
            tape.backward(loss)
    assert w.grad is not None and w.grad.array.tolist() == [2.0, 4.0]


def test_one_number_is_a_scalar_and_is_trained_like_any_other() -> None:
    w = ag.Parameter(1.0)
    many = ag.Parameter([1.0])
    for momentum in (0.0, 0.5):
        both = [optim.SGD([p], lr=0.1, momentum=momentum) for p in (w, many)]
        for _ in range(4):
            for p, optimizer in zip((w, many), both, strict=True):
                optimizer.zero_grad()
                with ag.Tape() as tape:
                    loss = (p * p).sum()
                tape.backward(loss)
                optimizer.step()
        assert abs(w.item() - many.item()) < 1e-15
    w.data = 3.0
    assert w.item() == 3.0 and w.shape == ()


def test_any_number_of_operands() -> None:
    xs = [ag.tensor(numpy.full(2, float(i)), requires_grad=True) for i in range(120)]
    with ag.Tape() as tape:
        loss = (np.concatenate(xs) * numpy.arange(240.0)).sum()
    tape.backward(loss)
    for i, x in enumerate(xs):
        assert x.grad is not None and x.grad.array.tolist() == [2.0 * i, 2.0 * i + 1]


def test_what_cannot_be_an_operand_is_left_to_python() -> None:
    x = ag.tensor([1.0, 2.0])
    assert (x == None) is False  # noqa: E711 - the operator is what is asked
    with pytest.raises(TypeError):
        _ = x + None


def test_operands_of_several_dtypes_and_kinds() -> None:
    """Every way into a call ends in the same rules: cotangents have the operand's dtype, values are NumPy's."""
    single, double = numpy.float32([1.5, -2.0]), numpy.float64([0.5, 4.0])
    others: list[Any] = [double, numpy.arange(2), numpy.array([True, False]), 2, 2.5, True, numpy.float64(3.0), 1j]
    for other in others:
        for operation in (ops.add, ops.multiply):
            plain = {ops.add: numpy.add, ops.multiply: numpy.multiply}[operation]
            x = ag.tensor(single.copy(), requires_grad=True)
            with ag.Tape() as tape:
                y = operation(x, other)
                z = operation(other, x)
            expected = plain(single, other)
            assert y.dtype == z.dtype == expected.dtype and numpy.array_equal(y.numpy(), expected), other
            assert numpy.array_equal(z.numpy(), expected)
            tape.backward(y, numpy.ones(2, y.dtype))
            assert x.grad is not None and x.grad.array.dtype == numpy.float32
