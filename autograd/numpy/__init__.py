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
