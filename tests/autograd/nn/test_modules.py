"""Modules and losses: what is kept for a loss' adjoint."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import nn
from autograd.errors import DtypeError, RingtapeError, ShapeError
from collectives import I, R


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_what_cross_entropy_keeps_serves_every_backward(reduction: str) -> None:
    rng = numpy.random.default_rng(4)
    w = ag.Parameter(rng.standard_normal((6, 4)))
    labels = numpy.array([0, 3, 1, 1, 0, 2])
    with ag.Tape() as tape:
        loss = nn.cross_entropy(w, labels, reduction=reduction).sum()
    tape.backward(loss, retain=True)
    once = w.grad.numpy().copy()
    tape.backward(loss)
    numpy.testing.assert_array_equal(w.grad.numpy(), 2 * once)
    soft = numpy.exp(w.numpy()) / numpy.exp(w.numpy()).sum(axis=1, keepdims=True)
    numpy.testing.assert_allclose(once, soft - numpy.eye(4)[labels], rtol=1e-12, atol=1e-15)
    no_tape = nn.cross_entropy(w.numpy(), labels, reduction=reduction).sum()
    numpy.testing.assert_allclose(no_tape, loss.item(), rtol=1e-14)


class Parts(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 2)])
        self.norm = nn.BatchNorm1d(2)
        self.more = [nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1, bias=False))]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.more[0](self.norm(x))


NAMES = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "norm.weight", "norm.bias",
         "more.0.1.weight"]  # fmt: skip
BUFFERS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


def test_names_of_parameters_buffers_and_modules() -> None:
    model = Parts()
    assert [name for name, _ in model.named_parameters()] == NAMES
    assert [name for name, _ in model.named_buffers()] == BUFFERS
    assert list(model.state_dict()) == NAMES + BUFFERS
    kinds = [type(m).__name__ for m in model.modules()]
    assert kinds == ["Parts", "ModuleList", "Linear", "Linear", "BatchNorm1d", "Sequential", "Dropout", "Linear"]
    assert len(model.layers) == 2 and [m.weight.shape for m in model.layers] == [(2, 3), (3, 2)]
    assert model.layers.append(nn.ReLU())[2].forward(numpy.array([-1.0]))[0] == 0
    with pytest.raises(RingtapeError, match="item 1"):
        nn.Sequential(nn.ReLU(), numpy.tanh)


def test_training_and_evaluation_reach_everything_below() -> None:
    model, x = Parts(), numpy.random.default_rng(0).standard_normal((8, 2)).astype(numpy.float32)
    assert all(m.training for m in model.modules())
    first = model(x).numpy()
    assert (first != model(x).numpy()).any()  # other elements are dropped, and the averages have moved
    assert model.eval() is model and not any(m.training for m in model.modules())
    seen = model(x).numpy()
    numpy.testing.assert_array_equal(seen, model(x).numpy())
    model.train()
    assert all(m.training for m in model.modules())


def test_a_model_goes_on_where_another_stopped(tmp_path: Any) -> None:
    model, x = Parts(), numpy.random.default_rng(0).standard_normal((8, 2)).astype(numpy.float32)
    model(x)
    nn.save(model, tmp_path / "model.npz")
    other = Parts()
    nn.load(other, tmp_path / "model.npz")
    numpy.testing.assert_array_equal(other.eval()(x).numpy(), model.eval()(x).numpy())
    assert other.norm.num_batches_tracked == 1
    state = model.state_dict()
    with pytest.raises(ShapeError, match="norm.running_var"):
        other.load_state_dict({k: v for k, v in state.items() if k != "norm.running_var"})
    with pytest.raises(ShapeError, match="size mismatch for norm.running_mean"):
        other.load_state_dict({**state, "norm.running_mean": numpy.zeros(3)})


@pytest.mark.parametrize("call", [
    lambda: nn.Embedding(4, 2)(numpy.array([0, 4])), lambda: nn.Embedding(4, 2)(numpy.array([-1])),
    lambda: nn.Conv2d(3, 4, 2, groups=2), lambda: nn.Conv2d(2, 4, 2)(numpy.zeros((1, 3, 5, 5))),
    lambda: nn.Conv2d(2, 4, 6)(numpy.zeros((1, 2, 5, 5))), lambda: nn.Conv2d(2, 4, (2, 2, 2)),
    lambda: nn.Conv2d(2, 4, 2, stride=2, padding="same")(numpy.zeros((1, 2, 5, 5))),
    lambda: nn.MaxPool2d(2, padding=2)(numpy.zeros((1, 2, 5, 5))), lambda: nn.MaxPool2d(2)(numpy.zeros((2, 5, 5))),
    lambda: nn.BatchNorm2d(3)(numpy.zeros((2, 3))), lambda: nn.BatchNorm1d(3)(numpy.zeros((1, 3))),
    lambda: nn.LayerNorm((2, 3))(numpy.zeros((3, 2))),
    lambda: nn.MultiheadAttention(6, 4), lambda: nn.MultiheadAttention(6, 2, rotary=True),
    lambda: nn.mse_loss(numpy.zeros(3), numpy.zeros((3, 1))),
    lambda: nn.l1_loss(numpy.zeros(3), numpy.zeros(3), reduction="all"),
    lambda: nn.nll_loss(numpy.zeros((2, 3)), numpy.array([0, 3])),
    lambda: nn.nll_loss(numpy.zeros((2, 3)), numpy.array([0, 1]), numpy.ones(2)),
])  # fmt: skip
def test_what_does_not_fit_is_refused(call: Any) -> None:
    with pytest.raises(ShapeError):
        call()


def test_rotations_by_ever_other_positions_keep_few_tables_of_angles() -> None:
    attend = nn.SelfAttention(4, rotary=True)
    x = numpy.random.default_rng(0).standard_normal((1, 1, 3, 1, 4))
    first = attend.rotate(x, numpy.array([3]))
    for k in range(200):
        attend.rotate(x, numpy.array([k]))
    assert len(attend._tables) <= 64
    numpy.testing.assert_array_equal(attend.rotate(x, numpy.array([3])), first)


def test_an_index_that_is_no_integer() -> None:
    with pytest.raises(DtypeError, match="integers"):
        nn.Embedding(4, 2)(numpy.array([0.0]))
    with pytest.raises(DtypeError, match="integers"):
        nn.nll_loss(numpy.zeros((2, 3)), numpy.array([0.0, 1.0]))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_norms_over_several_dimensions(name: str, shape: tuple[int, ...]) -> None:
    """The last dimensions together are one dimension: values, gradients, the functional form, and sharded examples."""
    rng = numpy.random.default_rng(0)
    x, ct = rng.standard_normal((2, 5, 2, 3, 4))
    layer = getattr(nn, name)(shape, dtype=float)
    for p in layer.parameters():
        p.data = rng.standard_normal(shape)
    parameters = [p.numpy() for p in layer.parameters()]
    rows = (-1, math.prod(shape))
    plain = ag.ops.layer_norm if name == "LayerNorm" else ag.ops.rms_norm

    def one_dimension(x: Any, *parameters: Any) -> Any:
        return np.reshape(plain(np.reshape(x, rows), *(np.reshape(p, (-1,)) for p in parameters)), x.shape)

    expected, back = ag.vjp(one_dimension, x, *parameters)
    assert numpy.allclose(layer(x).numpy(), expected)
    functional = getattr(nn.functional, "layer_norm" if name == "LayerNorm" else "rms_norm")
    found, pullback = ag.vjp(lambda x, *p: functional(x, shape, *p), x, *parameters)
    assert numpy.allclose(found, expected)
    for g, wanted in zip(pullback(ct), back(ct), strict=True):
        numpy.testing.assert_allclose(g, wanted, rtol=1e-11, atol=1e-13)

    def program() -> Any:
        with cc.Mesh(dp=-1):
            weights = [ag.Parameter(p) for p in parameters]
            with ag.Tape() as tape:
                y = functional(cc.shard(ag.tensor(x, {"dp": R}), "dp"), shape,
                               *(cc.cast(w, "dp", to=R) for w in weights))  # fmt: skip
                loss = cc.all_reduce((y * cc.shard(ag.tensor(ct, {"dp": R}), "dp")).sum(), "dp", to=I)
            tape.backward(loss)
            return [w.grad.numpy() for w in weights]

    for grads in cc.run(program, 3):
        for g, wanted in zip(grads, back(ct)[1:], strict=True):
            numpy.testing.assert_allclose(g, wanted, rtol=1e-11, atol=1e-13)
