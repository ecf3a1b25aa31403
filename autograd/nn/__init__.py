"""Neural building blocks; names and defaults are torch's wherever torch has them.

Two things differ. Matrices that multiply from the right are stored [in, out], torch's transposed: `Linear`, the
projections of attention and the recurrent cells. And `cross_entropy` gives the loss of each row unless asked for more:
on a mesh a mean over rows is the program's business, which knows the global count.
"""

from __future__ import annotations

from ..ops import avg_pool, cross_entropy, gelu, log_softmax, max_pool, relu, sigmoid, silu, softmax, softplus, tanh
from .activations import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .dropout import Dropout, dropout
from .linear import Embedding, Flatten, Identity, Linear, embedding
from .module import Module, ModuleList, Sequential, load, save

__all__ = [
    "GELU", "Dropout", "Embedding", "Flatten", "Identity", "Linear", "LogSoftmax", "Module", "ModuleList", "ReLU",
    "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "avg_pool", "cross_entropy", "dropout",
    "embedding", "gelu", "load", "log_softmax", "max_pool", "relu", "save", "sigmoid", "silu", "softmax", "softplus",
    "tanh",
]  # fmt: skip
