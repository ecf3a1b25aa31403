"""Substitution: a module computes with other values on one thread, and is itself unchanged for all to see."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
from autograd import nn
from autograd.errors import OptionError
from autograd.nn.substitution import VALUES, interceptable, intercepted, substitutable, substituted


class Twice(nn.Module):
    """It reads its parameter twice, through itself and through functions that hold `self`."""

    scale: Any = None

    def __init__(self) -> None:
        self.weight = ag.Parameter([2.0])
        self.by_method = self.product
        self.by_function = lambda x: x * self.weight
        self.during: Callable[[], None] = lambda: None

    def product(self, x: Any) -> Any:
        return x * self.weight

    def forward(self, x: Any) -> Any:
        self.during()
        first = x * self.weight
        return first + self.by_method(x) + self.by_function(x) + x * self.weight


class Below(Twice):
    weight: Any = None  # hides a property of the class above

    def forward(self, x: Any) -> Any:
        return -super().forward(x)


def prepared(kind: type[Twice] = Twice) -> tuple[Twice, Any]:
    module = kind()
    for _, owner, name, _ in module.named_owners():
        substitutable(owner, name)
    return module, vars(module)["weight"]


def run_with(module: Twice, p: Any, value: float, x: float = 1.0) -> float:
    with substituted({p: ag.tensor([value])}):
        return float(module(ag.tensor([x])).item())


def test_every_read_on_the_thread_gets_the_value() -> None:
    module, p = prepared()
    assert run_with(module, p, 5.0) == 20.0
    assert module(ag.tensor([1.0])).item() == 8.0 and module.weight is p


def test_two_threads_run_one_module_with_different_parameters_at_once() -> None:
    module, p = prepared()
    both, found, before = threading.Barrier(3), {}, dict(vars(module))

    def during() -> None:
        if threading.current_thread() in ranks:
            both.wait()
            both.wait()

    module.during = before["during"] = during

    def rank(value: float) -> None:
        found[value] = run_with(module, p, value)

    ranks = [threading.Thread(target=rank, args=(value,)) for value in (3.0, 7.0)]
    for thread in ranks:
        thread.start()
    both.wait()  # both are inside their forward
    assert module.weight is p and vars(module) == before and id(module.weight) == id(p)
    assert module(ag.tensor([1.0])).item() == 8.0
    assert [q for _, q in module.named_parameters()] == [p]
    both.wait()
    for thread in ranks:
        thread.join()
    assert found == {3.0: 12.0, 7.0: 28.0}


def test_an_exception_leaves_the_module_as_it_was() -> None:
    module, p = prepared()
    before = dict(vars(module))

    def fail() -> None:
        raise OSError("no data")

    module.during = before["during"] = fail
    with pytest.raises(OSError, match="no data"):
        run_with(module, p, 5.0)
    assert VALUES.get() is None and vars(module) == before and module.weight is p


def test_copies_and_pickles_made_during_a_run_have_the_parameter() -> None:
    module, p = prepared()
    made: list[Any] = []

    def during() -> None:
        linear = nn.Linear(2, 1)
        substitutable(linear, "weight")
        with substituted({linear.weight: ag.tensor([[0.0], [0.0]])}):
            assert np.array_equal(linear.weight.numpy(), [[0.0], [0.0]])
            made.extend([copy.copy(module), copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))])
            made.append(linear)

    module.during = during
    run_with(module, p, 5.0)
    assert vars(made[0])["weight"] is p
    for each in made[1:3]:
        assert isinstance(each.weight, ag.Parameter) and np.array_equal(each.weight.numpy(), made[3].weight.numpy())


def test_blocks_nest_and_a_run_in_a_run_has_its_own_values() -> None:
    module, p = prepared()
    inner: list[float] = []

    def during() -> None:
        module.during = lambda: None
        inner.append(run_with(module, p, 1.0))

    module.during = during
    assert run_with(module, p, 5.0) == 20.0 and inner == [4.0]
    assert VALUES.get() is None


def test_a_forward_that_assigns_to_its_parameter_is_refused() -> None:
    module, p = prepared()
    module.during = lambda: setattr(module, "weight", module.weight * 0.5)
    with substituted({p: ag.tensor([5.0])}), pytest.raises(OptionError) as found:
        module(ag.tensor([1.0]))
    assert "test_substitution.py" in str(found.value)
    assert "Twice: self.weight, which holds a parameter, was replaced" in str(found.value)
    assert "fix: weight = self.weight" in str(found.value)
    assert module.weight is p and vars(module)["weight"] is p


def test_a_forward_that_deletes_its_parameter_is_refused() -> None:
    module, p = prepared()
    module.during = lambda: delattr(module, "weight")
    with substituted({p: ag.tensor([5.0])}), pytest.raises(OptionError, match="which holds a parameter, was deleted"):
        module(ag.tensor([1.0]))
    assert module.weight is p


def test_to_assign_the_value_that_is_there_changes_nothing() -> None:
    module, p = prepared()
    module.during = lambda: setattr(module, "weight", module.weight)
    assert run_with(module, p, 5.0) == 20.0 and module.weight is p


def test_another_thread_may_assign_meanwhile() -> None:
    module, p = prepared()
    new = ag.Parameter([1.0])

    def during() -> None:
        thread = threading.Thread(target=lambda: setattr(module, "weight", new))
        thread.start()
        thread.join()

    module.during = during
    with substituted({p: ag.tensor([5.0])}):
        module(ag.tensor([1.0]))
    assert module.weight is new


def test_values_that_can_be_no_key_are_read_and_assigned() -> None:
    module, p = prepared()
    other = Twice()
    other.weight = [1.0]
    with substituted({p: ag.tensor([5.0])}):
        assert other.weight == [1.0]
        other.weight = [2.0]
        del other.weight
        assert not hasattr(other, "weight")


def test_outside_of_a_run_the_attribute_is_an_ordinary_one() -> None:
    module, _ = prepared()
    module.weight = ag.Parameter([1.0])
    assert module(ag.tensor([1.0])).item() == 4.0
    del module.weight
    with pytest.raises(AttributeError, match="'Twice' object has no attribute 'weight'"):
        _ = module.weight
    assert not hasattr(module, "weight")


def test_classes_below_and_values_of_the_class() -> None:
    prepared()
    module, p = prepared(Below)
    assert run_with(module, p, 5.0) == -20.0
    substitutable(module, "scale")
    assert module.scale is None and Below().scale is None  # the value of the class
    del vars(module)["weight"]
    assert module.weight is None


def test_the_property_of_a_class_can_be_pickled() -> None:
    """As cloudpickle does with a class of a notebook, and all its attributes."""
    module, p = prepared(Below)
    made = pickle.loads(pickle.dumps(vars(Below)["weight"]))
    with substituted({p: 5}):
        assert made.__get__(module) == 5
    assert made.__get__(module) is p
    del vars(module)["weight"]
    assert made.__get__(module) is None


def test_a_keyed_list_finds_its_modules_after_a_missing_attribute() -> None:
    heads = nn.ModuleDict({"weight": nn.Linear(1, 1)})
    substitutable(heads, "weight")
    assert heads.weight is heads["weight"]


def test_a_method_is_intercepted_on_one_thread_and_super_is_not() -> None:
    outer, inner = Below(), Twice()
    for module in (outer, inner):
        interceptable(module)
    assert type(outer).forward is not type(inner).forward and callable(type(outer).forward)
    calls: list[str] = []

    def call(x: Any) -> Any:
        calls.append("outer")
        return type(outer).forward(outer, x)

    x, elsewhere = ag.tensor([1.0]), []
    with intercepted({id(outer): call}):
        assert outer(x).item() == -8.0 and inner(x).item() == 8.0
        thread = threading.Thread(target=lambda: elsewhere.append(outer(x).item()))
        thread.start()
        thread.join()
    assert calls == ["outer"] and elsewhere == [-8.0] and "forward" not in vars(outer)
    assert outer(x).item() == -8.0 and calls == ["outer"]


def test_a_class_that_was_never_substituted_has_no_property() -> None:
    class Fresh(nn.Module):
        def __init__(self) -> None:
            self.weight = ag.Parameter([1.0])

    Fresh()
    assert "weight" not in vars(Fresh)
