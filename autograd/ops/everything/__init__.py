"""All differentiable operations: importing this module loads them.

`autograd.ops` loads it at the first use of one of its names. `TENSOR_ATTRIBUTES` is its table for the class of Tensors.
It is a room of its own, because it imports `ops.nn`, too.
"""

from __future__ import annotations

from .. import decompositions, fourier, linalg, norms  # they declare operations
from ..arguments import stack
from ..contractions import contract, linear, matmul
from ..einsum import dot
from ..elementwise import *
from ..elementwise import add, astype, divide, multiply, negative, power, stop_gradient, subtract, where
from ..indexing import getitem
from ..nn import activations as _activations
from ..nn.activated import linear_gelu, linear_gelu_tanh, linear_relu, linear_silu
from ..nn.activations import *
from ..nn.attention import attention, attention_weights, self_attention
from ..nn.convolution import convolution
from ..nn.cross_entropy import cross_entropy
from ..nn.embedding import add_rows, take_rows
from ..nn.grouped import grouped_linear
from ..nn.normalization import layer_norm, rms_norm
from ..nn.pooling import avg_pool, max_pool
from ..nn.rotary import rotary, rotary_angles, rotary_angles_at
from ..nn.softmax import log_softmax, logsumexp, softmax
from ..numpy_protocol import from_function, from_ufunc
from ..reductions import argmax, max, mean, min, sum
from ..shape import broadcast_to, concatenate, expand_dims, moveaxis, ravel, reshape, squeeze, swapaxes, transpose
from ..tensor_methods import TENSOR_ATTRIBUTES as TENSOR_ATTRIBUTES

__all__ = [
    "absolute", "add", "add_rows", "argmax", "astype", "attention", "attention_weights", "avg_pool", "broadcast_to",
    "concatenate", "contract", "convolution", "cos", "cross_entropy", "divide", "dot", "equal", "exp", "expand_dims",
    "expm1", "from_function", "from_ufunc", "getitem", "greater", "greater_equal", "grouped_linear", "isfinite",
    "layer_norm", "less", "less_equal", "linear", "linear_gelu", "linear_gelu_tanh", "linear_relu", "linear_silu",
    "log", "log1p", "log_softmax", "logical_not", "logsumexp", "matmul", "max", "max_pool", "maximum", "mean", "min",
    "minimum", "moveaxis", "multiply", "negative", "not_equal", "power", "ravel", "reciprocal", "reshape", "rms_norm",
    "rotary", "rotary_angles", "rotary_angles_at", "self_attention", "sign", "sin", "softmax", "sqrt", "square",
    "squeeze", "stack", "stop_gradient", "subtract", "sum", "swapaxes", "take_rows", "tanh", "transpose", "where",
]  # fmt: skip
__all__ += _activations.__all__
