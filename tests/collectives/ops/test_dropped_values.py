"""A broadcast drops what the other ranks have computed: a warning if that is another value than the root's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd.errors import GradientWarning
from collectives import I, V

OWN = numpy.random.default_rng(0).standard_normal((3, 5))


def told(total: Callable[[Any, Any], Any]) -> tuple[list[str], list[Any]]:
    """The warnings of a ring's program, and the gradients of each rank's own values."""

    def program() -> Any:
        with cc.Mesh(dp=3) as mesh:
            v = ag.Parameter(OWN[int(mesh.place[0])], {"dp": V})
            with ag.Tape() as tape:
                loss = cc.broadcast((total(v, mesh) ** 3).sum(), "dp", 0, to=I)
            tape.backward(loss)
            return v.grad.numpy()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cc.run(program, 3)
    return [str(each.message) for each in caught if each.category is GradientWarning], found


def ring(rounds: int) -> Callable[[Any, Any], Any]:
    def total(v: Any, mesh: Any) -> Any:
        token, result = v, v
        for _ in range(rounds):
            token = cc.permute(token, "dp", [(r, (r + 1) % 3) for r in range(3)])
            result = result + token
        return result

    return total


def test_a_whole_ring_is_the_same_up_to_rounding() -> None:
    texts, found = told(ring(2))
    assert texts == []
    for gradient in found:
        numpy.testing.assert_allclose(gradient, 3 * OWN.sum(0) ** 2)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_ring_with_other_rounds_is_named(rounds: int) -> None:
    texts, _ = told(ring(rounds))
    assert len(texts) == 2
    assert "rank 1 has computed another value than the root, rank 0" in " ".join(texts)


def test_the_value_of_the_root_alone() -> None:
    def program(is_fixed: bool) -> Any:
        with cc.Mesh(dp=2) as mesh:
            v = ag.Parameter(OWN[int(mesh.place[0])], {"dp": V})
            with ag.Tape() as tape:
                own = (v * v).sum()
                loss = cc.broadcast(own if mesh.place[0] == 0 or not is_fixed else None, "dp", 0, to=I)
            tape.backward(loss)
            return None if v.grad is None else v.grad.numpy()

    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        numpy.testing.assert_allclose(cc.run(lambda: program(True), 2)[0], 2 * OWN[0])
    with pytest.warns(GradientWarning, match="None in place of own on the other ranks"):
        cc.run(lambda: program(False), 2)


def test_leaves_and_data_are_no_computed_values() -> None:
    def program() -> Any:
        with cc.Mesh(dp=2) as mesh:
            v = ag.Parameter(OWN[int(mesh.place[0])], {"dp": V})
            weights = cc.broadcast(ag.tensor(OWN[int(mesh.place[0])]), "dp", 0, to=I)
            with ag.Tape() as tape:
                loss = (cc.broadcast(v, "dp", 0, to=I) * weights).sum()
            tape.backward(loss)

    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        cc.run(program, 2)


@pytest.mark.parametrize("differs", [False, True])
def test_complex_values_that_differ_in_their_phase(differs: bool) -> None:
    def program() -> Any:
        with cc.Mesh(dp=2) as mesh:
            v = ag.Parameter(OWN[0] + 1j * OWN[1], {"dp": V})
            with ag.Tape() as tape:
                own = v.conj() * 1 if differs and mesh.place[0] else v * 1
                loss = (anp.abs(cc.broadcast(own, "dp", 0, to=I)) ** 2).sum()
            tape.backward(loss)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cc.run(program, 2)
    told = [each for each in caught if "another value than the root" in str(each.message)]
    assert bool(told) == differs
