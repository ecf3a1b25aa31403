"""A gradient is used once: a backward that adds to a used one, and a second step on it, are told with both lines."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
from autograd import optim
from autograd.errors import GradientWarning

from ..arrays.devices import DEVICES, Device


class Program:
    """A model of two parameters, one of which is a number."""

    def __init__(self, move: Callable[[Any], Any]):
        self.w, self.b = ag.Parameter(move(numpy.ones(3))), ag.Parameter(move(numpy.array(2.0)))
        self.optimizer = optim.SGD([self.w, self.b], lr=1e-3)

    def backward(self) -> None:
        with ag.Tape() as tape:
            loss = (self.w * self.w).sum() * self.b
        tape.backward(loss)


def told(steps: Callable[[Program], None], move: Callable[[Any], Any] = numpy.asarray) -> list[str]:
    program = Program(move)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps(program)
    return [str(each.message) for each in caught if each.category is GradientWarning]


def forgotten(p: Program) -> None:
    for _ in range(9):
        p.backward()
        p.optimizer.step()


def twice(p: Program) -> None:
    for _ in range(9):
        p.optimizer.zero_grad()
        p.backward()
        p.optimizer.step()
        p.optimizer.step()


def late(p: Program) -> None:
    """The mistake begins at the fourth step."""
    for n in range(9):
        if n < 4:
            p.optimizer.zero_grad()
        p.backward()
        p.optimizer.step()


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (forgotten, "backward adds to gradients that SGD.step() at test_gradients_used_once.py:"),
        (late, "backward adds to gradients that SGD.step() at test_gradients_used_once.py:"),
        (twice, "SGD.step() uses gradients that SGD.step() at test_gradients_used_once.py:"),
    ],
)
@pytest.mark.parametrize("there", [None, *DEVICES])
def test_a_second_use_is_told_once(there: Device | None, steps: Callable[[Program], None], says: str) -> None:
    (text,) = told(steps, numpy.asarray if there is None else there.move)
    assert text.startswith(says) and "zero_grad()" in text and "step(keep=True)" in text


def before(p: Program) -> None:
    for _ in range(9):
        p.optimizer.zero_grad()
        p.backward()
        p.optimizer.step()


def after(p: Program) -> None:
    for _ in range(9):
        p.backward()
        p.optimizer.step()
        p.optimizer.zero_grad()


def microbatches(p: Program) -> None:
    for _ in range(9):
        p.optimizer.zero_grad()
        for _ in range(3):
            p.backward()
        p.optimizer.step()


def meant(p: Program) -> None:
    for _ in range(9):
        p.backward()
        p.optimizer.step(keep=True)


def assigned(p: Program) -> None:
    for _ in range(9):
        p.w.grad, p.b.grad = numpy.ones(3), numpy.float64(1.0)
        p.optimizer.step()


def removed(p: Program) -> None:
    for _ in range(9):
        p.w.grad = p.b.grad = None
        p.backward()
        p.optimizer.step()


def two_optimizers(p: Program) -> None:
    one, other = optim.SGD([p.w], lr=1e-3), optim.Adam([p.b], lr=1e-3)
    for _ in range(9):
        one.zero_grad()
        other.zero_grad()
        p.backward()
        one.step()
        other.step()


@pytest.mark.parametrize("steps", [before, after, microbatches, meant, assigned, removed, two_optimizers])
def test_right_programs(steps: Callable[[Program], None]) -> None:
    assert told(steps) == []


def test_a_mark_keeps_no_gradient_alive() -> None:
    p = Program(numpy.asarray)
    p.backward()
    p.optimizer.step()
    gradient = p.w.used[1]
    assert gradient() is not None
    p.optimizer.zero_grad()
    assert gradient() is None


def test_a_first_step_without_a_gradient_is_told_on_one_process() -> None:
    w, other = ag.Parameter([1.0]), ag.Parameter([1.0])

    def step(make: list[ag.Parameter], *, clear: bool = False, backward: bool = True) -> None:
        optimizer = ag.optim.SGD(make, lr=0.1)
        for p in (w, other):
            p.zero_grad()
        with ag.Tape() as tape:
            loss = (w * w).sum()
        if backward:
            tape.backward(loss)
        if clear:
            optimizer.zero_grad()
        optimizer.step()

    for wrong in (lambda: step([other]), lambda: step([w], clear=True), lambda: step([w], backward=False)):
        with pytest.warns(GradientWarning, match=r"none of the 1 parameters has a gradient, so[\s\S]*fix: call tape"):
            wrong()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step([w])
        step([w, other])
