"""Activations as modules; as functions they are the operations themselves."""

from __future__ import annotations

from typing import Any

from .. import ops
from .module import Module

__all__ = ["GELU", "LogSoftmax", "ReLU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh"]


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


class Tanh(Module):
    """tanh(x)."""

    def forward(self, x: Any) -> Any:
        return ops.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        return ops.sigmoid(x)


class Softplus(Module):
    """log(1 + exp(x)), without overflow."""

    def forward(self, x: Any) -> Any:
        return ops.softplus(x)


class SiLU(Module):
    """x sigmoid(x)."""

    def forward(self, x: Any) -> Any:
        return ops.silu(x)


class GELU(Module):
    """x times the normal distribution function of x; ``approximate="tanh"`` for the form by tanh."""

    def __init__(self, approximate: str = "none"):
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        return ops.gelu(x, self.approximate)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `dim`, which may not be sharded."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Any) -> Any:
        return ops.softmax(x, self.dim)


class LogSoftmax(Module):
    """log(softmax(x)) along `dim`, which may not be sharded."""

    def __init__(self, dim: int = -1):
        self.dim = dim

    def forward(self, x: Any) -> Any:
        return ops.log_softmax(x, self.dim)
