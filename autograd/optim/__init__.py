"""Optimizers, learning-rate schedules and clipping; names and defaults are torch's wherever torch has them.

`step` refuses a gradient whose layout is not its parameter's (Partial is "never reduced"), and compares the copies of
replicated parameters at the first step and every so often, so that replicas that drifted apart are an error.
"""

from __future__ import annotations

from . import schedules
from .adam import Adam, AdamW
from .base import Optimizer
from .large_batch import LAMB, LARS
from .norms import clip_grad_norm_, clip_grad_value_
from .sgd import SGD

__all__ = [
    "LAMB", "LARS", "SGD", "Adam", "AdamW", "Optimizer", "clip_grad_norm_", "clip_grad_value_", "schedules",
]  # fmt: skip
