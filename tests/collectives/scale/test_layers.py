"""The scale of programs with the layers of `parallel`, on 2 to 5 ranks of the axis of the rows."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy
import pytest

import collectives as cc
from autograd.errors import GradientWarning, RingtapeError, ScaleWarning

from .layers import LAYERS, Layered
from .test_programs import in_turn, scale

MOST = {name: row.most for name, row in LAYERS.items()}


def outcome(row: Layered, how: Any, n: int) -> tuple[list[str], list[dict[str, Any]]]:
    """The warnings of a program, and the gradients of each rank."""
    axes = row.axes(n)

    def main() -> Any:
        with cc.Mesh(**axes) as mesh:
            return row.program(mesh, how)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cc.run(main, math.prod(axes.values()))
    mine = [each for each in caught if issubclass(each.category, GradientWarning)]
    return [f"{each.category.__name__}: {each.message}" for each in mine], found


def errors(row: Layered, how: Any, n: int) -> list[str]:
    """The error of each rank, or ""."""
    axes = row.axes(n)

    def main() -> str:
        with cc.Mesh(**axes) as mesh:
            try:
                row.program(mesh, how)
            except RingtapeError as error:
                return f"{type(error).__name__}: {error}"
        return ""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cc.run(main, math.prod(axes.values()))


def ratios(found: list[dict[str, Any]], serial: dict[str, Any]) -> list[Any]:
    """The largest difference of the gradients of each rank, for each factor that is asked for."""
    return [lambda factor, g=g, of=serial[name]: float(numpy.abs(g - factor * of).max() / numpy.abs(of).max())
            for each in found for name, g in each.items()]  # fmt: skip


@pytest.mark.parametrize(("name", "n"), in_turn(MOST))
def test_right_programs(name: str, n: int) -> None:
    row = LAYERS[name]
    serial = row.serial()
    for i, how in enumerate(row.right):
        with scale("error"):
            texts, found = outcome(row, how, n)
        assert texts == [], f"{name}, {i}: {texts}"
        assert max(off(1) for off in ratios(found, serial)) <= row.close, f"{name}, {i}"


@pytest.mark.parametrize(("name", "n"), in_turn(MOST))
def test_wrong_programs(name: str, n: int) -> None:
    row = LAYERS[name]
    serial = row.serial()
    for i, wrong in enumerate(row.wrong):
        with scale("error"):
            for text in errors(row, wrong.how, n):
                assert text.startswith("ScaleError"), f"{name}, {i}: {text}"
                assert all(words in text for words in wrong.says), f"{name}, {i}: {text}"
        if not wrong.error:
            texts, _ = outcome(row, wrong.how, n)
            mine = [text for text in texts if text.startswith(ScaleWarning.__name__)]
            assert mine and all(words in mine[0] for words in wrong.says), f"{name}, {i}: {texts}"
        with scale("off"):
            _, found = outcome(row, wrong.how, n)
        factors = [off(1 if wrong.factor is None else wrong.factor(n)) for off in ratios(found, serial)]
        assert (max(factors) > 1e-4) if wrong.factor is None else (max(factors) <= row.close), f"{name}, {i}"


@pytest.mark.parametrize(("name", "n"), in_turn({name: most for name, most in MOST.items() if LAYERS[name].silent}))
def test_what_stays_silent(name: str, n: int) -> None:
    row = LAYERS[name]
    serial = row.serial()
    for reason, how in row.silent.items():
        texts, found = outcome(row, how, n)
        assert [text for text in texts if text.startswith(ScaleWarning.__name__)] == [], f"{name}, {reason}: {texts}"
        assert max(off(1) for off in ratios(found, serial)) > 1e-4, f"{name}, {reason}"
