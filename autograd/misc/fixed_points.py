"""Fixed points, differentiated by the implicit function theorem.

Source: Christianson, Reverse accumulation and attractive fixed points, 1994.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import make_vjp
from ..custom.vspace import vspace
from ..errors import typed_errors
from ..extend import defvjp_argnums, primitive

__all__ = ["fixed_point"]

Function = Callable[..., Any]


@primitive
@typed_errors
def fixed_point(f: Function, a: Any, x0: Any, distance: Function, tol: float) -> Any:
    """Return the fixed point ``x = f(a)(x)``, by iteration from `x0`.

    Parameters
    ----------
    f : callable
        ``f(a)`` returns the function to iterate, which must be a contraction.
    a : array or container
        The parameters of the fixed point. Its derivative with respect to them is found without differentiating the
        iteration.
    x0 : array or container
        The initial value. The result does not depend on it, so its cotangent is zero.
    distance : callable
        ``distance(x, y)`` returns a number.
    tol : float
        The iteration ends when the distance between successive values is at most this.

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


def _fixed_point_adjoint(argnums: Sequence[int], x: Any, args: Sequence[Any], kwargs: Any) -> Function:
    f, a, _, distance, tol = args

    def adjoint_iteration(params: Any) -> Function:
        a, x, ct = params
        pullback, _ = make_vjp(f(a), x)
        return lambda u: vspace(x).add(pullback(u), ct)

    def pullback(ct: Any) -> list[Any]:
        solution = fixed_point(adjoint_iteration, (a, x, ct), vspace(x).zeros(), distance, tol)
        to_a, _ = make_vjp(lambda a: f(a)(x), a)
        return [to_a(solution) if argnum == 1 else None for argnum in argnums]

    return pullback


defvjp_argnums(fixed_point, _fixed_point_adjoint)
