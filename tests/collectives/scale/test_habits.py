"""The programs of `habits`, on 2 to 5 ranks: the right ones have the serial gradient, the others are told or listed."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import GradientWarning, ReplicaWarning, ScaleError, ScaleWarning

from .habits import ERROR, HABITS, MEETS, RIGHT, SILENT, UNEVEN, WARNED, Habit
from .meshes import START, Ranks
from .test_programs import in_turn, scale

CLASSES: dict[str, Any] = {WARNED: ScaleWarning, UNEVEN: GradientWarning, MEETS: ReplicaWarning}


def outcome(row: Habit, n: int) -> tuple[list[tuple[Any, str]], dict[str, Any]]:
    """The warnings of a program by their class, and the gradients of its last rank with their parts."""
    axes = row.axes(n)

    def main() -> Any:
        with cc.Mesh(**axes) as mesh:
            with ag.Tape() as tape:
                e = Ranks(mesh)
                loss = row.loss(e)
            tape.backward(loss)
            return e.gradients()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cc.run(main, math.prod(axes.values()))
    kinds = (GradientWarning, ReplicaWarning)
    return [(each.category, str(each.message)) for each in caught if issubclass(each.category, kinds)], found[-1]


def off(row: Habit, n: int, found: dict[str, Any]) -> float:
    """The largest relative difference of the gradients from those of one process."""
    p = {name: ag.Parameter(value.copy(), name=name) for name, value in START.items()}
    with ag.Tape() as tape:
        total = row.serial(p, n)
    tape.backward(total)
    worst = 0.0
    for name, (gradient, part) in found.items():
        g = p[name].grad
        assert g is not None, name
        wanted = g.numpy()[part]
        worst = max(worst, float(numpy.abs(gradient - wanted).max() / max(numpy.abs(g.numpy()).max(), 1e-9)))
    return worst


@pytest.mark.parametrize(("name", "n"), in_turn(dict.fromkeys(HABITS, 5)))
def test_habits(name: str, n: int) -> None:
    row = HABITS[name]
    with scale("off"):
        _, found = outcome(row, n)
    difference = off(row, n, found)
    assert difference < 1e-10 if row.told == RIGHT else difference > 1e-6, difference
    if row.told == ERROR:
        with pytest.raises(ScaleError, match=row.says):
            outcome(row, n)
        return
    texts, _ = outcome(row, n)
    if row.told == RIGHT:
        assert texts == []
        with scale("error"):
            outcome(row, n)
    elif row.told == SILENT:
        assert [text for kind, text in texts if kind is ScaleWarning] == [] and row.says
    else:
        assert any(kind is CLASSES[row.told] and row.says in text for kind, text in texts), texts
    if row.told == WARNED:
        with scale("error"), pytest.raises(ScaleError, match=row.says):
            outcome(row, n)
