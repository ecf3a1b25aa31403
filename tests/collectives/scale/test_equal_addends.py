"""A sum over ranks of Varying values that are equal on all ranks is named by a `ReplicaWarning`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.errors import ReplicaWarning
from collectives import I, R, V

from ..launch import launch

X = numpy.random.default_rng(1).normal(size=(6, 2))
START = numpy.array([0.3, -0.7])


def run(body: Callable[[Any], Any], mode: str = "first") -> tuple[list[str], list[Any]]:
    """The warnings of a program on 3 ranks, and its results."""

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            return body(mesh)

    return caught(program, 3, mode)


def caught(program: Callable[[], Any], ranks: int, mode: str) -> tuple[list[str], list[Any]]:
    cc.check(mode)
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            found = cc.run(program, ranks=ranks)
    finally:
        cc.check("first")
    return [str(each.message) for each in given if each.category is ReplicaWarning], found


def gradient(rows: Callable[[], Any], total: Callable[[Any], Any]) -> Any:
    w = ag.Parameter(START.copy())
    with ag.Tape() as tape:
        loss = total(((rows() @ cc.cast(w, "dp", to=R)) ** 2).sum())
    tape.backward(loss)
    return w.grad.numpy()


def all_rows() -> Any:
    return ag.tensor(X)


def labelled_rows() -> Any:
    return cc.shard(ag.tensor(X, layout={"dp": R}), "dp")


def summed(loss: Any) -> Any:
    return cc.all_reduce(loss, "dp", to=I)


SERIAL = 2 * X.T @ (X @ START)


@pytest.mark.parametrize("mode", ["first", "always", "ranks"])
def test_rows_that_nobody_has_divided(mode: str) -> None:
    (text,), found = run(lambda mesh: gradient(all_rows, summed), mode)
    numpy.testing.assert_allclose(found[0], 3 * SERIAL)
    assert text.startswith("all_reduce(x: f64[] {dp: V}, axis 'dp'): the 3 ranks add equal values, so the sum is 3")
    assert "cc.shard(ag.tensor(rows, layout={'dp': R}), 'dp')" in text and "broadcast(x, 'dp', 0, to=I)" in text


@pytest.mark.parametrize(
    ("rows", "total"), [(labelled_rows, summed), (all_rows, lambda loss: cc.broadcast(loss, "dp", 0, to=I))]
)
def test_both_fixes(rows: Callable[[], Any], total: Callable[[Any], Any]) -> None:
    texts, found = run(lambda mesh: gradient(rows, total))
    assert texts == []
    for g in found:
        numpy.testing.assert_allclose(g, SERIAL)


def test_a_total_that_a_ring_has_made() -> None:
    def body(mesh: Any) -> None:
        total = part = ag.tensor(X[mesh.axis("dp").rank] / 3)
        for _ in range(2):
            part = cc.permute(part, "dp", [(0, 1), (1, 2), (2, 0)])
            total = total + part  # the order of the addends depends on the rank, and so does the rounding
        cc.all_reduce(total, "dp")

    assert len(run(body)[0]) == 1


@pytest.mark.parametrize("nth", [1, 2, 4, 8])
def test_the_calls_that_are_compared(nth: int) -> None:
    def body(mesh: Any) -> None:
        for n in range(1, 10):
            cc.all_reduce(ag.tensor(X + (mesh.axis("dp").rank if n != nth else 0)), "dp")

    assert len(run(body)[0]) == 1


def test_reduce_reduce_scatter_and_a_started_sum() -> None:
    def body(mesh: Any) -> None:
        x = ag.tensor(X)
        cc.reduce(x, "dp", 0)
        cc.reduce_scatter(x, "dp")
        cc.all_reduce_async(x, "dp").wait()

    assert [text.partition("(")[0] for text in run(body)[0]] == ["reduce", "reduce_scatter", "all_reduce"]


def test_what_is_not_named() -> None:
    """Counts, zeros, means, addends of a sweep, values that differ, and everything in the mode off."""

    def body(mesh: Any) -> None:
        rank = mesh.axis("dp").rank
        cc.all_reduce(len(X), "dp")
        cc.all_reduce(float(len(X)), "dp")
        cc.all_reduce(ag.tensor(numpy.zeros((0, 3))), "dp")
        cc.mean(ag.tensor(X), "dp")
        w = ag.Parameter(START.copy())
        with ag.Tape() as tape:
            loss = cc.all_reduce((cc.cast(w, "dp", to=R) * 1.5 + ag.tensor(float(rank))).sum(), "dp", to=I)
            loss = loss + cc.all_reduce((cc.cast(w, "dp", to=R) * ag.tensor(0.0)).sum(), "dp", to=I)
        tape.backward(loss)  # the gradient of each rank is the same
        for _ in range(9):
            cc.all_reduce(ag.tensor(X + rank), "dp")
        for _ in range(9):
            cc.all_reduce(ag.tensor(X * (rank != 1)), "dp")

    assert run(body)[0] == []
    assert run(lambda mesh: gradient(all_rows, summed), "off")[0] == []


def test_ranks_may_examine_different_calls() -> None:
    """Two labels that the ranks may mix in one call: only one rank has a value to compare."""

    def body(mesh: Any) -> float:
        rank = mesh.axis("dp").rank
        for _ in range(2):
            cc.all_reduce(ag.tensor(X[rank, 0]), "dp")
        x = ag.tensor(X[0, 0])
        x = cc.cast(x, "dp", to=cc.P) if rank == 1 else x  # the first of its kind, and the third on the other ranks
        return float(cc.all_reduce(x, "dp"))

    texts, found = run(body)
    assert texts == [] and found == [pytest.approx(3 * X[0, 0])] * 3


ALONG = "the 2 ranks of axis {} add equal values, so the sum is 2 times the value"
ROWS_OF_DP = {"dp": R}
ROWS_OF_BOTH = {"dp": R, "tp": R}


@pytest.mark.parametrize(
    ("labels", "total", "said"),
    [
        (ROWS_OF_DP, lambda loss: cc.all_reduce(loss, ("dp", "tp"), to=I), ALONG.format("'tp'")),
        (ROWS_OF_DP, lambda loss: cc.all_reduce(loss, ("tp", "dp"), to=I), ALONG.format("'tp'")),
        (ROWS_OF_DP, lambda loss: cc.all_reduce_async(loss, ("dp", "tp"), to=I).wait(), ALONG.format("'tp'")),
        (ROWS_OF_DP,
         lambda loss: cc.broadcast(cc.reduce(loss, ("dp", "tp")), ("dp", "tp"), to=I), ALONG.format("'tp'")),
        ({}, lambda loss: cc.all_reduce(loss, ("dp", "tp"), to=I), "the 4 ranks add equal values"),
        # the fixes
        (ROWS_OF_BOTH, lambda loss: cc.all_reduce(loss, ("dp", "tp"), to=I), ""),
        (ROWS_OF_DP, lambda loss: cc.all_reduce(cc.broadcast(loss, "tp", 0, to=I), "dp", to=I), ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["first", "ranks"])
def test_a_sum_over_several_axes(labels: Any, total: Any, said: str, mode: str) -> None:
    """Rows that are divided along some of its axes are equal along the others, and count once for each rank there."""

    def program() -> Any:
        with cc.Mesh(dp=2, tp=2):
            w = ag.Parameter(START.copy())
            rows = ag.tensor(X, layout=labels) if labels else ag.tensor(X)
            for axis in labels:
                rows = cc.shard(rows, axis)
            with ag.Tape() as tape:
                loss = total(((rows @ cc.cast(w, ("dp", "tp"), to=R)) ** 2).sum())
            tape.backward(loss)
            return w.grad.numpy()  # type: ignore[union-attr]

    texts, found = caught(program, 4, mode)
    factor = 1 if not said else 4 if not labels else 2
    numpy.testing.assert_allclose(found[0], factor * SERIAL)
    assert len(texts) == bool(said) and all(said in text for text in texts), texts
    if labels and said:
        assert "rows = cc.shard(ag.tensor(rows, layout={'tp': R}), 'tp')" in texts[0]
        assert "(broadcast(x, 'tp', 0, to=I), 'dp'" in texts[0]


def test_a_replicated_term_of_one_of_several_axes() -> None:
    def program() -> None:
        with cc.Mesh(dp=2, tp=2):
            x = ag.tensor(X[:, 0] + float(cc.world().rank), layout={"dp": V, "tp": V})
            w = ag.Parameter(START.copy())
            with ag.Tape():
                penalty = cc.cast((cc.cast(w, "tp", to=R) ** 2).sum(), "dp", to=V)
                cc.all_reduce((x * cc.cast(w, ("dp", "tp"), to=R).sum()).sum() + penalty, ("dp", "tp"), to=I)

    (text,), _ = caught(program, 4, "first")
    assert "The Replicated one is the same on all ranks of axis 'tp', so it counts 2 times" in text


def test_over_mpi() -> None:
    outcome = launch("equal_addends.py", 2, limit_s=100)

    assert outcome.code == 0, outcome
    *lines, labelled, also = [line for line in outcome.err.splitlines() if "ReplicaWarning" in line]
    assert all("the 2 ranks of axis 'dp' pass equal data" in line for line in (labelled, also)), outcome.err
    assert "from_local(rows: f64[2]" in labelled and "tensor(rows: f64[2]" in also, outcome.err
    assert len(lines) == 3 and all("the 2 ranks add equal values" in line for line in lines), outcome.err
    assert "equal_addends.py:15" in lines[0]
    (line,) = [line for line in outcome.err.splitlines() if "GradientWarning" in line]
    assert "rank 0 by 2, rank 1 by 3" in line, outcome.err


@pytest.mark.parametrize(("library", "mode"), [("here", "ranks"), ("openmpi", "first")])
def test_several_axes_over_mpi(library: str, mode: str) -> None:
    outcome = launch("several_axes.py", 4, limit_s=100, on=library, RINGTAPE_CHECK=mode)
    assert outcome.code == 0, outcome
    lines = [line for line in outcome.err.splitlines() if "ReplicaWarning" in line]
    # the loss, the sum that is logged, and the sum over tp alone, of both its groups; dp divides the rows
    assert sorted(re.findall(r"several_axes.py:(\d+)", " ".join(lines))) == ["17", "19", "21", "21"], outcome.err
    assert "the 2 ranks of axis 'tp' add equal values" in lines[0]
