"""Forward mode: tangents. One run on a tape, then the tape is replayed forwards, once per tangent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..engine.tensor import Tensor
from ..errors import ShapeError, call_site
from .basis import ones
from .reverse import warn_if_constant
from .traced import Function, Traced, zeros_like
from .wrapping import Argnum, nary

__all__ = ["deriv", "jvp", "make_jvp", "make_jvp_reversemode"]


def jvp(fun: Function, args: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The value and its tangent: forward mode, by replaying the tape forwards.

    Parameters
    ----------
    fun : callable
        Of as many arguments as are given; arguments and output are arrays or nested containers of them.
    args, tangents : sequences
        As many tangents as arguments, each nested like its argument, its leaves of the shape and dtype, and under a
        mesh of the layout, of the argument's.

    Returns
    -------
    y, dy

    Notes
    -----
    ``dy = df/dx . dx``. One run of `fun` and one replay, of about its price.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.jvp(np.sin, (np.array([0.0]),), (np.array([2.0]),))
    (array([0.]), array([2.]))
    """
    if len(args) != len(tangents):
        raise ShapeError(f"{len(tangents)} tangents were given for {len(args)} arguments" + call_site())
    traced = Traced(lambda xs: fun(*xs), tuple(args), "arguments")
    dy = traced.push(traced.structure.match(tuple(tangents), "tangents"))
    return traced.value(), traced.out_structure.rebuild(dy)


def make_jvp(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes, at a point, the function from a tangent to ``(fun(x), its tangent)``.

    `fun` runs once; each tangent replays its tape. See `jvp`.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> push = ag.make_jvp(np.sin)(np.array([0.0, 1.0]))
    >>> push(np.array([1.0, 0.0]))[1]
    array([1., 0.])
    """
    return nary("make_jvp", _make_jvp, fun, argnum)


def deriv(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes the tangent of the output for a tangent of ones: f' of a function of a number.

    Notes
    -----
    ``sum_j d f_i / d x_j`` for every i, in forward mode: the derivative of a curve, at the price of one replay however
    many elements it has. Under a mesh every global element of x counts once.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> float(ag.deriv(np.sin)(0.0))
    1.0
    """
    return nary("deriv", _deriv, fun, argnum)


def make_jvp_reversemode(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes, at a point, the pushforward by two reverse sweeps: tangent -> tangent of fun(x).

    Notes
    -----
    The pullback is linear in its cotangent, and the adjoint of that linear map is the pushforward (J. Townsend, *A new
    trick for calculating Jacobian vector products*, 2017). `make_jvp` costs less; this one needs adjoints alone.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.make_jvp_reversemode(np.sin)(np.array([0.0, 1.0]))(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    return nary("make_jvp_reversemode", _make_jvp_reversemode, fun, argnum)


# -- of a function of one container, at a point ------------------------------------------------------------------------


def _make_jvp(f: Function, x: Any) -> Callable[[Any], tuple[Any, Any]]:
    traced = Traced(f, x)
    warn_if_constant(traced)

    def push(tangent: Any) -> tuple[Any, Any]:
        dy = traced.push(traced.structure.match(tangent, "the tangent"))
        return traced.value(keep=True), traced.out_structure.rebuild(dy)

    return push


def _deriv(f: Function, x: Any) -> Any:
    traced = Traced(f, x)
    warn_if_constant(traced)
    found = [ones(z, z.layout) for z in traced.inputs]
    tangents = [z if t is None else t for z, t in zip(traced.inputs, found, strict=True)]
    return traced.out_structure.rebuild(traced.push(tangents))


def _make_jvp_reversemode(f: Function, x: Any) -> Callable[[Any], Any]:
    traced = Traced(f, x)
    warn_if_constant(traced)
    push = transposed(traced)

    def pushforward(tangent: Any) -> Any:
        return traced.out_structure.rebuild(push(traced.structure.match(tangent, "the tangent")))

    return pushforward


def transposed(traced: Traced) -> Callable[[Sequence[Any]], list[Any]]:
    """The pushforward as the adjoint of the pullback: tangents of the inputs -> tangents of the outputs."""
    zeros: list[Any] = []
    for y in traced.outputs:
        zero = zeros_like(y.array)
        zeros.append(zero if y.layout is None else Tensor(zero, y.layout.dual))
    return Traced(traced.pull, zeros).pull
