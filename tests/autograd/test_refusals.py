"""Refusals that no other test reaches: each is the typed error with the text that names what was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd import errors
from collectives import Shard


def x(*shape: int, dtype: Any = float) -> Any:
    return ag.tensor(numpy.ones(shape or (4,), dtype))


def in_place() -> None:
    w = ag.Parameter(numpy.ones(2), name="w")
    w -= 0.1


def variance(x: Any) -> Any:
    return np.var(x * 1j, dtype=float)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a parameter in place": (in_place, errors.SavedArrayError, "w -= .* not changed in place"),
    "dates": (lambda: x(1) * numpy.array(["2020"], "M8[D]"), errors.DtypeError, "multiply: "),
    "subscripts": (lambda: np.einsum("i1,i1->i", x(2, 2), x(2, 2)), errors.ShapeError, "subscripts 'i1,i1->i'"),
    "two extents": (lambda: np.einsum("ii->i", x(2, 3)), errors.ShapeError, "label 'i' has two extents"),
    "astype of text": (lambda: x().astype("U5"), errors.DtypeError, "dtype <U5 was given"),
    "order, a number": (lambda: np.reshape(x(), (2, 2), order=3), errors.ArgumentError, "order=3"),
    "order, unknown": (lambda: np.reshape(x(), (2, 2), order="Z"), errors.OptionError, "order='Z'"),
    "copy, a string": (lambda: np.reshape(x(), (2, 2), copy="no"), errors.OptionError, "copy='no'"),
    "concatenate, axis": (lambda: np.concatenate([x(), x()], True), errors.ArgumentError, "axis=True"),
    "take, axis": (lambda: np.take(x(2, 2), 0, True), errors.ArgumentError, "axis=True"),
    "variance": (lambda: ag.grad(variance)(numpy.ones(3)), errors.NotDifferentiable, "imaginary part"),
    "clip by one": (lambda: np.clip(x(), 0.0), errors.ArgumentError, "one of a_min and a_max"),
    "clip, out": (lambda: np.clip(x(), 0.0, 1.0, out=numpy.ones(4)), errors.NotDifferentiable, "out"),
    "what learns nothing": (lambda: ag.optim.SGD([x()], lr=0.1), errors.OptionError, "requires no gradient"),
    "a copy that is needed": (lambda: x().__array__(numpy.float32, copy=False), errors.OptionError, "needs a copy"),
    "a singular matrix": (lambda: ag.grad(lambda a: np.linalg.slogdet(a)[1])(numpy.zeros((2, 2))),
                          errors.RingtapeError, "Singular matrix"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_argument_is_refused(name: str) -> None:
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call()


ON_A_MESH: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a part by its extent": (lambda x: x / x.shape[0], ag.LayoutError, r"factor of its own\n.*global_shape"),
    "a negative extent": (
        lambda x: ag.tensor(numpy.ones(4), {"dp": Shard(0)}, global_shape=(-1,)), errors.ShapeError, r"\(-1,\)"),
    "the gradient of an addend": (
        lambda x: ag.grad(lambda w: (x * w).sum())(numpy.ones(())), ag.LayoutError, "misses the sum over the ranks"),
    "an index of the whole": (lambda x: x[6], ag.LayoutError, "getitem mixes along dimension 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_A_MESH)
def test_a_program_on_parts_is_refused(name: str) -> None:
    call, kind, text = ON_A_MESH[name]
    with cc.Mesh(dp=1):
        part = cc.from_local(numpy.ones(4), {"dp": Shard(0)})
        with pytest.raises(kind, match=text):
            call(part)


def test_parts_of_different_dimensions_are_refused_on_all_ranks() -> None:
    def program() -> None:
        with cc.Mesh(dp=2) as mesh, pytest.raises(errors.ShapeError, match="number of dimensions on all ranks"):
            cc.from_local(numpy.ones((2, 3) if mesh.axis("dp").rank else (2,)), {"dp": Shard(0)})

    cc.check("off")
    try:
        cc.run(program, 2)
    finally:
        cc.check("first")
