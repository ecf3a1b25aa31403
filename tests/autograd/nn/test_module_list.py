"""`ModuleList` as a list: items are assigned, deleted, inserted and removed as in torch."""

from __future__ import annotations

import numpy
import pytest

import autograd as ag
from autograd import nn


def names(modules: nn.Module) -> list[str]:
    return [name for name, _ in modules.named_parameters()]


def test_items_are_assigned() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(3)])
    new = nn.Linear(2, 5, bias=False)
    layers[-1] = new
    assert layers[2] is new and names(layers) == ["0.weight", "1.weight", "2.weight"]
    assert 5 in layers.parameters()[2].shape
    for i in (3, -4):
        with pytest.raises(ag.PositionError, match=f"index {i} was given; it has 3 modules"):
            layers[i] = new
        with pytest.raises(IndexError):
            layers[i]
    with pytest.raises(ag.RingtapeError, match="item 1 is 3; needed: a Module"):
        layers[1] = 3
    with pytest.raises(ag.RingtapeError, match="item 3 is None; needed: a Module"):
        layers.append(None)
    assert len(layers) == 3


def test_items_are_added_and_removed() -> None:
    a, b, c, d = (nn.Linear(1, 1) for _ in range(4))
    layers = nn.ModuleList([a])
    assert layers.extend([c, d]) is layers
    layers.insert(1, b)
    assert list(layers) == [a, b, c, d]
    assert list(layers[1:3]) == [b, c] and type(layers[1:3]) is nn.ModuleList
    assert layers.pop() is d and layers.pop(0) is a
    del layers[0]
    assert list(layers) == [c]
    layers += [a, b]
    del layers[:2]
    assert list(layers) == [b]


def test_a_layer_of_a_sequential_is_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = numpy.ones((4, 2), numpy.float32)
    assert numpy.array_equal(model[:2](x).numpy(), model[1](model[0](x)).numpy())
    model[2] = nn.Linear(3, 7)
    assert model(x).shape == (4, 7) and names(model) == ["0.weight", "0.bias", "2.weight", "2.bias"]
