"""Optimizers, learning-rate schedules and gradient clipping. Names and defaults follow torch.

`Optimizer.step` raises an error if a gradient's layout is not its parameter's (a Partial gradient was never reduced),
or if values that should be equal on the ranks differ, which it checks at the steps 1, 2, 4, 8, ...: replicated
parameters, their gradients, the optimizer's state for them, and its hyperparameters.

Parameters may be complex: the Notes of `Optimizer` say along what they are updated.
"""

from __future__ import annotations

from ..errors import answering
from . import schedules
from .adam import Adam, AdamW
from .adaptive import Adagrad, RMSprop
from .base import Optimizer
from .large_batch import LAMB, LARS
from .mixed_precision import LossScaler, MasterWeights
from .norms import clip_grad_norm_, clip_grad_value_, global_norm
from .offload import Offload
from .sgd import SGD

__all__ = [
    "LAMB", "LARS", "SGD", "Adagrad", "Adam", "AdamW", "LossScaler", "MasterWeights", "Offload", "Optimizer", "RMSprop",
    "clip_grad_norm_", "clip_grad_value_", "global_norm", "schedules",
]  # fmt: skip

globals()["__getattr__"] = answering(__name__)
