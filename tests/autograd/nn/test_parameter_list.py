"""`ParameterList`, and parameters in containers that a module does not see, which are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, optim
from autograd.errors import ArgumentError, PositionError
from parallel import DataParallel


def made(value: float = 1.0) -> ag.Parameter:
    return ag.Parameter(np.full(2, value))


class Powers(nn.Module):
    """The product of its input with all weights."""

    def __init__(self, weights: Any):
        self.weights = weights

    def forward(self, x: Any) -> Any:
        for w in self.weights:
            x = x * w
        return x


def test_as_a_list() -> None:
    a, b, c = made(), made(2.0), made(3.0)
    found = nn.ParameterList([a])
    assert found.append(b) is found and len(found) == 2
    found += [c]
    assert list(found) == [a, b, c] and found[-1] is c and list(found[1:]) == [b, c]
    assert [name for name, _ in Powers(found).named_parameters()] == ["weights.0", "weights.1", "weights.2"]
    found[0] = c
    assert found[0] is c and len(found.parameters()) == 2
    for i in (3, -4):
        with pytest.raises(PositionError, match=f"index {i} was given; it has 3 parameters"):
            found[i]
    with pytest.raises(ArgumentError, match=r"item 3 is 1\.0; needed: a Parameter"):
        found.append(1.0)  # type: ignore[arg-type]
    assert len(found) == 3


def test_its_gradients_are_summed_over_the_ranks() -> None:
    """Where the parameters enter a parallel call, items and iteration give what entered."""

    def program() -> Any:
        with cc.Mesh(dp=-1) as mesh:
            n, rank = int(mesh.ranks.size), int(mesh.ranks.rank)
            model = DataParallel(Powers(nn.ParameterList([made(), made(2.0)])), "dp")
            x = ag.tensor(np.full(2, 1.0 + rank), {"dp": cc.V})
            with ag.Tape() as tape:
                loss = cc.all_reduce(model(x).sum(), "dp", to=cc.I)
            tape.backward(loss)
            return n, [p.grad.numpy().tolist() for p in model.parameters()]

    for ranks in (1, 3):
        for n, gradients in cc.run(program, ranks):
            total = n * (n + 1) / 2
            assert gradients == [[2 * total] * 2, [total] * 2]


def test_it_is_saved_and_loaded(tmp_path: Any) -> None:
    first, second = Powers(nn.ParameterList([made(5.0), made(6.0)])), Powers(nn.ParameterList([made(), made()]))
    nn.save(first, tmp_path / "x.npz")
    nn.load(second, tmp_path / "x.npz")
    assert [p.numpy()[0] for p in second.parameters()] == [5.0, 6.0]


UNSEEN: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: [made(), made()], r"self\.weights\[0\] is a Parameter.*fix: self\.weights = nn\.ParameterList"),
    "a tuple": (lambda: (made(),), r"self\.weights\[0\] is a Parameter.*nn\.ParameterList\(self\.weights\)"),
    "a dict": (lambda: {"a": made()}, r"self\.weights\['a'\] is a Parameter.*setattr\(self, name, parameter\)"),
    "lists of lists": (lambda: [[made()], [made()]], r"self\.weights\[0\]\[0\] is a Parameter"),
    "a dict of modules": (lambda: {"a": nn.Linear(2, 2)}, r"self\.weights\['a'\] is the module Linear.*ModuleDict\("),
    "modules in lists in a list": (lambda: [[nn.Linear(2, 2)]], r"self\.weights\[0\]\[0\] is the module Linear"),
    "a dict in a module in a dict": (lambda: {"a": Powers({"b": made()})}, r"self\.weights\['b'\] is a Parameter"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_parameters_that_are_not_seen_are_refused(name: str) -> None:
    value, says = UNSEEN[name]
    for model in (Powers(value()), nn.Sequential(nn.Linear(2, 2), Powers(value()))):
        with pytest.raises(ArgumentError, match="(?s)Powers: " + says):
            optim.SGD(model.parameters(), lr=0.1)
        with cc.Mesh(dp=1), pytest.raises(ArgumentError, match="(?s)Powers: " + says):
            DataParallel(model, "dp").parameters()


def test_each_fix_ends_in_a_model_that_sees_them() -> None:
    model = Powers([made(), made()])
    model.weights = nn.ParameterList(model.weights)
    assert len(model.parameters()) == 2
    model = Powers({"a": nn.Linear(2, 2)})
    model.weights = nn.ModuleDict(model.weights)
    assert len(model.parameters()) == 2
    model = Powers([made()])
    model.weights[0].requires_grad = False
    assert model.parameters() == []
    model = Powers([[nn.Linear(2, 2)]])
    model.weights[0][0].requires_grad_(False)
    assert model.parameters() == []
    model = Powers({"a": made()})
    for key, p in model.weights.items():
        setattr(model, key, p)
    assert len(model.parameters()) == 1


def test_references_to_parameters_that_are_seen_are_allowed() -> None:
    model = Powers([])
    model.scale = made()
    model.weights = [model.scale]
    model.table = {"scale": model.scale, "rates": [1.0, 2.0]}
    model.layers = [nn.Linear(2, 2)]
    model.by_name = {"first": model.layers[0]}
    assert len(model.parameters()) == 3
