"""The scale of losses on meshes of one and two axes, on 2 to 5 ranks of the axis of the rows."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy
import pytest

import collectives as cc
from autograd.errors import ScaleWarning

from ...proofs.cases import Case, prove_exact, prove_refused
from ...tables import some
from .meshes import ROWS, Row
from .test_programs import scale


def told(row: Row, how: Any, n: int) -> tuple[list[str], dict[str, Any]]:
    """The warnings of a program, and the gradients of whole parameters on its last rank."""
    axes = row.axes(n)

    def main() -> Any:
        with cc.Mesh(**axes) as mesh:
            return row.program(how)(mesh)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cc.run(main, math.prod(axes.values()))
    return [str(each.message) for each in caught if each.category is ScaleWarning], found[-1]


@pytest.mark.parametrize("n", some((3, 5, 2, 4), 2))
def test_right_programs(n: int) -> None:
    for name, row in ROWS.items():
        for i, how in enumerate(row.right):
            with scale("error"), warnings.catch_warnings():
                warnings.simplefilter("error", ScaleWarning)
                try:
                    prove_exact(Case(right=row.program(how), serial=lambda row=row: row.gradients(n), axes=row.axes(n)))
                except Exception as error:
                    raise AssertionError(f"{name}, {i}: {error}") from error


@pytest.mark.parametrize("n", some((3, 5, 2, 4), 2))
def test_wrong_programs(n: int) -> None:
    for name, row in ROWS.items():
        for i, wrong in enumerate(row.wrong):
            with scale("error"):
                try:
                    prove_refused(
                        Case(wrong=row.program(wrong.how), says=wrong.says, error="ScaleError", axes=row.axes(n)))
                except AssertionError as error:
                    raise AssertionError(f"{name}, {i}: {error}") from error
            if not wrong.error:
                texts, _ = told(row, wrong.how, n)
                assert texts and all(words in texts[0] for words in wrong.says), f"{name}, {i}: {texts}"
            with scale("off"):
                _, found = told(row, wrong.how, n)
            expected = row.gradients(n)
            for key, (gradient, part) in found.items():
                wanted = numpy.asarray(expected[key])[part]
                if wrong.factor is not None:
                    numpy.testing.assert_allclose(gradient, wanted * wrong.factor(n), atol=1e-12, err_msg=name)
            if wrong.factor is None:
                off = [numpy.abs(g - numpy.asarray(expected[key])[part]).max() for key, (g, part) in found.items()]
                assert max(off) > 1e-6, f"{name}, {i}"


@pytest.mark.parametrize("n", some((3, 5, 2, 4), 2))
def test_what_stays_silent(n: int) -> None:
    for name, row in ROWS.items():
        for reason, how in row.silent.items():
            texts, found = told(row, how, n)
            assert texts == [], f"{name}, {reason}: {texts}"
            expected = row.gradients(n)
            off = [numpy.abs(g - numpy.asarray(expected[key])[part]).max() for key, (g, part) in found.items()]
            assert max(off) > 1e-6, f"{name}, {reason}"
