"""A user's own primitives: values of every kind, both modes, every order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
import collectives as cc
from autograd.custom.vspace import VSpace, vspace
from autograd.extend import (
    Box,
    def_linear,
    defjvp,
    defjvp_argnum,
    defjvp_argnums,
    defvjp,
    defvjp_argnum,
    defvjp_argnums,
    notrace_primitive,
    primitive,
    register_notrace,
)
from autograd.numpy.numpy_vjps import unbroadcast_f
from autograd.test_util import check_grads
from collectives import I, P, R, Shard, V

RNG = numpy.random.default_rng(0)
A, B = RNG.standard_normal((2, 3)), RNG.standard_normal((2, 3)) + 3
BOTH = ("rev", "fwd")


def product() -> Callable[..., Any]:
    return primitive(lambda x, y: x * y)


def with_vjp(f: Any) -> None:
    defvjp(f, lambda ans, x, y: lambda g: g * y, lambda ans, x, y: lambda g: g * x)


def with_jvp(f: Any) -> None:
    defjvp(f, lambda g, ans, x, y: g * y, lambda g, ans, x, y: g * x)


@pytest.mark.parametrize("give", [[with_vjp], [with_jvp], [with_vjp, with_jvp]], ids=["vjp", "jvp", "both"])
def test_either_rule_serves_both_modes_to_order_3(give: list[Any]) -> None:
    f = product()
    for rules in give:
        rules(f)
    check_grads(f, (0, 1), modes=BOTH, order=3)(A, B)
    check_grads(lambda x: f(x, x), modes=BOTH)(A)
    check_grads(lambda x: f(f(x, 2.0), x + 1.0), modes=BOTH)(0.7)


def test_a_wrong_rule_is_seen() -> None:
    f = product()
    defvjp(f, lambda ans, x, y: lambda g: g * y, lambda ans, x, y: lambda g: g * x * 1.001)
    check_grads(f, 0, modes=["rev"], order=1)(A, B)
    with pytest.raises(AssertionError):
        check_grads(f, 1, modes=["rev"], order=1)(A, B)


# -- ways to give rules ----------------------------------------------------------------------------------------------
def scaled_rules() -> dict[str, Callable[[Any], None]]:
    return {
        "defvjp argnums": lambda f: defvjp(f, lambda ans, n, x, power=1: lambda g: g * n, argnums=(1,)),
        "defvjp_argnum": lambda f: defvjp_argnum(f, lambda k, ans, args, kwargs: lambda g: g * args[1 - k]),
        "defvjp_argnums": lambda f: defvjp_argnums(
            f, lambda ks, ans, args, kwargs: lambda g: [g * args[1 - k] for k in ks]
        ),
        "defjvp argnums": lambda f: defjvp(f, lambda g, ans, n, x, power=1: n * g, argnums=[1]),
        "defjvp_argnum": lambda f: defjvp_argnum(f, lambda k, g, ans, args, kwargs: g * args[1 - k]),
        "defjvp_argnums": lambda f: defjvp_argnums(
            f, lambda ks, gs, ans, args, kwargs: sum(g * args[1 - k] for k, g in zip(ks, gs, strict=True))
        ),
    }


@pytest.mark.parametrize("linear", [def_linear, lambda f: defjvp(f, None, "same")], ids=["def_linear", "same"])
def test_linear_functions(linear: Any) -> None:
    f = primitive(lambda n, x: n * x)
    linear(f)
    check_grads(lambda x: f(3.0, x) * 2.0, modes=["fwd"])(A)
    with pytest.raises(ag.NotDifferentiable, match="its jvp is the function itself"):
        ag.grad(lambda x: np.sum(f(3.0, x)))(A)
    defvjp(f, None, lambda ans, n, x: lambda g: n * g)
    check_grads(lambda x: f(3.0, x) * x, modes=BOTH)(A)


def test_a_forward_rule_may_call_its_function() -> None:
    f = primitive(numpy.exp)
    defjvp(f, lambda g, ans, x: g * f(x))
    check_grads(f, modes=BOTH, order=3)(A)


@pytest.mark.parametrize("how", scaled_rules())
def test_ways_to_give_rules(how: str) -> None:
    f = primitive(lambda n, x, power=1: n**power * x)
    scaled_rules()[how](f)
    check_grads(lambda x: f(3.0, x, power=1) * x, modes=BOTH)(A)


def test_keywords_reach_the_rule_and_none_is_zero() -> None:
    f = primitive(lambda x, y, power=1: x**power + 0 * y)
    defvjp(f, lambda ans, x, y, power=1: lambda g: g * power * x ** (power - 1), None)
    assert ag.grad(f, (0, 1))(2.0, 5.0, power=3) == (12.0, 0.0)
    check_grads(lambda x, y: f(x, y, power=3), (0, 1), modes=BOTH)(2.0, 5.0)


def test_old_ways_to_give_rules() -> None:
    f: Any = ag.primitive(lambda x, y: x * y)
    with pytest.warns(DeprecationWarning):
        f.defgrad(lambda ans, x, y: lambda g: g * y)
        f.defvjp(lambda g, ans, vs, gvs, x, y: g * x, argnum=1)
    check_grads(f, (0, 1), modes=BOTH)(A, B)
    with pytest.warns(DeprecationWarning):
        f.defvjp_is_zero([1])
    assert ag.grad(f, 1)(2.0, 3.0) == 0.0


# -- containers ------------------------------------------------------------------------------------------------------
@primitive
def mixed(tree: Any, n: int) -> Any:
    """Containers in and out, and an argument that is no value."""
    x, (y, table) = tree
    return {"sum": n * x + table["z"], "products": [x * y, (y * y,)], "name": "mixed"}


def _mixed_vjp(ans: Any, tree: Any, n: int) -> Any:
    x, (y, table) = tree

    def vjp(g: Any) -> Any:
        first, (second,) = g["products"]
        return [n * g["sum"] + first * y, (first * x + 2 * second * y, {"z": g["sum"]})]

    return vjp


def _mixed_jvp(g: Any, ans: Any, tree: Any, n: int) -> Any:
    x, (y, _) = tree
    dx, (dy, table) = g
    return {"sum": n * dx + table["z"], "products": [dx * y + x * dy, (2 * y * dy,)], "name": None}


@pytest.mark.parametrize("rules", ["vjp", "jvp", "both"])
def test_containers_in_and_out(rules: str) -> None:
    f = primitive(mixed.fun)
    if rules != "jvp":
        defvjp(f, _mixed_vjp)
    if rules != "vjp":
        defjvp(f, _mixed_jvp)

    def g(x: Any, y: Any, z: Any) -> Any:
        out = f([x, (y, {"z": z})], 3)
        assert out["name"] == "mixed"
        first, (second,) = out["products"]
        return np.sum(out["sum"] * second) + np.sum(np.sin(first))

    check_grads(g, (0, 1, 2), modes=BOTH, order=2)(A, B, 0.5 * A)
    check_grads(lambda x: f([x, (2.0, {"z": 1.0})], 3)["sum"], modes=BOTH)(A)  # one output of three, one leaf


def test_an_output_that_no_tape_follows() -> None:
    f = primitive(lambda x: (x * 2, numpy.argsort(x)))
    defvjp(f, lambda ans, x: lambda g: 2 * g[0])

    def g(x: Any) -> Any:
        doubled, order = f(x)
        return np.sum(doubled[order] * numpy.arange(3.0))

    assert ag.grad(g)(numpy.array([3.0, 1.0, 2.0])).tolist() == [4.0, 0.0, 2.0]


def test_a_vector_space_of_its_own_kind() -> None:
    class Pair:
        def __init__(self, a: float, b: float):
            self.a, self.b = a, b

    class PairSpace(VSpace):
        def zeros(self) -> Pair:
            return Pair(0.0, 0.0)

        def _add(self, x: Pair, y: Pair) -> Pair:
            return Pair(x.a + y.a, x.b + y.b)

    PairSpace.register(Pair)
    space = vspace(Pair(1.0, 2.0))
    total = space.add(Pair(1.0, 2.0), space.zeros())
    assert (total.a, total.b) == (1.0, 2.0)
    with pytest.raises(TypeError, match="2 of type int lives in no registered vector space"):
        vspace(2)


# -- values that are not arguments -----------------------------------------------------------------------------------
def test_what_a_primitive_closes_over_is_refused() -> None:
    def outer(w: Any, constant: Any) -> Any:
        f = primitive(lambda x: constant * x)
        defvjp(f, lambda ans, x: lambda g: g * constant)
        return f(w)

    assert ag.grad(outer)(2.0, ag.tensor(3.0)) == 3.0
    with pytest.raises(ag.NotDifferentiable, match="closes over a value that the tape follows"):
        ag.grad(lambda w: outer(w, w))(2.0)


def test_transforms_inside_a_primitive_are_its_own() -> None:
    f = primitive(lambda x: ag.grad(lambda y: y**3)(x))
    defvjp(f, lambda ans, x: lambda g: g * 6 * x)
    with ag.Tape() as tape:
        x = ag.tensor(2.0, requires_grad=True)
        y = f(x)
        assert len(tape.recording.nodes) == 2
    assert float(y) == 12.0
    check_grads(f, modes=BOTH)(2.0)


def test_values_only() -> None:
    seen = []
    look = notrace_primitive(lambda x: seen.append(type(x)) or x)
    assert ag.grad(lambda x: x * look(x))(3.0) == 3.0
    assert seen == [numpy.float64]
    step = primitive(numpy.floor)
    register_notrace(None, step)
    assert ag.grad(lambda x: x * step(x))(2.5) == 2.0
    assert isinstance(ag.tensor(1.0), Box)


# -- kinds of numbers ------------------------------------------------------------------------------------------------
def test_float32_stays_and_complex_cotangents_are_real_for_real_arguments() -> None:
    f = product()
    with_vjp(f)
    assert ag.grad(lambda x: np.sum(f(x, 2.0)))(A.astype(numpy.float32)).dtype == numpy.float32
    check_grads(lambda x, z: np.real(f(x, z) * z), (0, 1), modes=BOTH)(A, B + 1j)


def test_rules_that_broadcast() -> None:
    f = primitive(lambda x, b: x * b)
    defvjp(f, lambda ans, x, b: unbroadcast_f(x, lambda g: g * b), lambda ans, x, b: unbroadcast_f(b, lambda g: g * x))
    for b in (2.0, B[0], B[:, :1], B):
        check_grads(f, (0, 1), modes=BOTH)(A, b)


def test_a_cotangent_is_brought_to_its_argument() -> None:
    f = primitive(numpy.sum)
    defvjp(f, lambda ans, x: lambda g: g)  # one number for every element
    assert ag.grad(f)(A).tolist() == numpy.ones((2, 3)).tolist()
    g = primitive(lambda x, b: x + b)
    defvjp(g, lambda ans, x, b: lambda ct: ct, lambda ans, x, b: lambda ct: ct)  # forgets the repetition of b
    with pytest.raises(ag.ShapeError, match=r"of shape \(2, 3\) for an argument of shape \(3,\)"):
        ag.grad(lambda b: np.sum(g(A, b)))(numpy.ones(3))


# -- what is refused -------------------------------------------------------------------------------------------------
def test_without_a_rule_recording_refuses() -> None:
    f = primitive(lambda x: 2 * x)
    assert f(3.0) == 6.0
    for transform in (ag.grad, ag.deriv):
        with pytest.raises(ag.NotDifferentiable, match=r"<lambda> is to be .* argument 0, and has no rule"):
            transform(f)(1.0)
        with pytest.raises(NotImplementedError):
            transform(f)(1.0)
    with ag.no_grad():
        assert float(f(ag.tensor(1.0, requires_grad=True))) == 2.0


def test_errors_name_what_is_missing() -> None:
    f = product()
    defvjp(f, lambda ans, x, y: lambda g: g * y)
    with pytest.raises(ag.NotDifferentiable, match="argument 1, for which defvjp gave no rule"):
        ag.grad(f, 1)(1.0, 2.0)
    with pytest.raises(ag.NotDifferentiable, match="which the tape follows|that the tape follows"):
        ag.grad(lambda y: f(y, y=y))(2.0)
    with pytest.raises(ag.NotDifferentiable, match="not made by autograd.extend.primitive"):
        defvjp(ag.ops.relu, lambda ans, x: lambda g: g)
    with pytest.raises(ag.NotDifferentiable, match="a rule 'other' was given"):
        defjvp(f, "other")


# -- layouts ---------------------------------------------------------------------------------------------------------
def test_layouts_of_a_function_of_which_nothing_is_known() -> None:
    f = product()
    with_vjp(f)
    with cc.Mesh(dp=1), ag.Tape() as tape:
        w = ag.Parameter(A, {"dp": I})
        y = f(w, w)
        assert y.layout is not None and y.layout["dp"] is I
        x = f(ag.tensor(A, {"dp": V}, requires_grad=True), cc.cast(w, "dp", to=R))
        assert x.layout is not None and x.layout["dp"] is V
        loss = np.sum(y) + cc.all_reduce(np.sum(x), "dp", to=I)
        for layout, word in (({"dp": P}, "Partial|linear"), ({"dp": Shard(0)}, "mixes along dimension 0")):
            with pytest.raises(ag.LayoutError, match=word):
                f(ag.tensor(A, layout), 2.0)
    tape.backward(loss)
    assert w.grad is not None and w.grad.layout is not None and w.grad.layout["dp"] is I
    numpy.testing.assert_allclose(w.grad.numpy(), 2 * A + A)
