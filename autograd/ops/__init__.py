"""The differentiable operations, each beside its adjoint. `autograd.numpy` is their face."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import NotDifferentiable
from ..methods import install
from ..primitive import registry
from .elementwise import (
    absolute,
    add,
    astype,
    cos,
    divide,
    equal,
    exp,
    expm1,
    greater,
    greater_equal,
    isfinite,
    less,
    less_equal,
    log,
    log1p,
    logical_not,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    power,
    reciprocal,
    relu,
    sigmoid,
    sign,
    sin,
    softplus,
    sqrt,
    square,
    stop_gradient,
    subtract,
    tanh,
    where,
)
from .fused import cross_entropy, log_softmax, logsumexp, softmax
from .indexing import getitem
from .linalg import dot, linear, matmul
from .reductions import argmax, max, mean, min, sum
from .shape import (
    broadcast_to,
    concatenate,
    expand_dims,
    moveaxis,
    ravel,
    reshape,
    squeeze,
    stack,
    swapaxes,
    transpose,
)

__all__ = [
    "absolute", "add", "argmax", "astype", "broadcast_to", "concatenate", "cos", "cross_entropy", "divide", "dot",
    "equal", "exp", "expand_dims", "expm1", "getitem", "greater", "greater_equal", "isfinite", "less", "less_equal",
    "linear", "log", "log1p", "log_softmax", "logical_not", "logsumexp", "matmul", "max", "maximum",
    "mean", "min", "minimum", "moveaxis", "multiply", "negative", "not_equal", "power", "ravel", "reciprocal", "relu",
    "reshape", "sigmoid", "sign", "sin", "softmax", "softplus", "sqrt", "square", "squeeze", "stack", "stop_gradient",
    "subtract", "sum", "swapaxes", "tanh", "transpose", "where",
]  # fmt: skip


def from_ufunc(ufunc: Any, method: str, xs: Any, options: Any) -> Any:
    """NumPy's own functions called on a Tensor: ``numpy.exp(x)``, ``array * x``."""
    primitive = registry.get({"pow": "power"}.get(ufunc.__name__, ufunc.__name__))
    if method != "__call__" or options or primitive is None:
        raise NotDifferentiable(
            f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method} has no derivative here. "
            "Fix: use autograd.numpy, or x.numpy() where no gradient is wanted"
        )
    return primitive(*xs)


install(sys.modules[__name__])
