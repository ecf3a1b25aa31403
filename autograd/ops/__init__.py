"""The differentiable operations, each beside its adjoint. `autograd.numpy` is their face."""

from __future__ import annotations

import sys

from . import decompositions, fourier, matrices, products
from .convolution import convolution
from .dispatch import from_function, from_ufunc
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
from .linalg import linear, matmul
from .methods import install
from .pooling import avg_pool, max_pool
from .products import dot
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
    "absolute", "add", "argmax", "astype", "attention", "avg_pool", "broadcast_to", "concatenate", "convolution", "cos",
    "cross_entropy", "divide", "dot", "equal", "exp", "expand_dims", "expm1", "from_function", "from_ufunc", "gelu",
    "getitem", "greater", "greater_equal", "isfinite", "layer_norm", "less", "less_equal", "linear", "log", "log1p",
    "log_softmax", "logical_not", "logsumexp", "matmul", "max", "max_pool", "maximum", "mean", "min", "minimum",
    "moveaxis", "multiply", "negative", "not_equal", "power", "ravel", "reciprocal", "relu", "reshape", "rms_norm",
    "rotary", "rotary_angles", "self_attention", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "sqrt",
    "square", "squeeze", "stack", "stop_gradient", "subtract", "sum", "swapaxes", "take_rows", "tanh", "transpose",
    "where",
]  # fmt: skip


install(sys.modules[__name__])
