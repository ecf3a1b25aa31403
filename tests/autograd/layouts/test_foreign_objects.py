"""The search for the names of values runs no code of the objects that the caller's variables hold."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from autograd.errors import LayoutError
from autograd.layouts import names
from collectives import R

DUNDERS = (
    "getattribute", "getattr", "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "len", "iter", "next", "contains",
    "getitem", "call", "float", "int", "index", "complex", "str", "repr", "format", "dir", "array", "array_interface",
    "array_struct", "array_function", "array_ufunc", "length_hint", "add", "radd", "sub", "mul", "matmul", "neg",
    "instancecheck", "subclasscheck", "enter", "exit", "reduce", "reduce_ex", "sizeof", "fspath", "bytes", "get",
)  # fmt: skip


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the code of a foreign object has run")


class HostileKind(type):
    pass


class Hostile(metaclass=HostileKind):
    """Every look-up, comparison and conversion of it raises, as does every property."""

    shape = array = layout = _grad = __dict__ = __class__ = property(refuse)  # type: ignore[assignment]


class HostileSlots:
    __slots__ = ("array", "layout")


class HostileList(list):  # type: ignore[type-arg]
    __iter__ = __getitem__ = __len__ = refuse  # type: ignore[assignment]


class Holder:
    """A plain object of the program, whose attributes are searched."""

    def __init__(self, **values: Any):
        self.__dict__.update(values)


for _name in DUNDERS:
    type.__setattr__(Hostile, f"__{_name}__", refuse)
for _name in ("getattribute", "getattr", "eq", "ne", "hash", "bool", "iter", "instancecheck", "subclasscheck", "repr"):
    type.__setattr__(HostileKind, f"__{_name}__", refuse)

everywhere = object.__new__(Hostile)  # among the globals


def test_no_search_touches_a_foreign_object() -> None:
    one, slots, several = object.__new__(Hostile), HostileSlots(), HostileList([1])
    held: Any = Holder(x=everywhere)
    kind, mixed = Hostile, [everywhere, 1, (everywhere,)]
    array = numpy.arange(6.0).reshape(2, 3)
    x = ag.tensor(array)
    w = ag.Parameter(numpy.arange(6.0).reshape(2, 3))
    with ag.Tape() as tape:
        loss = (w * w).sum()
    tape.backward(loss)
    holder = Holder(w=w, other=everywhere)
    model = nn.Sequential(nn.BatchNorm1d(3))
    assert names.name_of(x) == "x" and names.name_of(w.grad) == "w.grad"
    assert names.name_of(holder.w) == "w" and names.name_of(ag.tensor(array.T)) in ("x.T", "x")
    assert names.owner_of(w.array[:]) == "w" and names.variable_of(array) == "array"
    assert names.view_of(ag.tensor(w.array.reshape(3, 2)))[0] == "w"
    assert names.slice_of(ag.tensor(w.array[:1]), 0, 2) == ("", None)
    assert names.parameters_beside("model.w") == list(model.parameters())
    assert names.parameters_beside("one.w") == names.parameters_beside("held.w") == []
    assert names.global_extent("dp", 2) and names.name_of(ag.tensor([1.0]), "one") == "ag.tensor([1.0])"
    assert names.parameter_of(ag.tensor(w.array.reshape(3, 2))) == "holder.w"
    del one, slots, several, held, kind, mixed


def test_a_layout_error_beside_foreign_objects() -> None:
    def program() -> str:
        mine = [object.__new__(Hostile), Holder(x=everywhere)]
        one, held = mine
        with cc.Mesh(dp=2), pytest.raises(LayoutError) as caught:
            w = ag.Parameter(numpy.ones(3))
            w * ag.tensor(numpy.ones(3))
        return str(caught.value)

    assert all("multiply(w: f64[3] {dp: I}, " in text for text in cc.run(program, 2))


def test_a_property_that_warns() -> None:
    """torch's Tensors warn where `.grad` of a result is read."""

    class Warns:
        @property
        def _grad(self) -> Any:
            warnings.warn("read", stacklevel=1)

        array = layout = _grad

    def program() -> None:
        theirs = Warns()
        with cc.Mesh(dp=1), pytest.raises(LayoutError):
            cc.all_reduce(ag.tensor(numpy.ones(3), {"dp": R}), "dp")
        del theirs

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cc.run(program, 1)


def test_a_value_that_is_still_being_sent_is_not_waited_for() -> None:
    """An error on one rank must not wait for another one."""

    def program() -> bool:
        with cc.Mesh(dp=2) as mesh:
            if mesh.axis("dp").rank == 0:
                later = cc.irecv("dp", 1, like=numpy.ones(3))
                with pytest.raises(LayoutError):
                    cc.all_reduce(ag.tensor(numpy.ones(3), {"dp": R}), "dp")
                was_pending = not later.test()
                cc.send(numpy.ones(1), "dp", 1)
                return was_pending and later.numpy().tolist() == [1.0, 2.0, 3.0]
            cc.recv("dp", 0)
            cc.isend(numpy.array([1.0, 2.0, 3.0]), "dp", 0).wait()
            return True

    assert cc.run(program, 2) == [True, True]


LAYERS = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), (4, 3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (2, 3, 2, 2)),
    "GroupNorm": (lambda: nn.GroupNorm(1, 3), (2, 3, 2)),
    "LayerNorm": (lambda: nn.LayerNorm(3), (2, 3)),
    "Linear": (lambda: nn.Linear(3, 2), (2, 3)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_of_varying_data_names_its_parameter(layer: str) -> None:
    """Also where the layer has reshaped it, and in a list of modules."""
    make, shape = LAYERS[layer]

    def program() -> tuple[str, str]:
        with cc.Mesh(dp=2):
            x = ag.tensor(numpy.random.default_rng(cc.world().index).normal(size=shape).astype("f4"))
            m = make()
            with ag.Tape(), pytest.raises(LayoutError) as alone:
                y = m(x)
            model = nn.Sequential(nn.Identity(), make())
            del m
            with ag.Tape(), pytest.raises(LayoutError) as listed:
                y = model(x)  # noqa: F841 - the name of a result, which is not the operand's
            return str(alone.value), str(listed.value)

    for alone, listed in cc.run(program, 2):
        assert "m.weight: f32[" in alone and "\n  fix: cast(m.weight, 'dp', to=R)" in alone
        assert "or:  call the model through DataParallel(model, 'dp')" in alone
        assert "1.weight: f32[" in listed and "y: f32" not in listed
