"""Fixed points, differentiable by the implicit function theorem.

Christianson, Reverse accumulation and attractive fixed points, 1994.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import make_vjp
from ..custom.vspace import vspace
from ..extend import defvjp_argnums, primitive

__all__ = ["fixed_point"]

Function = Callable[..., Any]


@primitive
def fixed_point(f: Function, a: Any, x0: Any, distance: Function, tol: float) -> Any:
    """The x for which ``x = f(a)(x)``, by iterating from `x0` until ``distance(x, the one before) <= tol``.

    Parameters
    ----------
    f : callable
        ``f(a)`` returns the function that is iterated, a contraction.
    a : array or container
        What the fixed point depends on; it is differentiated.
    x0 : array or container
        Where to begin; the result does not depend on it, so its cotangent is zero.
    distance : callable
        ``distance(x, y)``, a number.
    tol : float

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> from autograd.misc.fixed_points import fixed_point
    >>> def root(a):
    ...     return fixed_point(lambda a: lambda x: 0.5 * (x + a / x), a, 1.0, lambda x, y: abs(x - y), 1e-12)
    >>> round(float(root(2.0)), 6), round(float(ag.grad(root)(2.0)), 6)
    (1.414214, 0.353553)
    """
    step = f(a)
    before, x = x0, step(x0)
    while distance(x, before) > tol:
        before, x = x, step(x)
    return x


def _rule(argnums: Sequence[int], x: Any, args: Sequence[Any], kwargs: Any) -> Function:
    f, a, _, distance, tol = args

    def backwards(params: Any) -> Function:
        a, x, ct = params
        pull, _ = make_vjp(f(a), x)
        return lambda u: vspace(x).add(pull(u), ct)

    def pulled(ct: Any) -> list[Any]:
        solution = fixed_point(backwards, (a, x, ct), vspace(x).zeros(), distance, tol)
        pull, _ = make_vjp(lambda a: f(a)(x), a)
        return [pull(solution) if argnum == 1 else None for argnum in argnums]

    return pulled


defvjp_argnums(fixed_point, _rule)
