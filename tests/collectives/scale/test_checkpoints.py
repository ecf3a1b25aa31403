"""The scale of values through `checkpoint`: the rules see the operations of the function."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import ScaleError
from collectives import I, R, V
from collectives.scale.walk import Walk

from . import programs
from .programs import RIGHT, WRONG, Loss, serial_gradients
from .test_programs import scale, told

X = numpy.random.default_rng(5).normal(size=(12, 3))


def whole(loss: Loss) -> Loss:
    def of(e: Any) -> Any:
        _ = e.w, e.m  # they are entered outside of the function, which runs twice
        return ag.checkpoint(lambda: loss(e))()

    return of


def nested(loss: Loss) -> Loss:
    def of(e: Any) -> Any:
        _ = e.w, e.m
        return ag.checkpoint(lambda: whole(loss)(e) * 1.0)()

    return of


@pytest.mark.parametrize("form", [whole, nested])
def test_right_programs(form: Any) -> None:
    for name, (loss, serial) in RIGHT.items():
        texts, found = told(form(loss), 3)
        assert texts == [], f"{name}: {texts}"
        for k, g in serial_gradients(serial, 3).items():
            numpy.testing.assert_allclose(found[k], g, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("form", [whole, nested])
def test_wrong_programs(form: Any) -> None:
    for name, row in WRONG.items():
        with scale("error"), pytest.raises(ScaleError) as caught:
            told(form(row.loss), 3)
        for words in row.says:
            assert words in str(caught.value), f"{name}: {words!r} is not in\n{caught.value}"


@pytest.mark.parametrize("name", WRONG)
def test_losses_of_rows_in_a_checkpoint(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums over rows and ranks are outside of the function: with it a program is told as without it."""
    for each in ("sq", "ssq", "features"):
        f = getattr(programs, each)
        monkeypatch.setattr(programs, each, lambda e, f=f: whole(f)(e))
    with scale("error"), pytest.raises(ScaleError):
        told(WRONG[name].loss, 3)


def test_right_losses_of_rows_in_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("sq", "ssq", "features"):
        f = getattr(programs, each)
        monkeypatch.setattr(programs, each, lambda e, f=f: whole(f)(e))
    for name, (loss, _) in RIGHT.items():
        assert told(loss, 3)[0] == [], name


def test_means_in_a_checkpoint() -> None:
    """A mean in the function and the sum over the ranks outside of it, and the division by a number of rows in it."""

    def main(divide: Any) -> None:
        with cc.Mesh(dp=3) as mesh:
            w = ag.Parameter(numpy.ones(3))
            rows = X[int(mesh.axis("dp").rank) :: 3]
            layer = ag.checkpoint(lambda w, x: divide((x @ w) ** 2))
            with ag.Tape() as tape:
                loss = cc.all_reduce(layer(cc.cast(w, "dp", to=R), ag.tensor(rows)), "dp", to=I)
            tape.backward(loss)

    with scale("error"):
        for wrong in (lambda y: y.mean(), lambda y: y.sum() / len(y)):
            with pytest.raises(ScaleError, match=r"3 times too large(.|\n)*of 4 on each rank"):
                cc.run(main, 3, wrong)
        for right in (lambda y: y.sum() / 12, lambda y: y.mean() / cc.current_mesh().axis("dp").size):
            cc.run(main, 3, right)


def test_the_second_run_is_not_counted() -> None:
    """The tapes that are examined are those of the program, whatever its functions compute again."""

    def main() -> list[bool]:
        examined = []
        with cc.Mesh(dp=2):
            w = ag.Parameter(numpy.ones(3))
            layer = ag.checkpoint(lambda x: cc.all_reduce(x * 0.5, "dp", to=R).sum())
            for _ in range(17):
                with ag.Tape() as tape:
                    x = cc.cast(cc.cast(w, "dp", to=R), "dp", to=V)
                    loss = cc.cast(layer(x) + layer(2 * x), "dp", to=I)
                examined.append(bool(tape.recording.scale))
                tape.backward(loss)
        return examined

    assert cc.run(main, 2)[0] == [True] * 8 + [False] * 7 + [True, False]


def test_arrays_are_not_kept() -> None:
    """The walk keeps the nodes of the first run without its arrays, which are what checkpoint saves."""

    def main() -> tuple[bool, int]:
        kept: list[Any] = []

        def layer(x: Any) -> Any:
            y = x * 2.0
            kept.append(weakref.ref(y.array))
            return (y * y).sum()

        with cc.Mesh(dp=2), ag.Tape() as tape:
            x = ag.Parameter(numpy.ones((3, 4)))
            loss = ag.checkpoint(layer)(x)
            gc.collect()
            held = tape.recording.scale, kept[0]() is not None
            tape.backward(loss)
        return isinstance(held[0], Walk), held[1]

    assert cc.run(main, 2) == [(True, False)] * 2
