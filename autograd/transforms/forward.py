"""Forward mode: tangents, by one recorded run of the function and one forward replay of its tape per tangent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from .basis import ones
from .reverse import warn_if_constant
from .traced import Function, Traced, zeros_like
from .wrapping import Argnum, nary

__all__ = ["deriv", "jvp", "make_jvp", "make_jvp_reversemode"]


def check_tangents(name: str, args: Any, tangents: Any) -> None:
    """Raise an error unless there are as many tangents as arguments, both in tuples or lists."""
    for given in (args, tangents):
        if not isinstance(given, tuple | list):
            shown = "nothing" if given is None else type(given).__name__
            raise ArgumentError(
                f"{name}: {shown} was given in place of a tuple of arguments or of tangents\n"
                f"  fix: {name}(f, (x,), (dx,))"
            )
    if len(args) != len(tangents):
        raise ShapeError(f"{len(tangents)} tangents were given for {len(args)} arguments")


def jvp(fun: Function, args: Any = None, tangents: Any = None) -> tuple[Any, Any]:
    """Return the value of `fun` and its tangent, in forward mode.

    Parameters
    ----------
    fun : callable
        A function of as many arguments as are given. Arguments and output are arrays or nested containers of them.
    args, tangents : sequences
        One tangent per argument, nested like it. Its leaves have the shapes and dtypes, and under a mesh the layouts,
        of the leaves of the argument.

    Returns
    -------
    y, dy

    Raises
    ------
    ArgumentError
        The arguments or the tangents are not given in a tuple or a list.
    ShapeError
        The numbers of tangents and arguments differ, or a tangent has not the shape of its argument.
    LayoutError
        A tangent has not the layout of its argument.

    Notes
    -----
    ``dy = df/dx . dx``. The cost is one run of `fun` and one replay of its tape, which costs about the same.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.jvp(np.sin, (np.array([0.0]),), (np.array([2.0]),))
    (array([0.]), array([2.]))
    """
    check_tangents("jvp", args, tangents)
    traced = Traced(lambda xs: fun(*xs), tuple(args), "arguments", "jvp")
    dy = traced.push(traced.structure.match(tuple(tangents), "tangents"))
    return traced.value(), traced.out_structure.rebuild(dy)


def make_jvp(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes, at a point, the function from a tangent of x to ``(fun(x), tangent of fun(x))``.

    `fun` runs once; each tangent replays its tape. See `jvp`.

    Parameters
    ----------
    fun : callable
        Returns arrays or nested containers of them.
    argnum : int or sequence of int
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns a function of a tangent, which has the nesting, shape, dtype
        and layout of the argument.

    Raises
    ------
    DtypeError
        In a call: an argument is an integer or a boolean.
    ShapeError, LayoutError
        For a tangent that does not fit the argument, as in `jvp`.

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
    Returns a function which computes the tangent of the output for a tangent of ones: f'(x) for a number x.

    Parameters
    ----------
    fun : callable
        Returns arrays or nested containers of them.
    argnum : int or sequence of int
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns a container like the output, in the layouts of the output.

    Raises
    ------
    DtypeError
        In a call: an argument is an integer or a boolean.

    Notes
    -----
    ``sum_j d f_i / d x_j`` for every i, in forward mode, by one replay for any number of outputs. Under a mesh every
    global element of x counts once.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> float(ag.deriv(np.sin)(0.0))
    1.0
    """
    return nary("deriv", _deriv, fun, argnum)


def make_jvp_reversemode(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes, at a point, the function from a tangent of x to that of fun(x), in reverse mode.

    Parameters
    ----------
    fun, argnum
        As in `make_jvp`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns a function from a tangent of the argument to that of the
        output.

    Raises
    ------
    DtypeError, ShapeError, LayoutError
        As in `make_jvp`.

    Notes
    -----
    The pullback is linear in its cotangent, and the adjoint of that linear map is the pushforward, so two reverse
    sweeps compute it (J. Townsend, *A new trick for calculating Jacobian vector products*, 2017). `make_jvp` costs
    less; this transform needs no forward rules.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.make_jvp_reversemode(np.sin)(np.array([0.0, 1.0]))(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    return nary("make_jvp_reversemode", _make_jvp_reversemode, fun, argnum)


# -- the transforms of a function of one argument, at a point ----------------------------------------------------------


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
    cts = [zeros_like(y.array) if y.layout is None else Tensor(zeros_like(y.array), y.layout.dual)
           for y in traced.outputs]  # fmt: skip
    pullback = Traced(traced.pull, cts)  # whose adjoint is the pushforward

    def pushforward(tangent: Any) -> Any:
        return traced.out_structure.rebuild(pullback.pull(traced.structure.match(tangent, "the tangent")))

    return pushforward
