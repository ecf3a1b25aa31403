"""Torch's names for functions of gradients that are those of `autograd.optim`."""

from __future__ import annotations

from ..errors import answering
from ..optim.norms import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]

globals()["__getattr__"] = answering(__name__)
