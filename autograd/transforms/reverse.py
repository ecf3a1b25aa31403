"""Reverse mode: gradients and pullbacks. One forward run on a tape, one sweep back per cotangent."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from ..engine.pytree import tree_map
from ..engine.state import state
from ..errors import ArgumentError, ObjectiveError, call_site
from ..layouts.messages import require_one_number
from .basis import ones
from .traced import Function, Traced
from .wrapping import Argnum, name_of, nary, position

__all__ = [
    "egrad", "elementwise_grad", "grad", "grad_and_aux", "grad_named", "holomorphic_grad", "make_vjp",
    "multigrad_dict", "value_and_grad", "vjp",
]  # fmt: skip


def grad(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes the gradient of `fun`, a function of one real number's value.

    Parameters
    ----------
    fun : callable
        Returns one real number, of any shape that holds one; under a mesh, one that is I, P or Rooted on every axis.
    argnum : int or sequence of int
        Which positional argument(s) to differentiate: arrays, floats, or nested tuples, lists and dicts of them.

    Returns
    -------
    callable
        With the arguments of `fun`. It returns what the argument is, with the gradient of each leaf in its place, of
        the leaf's shape, dtype and dual layout; with several argnums, a tuple.

    Raises
    ------
    ObjectiveError
        `fun` returned something else than one number, or a complex one.
    DtypeError
        An argument without derivative: an int, a bool.
    LayoutError
        A value that is V or R on an axis, so that it is no single number.

    Notes
    -----
    ``g = df/dx``, so that ``df = sum(g * dx)``. At a complex ``z = x + iy``, ``df/dx - i df/dy``: the pairing has no
    conjugate. One run of `fun` and one sweep, which is at most about four times the price of `fun` (Griewank and
    Walther, *Evaluating Derivatives*, section 4.6); a result that depends on nothing is zeros, with a warning.

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
    return nary("grad", _grad, fun, argnum)


def value_and_grad(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes ``(fun(x), its gradient at x)`` for the price of the gradient; see `grad`.

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

    The second one, which may be anything, is returned as it is and takes no part in the gradient. See `grad`.

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
    Returns a function which computes the sum of the Jacobian's rows in one sweep.

    Where `fun` works element by element, that is the Jacobian's diagonal: the derivative of each element.

    Parameters
    ----------
    fun : callable
        Returns real arrays, of any shape and layout.
    argnum : int or sequence of int
        As in `grad`.

    Raises
    ------
    ObjectiveError
        `fun` returned a complex array.

    Notes
    -----
    ``g_j = sum_i d f_i / d x_j``: the pullback of ones, at the price of one gradient. Under a mesh every element of the
    global value counts once: the cotangent of a Replicated output is 1 on the axis' first rank and 0 on the others.

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
    Returns a function which computes the complex derivative f'(z) of a holomorphic function of one number's value.

    That `fun` is holomorphic is taken on trust. A real argument is warned of.

    Notes
    -----
    The gradient of Re f, which is f' by the Cauchy-Riemann equations and the pairing without a conjugate.

    Examples
    --------
    >>> import autograd as ag
    >>> complex(ag.holomorphic_grad(lambda z: z**3)(1 + 2j))
    (-9+12j)
    """
    return nary("holomorphic_grad", _holomorphic_grad, fun, argnum)


def grad_named(fun: Function, argname: str) -> Function:
    """
    Returns a function which computes the gradient with respect to the parameter of a name, passed by position.

    Examples
    --------
    >>> import autograd as ag
    >>> float(ag.grad_named(lambda x, rate: x * rate, "rate")(3.0, 4.0))
    3.0
    """
    return grad(fun, position(fun, argname))


def multigrad_dict(fun: Function) -> Function:
    """
    Returns a function which computes the gradients with respect to all parameters: a dict from name to gradient.

    Parameters that are left out are at their defaults and are differentiated too; what ``*args`` takes is a tuple
    under its name, what ``**kwargs`` takes a dict.

    Examples
    --------
    >>> import autograd as ag
    >>> found = ag.multigrad_dict(lambda x, y=2.0: x * y * y)(3.0)
    >>> {name: float(g) for name, g in found.items()}
    {'x': 4.0, 'y': 12.0}
    """
    signature = inspect.signature(fun)

    def call(arguments: dict[str, Any]) -> Any:
        bound = inspect.BoundArguments(signature, dict(arguments))
        return fun(*bound.args, **bound.kwargs)

    def gradients(*args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found: dict[str, Any] = _grad(call, dict(bound.arguments))
        return found

    gradients.__name__ = gradients.__qualname__ = f"multigrad_dict_of_{name_of(fun)}"
    gradients.__doc__ = f"    The gradients of function {name_of(fun)} with respect to all its parameters, by name.\n"
    gradients.__wrapped__ = fun  # type: ignore[attr-defined]
    return gradients


def make_vjp(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes ``(pullback, fun(x))``; see `vjp`, which is the same at a point.

    The pullback takes a cotangent of the output (a container like it) and may be called any number of times. It
    returns a container like the argument.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> pullback, y = ag.make_vjp(np.exp)(np.array([0.0, 1.0]))
    >>> pullback(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    return nary("make_vjp", _make_vjp, fun, argnum)


def vjp(fun: Function, *args: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The value, and the pullback: cotangent of the value -> cotangent(s) of the argument(s).

    Parameters
    ----------
    fun : callable
        Of as many arguments as are given; arguments and output are arrays or nested containers of them.

    Returns
    -------
    y, pullback
        ``pullback(ct)`` may be called any number of times, with a container like `y`; with one argument it returns
        one like that argument, else a tuple. Under a mesh the leaves of `ct` are Tensors of the dual layout (a plain
        array is V). The tape lives as long as the pullback; argument arrays are read-only meanwhile.

    Raises
    ------
    ArgumentError
        A cotangent that is nested in another way than the output.

    Notes
    -----
    ``pullback(ct) = ct . df/dx``, without a conjugate. One run of `fun`; each call of the pullback is one sweep.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> y, pullback = ag.vjp(np.exp, np.array([0.0, 1.0]))
    >>> pullback(np.array([1.0, 0.0]))
    array([1., 0.])
    """
    traced = Traced(lambda xs: fun(*xs), args, "arguments")

    def pullback(ct: Any) -> Any:
        found = traced.gradient(traced.out_structure.match(ct, "the cotangent"))
        return found[0] if len(args) == 1 else found

    return traced.value(keep=True), pullback


# -- of a function of one container, at a point ------------------------------------------------------------------------


def _grad(f: Function, x: Any) -> Any:
    return _value_and_grad(f, x)[1]


def _value_and_grad(f: Function, x: Any) -> tuple[Any, Any]:
    traced = Traced(f, x)
    objective(traced)
    warn_if_constant(traced)
    found = traced.gradient(None)
    return traced.value(), found


def _grad_and_aux(f: Function, x: Any) -> tuple[Any, Any]:
    aux = []

    def first(x: Any) -> Any:
        found = f(x)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ArgumentError(
                f"grad_and_aux: the function returned {type(found).__name__}; needed: a pair, of the number to "
                "differentiate and what goes with it" + call_site()
            )
        aux.append(found[1])
        return found[0]

    traced = Traced(first, x)
    objective(traced)
    found = traced.gradient(None)
    return found, aux_out(traced, aux[0])


def aux_out(traced: Traced, aux: Any) -> Any:
    """What went past a transform, as the caller's world has it; anything at all may be in it."""
    return tree_map(traced.out, aux)


def _elementwise_grad(f: Function, x: Any) -> Any:
    traced = Traced(f, x)
    for y in traced.outputs:
        if y.array.dtype.kind == "c":
            raise ObjectiveError(
                f"elementwise_grad: the function returned dtype {y.array.dtype}; needed: a real one. Fix: np.real, "
                "or holomorphic_grad element by element" + call_site()
            )
    warn_if_constant(traced)
    cts = [None if y.tape is None else ones(y, None if y.layout is None else y.layout.dual) for y in traced.outputs]
    return traced.gradient(cts)


def _holomorphic_grad(f: Function, x: Any) -> Any:
    traced = Traced(f, x)
    if not any(z.array.dtype.kind == "c" for z in traced.inputs):
        warnings.warn("the argument of holomorphic_grad is not complex", stacklevel=4)
    objective(traced, complex_too=True)
    return traced.gradient(None)


def _make_vjp(f: Function, x: Any) -> tuple[Callable[[Any], Any], Any]:
    traced = Traced(f, x)
    warn_if_constant(traced)

    def pullback(ct: Any) -> Any:
        return traced.gradient(traced.out_structure.match(ct, "the cotangent"))

    return pullback, traced.value(keep=True)


def objective(traced: Traced, complex_too: bool = False) -> None:
    """Refuse outputs that are not one real number."""
    outputs = traced.outputs
    if len(outputs) != 1:
        raise ObjectiveError(
            f"the function returned {traced.out_structure!r} with {len(outputs)} arrays; needed: one number. Fix: "
            "return their sum, or use grad_and_aux, make_vjp or jacobian" + call_site()
        )
    y = outputs[0]
    if y.array.dtype.kind not in "iufc":
        raise ObjectiveError(f"the function returned dtype {y.array.dtype}; needed: one number" + call_site())
    if y.array.size != 1:
        raise ObjectiveError(
            f"the function returned shape {y.array.shape}; needed: one number. Fix: sum it, or use jacobian, "
            "elementwise_grad or vjp" + call_site()
        )
    if y.array.dtype.kind == "c" and not complex_too:
        raise ObjectiveError(
            f"the function returned one number of dtype {y.array.dtype}; needed: a real one, because a complex number "
            "has no gradient. Fix: np.real(...) or np.abs(...), or holomorphic_grad" + call_site()
        )
    require_one_number(y.layout, y.array.shape)


def warn_if_constant(traced: Traced) -> None:
    """Warn of outputs that depend on no argument: zero is seldom what was meant."""
    if not traced.connected and state.recording is None and traced.outputs:
        warnings.warn("Output seems independent of input: its derivative is zero", stacklevel=5)
