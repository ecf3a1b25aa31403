"""Reverse mode: gradients and pullbacks, by one recorded run of the function and one reverse sweep per cotangent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engine.objective import require_one_number
from ..engine.pytree import tree_map
from ..engine.state import state
from ..errors import ArgumentError, LayoutError, ObjectiveError, check_callable, typed_errors, warn
from .basis import ones
from .traced import Function, Traced
from .wrapping import Argnum, like, name_of, nary, position

__all__ = [
    "egrad", "elementwise_grad", "grad", "grad_and_aux", "grad_named", "holomorphic_grad", "make_vjp",
    "multigrad_dict", "value_and_grad", "vjp",
]  # fmt: skip


def grad(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes the gradient of `fun`, which must return one real number.

    Parameters
    ----------
    fun : callable
        Returns one real number, in an array of any shape with one element. Under a mesh it must be I, P or Rooted on
        every axis.
    argnum : int or sequence of int
        The positional argument(s) to differentiate: arrays, floats, or nested tuples, lists and dicts of them.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns a container like the argument in which each leaf is replaced by
        its gradient, of the same shape and dtype and the dual layout; with several argnums, a tuple. The gradient of an
        argument that is R is P: each rank has an addend, and ``all_reduce(gradient, axis, to=I)`` sums them.

    Raises
    ------
    ObjectiveError
        In a call: `fun` did not return one number, or returned a complex one.
    DtypeError
        In a call: an argument is an integer or a boolean.
    LayoutError
        In a call: the result is V or R on an axis, so it is not one number.
    TapeError
        In a call: `fun` uses a value that was computed outside of it from a value that requires a gradient, as an
        argument does. The other arguments of `fun`, and results of `stop_gradient`, are data.

    Notes
    -----
    ``g = df/dx``, so that ``df = sum(g * dx)``. At a complex ``z = x + iy`` it is ``df/dx - i df/dy``: the pairing has
    no conjugate. The cost is one run of `fun` and one reverse sweep, at most about four times the cost of `fun`
    (Griewank and Walther, *Evaluating Derivatives*, section 4.6). If the result does not depend on the argument, the
    gradient is zero and a warning is issued. Where a function communicates, other ranks may use the argument, so the
    warning needs an argument that is I on all axes of several ranks: the ranks then all use it, or none does.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.grad(lambda x: np.sum(np.tanh(x) ** 2))(np.array([0.0, 1.0]))
    array([0.        , 0.63970001])
    >>> float(ag.grad(ag.grad(lambda x: x**3))(2.0))
    12.0
    >>> gradient = ag.grad(lambda p, x: np.sum((p["w"] * x + p["b"]) ** 2))
    >>> {k: float(g) for k, g in gradient({"w": 1.0, "b": 0.5}, np.array([1.0, 2.0])).items()}
    {'w': 13.0, 'b': 8.0}
    """
    return nary("grad", gradient_at, fun, argnum)


def value_and_grad(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes ``(fun(x), gradient at x)`` at the cost of the gradient; see `grad`.

    Parameters
    ----------
    fun, argnum
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns the pair of its value and its gradient.

    Raises
    ------
    ObjectiveError, DtypeError, LayoutError
        In a call, as in `grad`.

    Examples
    --------
    >>> import autograd as ag
    >>> value, gradient = ag.value_and_grad(lambda x, y: x * y * y, (0, 1))(2.0, 3.0)
    >>> float(value), [float(g) for g in gradient]
    (18.0, [9.0, 12.0])
    """
    return nary("value_and_grad", _value_and_grad, fun, argnum)


def grad_and_aux(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes ``(gradient of the first output, second output)`` of a function of two outputs.

    The second output may be anything. It is returned as it is and does not contribute to the gradient. See `grad`.

    Parameters
    ----------
    fun : callable
        Returns a pair: one real number, as in `grad`, and any other value.
    argnum : int or sequence of int
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns the pair of the gradient and the other value.

    Raises
    ------
    ArgumentError
        In a call: `fun` did not return a pair.
    ObjectiveError, DtypeError, LayoutError
        In a call, as in `grad`.

    Examples
    --------
    >>> import autograd as ag
    >>> gradient, name = ag.grad_and_aux(lambda x: (x * x, "square"))(3.0)
    >>> float(gradient), name
    (6.0, 'square')
    """
    return nary("grad_and_aux", _grad_and_aux, fun, argnum)


def elementwise_grad(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes the sum of the rows of the Jacobian in one sweep.

    If `fun` is elementwise, this is the diagonal of the Jacobian: the derivative of each element.

    Parameters
    ----------
    fun : callable
        Returns real arrays, of any shape and layout.
    argnum : int or sequence of int
        As in `grad`.

    Raises
    ------
    ObjectiveError
        In a call: `fun` returned a complex array.

    Notes
    -----
    An argument that is a NumPy array of integers is converted to floating point.

    ``g_j = sum_i d f_i / d x_j``: the pullback of ones, at the cost of one gradient. Under a mesh every element of the
    global value counts once: the cotangent of a Replicated output is 1 on the first rank of the axis and 0 on the
    others.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.elementwise_grad(np.tanh)(np.array([0.0, 1.0]))
    array([1.        , 0.41997434])
    """
    return nary("elementwise_grad", _elementwise_grad, fun, argnum)


egrad = elementwise_grad


def holomorphic_grad(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes the complex derivative f'(z) of a holomorphic function with one number as result.

    Whether `fun` is holomorphic is not checked. A real argument gives a warning.

    Parameters
    ----------
    fun : callable
        Returns one number, real or complex.
    argnum : int or sequence of int
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns the derivative, a container like the argument.

    Raises
    ------
    ObjectiveError
        In a call: `fun` did not return one number.
    DtypeError, LayoutError
        In a call, as in `grad`.

    Notes
    -----
    It is the gradient of Re f, which equals f' by the Cauchy-Riemann equations, as the pairing has no conjugate.

    Examples
    --------
    >>> import autograd as ag
    >>> complex(ag.holomorphic_grad(lambda z: z**3)(1 + 2j))
    (-9+12j)
    """
    return nary("holomorphic_grad", _holomorphic_grad, fun, argnum)


@typed_errors
def grad_named(fun: Function, argname: str) -> Function:
    """
    Returns a function which computes the gradient with respect to the parameter `argname`, passed by position.

    Parameters
    ----------
    fun : callable
        As in `grad`.
    argname : str
        The name of a parameter of `fun`.

    Returns
    -------
    callable
        A function of the arguments of `fun`, which returns the gradient.

    Raises
    ------
    ObjectiveError, DtypeError, LayoutError
        In a call, as in `grad`.

    Examples
    --------
    >>> import autograd as ag
    >>> float(ag.grad_named(lambda x, rate: x * rate, "rate")(3.0, 4.0))
    3.0
    """
    return grad(fun, position(fun, argname))


@typed_errors
def multigrad_dict(fun: Function) -> Function:
    """
    Returns a function which computes the gradients with respect to all parameters, as a dict from name to gradient.

    Parameters that are not passed have their default values and are differentiated too. The gradients of ``*args`` are
    a tuple under its name, those of ``**kwargs`` a dict under its name.

    Parameters
    ----------
    fun : callable
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns the gradient of each parameter by name.

    Raises
    ------
    ObjectiveError, DtypeError, LayoutError
        In a call, as in `grad`.

    Examples
    --------
    >>> import autograd as ag
    >>> found = ag.multigrad_dict(lambda x, y=2.0: x * y * y)(3.0)
    >>> {name: float(g) for name, g in found.items()}
    {'x': 4.0, 'y': 12.0}
    """
    check_callable(fun, "multigrad_dict")
    signature = inspect.signature(fun)

    def call(arguments: dict[str, Any]) -> Any:
        bound = inspect.BoundArguments(signature, dict(arguments))
        return fun(*bound.args, **bound.kwargs)

    def gradients(*args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"multigrad_dict of {name_of(fun)}: {error}") from error
        bound.apply_defaults()
        found: dict[str, Any] = gradient_at(call, dict(bound.arguments))
        return found

    gradients.__name__ = gradients.__qualname__ = f"multigrad_dict_of_{name_of(fun)}"
    gradients.__doc__ = f"    The gradients of function {name_of(fun)} with respect to all its parameters, by name.\n"
    gradients.__wrapped__ = fun  # type: ignore[attr-defined]  # as functools.wraps sets it
    return gradients


def make_vjp(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes ``(pullback, fun(x))``; see `vjp`, which computes the same at a given point.

    The pullback takes a cotangent of the output, a container like it, and returns a container like the argument. It
    may be called any number of times.

    Parameters
    ----------
    fun : callable
        Returns arrays or nested containers of them.
    argnum : int or sequence of int
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns the pullback and the value. Under a mesh the cotangent has the
        dual layout of the value.

    Raises
    ------
    ArgumentError
        In the pullback: the cotangent is not nested like the output.
    DtypeError
        In a call: an argument is an integer or a boolean.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> pullback, y = ag.make_vjp(np.exp)(np.array([0.0, 1.0]))
    >>> pullback(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    return nary("make_vjp", _make_vjp, fun, argnum)


def vjp(fun: Function, *args: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return the value of `fun` and its pullback, the function from a cotangent of the value to those of the arguments.

    Parameters
    ----------
    fun : callable
        A function of as many arguments as are given. Arguments and output are arrays or nested containers of them.

    Returns
    -------
    y, pullback
        ``pullback(ct)`` takes a container like `y` and may be called any number of times. With one argument it returns
        a container like that argument, else a tuple. Under a mesh the leaves of `ct` are Tensors of the dual layout (a
        plain array is V). The tape lives as long as the pullback; meanwhile the arrays of the arguments are read-only.

    Raises
    ------
    ArgumentError
        No argument is given. In the pullback: the cotangent is not nested like the output.

    Notes
    -----
    ``pullback(ct) = ct . df/dx``, without a conjugate. `fun` runs once; each call of the pullback is one reverse sweep.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> y, pullback = ag.vjp(np.exp, np.array([0.0, 1.0]))
    >>> pullback(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    check_callable(fun, "vjp")
    if not args:
        given = name_of(fun)
        raise ArgumentError(f"vjp of {given}: no arguments were given; needed: the point\n  fix: vjp({given}, x)")
    traced = Traced(lambda xs: fun(*xs), args, "arguments", "vjp")

    def pullback(ct: Any) -> Any:
        found = traced.gradient(traced.out_structure.match(ct, "the cotangent"))
        return found[0] if len(args) == 1 else found

    return traced.value(keep=True), pullback


# -- the transforms of a function of one argument, at a point ----------------------------------------------------------


def gradient_at(f: Function, x: Any) -> Any:
    """Return the gradient of `f` at `x`, a container."""
    return _value_and_grad(f, x)[1]


def _value_and_grad(f: Function, x: Any) -> tuple[Any, Any]:
    traced = Traced(f, x)
    objective(traced)
    found = traced.gradient(None)
    warn_if_constant(traced)
    return traced.value(), found


def _grad_and_aux(f: Function, x: Any) -> tuple[Any, Any]:
    aux = []

    def first(x: Any) -> Any:
        found = f(x)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ArgumentError(
                f"grad_and_aux: the function returned {type(found).__name__}; needed: a pair of the number to "
                "differentiate and any other value"
            )
        aux.append(found[1])
        return found[0]

    traced = Traced(like(f, first), x)
    objective(traced)
    return traced.gradient(None), tree_map(traced.out, aux[0])


def _elementwise_grad(f: Function, x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.dtype.kind in "iu":  # as programs of HIPS autograd pass points to evaluate at
        x = x.astype(float)
    traced = Traced(f, x)
    for y in traced.outputs:
        if y.array.dtype.kind == "c":
            raise ObjectiveError(
                f"elementwise_grad: the function returned dtype {y.array.dtype}; needed: a real dtype. Fix: "
                "np.real, or holomorphic_grad of each element"
            )
    cts = [None if y.tape is None else ones(y, None if y.layout is None else y.layout.dual) for y in traced.outputs]
    found = traced.gradient(cts)
    warn_if_constant(traced)
    return found


def _holomorphic_grad(f: Function, x: Any) -> Any:
    traced = Traced(f, x)
    if not any(z.array.dtype.kind == "c" for z in traced.inputs):
        warn("the argument of holomorphic_grad is not complex")
    objective(traced, complex_too=True)
    return traced.gradient([1.0])


def _make_vjp(f: Function, x: Any) -> tuple[Callable[[Any], Any], Any]:
    traced = Traced(f, x)
    warn_if_constant(traced)

    def pullback(ct: Any) -> Any:
        return traced.gradient(traced.out_structure.match(ct, "the cotangent"))

    return pullback, traced.value(keep=True)


def objective(traced: Traced, complex_too: bool = False) -> None:
    """Check that the output is one real number, or with `complex_too` one real or complex number.

    Raises
    ------
    ObjectiveError
        It is not.
    LayoutError
        It is V or R on a mesh axis.
    """
    outputs = traced.outputs
    if len(outputs) != 1:
        raise ObjectiveError(
            f"the function returned {traced.out_structure!r} with {len(outputs)} arrays; needed: one number. Fix: "
            "return their sum, or use grad_and_aux, make_vjp or jacobian"
        )
    y = outputs[0]
    if y.array.dtype.kind not in "iufcV":
        raise ObjectiveError(f"the function returned dtype {y.array.dtype}; needed: one number")
    if y.array.size != 1:
        raise ObjectiveError(
            f"the function returned shape {y.array.shape}; needed: one number. Fix: sum it, or use jacobian, "
            "elementwise_grad or vjp"
        )
    if y.array.dtype.kind == "c" and not complex_too:
        raise ObjectiveError(
            f"the function returned one number of dtype {y.array.dtype}; needed: a real one, because a complex "
            "function has no gradient. Fix: np.real(...) or np.abs(...), or holomorphic_grad"
        )
    try:
        require_one_number(y.layout, y.array.shape, state.unstated)
    except LayoutError as error:
        raise traced.hinted(error) from None


def warn_if_constant(traced: Traced) -> None:
    """Warn if no output depends on an argument: a zero derivative is seldom what was meant.

    Called after a sweep, it also sees that the sweep has reached no argument, although the tape has communications.
    """
    if not (traced.connected and traced.is_reached) and state.recording is None and traced.outputs:
        warn("Output seems independent of input: its derivative is zero")
