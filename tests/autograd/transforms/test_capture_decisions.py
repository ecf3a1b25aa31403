"""Captured steps that decide on values, with branches, loops, searches and early ends, have the bits of the step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import optim, random

Made = tuple[Callable[[Any], Any], Any]
STEPS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {}


def decides(make: Callable[[Any], Callable[[Any], Any]]) -> Callable[[Any], Callable[[Any], Any]]:
    """Note what makes a step of one parameter."""
    STEPS[make.__name__.replace("_", " ")] = make
    return make


@decides
def an_early_end(w: Any) -> Callable[[Any], Any]:
    optimizer = optim.Adam([w], 0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = ((x * w) ** 2).mean()
        if loss > 1.0:
            return loss
        tape.backward(loss)
        optimizer.step()
        return loss * 2.0

    return step


@decides
def a_loop_while_something_holds(w: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        y, n = x * w, 0
        while np.sum(y * y) > 4.0 and n < 6:
            y, n = y * 0.5, n + 1
        return y.sum() * n

    return step


@decides
def no_step_where_the_loss_is_not_finite(w: Any) -> Callable[[Any], Any]:
    optimizer = optim.SGD([w], 0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = np.log(x[0, 0] * w).sum()
        tape.backward(loss)
        if np.isfinite(loss):
            optimizer.step()
        return loss

    return step


@decides
def a_decision_on_a_gradient(w: Any) -> Callable[[Any], Any]:
    optimizer = optim.SGD([w], 0.01)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        with ag.Tape() as tape:
            loss = ((x * w) ** 2).sum()
        tape.backward(loss)
        factor = 5.0 if np.sqrt((w.grad * w.grad).sum()) > 20.0 else 1.0
        optimizer.step()
        return loss * factor

    return step


@decides
def a_decision_on_a_draw(w: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        draw = ag.tensor(random.uniform(random.next_key("draw"), ()))
        return (x * w).sum() if draw > 0.5 else (x * w).mean()

    return step


@decides
def an_assertion(w: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        y = (x * w).sum()
        assert y < 1e6
        return y

    return step


@decides
def words_between_decisions(w: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        y, z = (x * w).sum(), x[0, 0]
        return y if (y > 0 and z > 0) or not (z < -0.5) else -y

    return step


@decides
def the_larger_of_two(w: Any) -> Callable[[Any], Any]:
    return lambda x: max((x * w).sum(), x[0].sum())


@decides
def an_order(w: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        least, *_, most = sorted((x[i] * w).sum() for i in range(3))
        return least * 2.0 + most

    return step


@decides
def a_decision_that_is_a_result(w: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        is_large = (x * w).mean() > 0.1
        return (x * w).sum() * (2.0 if is_large else 3.0), is_large

    return step


@decides
def a_line_search(w: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        def value(v: Any) -> Any:
            return ((v * x) ** 2).sum()

        v, rate = x[0], 1.0
        gradient = ag.grad(value)(v)
        for _ in range(5):
            if value(v - rate * gradient) < value(v):
                break
            rate *= 0.5
        return value(v - rate * gradient)

    return step


def left_by(name: str, is_captured: bool) -> tuple[list[Any], Any]:
    random.seed(0)
    w = ag.Parameter(numpy.ones(4))
    step = STEPS[name](w)
    do: Any = ag.capture(step) if is_captured else step
    found = []
    for i in range(40):
        y = do(ag.tensor(numpy.random.default_rng(i).standard_normal((6, 4))))
        found.append([numpy.asarray(each.array).tobytes() for each in (*(y if isinstance(y, tuple) else (y,)), w)])
    return found, do


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_step_that_decides_has_the_bits_of_the_step(name: str) -> None:
    needed, _ = left_by(name, False)
    found, do = left_by(name, True)
    assert [i for i, (a, b) in enumerate(zip(found, needed, strict=True)) if a != b] == []
    assert do.replays >= (10 if name == "an order" else 26)


def test_a_decision_that_is_not_compared_is_found_by_the_step_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: replays make no decision anew."""
    from autograd.compiler.trace import Traced

    monkeypatch.setattr(Traced, "__bool__", lambda x: bool(x._value))
    needed, _ = left_by("the larger of two", False)
    try:
        found, do = left_by("the larger of two", True)
    except ag.errors.CaptureError:
        return
    assert found != needed or do._last.program is None  # the proof has found it


def test_a_tape_without_a_sweep_ends_with_its_result() -> None:
    """No frame of a recorded run is kept, so that a parameter is free without the garbage collector."""
    w = ag.Parameter(numpy.ones(4))
    optimizer = optim.Adam([w], 0.05)

    def step(x: Any) -> Any:
        with ag.Tape() as tape:
            loss = ((x * w) ** 2).mean()
        if loss > 1.0:
            return loss
        optimizer.zero_grad()
        tape.backward(loss)
        optimizer.step()
        return loss

    do = ag.capture(step)
    gc.disable()
    try:
        for i in range(20):
            do(ag.tensor(numpy.full(4, 3.0 if i % 3 else 0.5)))
            assert not w.uses
    finally:
        gc.enable()
    assert do.replays >= 10
