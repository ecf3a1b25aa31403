"""Tangents, cotangents and gradients of a sharded value that all ranks have made for the extent of one part.

Each rank would take the same elements of the whole direction, so the result was silently that of another direction.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from collectives import I, R, Shard, V

S, DIRECTION = numpy.linspace(-1.0, 2.0, 12), numpy.arange(12.0)


def objective(s: Any) -> Any:
    total = (s**3).sum()
    return cc.all_reduce(total, "tp", to=I) if getattr(total, "layout", None) is not None else total


def backward(s: Any, v: Any) -> Any:
    with ag.Tape() as tape:
        y = s**2
    tape.backward(y, v)
    return s.grad


def backward_recorded(s: Any, v: Any) -> Any:
    with ag.Tape():
        with ag.Tape() as tape:
            y = s**2
        return tape.backward([y], [v], wanted=[s], record=True)[0]


def assigned(s: Any, v: Any) -> Any:
    s.grad = v
    return s.grad * s * 2.0


TRANSFORMS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "jvp": (lambda s, v: ag.jvp(objective, (s,), (v,))[1], 3 * S**2 @ DIRECTION),
    "jvp in a tape": (lambda s, v: ag.grad(lambda t: ag.jvp(objective, (t,), (v,))[1])(s), 6 * S * DIRECTION),
    "make_jvp": (lambda s, v: ag.make_jvp(objective)(s)(v)[1], 3 * S**2 @ DIRECTION),
    "make_jvp_reversemode": (lambda s, v: ag.make_jvp_reversemode(objective)(s)(v), 3 * S**2 @ DIRECTION),
    "hvp": (lambda s, v: ag.hvp(objective, (s,), (v,))[1], 6 * S * DIRECTION),
    "make_hvp": (lambda s, v: ag.make_hvp(objective)(s)[0](v), 6 * S * DIRECTION),
    "hessian_vector_product": (lambda s, v: ag.hessian_vector_product(objective)(s, v), 6 * S * DIRECTION),
    "make_ggnvp": (lambda s, v: ag.make_ggnvp(lambda s: s**2)(s)(v), 4 * S**2 * DIRECTION),
    "vjp": (lambda s, v: ag.vjp(lambda s: s**2, s)[1](v), 2 * S * DIRECTION),
    "make_vjp": (lambda s, v: ag.make_vjp(lambda s: s**2)(s)[0](v), 2 * S * DIRECTION),
    "backward": (backward, 2 * S * DIRECTION),
    "backward, recorded": (backward_recorded, 2 * S * DIRECTION),
    "grad": (assigned, 2 * S * DIRECTION),
}


def on_ranks(ranks: int, body: Callable[[Any], Any]) -> Any:
    """The whole result of a program on a mesh; its argument is the sharded Parameter."""

    def program() -> Any:
        with cc.Mesh(tp=-1):
            found = body(ag.Parameter(cc.shard(ag.tensor(S, {"tp": R}), "tp")))
            if isinstance(found.layout["tp"], Shard):
                found = cc.all_gather(found, "tp", dim=0)
            return found.numpy()

    return cc.run(program, ranks)[-1]


def fixed(text: str) -> Callable[[Any], Any]:
    """The call of a fix, as a function of the v that it names."""
    call = re.search(r"fix: (cc\.shard\(.*?dim=0\)), with v the whole one, of 12 elements along dimension 0", text)
    assert call is not None, text
    return lambda v: eval(call[1], {"cc": cc, "ag": ag, "R": R, "v": v})


@pytest.mark.parametrize("name", TRANSFORMS)
def test_copies_are_refused_and_the_fix_has_the_serial_result(name: str) -> None:
    transform, expected = TRANSFORMS[name]
    for ranks in (1, 3):
        k = 12 // ranks
        for label, made in (("C", ag.constant), ("R", lambda v: ag.tensor(v, {"tp": R}))):
            with pytest.raises(ag.LayoutError) as caught:
                on_ranks(ranks, lambda s, made=made, k=k: transform(s, made(DIRECTION[:k])))
            text = str(caught.value)
            assert f"f64[{k}] {{tp: {label}}} was " in text and f"f64[{k}] {{tp: Shard(0)}}, 12 in all\n" in text
            assert f"axis 'tp': all ranks gave the same {k} elements along dimension 0" in text
            assert "at test_copies_for_parts.py" in text
            whole = numpy.asarray if label == "C" else made
            found = on_ranks(ranks, lambda s, text=text, whole=whole: transform(s, fixed(text)(whole(DIRECTION))))
            numpy.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_parts_are_legal(name: str) -> None:
    """With the label of the argument, or as values of each rank; and ones like the argument."""
    transform, expected = TRANSFORMS[name]
    mine = lambda: numpy.array_split(DIRECTION, 3)[cc.current_mesh().axis("tp").rank]
    if name != "grad":
        for made in (lambda v: v, lambda v: ag.tensor(v, {"tp": V})):
            found = on_ranks(3, lambda s, made=made: transform(s, made(mine())))
            numpy.testing.assert_allclose(found, expected)
    ones = on_ranks(3, lambda s: transform(s, np.ones_like(s)))
    again = on_ranks(1, lambda s: transform(s, np.ones_like(s)))
    numpy.testing.assert_allclose(ones, again)


def test_a_number_is_the_cotangent_of_every_element() -> None:
    numpy.testing.assert_allclose(on_ranks(3, lambda s: backward(s, 2.0)), 4 * S)


def test_a_draw_of_the_extent_of_a_part() -> None:
    with pytest.raises(ag.LayoutError, match=r"all ranks gave the same 4 elements .*\(Drawn\)") as caught:
        on_ranks(3, lambda s: ag.jvp(objective, (s,), (ag.random.normal(ag.random.Key(0), (4,)),))[1])
    assert "or:  draw it for that value: pass the value instead of a shape" in str(caught.value)
    drawn = on_ranks(3, lambda s: ag.jvp(objective, (s,), (ag.random.normal(ag.random.Key(0), s),))[1])
    assert drawn.shape == ()
