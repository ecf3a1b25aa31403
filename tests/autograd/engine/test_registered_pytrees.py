"""Dataclasses, named tuples and registered classes, wherever lists and dictionaries are containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd.data import default_collate
from autograd.errors import ArgumentError
from autograd.extend import primitive, vspace
from autograd.misc import flatten
from autograd.misc.optimizers import sgd
from autograd.test_util import check_grads

X = numpy.random.default_rng(0).standard_normal((5, 3))
W, B = numpy.array([0.5, -1.0, 2.0]), 0.25


@dataclass
class Plain:
    w: Any
    b: Any
    kind: str = field(default="tanh", metadata={"static": True})
    doubled: Any = field(init=False, default=None)  # made from the others: no part of it

    def __post_init__(self) -> None:
        self.doubled = (self.w, self.w)


@dataclass(frozen=True, slots=True)
class Frozen:
    w: Any
    b: Any


class Named(NamedTuple):
    w: Any
    b: Any


class Registered:
    def __init__(self, w: Any, b: Any, scale: float = 1.0):
        self.w, self.b, self.scale = w, b, scale


ag.register_pytree_node(Registered, lambda x: ((x.w, x.b), x.scale), lambda scale, parts: Registered(*parts, scale))
KINDS = (Plain, Frozen, Named, Registered)


def loss(m: Any) -> Any:
    return np.sum(np.tanh(X @ m.w + m.b) ** 2)


def of(w: Any, b: Any) -> Any:
    return np.sum(np.tanh(X @ w + b) ** 2)


GW, GB = ag.grad(of, (0, 1))(W, B)


def _close(m: Any, w: Any, b: Any) -> bool:
    return numpy.allclose(m.w, w, rtol=1e-12) and numpy.allclose(m.b, b, rtol=1e-12)


def _captured(f: Any, m: Any) -> Any:
    step = ag.capture(lambda m: ag.grad(f)(m))
    return [step(m) for _ in range(4)][-1]


def _given_to_a_primitive(f: Any, m: Any) -> Any:
    """A primitive of HIPS autograd's kind whose argument is a container."""
    from autograd.extend import defvjp

    whole = primitive(lambda m: numpy.sum(numpy.tanh(X @ m.w + m.b) ** 2))
    defvjp(whole, lambda ans, m: lambda g: type(m)(GW * g, GB * g))
    return ag.grad(lambda m: whole(m) * 1.0)(m)


def _taped(f: Any, m: Any) -> Any:
    p = type(m)(ag.Parameter(m.w), ag.Parameter(m.b))
    with ag.Tape() as tape:
        y = f(ag.checkpoint(lambda p: type(p)(p.w * 1.0, p.b))(p))
    tape.backward(y)
    return type(m)(p.w.grad.numpy(), p.b.grad.numpy())


# a place that takes containers -> the gradient there
PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, m: ag.grad(f)(m),
    "value_and_grad": lambda f, m: ag.value_and_grad(f)(m)[1],
    "grad_and_aux": lambda f, m: ag.grad_and_aux(lambda m: (f(m), m))(m)[0],
    "nested in others": lambda f, m: ag.grad(lambda t: f(t["a"][0]))({"a": [m, None]})["a"][0],
    "vjp": lambda f, m: ag.vjp(f, m)[1](1.0),
    "a result of vjp": lambda f, m: ag.vjp(lambda m: type(m)(f(m), m.b), m)[1](type(m)(1.0, 0.0)),
    "checkpoint": lambda f, m: ag.grad(lambda m: f(ag.checkpoint(lambda m: type(m)(m.w * 1.0, m.b))(m)))(m),
    "a captured step": _captured,
    "a primitive": _given_to_a_primitive,
    "a tape": _taped,
    "misc.flatten": lambda f, m: flatten(m)[1](ag.grad(lambda v: f(flatten(m)[1](v)))(flatten(m)[0])),
    "an optimizer": lambda f, m: _of_step(sgd(lambda m, i: ag.grad(f)(m), m, num_iters=1, step_size=1.0, mass=0.0), m),
}


def _of_step(found: Any, m: Any) -> Any:
    return type(m)(m.w - found.w, m.b - found.b)


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_gives_the_gradient(kind: Any) -> None:
    for place, gradient in PLACES.items():
        found = gradient(loss, kind(W, B))
        assert type(found) is kind and _close(found, GW, GB), place


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest(kind: Any) -> None:
    m = kind(W, B)
    dw = numpy.array([1.0, 2.0, -1.0])
    value, tangent = ag.jvp(loss, (m,), (kind(dw, 0.5),))
    assert numpy.isclose(tangent, GW @ dw + GB * 0.5)
    check_grads(loss, modes=["rev", "fwd"])(m)
    space = vspace(m)
    assert space.size == 4 and _close(space.add(m, m), 2 * W, 2 * B) and space.inner_prod(m, m) == W @ W + B * B
    assert [float(e.b) for e in space.standard_basis()] == [0, 0, 0, 1]
    batch = default_collate([kind(W, B), kind(2 * W, 3 * B)])
    assert type(batch) is kind and _close(batch, numpy.stack([W, 2 * W]), numpy.stack([B, 3 * B]))


def test_other_kinds_do_not_match() -> None:
    _, pullback = ag.vjp(lambda m: m, Plain(W, B))
    for wrong in ((W, B), Frozen(W, B), Plain(W, B, "sin"), {"w": W, "b": B}):
        with pytest.raises(ArgumentError, match="needed: Plain"):
            pullback(wrong)
    assert _close(pullback(Plain(2 * W, 3.0)), 2 * W, 3.0)
    with pytest.raises(ArgumentError, match=r"the cotangent\.w is tuple|needed: "):
        ag.vjp(lambda m: Plain([m.w], m.b), Plain(W, B))[1](Plain((W, W), B))


def test_what_is_a_leaf() -> None:
    """Modules and the library's own classes, a class that is an array, and a class that nobody has declared."""
    from autograd import nn
    from autograd.engine.pytree import flatten as leaves
    from autograd.random import Key

    @dataclass
    class Array:
        x: Any

        def __array__(self, *args: Any, **words: Any) -> Any:
            return self.x

    @dataclass(eq=False)
    class Layer(nn.Linear):
        extra: Any = None

        def __post_init__(self) -> None:
            super().__init__(2, 3)

    for x in (Array(W), Layer(), Key(0), object(), Plain):
        assert leaves([x])[0] == [x]
    assert leaves(Plain(W, B))[1].paths("x") == ["x.w", "x.b"]


def test_what_cannot_be_registered() -> None:
    wrong: Any
    for wrong in (
        (dict, len, len), (float, len, len), ("x", len, len), (Plain, None, len), (numpy.ndarray, len, len),
        (ag.Tensor, len, len), (object, len, None),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match="needed: a class"):
            ag.register_pytree_node(*wrong)
