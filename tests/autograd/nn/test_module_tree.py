"""Modules as trees: their submodules and buffers by name, functions of all of them, and what `repr` shows."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import nn
from autograd.errors import RingtapeError


class Net(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Linear(2, 3, bias=False)
        self.blocks = [nn.LayerNorm(3), nn.Dropout(0.1)]
        self.again = self.first

    def forward(self, x: Any) -> Any:
        return self.first(x)


def test_named_modules_has_each_module_once_by_its_first_path() -> None:
    model = nn.Sequential(Net(), nn.ReLU())
    assert [path for path, _ in model.named_modules()] == ["", "0", "0.first", "0.blocks.0", "0.blocks.1", "1"]
    assert [path for path, _ in model.named_modules(prefix="m")][:2] == ["m", "m.0"]
    assert [type(module).__name__ for module in model[0].children()] == ["Linear", "LayerNorm", "Dropout"]
    assert list(model.modules()) == [module for _, module in model.named_modules()]


def test_a_module_that_holds_its_parent_ends_the_walk() -> None:
    model = nn.Sequential(Net(), nn.ReLU())
    model[0].parent = model
    assert [path for path, _ in model.named_modules()] == ["", "0", "0.first", "0.blocks.0", "0.blocks.1", "1"]
    names = ["0.first.weight", "0.blocks.0.weight", "0.blocks.0.bias"]
    assert [name for name, _ in model.named_parameters()] == [*model.state_dict()] == names
    assert [path for path, *_ in model.named_owners()] == [*names, "0.again.weight"], "a tied parameter at each place"


def test_apply_visits_submodules_first() -> None:
    seen: list[str] = []
    model = Net()
    assert model.apply(lambda module: seen.append(type(module).__name__)) is model
    assert seen == ["Linear", "LayerNorm", "Dropout", "Net"]


def test_frozen_parameters_get_no_gradient_and_no_update() -> None:
    model = nn.Sequential(nn.Linear(2, 3, dtype=float).requires_grad_(False), nn.Linear(3, 1, dtype=float))
    optimizer = ag.optim.SGD(model.parameters(), lr=0.1)
    before = [p.numpy().copy() for p in model.parameters()]
    with ag.Tape() as tape:
        loss = (model(numpy.ones((4, 2))) ** 2).sum()
    tape.backward(loss)
    optimizer.step()
    changed = [bool((p.numpy() != b).any()) for p, b in zip(model.parameters(), before, strict=True)]
    assert [p.grad is None for p in model.parameters()] == [True, True, False, False]
    assert changed == [False, False, True, True]


def test_buffers() -> None:
    norm = nn.BatchNorm1d(3)
    assert [b.shape for b in norm.buffers()] == [b.shape for _, b in norm.named_buffers()]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_repr(copied: Any) -> None:
    model = copied(nn.Sequential(nn.Linear(2, 3, dtype=float), Net().first, nn.ModuleDict({"a": nn.ReLU()})))
    assert repr(model) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, dtype=float)\n"
        "  (1): Linear(in_features=2, out_features=3, bias=False)\n"
        "  (2): ModuleDict(\n"
        "    (a): ReLU()\n"
        "  )\n"
        ")"
    )
    assert repr(Net()) == (
        "Net(\n  (first): Linear(in_features=2, out_features=3, bias=False)\n"
        "  (blocks.0): LayerNorm(normalized_shape=3)\n  (blocks.1): Dropout(p=0.1)\n"
        "  (again): Linear(in_features=2, out_features=3, bias=False)\n)"
    )
    weight = numpy.arange(10.0)
    assert repr(nn.CrossEntropyLoss(weight=weight)) == "CrossEntropyLoss()"  # arrays are not shown


def test_the_text_of_a_module_of_the_user() -> None:
    class Scale(nn.Module):
        def extra_repr(self) -> str:
            return "by=2"

    class Wide(nn.Linear):
        def __init__(self, n: int) -> None:
            super().__init__(n, 4 * n)

    assert repr(Scale()) == "Scale(by=2)"
    assert repr(Wide(2)) == "Wide()"


def test_a_dictionary_of_modules() -> None:
    heads = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 1)})
    assert list(heads) == list(heads.keys()) == ["a", "b"] and len(heads) == 2 and "a" in heads and "c" not in heads
    assert [name for name, _ in heads.named_parameters()] == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert list(heads.values()) == [heads["a"], heads["b"]] and dict(heads.items())["b"] is heads["b"]
    removed = heads.pop("a")
    assert isinstance(removed, nn.Linear) and list(heads) == ["b"]
    heads.update([("c", removed)])
    del heads["b"]
    assert list(heads) == ["c"]
    with pytest.raises(RingtapeError, match="needed: a text and a Module"):
        heads["d"] = 3
    with pytest.raises(RingtapeError, match="needed: a text and a Module"):
        nn.ModuleDict({1: removed})
    heads.clear()
    assert len(heads) == 0
