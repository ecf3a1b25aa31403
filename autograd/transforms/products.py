"""Products of Hessians, Gauss-Newton matrices and Jacobians with vectors and tensors, without forming the matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..arrays.device import is_array
from ..engine.leaves import constant
from ..engine.tensor import TENSORS
from ..errors import ArgumentError, LayoutError, ShapeError, check_callable, typed_errors
from .forward import check_tangents
from .jacobians import stacked
from .reverse import gradient_at
from .traced import Function, Traced
from .wrapping import Argnum, like, named, nary

__all__ = [
    "ggnvp", "hessian_tensor_product", "hessian_vector_product", "hvp", "make_ggnvp", "make_hvp",
    "tensor_jacobian_product", "vector_jacobian_product",
]  # fmt: skip


def half_squares(y: Any) -> Any:
    """Return half the sum of squares over the last dimension, the least-squares loss. Its Hessian is the identity."""
    return ops.sum(y * y, -1) * 0.5 if np.ndim(getattr(y, "array", y)) else y * y * 0.5


def hvp(fun: Function, args: Any = None, tangents: Any = None) -> tuple[Any, Any]:
    """Return the gradient and the Hessian-vector product, by forward over reverse mode.

    Parameters
    ----------
    fun : callable
        Returns one real number; see `grad`.
    args, tangents : sequences
        As in `jvp`: as many tangents as arguments, each like its argument.

    Returns
    -------
    gradient, product
        Each like the argument, or a tuple with several arguments; in the dual layouts.

    Raises
    ------
    ArgumentError
        The arguments or the tangents are not given in a tuple or a list.
    ShapeError
        The numbers of tangents and arguments differ.

    Notes
    -----
    ``H v`` is the tangent of the gradient along v (B. Pearlmutter, *Fast exact multiplication by the Hessian*, 1994).
    It costs one recorded gradient and one replay of it, about twice a gradient for any size.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.hvp(lambda x: np.sum(x**3), (np.array([1.0, 2.0]),), (np.array([1.0, 0.0]),))
    (array([ 3., 12.]), array([6., 0.]))
    """
    check_tangents("hvp", args, tangents)
    traced = Traced(lambda xs: gradient_at(lambda zs: fun(*zs), xs), tuple(args), "arguments", "hvp")
    product = traced.out_structure.rebuild(traced.push(traced.structure.match(tuple(tangents), "tangents")))
    gradient = traced.value()
    return (gradient[0], product[0]) if len(args) == 1 else (gradient, product)


def make_hvp(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes, at a point, ``(product, gradient)``, where product(v) is the Hessian times v.

    The gradient is recorded once; each product is one reverse sweep over that record. Under a mesh v has the layout of
    the argument, because it is the cotangent of the gradient.

    Parameters
    ----------
    fun, argnum
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun`. It returns the product, a function of a vector like the argument, and the
        gradient.

    Raises
    ------
    ObjectiveError, DtypeError, LayoutError
        In a call, as in `grad`.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> product, gradient = ag.make_hvp(lambda x: np.sum(x**3))(np.array([1.0, 2.0]))
    >>> product(np.array([0.0, 1.0])), gradient
    (array([ 0., 12.]), array([ 3., 12.]))
    """
    return nary("make_hvp", _make_hvp, fun, argnum)


def hessian_tensor_product(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function of ``(*args, tensor)`` which computes the Hessian contracted with a tensor like the argument.

    Parameters
    ----------
    fun, argnum
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun` and a tensor, which has the shape and layout of the argument. It returns a
        container like the argument.

    Raises
    ------
    ObjectiveError, DtypeError, LayoutError
        In a call, as in `grad`.

    Notes
    -----
    ``sum_j H[i, j] v[j]``, by forward over reverse mode, at about twice the cost of a gradient; see `hvp`.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.hessian_tensor_product(lambda x: np.sum(x**3))(np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    array([ 6., 12.])
    """
    return _with_tensor("hessian_tensor_product", _hessian_tensor, fun, argnum)


hessian_vector_product = hessian_tensor_product


def tensor_jacobian_product(fun: Function, argnum: Argnum = 0) -> Function:
    """
    Returns a function of ``(*args, tensor)`` which computes a tensor contracted with the Jacobian from the left.

    The shape of the tensor is that of the first dimensions of the output. The remaining dimensions of the output come
    first in the result.

    Parameters
    ----------
    fun : callable
        Returns one array.
    argnum : int or sequence of int
        As in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `fun` and the tensor.

    Raises
    ------
    ArgumentError, ShapeError, LayoutError
        In a call: the output is not one array, the tensor does not fit, or a remaining dimension is sharded.

    Notes
    -----
    ``sum_i t[i...] J[i..., k..., j...]`` over the dimensions i of the tensor. It takes one reverse sweep per element k
    of the remaining dimensions, so one if the tensor has the shape of the output. The remaining dimensions may not be
    sharded.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> ag.tensor_jacobian_product(lambda x: x * x)(np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([ 2., 40.])
    """
    return _with_tensor("tensor_jacobian_product", _tensor_jacobian, fun, argnum)


vector_jacobian_product = tensor_jacobian_product


@typed_errors
def ggnvp(
    fun: Function, args: Sequence[Any], tangents: Sequence[Any], loss: Function = half_squares
) -> tuple[Any, Any]:
    """Return the value of a model, and the generalized Gauss-Newton matrix times a vector.

    Parameters
    ----------
    fun : callable
        The model; it returns one array.
    args, tangents : sequences
        As in `jvp`.
    loss : callable
        From the output of the model to one number; by default half the sum of squares.

    Returns
    -------
    y, product

    Raises
    ------
    ShapeError
        The numbers of tangents and arguments differ.

    Notes
    -----
    ``G v = J^T H_loss J v`` takes one forward replay, a Hessian-vector product of the loss and one reverse sweep
    (N. Schraudolph, *Fast curvature matrix-vector products*, 2002). G is positive semidefinite if the loss is convex.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> a = np.array([[1.0, 2.0], [0.0, 1.0]])
    >>> ag.ggnvp(lambda x: a @ x, (np.array([1.0, 1.0]),), (np.array([1.0, 0.0]),))
    (array([3., 1.]), array([1., 2.]))
    """
    if len(args) != len(tangents):
        raise ShapeError(f"{len(tangents)} tangents were given for {len(args)} arguments")
    traced = Traced(lambda xs: fun(*xs), tuple(args), "arguments", "ggnvp")
    found = _gauss_newton(traced, loss)(tuple(tangents))
    return traced.value(), found[0] if len(args) == 1 else found


def make_ggnvp(f: Function, g: Function = half_squares, f_argnum: Argnum = 0) -> Function:
    """
    Returns a function which computes, at a point, the function from v to the Gauss-Newton matrix times v.

    `f` is the model and `g` the loss of its output; see `ggnvp`. The model runs once, each product replays it.

    Parameters
    ----------
    f : callable
        The model; it returns one array.
    g : callable
        From the output of the model to one number; by default half the sum of squares.
    f_argnum : int or sequence of int
        The positional argument(s) of `f`, as in `grad`.

    Returns
    -------
    callable
        A function of the arguments of `f`. It returns a function of a vector like the argument.

    Raises
    ------
    DtypeError
        In a call: an argument is an integer or a boolean.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> a = np.array([[1.0, 2.0], [0.0, 1.0]])
    >>> ag.make_ggnvp(lambda x: a @ x)(np.array([1.0, 1.0]))(np.array([1.0, 0.0]))
    array([1., 2.])
    """
    check_callable(g, "make_ggnvp")
    return nary("make_ggnvp", lambda f, x, loss: _gauss_newton(Traced(f, x), loss), f, f_argnum, g)


# -- the transforms of a function of one argument, at a point ----------------------------------------------------------


def _make_hvp(f: Function, x: Any) -> tuple[Callable[[Any], Any], Any]:
    traced = Traced(like(f, lambda z: gradient_at(f, z)), x)

    def product(v: Any) -> Any:
        return traced.gradient(traced.out_structure.match(v, "the vector"))

    return product, traced.value(keep=True)


def _hessian_tensor(f: Function, x: Any, v: Any) -> Any:
    traced = Traced(like(f, lambda z: gradient_at(f, z)), x)
    return traced.out_structure.rebuild(traced.push(traced.structure.match(v, "the tensor")))


def _tensor_jacobian(f: Function, x: Any, t: Any) -> Any:
    traced = Traced(f, x)
    if len(traced.outputs) != 1:
        raise ArgumentError(
            f"tensor_jacobian_product: the function returned {traced.out_structure!r}; needed: one array. Fix: "
            "make_vjp, whose pullback takes containers"
        )
    y = traced.outputs[0]
    t = t if t.__class__ in TENSORS or is_array(t) else np.asarray(t)
    shape, given = tuple(y.array.shape), tuple(int(n) for n in t.shape)
    if shape[: len(given)] != given:
        raise ShapeError(
            f"tensor_jacobian_product: a tensor of shape {given} was given for an output of shape {shape}; needed: the "
            "shape of the output's first dimensions"
        )
    rest = shape[len(given) :]
    if not rest:
        return traced.gradient([t])
    if y.layout is not None and any(getattr(label, "dim", 0) >= len(given) for label in y.layout.labels):
        raise LayoutError(
            f"tensor_jacobian_product: the output {y.layout!r} of shape {shape} is sharded along a dimension that the "
            f"tensor of shape {given} does not have\n  fix: gather it first, or give a tensor of the output's shape"
        )
    rows: list[list[Any]] = [[] for _ in traced.inputs]
    for k in range(math.prod(rest)):
        unit = np.zeros(rest, y.array.dtype)
        unit.reshape(-1)[k] = 1
        spread = t
        for _ in rest:
            spread = ops.expand_dims(spread, -1)
        spread = spread * (constant(unit) if t.__class__ in TENSORS else unit)
        for row, found in zip(rows, traced.pull([spread]), strict=True):
            row.append(found)
    return traced.structure.rebuild([stacked(row, rest, 0) for row in rows])


def _gauss_newton(traced: Traced, loss: Function) -> Callable[[Any], Any]:
    curved = Traced(lambda y: gradient_at(loss, y), traced.value())

    def product(v: Any) -> Any:
        return traced.gradient(curved.push(traced.push(traced.structure.match(v, "the vector"))))

    return product


def _with_tensor(name: str, unary: Callable[..., Any], fun: Function, argnum: Argnum) -> Function:
    """A transformed function that takes the tensor as an additional last positional argument."""

    def transformed(*args: Any, **kwargs: Any) -> Any:
        if not args:
            raise ArgumentError(f"{name}: no arguments were given; needed: those of the function and the tensor")
        tensor = args[-1]
        return nary(name, lambda f, x: unary(f, x, tensor), fun, argnum)(*args[:-1], **kwargs)

    return named(transformed, fun, name, argnum)
