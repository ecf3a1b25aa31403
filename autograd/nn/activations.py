"""Activation functions as modules. Each calls the operation of the same name."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..errors import OptionError, call_site
from ..ops.arguments import operand
from ..random.keys import integer
from .arguments import number
from .module import Module

__all__ = ["GELU", "LeakyReLU", "LogSoftmax", "ReLU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh"]


class ReLU(Module):
    """Rectified linear unit, ``max(x, 0)``, elementwise."""

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


class LeakyReLU(Module):
    """``x`` where x is positive, and ``negative_slope * x`` elsewhere.

    Parameters
    ----------
    negative_slope : float

    Notes
    -----
    Source: Maas, Hannun & Ng 2013, section 2. The derivative at 0 is `negative_slope`, as in torch.
    """

    def __init__(self, negative_slope: float = 1e-2):
        self.negative_slope = number(negative_slope, "LeakyReLU: negative_slope")

    def forward(self, x: Any) -> Any:
        x = operand(x)
        return ops.where(x > 0, x, x * self.negative_slope)


class Tanh(Module):
    """Hyperbolic tangent, elementwise."""

    def forward(self, x: Any) -> Any:
        return ops.tanh(x)


class Sigmoid(Module):
    """Logistic function, ``1 / (1 + exp(-x))``, elementwise."""

    def forward(self, x: Any) -> Any:
        return ops.sigmoid(x)


class Softplus(Module):
    """``log(1 + exp(x))``, elementwise and without overflow."""

    def forward(self, x: Any) -> Any:
        return ops.softplus(x)


class SiLU(Module):
    """Sigmoid linear unit, ``x * sigmoid(x)``, elementwise."""

    def forward(self, x: Any) -> Any:
        return ops.silu(x)


class GELU(Module):
    """Gaussian error linear unit, ``x * Phi(x)``, elementwise; Phi is the normal cumulative distribution function.

    Parameters
    ----------
    approximate : {"none", "tanh"}
        "tanh" approximates Phi by a hyperbolic tangent.
    """

    def __init__(self, approximate: str = "none"):
        if approximate not in ("none", "tanh"):
            raise OptionError(f"GELU: approximate={approximate!r} was given; needed: 'none' or 'tanh'" + call_site())
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        return ops.gelu(x, self.approximate)


class Softmax(Module):
    """``exp(x) / sum(exp(x))`` along `dim`.

    Parameters
    ----------
    dim : int
        The dimension that is normalised. It must not be sharded.
    """

    def __init__(self, dim: int = -1):
        self.dim = integer(dim, f"{type(self).__name__}: dim")

    def forward(self, x: Any) -> Any:
        return ops.softmax(x, self.dim)


class LogSoftmax(Module):
    """``log(softmax(x))`` along `dim`, computed without overflow.

    Parameters
    ----------
    dim : int
        The dimension that is normalised. It must not be sharded.
    """

    def __init__(self, dim: int = -1):
        self.dim = integer(dim, f"{type(self).__name__}: dim")

    def forward(self, x: Any) -> Any:
        return ops.log_softmax(x, self.dim)
