"""Differentiable solution of ordinary differential equations: ``autograd.scipy.integrate.odeint``.

The adjoint integrates an augmented equation backwards in time. Sources: Pontryagin et al., The Mathematical Theory of
Optimal Processes, 1962; Chen, Rubanova, Bettencourt, Duvenaud, Neural Ordinary Differential Equations, 2018,
appendices B and C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import numpy as np
from ..errors import NotDifferentiable, check_callable, typed_errors
from ..extend import defvjp_argnums, primitive
from ..misc import flatten
from ..transforms import vjp
from ._load import followed, scipy

__all__ = ["odeint"]

_integrate = scipy("integrate")


@primitive
@typed_errors
def _odeint(func: Callable[..., Any], y0: Any, t: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    check_callable(func, "odeint")

    def derivative(y: Any, at: Any, *given: Any) -> Any:
        dy = func(y, at, *given)
        for x in dy if isinstance(dy, list | tuple) else [dy]:
            if followed(x):
                raise NotDifferentiable(
                    "odeint: func uses a value that a tape records, as by a closure, and its gradient would be "
                    "missing; needed: values that have a gradient as arguments\n  fix: odeint(func, y0, t, (k,)) and "
                    "func(y, t, k), for a value k"
                )
        return dy

    return _integrate.odeint(derivative, y0, t, args, **options)


def _odeint_adjoint(argnums: Sequence[int], ys: Any, given: Sequence[Any], kwargs: Any) -> Callable[[Any], list[Any]]:
    func, _, t, args, options = given
    steps, d = len(t), int(ys.shape[1])
    flat_args, unflatten = flatten(args)

    def derivative(y: Any, at: Any, flat: Any) -> Any:
        return func(y, at, *unflatten(flat))

    def augmented(state: Any, at: Any, flat: Any) -> Any:
        """The time derivatives of (y, cotangent of y, cotangent of the start time, cotangent of the arguments)."""
        dy, pull = vjp(derivative, state[:d], at * np.ones(()), flat)
        in_y, in_t, in_args = pull(-state[d : 2 * d])
        return np.concatenate([dy, in_y, np.reshape(in_t, (1,)), in_args])

    def pullback(ct: Any) -> list[Any]:
        in_y, in_start, in_args = ct[-1], np.zeros(1), np.zeros(flat_args.shape[0])
        in_times = []
        for i in range(steps - 1, 0, -1):
            in_time = np.dot(func(ys[i], t[i], *args), ct[i])  # dy/dt at t[i], paired with the cotangent of ys[i]
            in_times.append(np.reshape(in_time, (1,)))
            in_start = in_start - in_time
            state = np.concatenate([ys[i], in_y, in_start, in_args])
            span = np.concatenate([np.reshape(t[i], (1,)), np.reshape(t[i - 1], (1,))])
            before = _odeint(augmented, state, span, (flat_args,), options)[1]
            in_y, in_start, in_args = before[d : 2 * d] + ct[i - 1], before[2 * d : 2 * d + 1], before[2 * d + 1 :]
        times = np.concatenate([in_start, *in_times[::-1]])
        found = {1: in_y, 2: times, 3: unflatten(in_args)}
        return [found.get(i) for i in argnums]

    return pullback


defvjp_argnums(_odeint, _odeint_adjoint)


def odeint(func: Callable[..., Any], y0: Any, t: Any, args: Any = (), **options: Any) -> Any:
    """Return the solution of ``dy/dt = func(y, t, *args)`` at the times `t`, from ``y(t[0]) = y0``.

    Parameters
    ----------
    func : callable
        Written in `autograd.numpy`. Values to differentiate with respect to must come in through `args`, not a closure.
    y0 : array, shape (d,)
    t : array, shape (n,)
    args : tuple of arrays
    **options
        Options of `scipy.integrate.odeint`, such as ``rtol`` and ``atol``.

    Returns
    -------
    array, shape (n, d)
        Differentiable with respect to `y0`, `t` and `args`: in reverse mode to any order, in forward mode by
        transposing the reverse rule.

    Raises
    ------
    NotDifferentiable
        `func` uses a value that a tape records, and that is not among `args`.

    Examples
    --------
    >>> import numpy, autograd as ag
    >>> from autograd.scipy.integrate import odeint
    >>> def at_one(k):  # of dy/dt = -k y
    ...     return odeint(lambda y, t, k: -k * y, numpy.array([1.0]), numpy.array([0.0, 1.0]), (k,))[-1, 0]
    >>> bool(numpy.isclose(ag.grad(at_one)(2.0), -numpy.exp(-2.0), atol=1e-6))
    True
    """
    return _odeint(func, y0, t, args if isinstance(args, tuple) else (args,), options)
