"""Modules: what a Sequential makes of its steps, and what is kept for a loss' adjoint."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import events, nn, ops


def mlp() -> tuple[nn.Sequential, Any, Any]:
    rng = numpy.random.default_rng(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 3))
    return model, ag.tensor(rng.standard_normal((6, 5)).astype("float32")), numpy.array([0, 2, 1, 1, 0, 2])


def gradients(model: nn.Module, loss: Any) -> list[numpy.ndarray]:
    for p in model.parameters():
        p.zero_grad()
    with ag.Tape() as tape:
        y = loss()
    tape.backward(y)
    return [p.grad.numpy().copy() for p in model.parameters()]  # type: ignore[union-attr]


def test_a_linear_and_its_relu_are_one_step_with_the_gradients_of_two() -> None:
    model, x, labels = mlp()
    modules: Any = model.modules

    def steps(h: Any) -> Any:
        for module in modules:
            h = h @ module.weight + module.bias if isinstance(module, nn.Linear) else ops.relu(h)
        return h

    with ag.Tape() as tape:
        y = model(x)
        nodes = [node[0].name for node in tape.recording.nodes if node is not None]
    assert nodes.count("linear_relu") == 2 and nodes.count("linear") == 1 and nodes.count("relu") == 1
    numpy.testing.assert_array_equal(y.numpy(), steps(x).numpy())
    got = gradients(model, lambda: nn.cross_entropy(model(x), labels, reduction="sum"))
    expected = gradients(model, lambda: nn.cross_entropy(steps(x), labels, reduction="sum"))
    for g, e in zip(got, expected, strict=True):
        numpy.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-6)


def test_a_listener_hears_the_steps() -> None:
    model, x, _ = mlp()
    heard: list[str] = []
    with events.listening(lambda phase, way, name: heard.append(name) if phase == "begin" else None), ag.Tape():
        model(x)
    assert "linear_relu" not in heard and heard.count("relu") == 3 and heard.count("matmul") == 3


@pytest.mark.parametrize("which", [0, 1])
def test_a_forward_of_its_own_is_called(which: int) -> None:
    model, x, _ = mlp()
    model(x)  # paired by now
    module: Any = model.modules[which]
    forward, calls = module.forward, []
    module.forward = lambda h: calls.append(1) or forward(h)
    model(x)
    assert calls == [1]


def test_modules_may_be_a_list_that_changes() -> None:
    model, x, _ = mlp()
    model.modules = list(model.modules)  # type: ignore[assignment]
    model(x)
    model.modules.append(nn.Linear(3, 2))  # type: ignore[attr-defined]
    assert model(x).shape == (6, 2)


def test_a_linear_that_lost_its_bias() -> None:
    model, x, _ = mlp()
    model(x)
    first: Any = model.modules[0]
    first.bias = None
    expected = numpy.maximum(x.numpy() @ first.weight.numpy(), 0)
    numpy.testing.assert_array_equal(nn.Sequential(*model.modules[:2])(x).numpy(), expected)
    assert model(x).shape == (6, 3)


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
