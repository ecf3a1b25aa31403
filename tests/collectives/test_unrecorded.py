"""Collectives of a leaf while no tape records, whose result a tape then uses: the gradient was silently missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd import nn
from collectives import I, P, R, Shard, V
from parallel import DataParallel

A = numpy.arange(6.0).reshape(3, 2) + 1
ROWS = numpy.arange(12.0).reshape(6, 2) - 4
REFUSED = "computed from a value that requires a gradient while no tape recorded it"


def embedded(mesh: Any) -> Any:
    model = DataParallel(nn.Embedding(4, 2), "dp")
    return model(cc.shard(ag.tensor(numpy.array([0, 1, 2, 3, 0, 1]), {"dp": R}), "dp"))


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "shard": lambda mesh: cc.shard(ag.Parameter(A), "dp", dim=0),
    "cast": lambda mesh: cc.cast(ag.Parameter(A), "dp", to=R),
    "cast, then a relabel": lambda mesh: cc.cast(cc.cast(ag.Parameter(A), "dp", to=R), "dp", to=V),
    "all_reduce": lambda mesh: cc.all_reduce(ag.Parameter(A, {"dp": V}), "dp", to=R),
    "all_max": lambda mesh: cc.all_max(ag.Parameter(A, {"dp": V}), "dp", to=R),
    "all_reduce_async": lambda mesh: cc.all_reduce_async(ag.Parameter(A, {"dp": V}), "dp", to=R).wait(),
    "an operation after it": lambda mesh: cc.cast(ag.Parameter(A), "dp", to=R) * 2.0,
    "an entry": embedded,
    "a leaf, used in a collective": lambda mesh: ag.Parameter(A) * 2.0,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_result_that_no_tape_recorded_is_refused_on_a_tape(name: str) -> None:
    def body() -> None:
        with cc.Mesh(dp=2) as mesh:
            h = COMPUTED[name](mesh)
            with ag.Tape(), pytest.raises(ag.TapeError, match=REFUSED) as error:
                cc.cast(h, "dp", to=R) if h.layout["dp"] is I else h * 2.0
            assert f"{{dp: {h.layout['dp']!r}}}" in str(error.value)
            with ag.Tape():
                assert (ag.stop_gradient(h) * 2.0).tape is None

    cc.run(body, ranks=2)


def test_the_fix_has_the_serial_gradient() -> None:
    """The program of the issue: a weight is divided before the tape's block, and in it."""
    w = ag.Parameter(A)
    with ag.Tape() as tape:
        loss = ((ROWS @ w.T) ** 2).sum()
    tape.backward(loss)
    expected = w.grad.numpy()

    def body() -> Any:
        with cc.Mesh(tp=3):
            w, x = ag.Parameter(A), ag.tensor(ROWS, {"tp": R})
            before = cc.shard(w, "tp", dim=0)
            with ag.Tape(), pytest.raises(ag.TapeError, match="fix: compute it inside the tape's block"):
                x @ before.T
            with ag.Tape() as tape:
                inside = cc.shard(w, "tp", dim=0)
                loss = cc.all_reduce(((x @ inside.T) ** 2).sum(), "tp", to=I)
            tape.backward(loss)
            return w.grad.numpy()

    for gradient in cc.run(body, ranks=3):
        assert numpy.allclose(gradient, expected)


def test_a_parameter_may_be_a_part_of_another() -> None:
    def body() -> Any:
        with cc.Mesh(tp=3):
            w = ag.Parameter(cc.shard(ag.Parameter(A), "tp", dim=0))
            with ag.Tape() as tape:
                loss = cc.all_reduce(((ag.tensor(ROWS, {"tp": R}) @ w.T) ** 2).sum(), "tp", to=I)
            tape.backward(loss)
            return type(w.layout["tp"]) is Shard and w.grad is not None

    assert all(cc.run(body, ranks=3))


def test_collectives_of_data_outside_tapes_are_data() -> None:
    def body() -> Any:
        with cc.Mesh(dp=2):
            w = ag.Parameter(A)
            with ag.no_grad():
                h = cc.cast(cc.cast(w, "dp", to=R), "dp", to=I)
            count = cc.all_reduce(ag.tensor(3.0, {"dp": P}), "dp", to=I)
            with ag.Tape() as tape:
                loss = (w * h).sum() / count
            tape.backward(loss)
            return w.grad.numpy()

    for gradient in cc.run(body, ranks=2):
        assert numpy.allclose(gradient, A / 6)
