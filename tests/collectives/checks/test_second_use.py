"""A second use of a tape's values, after backward: every collective, in every check mode, works or names the fix.

Programs sum a loss to log it after the step. The checks of a call read the tape that made its operand, whose nodes
backward has released.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import TapeError
from collectives import I, P, R, V

RANKS = 3
ROWS = numpy.random.default_rng(0).normal(size=(RANKS, 6))
TOTAL = ROWS.sum(axis=0)
RING = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]

SUMS: dict[str, Callable[[Any], Any]] = {  # of Varying and Partial values: their addends are examined
    "all_reduce": lambda x: cc.all_reduce(x, "dp"),
    "all_reduce(to=I)": lambda x: cc.all_reduce(x, "dp", to=I),
    "all_reduce_async": lambda x: cc.all_reduce_async(x, "dp").wait(),
    "reduce": lambda x: cc.reduce(x, "dp"),
    "reduce_async": lambda x: cc.reduce_async(x, "dp").wait(),
    "reduce_scatter": lambda x: cc.reduce_scatter(x, "dp"),
    "reduce_scatter_async": lambda x: cc.reduce_scatter_async(x, "dp").wait(),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: cc.mean(x, "dp"),
    "all_max": lambda x: cc.all_max(x, "dp"),
    "all_prod": lambda x: cc.all_prod(x, "dp"),
    "scan": lambda x: cc.scan(x, "dp"),
    "exscan": lambda x: cc.exscan(x, "dp"),
    "reproducible_sum": lambda x: cc.reproducible_sum([x], [cc.world().index], "dp"),
    "all_gather": lambda x: cc.all_gather(x, "dp"),
    "all_gather_async": lambda x: cc.all_gather_async(x, "dp").wait(),
    "gather": lambda x: cc.gather(x, "dp"),
    "all_to_all": lambda x: cc.all_to_all(x, "dp", 0, 0),
    "all_to_all_async": lambda x: cc.all_to_all_async(x, "dp", 0, 0).wait(),
    "broadcast": lambda x: cc.broadcast(x, "dp"),
    "broadcast_async": lambda x: cc.broadcast_async(x, "dp").wait(),
    "scatter": lambda x: cc.scatter(x, "dp"),
    "permute": lambda x: cc.permute(x, "dp", RING),
    "permute_async": lambda x: cc.permute_async(x, "dp", RING).wait(),
    "halo_exchange": lambda x: cc.halo_exchange(x, "dp", 1),
    "get": lambda x: cc.get(x, "dp", [1] * 6, numpy.arange(6)),
    "cast": lambda x: cc.cast(x, "dp", to=P),
}
WAYS: dict[str, Callable[[], Any]] = {"plain": ag.no_grad, "under no_grad": ag.no_grad, "on another tape": ag.Tape}


def outcomes(retain: bool) -> dict[Any, str]:
    """How each use ends on this rank: "ok", or the kind of error; the value of the sum is compared."""
    found = {}
    for name, use in (SUMS | OTHERS).items():
        for way, context in WAYS.items():
            for label in (V, P) if name in SUMS else (V,):
                w = ag.Parameter(numpy.arange(1.0, 7.0))
                with ag.Tape() as tape:
                    # means of different counts, a sum and a factor: what the checks look for on the tape
                    x = ag.tensor(ROWS[cc.world().index]) * cc.cast(w, "dp", to=R) / (1 + cc.world().index) + 1
                    x = cc.cast(x, "dp", to=P) if label is P else x
                    total = cc.all_reduce(x.sum(), "dp", to=I)
                tape.backward(total, retain=retain)
                try:
                    if way == "plain":
                        y = use(x)
                    else:
                        with context():
                            y = use(x)
                    if name.startswith("all_reduce") and way != "on another tape":
                        scale = 1.0 / numpy.arange(1.0, RANKS + 1)[:, None]
                        numpy.testing.assert_allclose(y.numpy(), (ROWS * w.numpy() * scale + 1).sum(axis=0))
                    found[name, way, label] = "ok"
                except TapeError as error:
                    found[name, way, label] = "retain=True" if "retain=True" in str(error) else "TapeError"
    return found


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("mode", ["off", "first", "always", "ranks"])
def test_values_of_a_tape_after_backward(mode: str, retain: bool) -> None:
    def program() -> dict[Any, str]:
        with cc.Mesh(dp=RANKS):
            return outcomes(retain)

    cc.check(mode)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = cc.run(program, ranks=RANKS)
    finally:
        cc.check("first")
    needed = {case: "ok" if retain or case[1] != "on another tape" else "retain=True" for case in found[0]}
    for rank in range(RANKS):
        assert {case: how for case, how in found[rank].items() if how != needed[case]} == {}
    assert len(found[0]) == 3 * (2 * len(SUMS) + len(OTHERS))


@pytest.mark.parametrize("fix", ["stop_gradient", "retain"])
def test_both_fixes_of_the_error(fix: str) -> None:
    def program() -> float:
        with cc.Mesh(dp=RANKS):
            x = ag.tensor(float(cc.world().index), requires_grad=True)
            with ag.Tape() as tape:
                y = x * 2
                total = cc.all_reduce(y, "dp", to=I)
            tape.backward(total, retain=fix == "retain")
            with ag.Tape():
                return cc.all_reduce(ag.stop_gradient(y) if fix == "stop_gradient" else y, "dp").item()

    assert cc.run(program, ranks=RANKS) == [6.0] * RANKS


def test_a_loss_whose_microbatches_have_been_released_in_part() -> None:
    """A tape inside another one releases its own nodes only; the outer one goes on."""

    def program() -> float:
        with cc.Mesh(dp=RANKS):
            w = ag.Parameter(numpy.ones(2))
            with ag.Tape() as outer:
                before = cc.cast(w, "dp", to=R) * ag.tensor(float(cc.world().index + 1))
                with ag.Tape() as inner:
                    loss = (before * 3).sum() / 2 + 1
                    total = cc.all_reduce(loss, "dp", to=I)
                inner.backward(total)
                logged = cc.all_reduce(ag.stop_gradient(loss), "dp")
                again = cc.all_reduce((before * 2).sum(), "dp", to=I)
            with ag.no_grad():
                logged = logged + cc.all_reduce(loss, "dp")
            outer.backward(again)
            return logged.item()

    assert cc.run(program, ranks=RANKS) == [2 * (18.0 + 3)] * RANKS
