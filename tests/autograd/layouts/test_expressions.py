"""The names of operands in errors: an operand that no variable holds is never shown by the name of another value."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.layouts.expressions import operand_text, texts_with_extents
from collectives import I, R


def refusal(program: Callable[[Any, Any], Any]) -> str:
    """The text of the LayoutError of a program of x, which is a Shard, and y, a Parameter."""
    with cc.Mesh(dp=-1):
        rows = cc.shard(ag.tensor(numpy.ones((6, 2)), {"dp": R}), "dp")
        with pytest.raises(ag.LayoutError) as error:
            program(rows, ag.Parameter([1.0, 2.0]))
    return str(error.value)


@pytest.mark.parametrize(
    ("program", "first", "fix"),
    [
        (lambda x, y: (y * 2) * x, "multiply(y * 2: f64[2] {dp: I}, x: f64[6,2]", "cast(y * 2, 'dp', to=R)"),
        (lambda x, y: x * (y * 2), "multiply(x: f64[6,2] {dp: Shard(0)}, y * 2: f64[2]", "cast(y * 2, 'dp', to=R)"),
        (lambda x, y: np.multiply(y * 2, x), "multiply(y * 2: f64[2] {dp: I}, x:", "cast(y * 2, 'dp', to=R)"),
        (lambda x, y: np.exp((x * x).sum()), "exp((x * x).sum(): f64[] {dp: P})", "all_reduce((x * x).sum(), 'dp'"),
        (lambda x, y: cc.cast(x * 3, "dp", to=R), "cast(x * 3: f64[6,2]", "all_gather(x * 3, 'dp', dim=0, to=R)"),
        (lambda x, y: (x * 1).dot(y), "matmul(operand 0: f64[6,2] {dp: Shard(0)}, y: f64[2]", "cast(y, 'dp', to=R)"),
        (lambda x, y: np.where(y > 0, y * 2, x), "where(condition: bool[2] {dp: C}, y * 2:", "cast(y * 2, 'dp', to=R)"),
    ],
)  # fmt: skip
def test_an_operand_without_a_variable(program: Callable[[Any, Any], Any], first: str, fix: str) -> None:
    text = refusal(program)
    assert text.startswith(first) and f"fix: {fix}" in text, text


def test_the_fix_can_be_written_as_it_stands() -> None:
    fix = re.search(r"fix: (cast\(.*?to=R\))", refusal(lambda x, y: (y * 2) * x))
    assert fix is not None
    with cc.Mesh(dp=-1):
        x = cc.shard(ag.tensor(numpy.ones((6, 2)), {"dp": R}), "dp")
        y = ag.Parameter([1.0, 2.0])
        assert (eval(f"cc.{fix[1]} * x")).layout == x.layout and y is not x


def test_a_local_count_is_named_as_the_line_names_it() -> None:
    text = refusal(lambda x, y: cc.all_reduce((x * x).sum(), "dp", to=I) / x.shape[0])
    assert text.startswith("divide(cc.all_reduce((x * x).sum(), 'dp', to=I): f64[] {dp: I}, 6)"), text
    assert "fix: x.global_shape[0] in place of x.shape[0]" in text


def test_a_value_with_the_same_extent_is_not_taken_for_the_one_of_the_line() -> None:
    def program(x: Any, y: Any) -> Any:
        later = x * 2
        total = cc.all_reduce(later.sum(), "dp", to=I)
        return total / x.shape[0]

    assert "fix: x.global_shape[0] in place of x.shape[0]" in refusal(program)


def test_texts_of_a_frame() -> None:
    def here(*operands: Any) -> list[Any]:
        frame = sys._getframe(1)
        return [operand_text(frame, 0), operand_text(frame, 1, "here"), operand_text(frame, 0, "there"),
                operand_text(frame, 5, "here"), texts_with_extents(frame)]  # fmt: skip

    a = numpy.ones((2, 3))
    # fmt: off
    assert here(a.shape[0] * 2,
                "ä" and len(a)) == ["a.shape[0] * 2", "'ä' and len(a)", "", "", {"a"}]
    # fmt: on
    assert here(a + a + a + a + a + a + a + a + a + a + a + a + a + a + a)[0] == ""  # too long
    assert eval("here(a)", {"here": here, "a": a}) == ["", "", "", "", set()]  # without a source
