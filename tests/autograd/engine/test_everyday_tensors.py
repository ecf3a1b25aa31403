"""What users of NumPy and torch do with Tensors without thinking of it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn, optim
from collectives import I, P, R, Shard


def trained() -> tuple[ag.Parameter, ag.Tensor, ag.Tape]:
    w = ag.Parameter([1.0, 2.0], name="w")
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss)
    return w, loss, tape


def test_formats() -> None:
    _, loss, _ = trained()
    assert f"{loss:.4f}" == "5.0000" and f"{loss:>8.1e}" == " 5.0e+00" and f"{ag.tensor(numpy.int64(3)):03d}" == "003"
    assert f"{loss}" == repr(loss) == "Tensor(5.)"


def test_detach_clone_and_device() -> None:
    w, _, _ = trained()
    assert not w.detach().requires_grad and w.clone() is not w and w.device == "cpu"
    with ag.Tape() as tape:
        y = (w.clone() * w.detach()).sum()
    w.zero_grad()
    tape.backward(y)
    assert w.grad is not None and w.grad.tolist() == [1.0, 2.0]


def test_an_update_in_place_of_the_data() -> None:
    w, _, _ = trained()
    assert w.grad is not None
    w.data -= 0.25 * w.grad
    assert w.numpy().tolist() == [0.5, 1.0]
    w.data += ag.tensor([1.0, 1.0])
    w.data *= 2
    assert w.numpy().tolist() == [3.0, 4.0] and type(w.data) is numpy.ndarray
    array = numpy.ones(2)
    with pytest.raises(ag.SavedArrayError, match="in place"):
        array += w  # it has a gradient
    with pytest.raises(ag.SavedArrayError, match="in place"):
        array += w * 2.0
    with pytest.raises(ag.RingtapeError, match="in place"):
        array += ag.tensor(numpy.ones((3, 2)))
    with pytest.raises(ag.RingtapeError, match="in place"):
        numpy.ones(2, int).__iadd__(ag.tensor(numpy.ones(2)))


def test_an_update_in_place_where_a_tape_needs_the_value() -> None:
    w, _, _ = trained()
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss, retain=True)
    assert w.grad is not None
    before = w.numpy().tolist()
    with pytest.raises(ag.RingtapeError, match="that a tape still needs"):
        w.data -= 0.1 * w.grad
    assert w.numpy().tolist() == before


def test_updates_of_replicated_parameters_need_the_sum() -> None:
    def program() -> tuple[str, Any]:
        with cc.Mesh(dp=2) as mesh:
            x = cc.from_local(numpy.full((1, 2), 1.0 + mesh.axis("dp").rank), {"dp": Shard(0)})
            w = ag.Parameter([1.0, 1.0], {"dp": I})
            r = ag.Parameter([1.0, 1.0], {"dp": R})
            with ag.Tape() as tape:
                loss = cc.all_reduce((x @ cc.cast(w, "dp", to=R)).sum() + (x @ r).sum(), "dp", to=I)
            tape.backward(loss)
            assert w.grad is not None and r.grad is not None
            assert f"{loss:.1f}" == "12.0" and loss.item() == 12.0
            w.data -= 0.5 * w.grad
            with pytest.raises(ag.LayoutError, match="Partial.*addend"):
                r.data -= 0.5 * r.grad
            with pytest.raises(ag.LayoutError, match="addend"):
                (x @ r).sum().item()
            return repr(w), r.tolist()

    assert cc.run(program, 2) == [("Parameter([-0.5, -0.5], layout={dp: I})", [1.0, 1.0])] * 2


def test_reprs() -> None:
    w, loss, tape = trained()
    assert repr(w) == "Parameter([1., 2.], name='w')"
    assert repr(ag.tensor(numpy.ones(2, "float32"))) == "Tensor([1., 1.], dtype=float32)"
    assert repr(tape) == "<Tape, released, 0 operations>" and repr(ag.Tape()) == "<Tape, not entered>"
    assert repr(optim.SGD([w], lr=0.1)).startswith("SGD(1 parameter")
    assert "..." in repr(ag.tensor(numpy.ones((100, 100)))) and len(repr(ag.tensor(numpy.ones((100, 100))))) < 400

    def program() -> list[str]:
        with cc.Mesh(dp=2, tp=1) as mesh:
            x = ag.tensor(numpy.ones(2), {"dp": P, "tp": I})
            part = cc.from_local(numpy.ones((1, 2), "float32"), {"dp": Shard(0), "tp": R})
            return [repr(mesh), repr(mesh.axis("dp")), repr(x), repr(part)]

    assert cc.run(program, 2)[1] == [
        "Mesh(dp=2, tp=1)",
        "Axis(dp, rank 1 of 2)",
        "Tensor(this rank's addend: [1., 1.], layout={dp: P, tp: I})",
        "Tensor([[1., 1.]], dtype=float32, layout={dp: Shard(0), tp: R}, global_shape=(2, 2))",
    ]


COPIES = [
    pytest.param(lambda x: pickle.loads(pickle.dumps(x)), id="pickle"),
    pytest.param(copy.deepcopy, id="deepcopy"),
]


@pytest.mark.parametrize("copied", COPIES)
def test_copies(copied: Any) -> None:
    w, loss, _ = trained()
    assert w.grad is not None
    for x in (w, loss, w.grad, ag.tensor([1.0], requires_grad=True), ag.constant([2.0])):
        y = copied(x)
        assert type(y) is type(x) and repr(y) == repr(x)
        assert x is loss or (y is not x and y.requires_grad == x.requires_grad)  # a copy would lose the gradient
    for operation in (np.sin, np.sum, np.matmul, np.where, np.linalg.inv, np.fft.fft, nn.relu):
        assert copied(operation) is operation
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    other = copied(model)
    assert repr(other) == repr(model) and other[0].weight is not model[0].weight
    numpy.testing.assert_array_equal(other(numpy.ones((1, 2))).numpy(), model(numpy.ones((1, 2))).numpy())


@pytest.mark.parametrize("copied", COPIES)
def test_copies_of_values_with_labels(copied: Any) -> None:
    def program() -> str:
        with cc.Mesh(dp=2):
            x = cc.from_local(numpy.ones((1, 2)), {"dp": Shard(0)})
            y = copied(x)
            assert y.layout is x.layout
            return repr((y + x).sum())

    assert cc.run(program, 2) == ["Tensor(this rank's addend: 4., layout={dp: P})"] * 2
