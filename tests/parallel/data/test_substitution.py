"""A module is not changed while a model runs it: another thread that looks at it finds the parameters."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import autograd as ag
import collectives as cc
from autograd import nn, random
from autograd.errors import OptionError
from parallel import DataParallel, Sequence, parallelize


class Watched(nn.Module):
    """A layer that calls `during` inside its forward."""

    def __init__(self, during: Any, key: int):
        self.inner, self.during = nn.Linear(3, 3, key=random.Key(key), dtype=float), during

    def forward(self, x: Any) -> Any:
        self.during(self)
        return self.inner(x)


def shown(module: nn.Module) -> list[tuple[int, str, int]]:
    """What `vars` has for each parameter and method of a module and those below, by identity."""
    return [(id(m), name, id(x)) for m in module.modules() for name, x in vars(m).items()]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_unchanged_during_a_call_and_after_an_error(zero: int, fails: bool) -> None:
    def program() -> list[bool]:
        found: list[bool] = []
        seen: list[Any] = []

        def during(layer: Any) -> None:
            thread = threading.Thread(target=lambda: found.append(shown(net) == seen[0]))
            thread.start()
            thread.join()
            found.append(not isinstance(layer.inner.weight, ag.Parameter))  # here it has entered
            if fails and layer is net[1]:
                raise OSError("no data")

        net = nn.Sequential(Watched(during, 0), Watched(during, 1))
        with cc.Mesh(dp=-1) as mesh:
            model = DataParallel(net, "dp", zero=zero)
            seen.append(shown(net))
            x = cc.from_local(np.full((2, 3), 1.0 + mesh.axis("dp").rank), {"dp": cc.Shard(0)})
            with ag.Tape() as tape:
                if fails:
                    with pytest.raises(OSError, match="no data"):
                        model(x)
                else:
                    tape.backward(cc.all_reduce(model(x).sum(), "dp", to=cc.I))
                    found.append(all(p.grad is not None for p in model.parameters()))
        found.append(shown(net) == seen[0])
        return found

    for found in cc.run(program, 2):
        assert all(found) and len(found) == (5 if fails else 6)


def test_the_style_sequence_leaves_its_module_unchanged() -> None:
    found: list[bool] = []

    class Norm(nn.Module):
        def __init__(self) -> None:
            self.weight = ag.Parameter([1.0, 2.0])

        def forward(self, x: Any) -> Any:
            found.append(vars(self)["weight"] is not self.weight and isinstance(vars(self)["weight"], ag.Parameter))
            return x * self.weight * self.weight

    def program() -> np.ndarray:
        with cc.Mesh(tp=-1) as mesh:
            model = parallelize(nn.Sequential(Norm()), {"0": Sequence("tp")})
            rows = np.array([[1.0, 2.0]]) * (1 + mesh.axis("tp").rank)
            with ag.Tape() as tape:
                y = model(cc.from_local(rows, {"tp": cc.Shard(0)}))
                tape.backward(cc.all_reduce(y.sum(), "tp", to=cc.I))
            return model.parameters()[0].grad.numpy()

    for gradient in cc.run(program, 2):
        assert np.allclose(gradient, 2 * np.array([1.0, 2.0]) * np.array([3.0, 6.0]))
    assert found == [True, True]


class Halving(nn.Module):
    """It assigns to its own parameter, if told to."""

    def __init__(self) -> None:
        self.weight = ag.Parameter([[2.0, 3.0], [4.0, 5.0]])
        self.halves = False

    def forward(self, x: Any) -> Any:
        if self.halves:
            self.weight = self.weight * 0.5
        return x * self.weight[0]


def _rows(mesh: Any, axis: str = "dp") -> Any:
    return cc.from_local(np.full((1, 2), 1.0 + mesh.axis(axis).rank), {axis: cc.Shard(0)})


def _called(model: Any, x: Any) -> None:
    with ag.Tape() as tape:
        tape.backward(cc.all_reduce(model(x).sum(), "dp", to=cc.I))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_forward_that_assigns_to_its_parameter_is_refused(zero: int) -> None:
    """It would be lost at the end of the call. In one process it stays."""

    def program() -> tuple[str, bool]:
        net = Halving()
        with cc.Mesh(dp=-1) as mesh:
            model = DataParallel(nn.Sequential(net), "dp", zero=zero)
            x = _rows(mesh)
            _called(model, x)
            net.halves, p = True, vars(net)["weight"]
            with pytest.raises(OptionError) as found:
                _called(model, x)
            net.halves = False
            _called(model, x)
            return str(found.value), net.weight is p

    for text, is_same in cc.run(program, 2):
        assert "Halving: self.weight, which holds a parameter (0.weight), was replaced in a call" in text and is_same
        assert "fix: weight = self.weight" in text and "test_substitution.py" in text


def test_the_style_sequence_refuses_an_assignment_too() -> None:
    def program() -> None:
        net = Halving()
        net.halves = True
        with cc.Mesh(tp=-1) as mesh:
            model = parallelize(nn.Sequential(net), {"0": Sequence("tp")})
            with pytest.raises(OptionError, match="self.weight, which holds a parameter"):
                model(_rows(mesh, "tp"))

    cc.run(program, 2)


def test_a_parameter_that_is_replaced_between_calls_is_refused() -> None:
    def program() -> list[str]:
        found = []
        with cc.Mesh(dp=-1) as mesh:
            x = _rows(mesh)
            for change in (lambda m: setattr(m, "weight", ag.Parameter([[1.0, 1.0]])), lambda m: delattr(m, "weight")):
                net = Halving()
                model = DataParallel(net, "dp")
                _called(model, x)
                p = net.weight
                change(net)
                for _ in range(2):
                    with pytest.raises(OptionError) as error:
                        model(x)
                    found.append(str(error.value))
                net.weight = p
                _called(model, x)
        return found

    for texts in cc.run(program, 2):
        assert len(texts) == 4 and all("another value was assigned to 'weight'" in text for text in texts)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_that_was_called_runs(copied: Any) -> None:
    def program() -> tuple[list[float], list[float], bool]:
        with cc.Mesh(dp=-1) as mesh:
            model = DataParallel(nn.Linear(2, 1, key=random.Key(0), dtype=float), "dp")
            x = _rows(mesh)
            _called(model, x)
            model.zero_grad()
            other = copied(model)
            _called(other, x)
            _called(model, x)
            first, second = ([float(p.grad.numpy().sum()) for p in m.parameters()] for m in (model, other))
            return first, second, model.module is other.module

    for first, second, is_shared in cc.run(program, 2):
        assert first == [n * (2 if is_shared else 1) for n in (6.0, 2.0)]
        assert second == first and is_shared == (copied is copy.copy)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_copy_of_a_divided_model_is_refused(zero: int) -> None:
    def program() -> None:
        with cc.Mesh(dp=-1):
            model = DataParallel(nn.Linear(4, 2), "dp", zero=zero)
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(OptionError, match=rf"zero={zero} was to be copied(.|\n)*fix: .*copy.deepcopy"):
                    copied(model)

    cc.run(program, 2)
