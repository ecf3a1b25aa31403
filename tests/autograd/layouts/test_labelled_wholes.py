"""A whole that is labelled as a part: the error says so, and its fix has the serial gradient."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from collectives import I, R, Shard

A = numpy.arange(1.0, 13.0).reshape(3, 4)
X = numpy.cos(numpy.arange(8.0)).reshape(4, 2)


def gradient(weights: Callable[[], Any]) -> Any:
    with cc.Mesh(tp=2), ag.Tape() as tape:
        w = weights()
        x: Any = ag.tensor(X, layout={"tp": R})
        if w.shape[1] != 4:
            x = cc.shard(x, "tp", dim=0)
        y = cc.all_reduce(w @ x, "tp", to=I)
        tape.backward((y * y).sum())
        return w.grad.numpy()


def test_a_whole_that_is_labelled_as_a_part_is_named() -> None:
    with pytest.raises(ag.LayoutError) as caught:
        cc.run(lambda: gradient(lambda: ag.Parameter(A, {"tp": Shard(1)})), 2)
    text = str(caught.value)
    assert "w looks like the whole: on this rank it has all 4 elements" in text
    fix = re.search(r"fix: w = (.*), where A is the whole", text)
    assert fix is not None
    made = eval(f"lambda: {fix[1]}", {"ag": ag, "cc": cc, "A": A, "R": R})
    serial = ag.grad(lambda a: ((a @ X) ** 2).sum())(A)
    numpy.testing.assert_allclose(numpy.concatenate(cc.run(lambda: gradient(made), 2), axis=1), serial, rtol=1e-12)


def test_a_ragged_list_is_refused() -> None:
    with cc.Mesh(tp=1), pytest.raises(ag.ShapeError, match="needed: lists of equal lengths"):
        cc.halo_exchange([[1.0, 2.0], [3.0]], "tp", 1)
