"""Wrong programs that stay silent as a right one has the same tape: both are run, and their tapes are compared.

What tells of a scale sees the tape, the labels and the numbers that remember. So where a right program has all of
these in common with a wrong one, it can tell of both or of none, and an alarm for a right program is worse.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest

import autograd as ag
import collectives as cc
from autograd.engine.recording import arrays_of, op_of, parents_of, signature_of
from collectives import I, R, Shard

from .test_programs import scale

_random = numpy.random.default_rng(23)
ROWS, W = _random.normal(size=(12, 3)), numpy.array([0.3, -0.2, 0.5])
Loss = Callable[[Any, Any, Any], Any]


class Pair(NamedTuple):
    """A right and a wrong program with one tape, on n ranks: each a function of the rows, the parameter and the axis,
    and the factor by which the gradient of the wrong one differs from the one that is meant.
    """

    n: int
    right: tuple[Loss, Callable[[Any], Any]]
    wrong: tuple[Loss, Callable[[Any], Any]]
    factor: float
    rows: int = 12


def total(x: Any) -> Any:
    return cc.all_reduce(x, "dp", to=I)


def square(x: Any, w: Any) -> Any:
    return (x @ w) ** 2


def of_mean(x: Any) -> Any:
    return 2 * x.T @ (x @ W) / len(x)


def of_sum(x: Any) -> Any:
    return 2 * x.T @ (x @ W)


PAIRS = {
    "a half on two ranks": Pair(  # a mean over the ranks, times their number; a half of the mean, times their number
        2,
        (lambda x, w, dp: total(square(x, w).mean()) * (1 / int(dp.size)) * dp.size, of_mean),
        (lambda x, w, dp: total(square(x, w).mean()) * 0.5 * dp.size, lambda x: 0.5 * of_mean(x)),
        2.0),
    "one element of each rank": Pair(  # the mean over one row of each rank; the sum over them, divided by the size
        3,
        (lambda x, w, dp: total(square(x, w).sum()) / dp.size, of_mean),
        (lambda x, w, dp: total(square(x, w).sum()) / dp.size, of_sum), 1 / 3, 3),
    "declared": Pair(  # the mean of a loss of each rank; their sum, divided by the size
        3,
        (lambda x, w, dp: total(cc.declare_partial(square(x, w), "dp").sum()) / dp.size, lambda x: of_sum(x) / 3),
        (lambda x, w, dp: total(cc.declare_partial(square(x, w), "dp").sum()) / dp.size, of_sum), 1 / 3),
}  # fmt: skip


def run(loss: Loss, n: int, rows: int) -> tuple[list[str], list[Any], Any]:
    """The warnings, the tape and the gradient of a program on its first rank."""

    def main() -> Any:
        with cc.Mesh(dp=n) as mesh:
            dp = mesh.axis("dp")
            x = cc.from_local(numpy.split(ROWS[:rows], n)[int(dp.rank)], {"dp": Shard(0)})
            w = ag.Parameter(W.copy())
            with ag.Tape() as tape:
                y = loss(x, cc.cast(w, "dp", to=R), dp)
            seen = [
                (op_of(node).name, parents_of(node), str(getattr(signature_of(node), "layouts", "")),
                 [float(a) if numpy.ndim(a) == 0 and a is not None else None for a in arrays_of(node)])
                for node in y.tape.nodes if op_of(node).name != "leaf"
            ]  # fmt: skip
            tape.backward(y)
            return seen, w.grad.numpy()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tape, gradient = cc.run(main, n)[0]
    return [str(each.message) for each in caught], tape, gradient


@pytest.mark.parametrize("name", PAIRS)
def test_a_right_program_has_the_same_tape(name: str) -> None:
    pair = PAIRS[name]
    with scale("error"):
        told, right, gradient = run(pair.right[0], pair.n, pair.rows)
        numpy.testing.assert_allclose(gradient, pair.right[1](ROWS[: pair.rows]))
        of_wrong, wrong, off = run(pair.wrong[0], pair.n, pair.rows)
    assert told == of_wrong == []
    assert right == wrong
    numpy.testing.assert_allclose(off, pair.factor * pair.wrong[1](ROWS[: pair.rows]))
