"""Neural network layers, losses and initialisers. Names and defaults follow torch.

Three things differ from torch:

- Weight matrices of `Linear`, of the attention projections and of the recurrent cells are stored [in, out], the
  transpose of torch's.
- Sequences are batch first.
- The function `cross_entropy` returns the loss of each row by default. On a mesh the program sums these losses and
  divides by the global number of rows.
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
from . import init, utils
from .activations import GELU, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .attention import MultiheadAttention
from .convolution_layers import AvgPool1d, AvgPool2d, Conv1d, Conv2d, MaxPool1d, MaxPool2d
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
from .module import Module, ModuleDict, ModuleList, Sequential, load, save
from .norms import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from .recurrent import LSTM, GRUCell, LSTMCell, RNNCell
from .transformer import TransformerEncoderLayer

__all__ = [
    "AvgPool1d", "AvgPool2d", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d",
    "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GELU", "GRUCell", "GroupNorm", "Identity", "L1Loss",
    "LSTM", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d",
    "Module", "ModuleDict", "ModuleList", "MultiheadAttention", "NLLLoss", "RMSNorm", "RNNCell", "ReLU", "Sequential",
    "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Tanh", "TransformerEncoderLayer", "avg_pool",
    "binary_cross_entropy_with_logits", "convolution", "cross_entropy", "dropout", "embedding", "gelu", "init",
    "l1_loss", "layer_norm", "load", "log_softmax", "max_pool", "mse_loss", "nll_loss", "relu", "rms_norm", "save",
    "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "tanh", "utils",
]  # fmt: skip
