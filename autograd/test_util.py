"""The module `autograd.test_util` of HIPS autograd: checks of derivatives.

For each mode and order the derivative along one random direction is compared with a central difference. The checks of
`autograd.testing` give more information about a failure, and they alone check functions under a mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from .core import make_jvp, make_vjp
from .custom.vspace import vspace
from .engine.state import state
from .errors import MeshError, check_callable, typed_errors
from .transforms.wrapping import unary_to_nary
from .wrap_util import get_name

__all__ = ["check_equivalent", "check_grads", "check_jvp", "check_vjp", "combo_check", "make_numerical_jvp",
           "scalar_close"]  # fmt: skip

TOL = 1e-6
RTOL = 1e-6
EPS = 1e-6
_MODES = {"fwd": "fwd", "rev": "rev", "forward": "fwd", "reverse": "rev"}  # the last two: of `autograd.testing`

Function = Callable[..., Any]


@typed_errors
def scalar_close(a: Any, b: Any) -> bool:
    """Return whether two numbers are equal within an absolute or a relative tolerance."""
    return bool(abs(a - b) < TOL or abs(a - b) / abs(a + b) < RTOL)


def _refuse_mesh(name: str) -> None:
    """Raise MeshError under a mesh: inner products here are those of one rank, and random directions have no labels."""
    if state.grid is not None:
        raise MeshError(
            f"autograd.test_util.{name} was called under a mesh; it compares the products of one rank, which differ "
            "for right functions and agree for wrong ones\n  fix: autograd.testing.check_grads(f, x), which sums them "
            "over the ranks"
        )


@typed_errors
def make_numerical_jvp(f: Function, x: Any) -> Function:
    """Return the function from a direction v to the derivative of `f` at `x` along v, by a central difference."""
    check_callable(f, "make_numerical_jvp")
    spaces = vspace(x), vspace(f(x))

    def jvp(v: Any) -> Any:
        domain, image = spaces
        above = f(domain.add(x, domain.scalar_mul(v, EPS / 2)))
        below = f(domain.add(x, domain.scalar_mul(v, -EPS / 2)))
        return image.scalar_mul(image.add(above, image.scalar_mul(below, -1.0)), 1.0 / EPS)

    return jvp


def check_vjp(f: Function, x: Any) -> None:
    """Assert that reverse mode agrees with a central difference along a random direction; MeshError under a mesh."""
    _refuse_mesh("check_vjp")
    vjp, y = make_vjp(f, x)
    jvp = make_numerical_jvp(f, x)
    domain, image = vspace(x), vspace(y)
    dx, ct = domain.randn(), image.randn()
    g = domain.covector(vjp(image.covector(ct)))
    assert vspace(g) == domain, f"the gradient of {get_name(f)} is in {vspace(g)}, its argument in {domain}"
    exact, numeric = domain.inner_prod(dx, g), image.inner_prod(ct, jvp(dx))
    assert scalar_close(numeric, exact), (
        f"Derivative (VJP) check of {get_name(f)} failed with arg {x}:\nanalytic: {exact}\nnumeric:  {numeric}"
    )


def check_jvp(f: Function, x: Any) -> None:
    """Assert that forward mode agrees with a central difference along a random direction; MeshError under a mesh."""
    _refuse_mesh("check_jvp")
    jvp, numeric = make_jvp(f, x), make_numerical_jvp(f, x)
    dx = vspace(x).randn()
    check_equivalent(jvp(dx)[1], numeric(dx))


@typed_errors
def check_equivalent(x: Any, y: Any) -> None:
    """Assert that two values are in the same vector space and have equal components along a random direction."""
    space, other = vspace(x), vspace(y)
    assert space == other, f"VSpace mismatch:\nx: {space}\ny: {other}"
    v = space.randn()
    assert scalar_close(space.inner_prod(x, v), space.inner_prod(y, v)), f"Value mismatch:\nx: {x}\ny: {y}"


@unary_to_nary
@typed_errors
def check_grads(f: Function, x: Any, modes: Sequence[str] = ("fwd", "rev"), order: int = 2) -> None:
    """Assert that the derivatives of a function at a point are right, up to an order.

    The call is ``check_grads(f, argnum=0, modes=["fwd", "rev"], order=2)(*args)``. Under a mesh it raises MeshError.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from autograd.test_util import check_grads
    >>> check_grads(lambda x, y: np.sin(x) * y, (0, 1), modes=["rev"])(0.5, 2.0)
    """
    assert all(mode in _MODES for mode in modes), f"modes={modes}; needed: 'fwd' and 'rev' only"
    modes = [_MODES[mode] for mode in modes]
    if "fwd" in modes:
        check_jvp(f, x)
        if order > 1:

            def jvp_of(x: Any, v: Any) -> Any:
                return make_jvp(f, x)(v)[1]

            jvp_of.__name__ = f"jvp_{get_name(f)}"
            check_grads(jvp_of, (0, 1), modes, order=order - 1)(x, vspace(x).randn())
    if "rev" in modes:
        check_vjp(f, x)
        if order > 1:

            def vjp_of(x: Any, v: Any) -> Any:
                return make_vjp(f, x)[0](v)

            vjp_of.__name__ = f"vjp_{get_name(f)}"
            check_grads(vjp_of, (0, 1), modes, order=order - 1)(x, vspace(f(x)).randn())


def combo_check(fun: Function, *args: Any, **kwargs: Any) -> Function:
    """Return a function that runs `check_grads` on every combination of values, given as one list per argument."""

    def combinations(*lists: Any, **named: Any) -> None:
        choices = [[(key, value) for value in values] for key, values in named.items()]
        for chosen in product(*lists):
            for words in product(*choices):
                check_grads(fun, *args, **kwargs)(*chosen, **dict(words))

    return typed_errors(combinations)
