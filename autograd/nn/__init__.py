"""Neural network layers, losses and initialisers. Names and defaults follow torch.

One thing differs from torch: weight matrices of `Linear`, of the attention projections and of the recurrent cells are
stored [in, out], the transpose of torch's.
"""

from __future__ import annotations

from ..errors import answering
from ..ops import avg_pool, convolution, max_pool
from ..ops.nn import activations as _activations
from ..ops.nn.activations import *
from . import functional, init, utils
from .activations import GELU, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .attention import MultiheadAttention, SelfAttention
from .convolution_layers import AvgPool1d, AvgPool2d, Conv1d, Conv2d, MaxPool1d, MaxPool2d
from .dropout import Dropout
from .functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    dropout,
    embedding,
    l1_loss,
    layer_norm,
    leaky_relu,
    log_softmax,
    mse_loss,
    nll_loss,
    one_hot,
    rms_norm,
    scaled_dot_product_attention,
    smooth_l1_loss,
    softmax,
    tanh,
)
from .linear import Embedding, Flatten, Identity, Linear, TiedLinear
from .losses import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss, SmoothL1Loss
from .module import Module, ModuleDict, ModuleList, ParameterList, Sequential, in_turn
from .norms import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from .recurrent import LSTM, GRUCell, LSTMCell, RNNCell
from .saving import FileEntry, contents, load, save
from .torch_names import TorchName, torch_names
from .transformer import TransformerEncoderLayer

__all__ = [
    "AvgPool1d", "AvgPool2d", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d",
    "CrossEntropyLoss", "Dropout", "Embedding", "FileEntry", "Flatten", "GELU", "GRUCell", "GroupNorm", "Identity",
    "L1Loss", "LSTM", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax", "MSELoss", "MaxPool1d",
    "MaxPool2d", "Module", "ModuleDict", "ModuleList", "MultiheadAttention", "NLLLoss", "ParameterList", "RMSNorm",
    "RNNCell", "ReLU", "SelfAttention", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Tanh",
    "TiedLinear", "TorchName", "TransformerEncoderLayer", "avg_pool", "binary_cross_entropy_with_logits", "contents",
    "convolution", "cross_entropy", "dropout", "embedding", "functional", "in_turn", "init", "l1_loss", "layer_norm",
    "leaky_relu", "load", "log_softmax", "max_pool", "mse_loss", "nll_loss", "one_hot", "rms_norm", "save",
    "scaled_dot_product_attention", "smooth_l1_loss", "softmax", "tanh", "torch_names", "utils",
]  # fmt: skip
__all__ += _activations.__all__

globals()["__getattr__"] = answering(__name__)
