"""Neural building blocks; names and defaults are torch's wherever torch has them.

Three things differ. Matrices that multiply from the right are stored [in, out], torch's transposed: `Linear`, the
projections of attention and the recurrent cells. Sequences have their batch first. And the function `cross_entropy`
gives the loss of each row unless asked for more: on a mesh a mean over rows is the program's business, which knows the
global count.
"""

from __future__ import annotations

from ..ops import (
    avg_pool,
    convolution,
    cross_entropy,
    gelu,
    layer_norm,
    log_softmax,
    max_pool,
    relu,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from . import init
from .activations import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .attention import MultiheadAttention
from .convolution import AvgPool1d, AvgPool2d, Conv1d, Conv2d, MaxPool1d, MaxPool2d
from .dropout import Dropout, dropout
from .linear import Embedding, Flatten, Identity, Linear, embedding
from .losses import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    binary_cross_entropy_with_logits,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from .module import Module, ModuleList, Sequential, load, save
from .norms import BatchNorm1d, BatchNorm2d, LayerNorm, RMSNorm
from .recurrent import GRUCell, LSTMCell, RNNCell

__all__ = [
    "AvgPool1d", "AvgPool2d", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d",
    "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GELU", "GRUCell", "Identity", "L1Loss", "LSTMCell",
    "LayerNorm", "Linear", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d", "Module", "ModuleList",
    "MultiheadAttention", "NLLLoss", "RMSNorm", "RNNCell", "ReLU", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss",
    "Softmax", "Softplus", "Tanh", "avg_pool", "binary_cross_entropy_with_logits", "convolution", "cross_entropy",
    "dropout", "embedding", "gelu", "init", "l1_loss", "layer_norm", "load", "log_softmax", "max_pool", "mse_loss",
    "nll_loss", "relu", "rms_norm", "save", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "tanh",
]  # fmt: skip
