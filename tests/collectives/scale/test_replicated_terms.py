"""A Replicated term of a sum over ranks, which counts once on each rank, is named by a `ReplicaWarning`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, P, R, Shard

from .test_equal_addends import SERIAL, START, X, run, summed

PART = {"dp": Shard(0)}


def penalised(total: Callable[[Any, Any, Any], Any], rows: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The gradient of a loss of this rank's rows with a penalty; ``total(rest, w, its Replicated copy)``."""

    def body(mesh: Any) -> Any:
        w = ag.Parameter(START.copy())
        with ag.Tape() as tape:
            copy = cc.cast(w, "dp", to=R)
            loss = total(((rows(mesh.axis("dp").rank) @ copy) ** 2).sum(), w, copy)
        tape.backward(loss)
        return w.grad.numpy()

    return body


def plain(rank: Any) -> Any:
    return X[2 * rank : 2 * rank + 2]


def labelled(rank: Any) -> Any:
    return cc.from_local(plain(rank), PART)


WITH_PENALTY = SERIAL + 2 * START
IN_THE_SUM: list[Callable[[Any, Any, Any], Any]] = [
    lambda rest, w, copy: summed(rest + (copy * copy).sum()),
    lambda rest, w, copy: summed((rest * 6 - -6 * (copy * copy).sum()) / 6),
    lambda rest, w, copy: -summed(-((copy**2).sum() + rest).reshape(1)).sum(),
    lambda rest, w, copy: cc.all_reduce_async(rest + (copy**2).sum(), "dp", to=I) * 1.0,
]


@pytest.mark.parametrize("total", IN_THE_SUM)
def test_a_replicated_term_of_a_sum(total: Callable[[Any, Any, Any], Any]) -> None:
    (text,), found = run(penalised(total, plain))
    numpy.testing.assert_allclose(found[0], SERIAL + 6 * START)
    assert "is a sum of a Varying and a Replicated term" in text and "it counts 3 times in the sum over the r" in text


@pytest.mark.parametrize(
    "total",
    [
        lambda rest, w, copy: summed(rest) + (w * w).sum(),
        lambda rest, w, copy: cc.cast(cc.all_reduce(rest, "dp", to=R) + (copy * copy).sum(), "dp", to=I),
    ],
)
def test_both_fixes_of_a_replicated_term(total: Callable[[Any, Any, Any], Any]) -> None:
    for rows in (plain, labelled):
        texts, found = run(penalised(total, rows))
        assert texts == []
        numpy.testing.assert_allclose(found[0], WITH_PENALTY)


def test_the_mean_of_losses_with_a_penalty_counts_it_once() -> None:
    """Each rank's loss is the mean over its rows: the sum of the ranks' losses is divided by their number later."""

    def body(mesh: Any) -> Any:
        w = ag.Parameter(START.copy())
        with ag.Tape() as tape:
            copy = cc.cast(w, "dp", to=R)
            errors = (plain(mesh.axis("dp").rank) @ copy) ** 2
            loss = summed(errors.mean() + (copy * copy).sum()) / 6 + summed((copy**2).sum() + errors.sum() / 2) / 6
        tape.backward(loss)
        return w.grad.numpy()

    texts, found = run(body)
    assert texts == []
    numpy.testing.assert_allclose(found[0], SERIAL / 6 + 2 * START)


def test_biases_and_differences_are_no_such_terms() -> None:
    def body(mesh: Any) -> None:
        rank = mesh.axis("dp").rank
        w, b = ag.Parameter(START.copy()), ag.Parameter(0.5)
        with ag.Tape() as tape:
            copy, c = cc.cast(w, "dp", to=R), cc.cast(b, "dp", to=R)
            rows = plain(rank) @ copy + c
            loss = summed(rows.sum()) + summed(np.tanh(rows).sum()) + summed((plain(rank) - copy).mean())
            loss = loss + cc.mean(rows[0] + c, "dp", to=I)
        tape.backward(loss)

    assert run(body)[0] == []


def refusal(total: Callable[[Any, Any, Any], Any], rows: Callable[[Any], Any]) -> str:
    with pytest.raises(ag.LayoutError) as caught:
        run(penalised(total, rows))
    return str(caught.value)


def test_a_replicated_term_of_addends() -> None:
    """`P + R` offers what counts the term once; each fix has the serial gradient."""
    text = refusal(lambda rest, w, copy: summed(rest + (copy * copy).sum()), labelled)
    assert "  fix: cast(y, 'dp', to=P)   (counted once; kept on the first rank)\n  or:  all_reduce(" in text
    text = refusal(lambda rest, w, copy: summed(rest + (w * w).sum()), labelled)
    assert "  fix: cast(y, 'dp', to=P)" in text and "all_reduce(rest, 'dp', to=I) first   (the sum; y is added" in text
    for total in (
        lambda rest, w, copy: summed(rest + cc.cast((copy * copy).sum(), "dp", to=P)),
        lambda rest, w, copy: summed(rest + cc.cast((w * w).sum(), "dp", to=P)),
        lambda rest, w, copy: summed(rest) + (w * w).sum(),
        lambda rest, w, copy: cc.cast(cc.all_reduce(rest, "dp", to=R) + (copy * copy).sum(), "dp", to=I),
    ):
        texts, found = run(penalised(total, labelled))
        assert texts == []
        numpy.testing.assert_allclose(found[2], WITH_PENALTY)


def test_an_invariant_term_of_a_value_that_is_summed_later() -> None:
    text = refusal(lambda rest, w, copy: summed(rest + (w * w).sum()), plain)
    assert "  or:  add y to the result of all_reduce(..., 'dp', to=I), if rest is summed over the ranks later" in text
