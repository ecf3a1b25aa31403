"""NumPy's names for the differentiable operations: ``import autograd.numpy as np``.

On Tensors they are recorded; on plain arrays they are NumPy. Names that make arrays or have no derivative are NumPy's.
"""

from __future__ import annotations

from numpy import (
    arange,
    array,
    asarray,
    bool_,
    complex64,
    complex128,
    e,
    empty,
    eye,
    float32,
    float64,
    full,
    inf,
    int32,
    int64,
    linspace,
    nan,
    ndarray,
    newaxis,
    ones,
    pi,
    random,
    zeros,
)

from ..ops import (
    absolute,
    add,
    argmax,
    broadcast_to,
    concatenate,
    cos,
    divide,
    dot,
    equal,
    exp,
    expand_dims,
    expm1,
    greater,
    greater_equal,
    isfinite,
    less,
    less_equal,
    log,
    log1p,
    logical_not,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    moveaxis,
    multiply,
    negative,
    not_equal,
    power,
    ravel,
    reciprocal,
    reshape,
    sign,
    sin,
    sqrt,
    square,
    squeeze,
    stack,
    subtract,
    sum,
    swapaxes,
    tanh,
    transpose,
    where,
)

__all__ = [
    "abs", "absolute", "add", "amax", "amin", "arange", "argmax", "array", "asarray", "bool_", "broadcast_to",
    "complex128", "complex64", "concatenate", "cos", "divide", "dot", "e", "empty", "equal", "exp", "expand_dims",
    "expm1", "eye", "float32", "float64", "full", "greater", "greater_equal", "inf", "int32", "int64", "isfinite",
    "less", "less_equal", "linspace", "log", "log1p", "logical_not", "matmul", "max", "maximum", "mean", "min",
    "minimum", "moveaxis", "multiply", "nan", "ndarray", "ndim", "negative", "newaxis", "not_equal", "ones",
    "ones_like", "pi", "power", "random", "ravel", "reciprocal", "reshape", "shape", "sign", "sin", "sqrt",
    "square", "squeeze", "stack", "subtract", "sum", "swapaxes", "tanh", "transpose", "true_divide", "where",
    "zeros", "zeros_like",
]  # fmt: skip

abs = absolute
true_divide = divide
amax, amin = max, min


def shape(x: object) -> tuple[int, ...]:
    """The shape of an array or Tensor."""
    return x.shape if hasattr(x, "shape") else array(x).shape


def ndim(x: object) -> int:
    """The number of dimensions of an array or Tensor."""
    return len(shape(x))


def zeros_like(x: object) -> ndarray:
    """An array of zeros of the shape and dtype of `x`."""
    return zeros(shape(x), x.dtype if hasattr(x, "dtype") else None)


def ones_like(x: object) -> ndarray:
    """An array of ones of the shape and dtype of `x`."""
    return ones(shape(x), x.dtype if hasattr(x, "dtype") else None)
