"""The differentiable operations, each beside its adjoint. `autograd.numpy` is their face."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import NotDifferentiable
from ..primitive import registry
from ..tensor import use_operations
from .convolution import convolution
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
from .fused import log_softmax, logsumexp, softmax
from .fused_activations import gelu, silu
from .fused_attention import attention, self_attention
from .fused_losses import cross_entropy
from .fused_norms import layer_norm, rms_norm
from .fused_rotary import rotary, rotary_angles
from .indexing import getitem
from .linalg import dot, linear, matmul
from .pooling import avg_pool, max_pool
from .reductions import argmax, max, mean, min, sum
from .rows import take_rows
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
    "absolute", "add", "argmax", "astype", "attention", "avg_pool", "broadcast_to", "concatenate", "convolution",
    "cos", "cross_entropy", "divide", "dot", "equal", "exp", "expand_dims", "expm1", "gelu", "getitem", "greater",
    "greater_equal", "isfinite", "layer_norm", "less", "less_equal", "linear", "log", "log1p", "log_softmax",
    "logical_not", "logsumexp", "matmul", "max", "max_pool", "maximum", "mean", "min", "minimum", "moveaxis",
    "multiply", "negative", "not_equal", "power", "ravel", "reciprocal", "relu", "reshape", "rms_norm", "rotary",
    "rotary_angles", "self_attention", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "sqrt", "square",
    "squeeze", "stack", "stop_gradient", "subtract", "sum", "swapaxes", "take_rows", "tanh", "transpose", "where",
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


use_operations(sys.modules[__name__])
