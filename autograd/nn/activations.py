"""Activation functions as modules. Each calls the operation of the same name."""

from __future__ import annotations

from typing import Any

from .. import ops
from ..engine.tensor import Tensor
from ..errors import OptionError
from ..ops.arguments import LAST, one_of, operand
from ..random.keys import integer
from .arguments import number, refuse_in_place
from .module import Module

__all__ = ["GELU", "LeakyReLU", "LogSoftmax", "ReLU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh"]


class ReLU(Module):
    """Rectified linear unit, ``max(x, 0)``, elementwise. `inplace` is False."""

    def __init__(self, inplace: bool = False):
        refuse_in_place(inplace, "ReLU")

    def forward(self, input: Any) -> Tensor:
        return ops.relu(input)

    def _after_linear(self) -> Any:
        return ops.linear_relu if self._is_called(ReLU.forward) else None


class LeakyReLU(Module):
    """``x`` where x is positive, and ``negative_slope * x`` elsewhere.

    Parameters
    ----------
    negative_slope : float
    inplace : bool
        Only False.

    Notes
    -----
    Source: Maas, Hannun & Ng 2013, section 2. The derivative at 0 is `negative_slope`, as in torch.
    """

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False):
        refuse_in_place(inplace, "LeakyReLU")
        self.negative_slope = number(negative_slope, "LeakyReLU: negative_slope")

    def forward(self, input: Any) -> Tensor:
        input = operand(input)
        return ops.where(input > 0, input, input * self.negative_slope)


class Tanh(Module):
    """Hyperbolic tangent, elementwise."""

    def forward(self, input: Any) -> Tensor:
        return ops.tanh(input)


class Sigmoid(Module):
    """Logistic function, ``1 / (1 + exp(-x))``, elementwise."""

    def forward(self, input: Any) -> Tensor:
        return ops.sigmoid(input)


class Softplus(Module):
    """``log(1 + exp(x))``, elementwise and without overflow."""

    def forward(self, input: Any) -> Tensor:
        return ops.softplus(input)


class SiLU(Module):
    """Sigmoid linear unit, ``x * sigmoid(x)``, elementwise. `inplace` is False."""

    def __init__(self, inplace: bool = False):
        refuse_in_place(inplace, "SiLU")

    def forward(self, input: Any) -> Tensor:
        return ops.silu(input)

    def _after_linear(self) -> Any:
        return ops.linear_silu if self._is_called(SiLU.forward) else None


class GELU(Module):
    """Gaussian error linear unit, ``x * Phi(x)``, elementwise; Phi is the normal cumulative distribution function.

    Parameters
    ----------
    approximate : {"none", "tanh"}
        "tanh" approximates Phi by a hyperbolic tangent.
    """

    def __init__(self, approximate: str = "none"):
        if approximate not in ("none", "tanh"):
            raise OptionError(f"GELU: approximate={approximate!r} was given; needed: 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, input: Any) -> Tensor:
        return ops.gelu(input, self.approximate)

    def _after_linear(self) -> Any:
        if not self._is_called(GELU.forward):
            return None
        return ops.linear_gelu if self.approximate == "none" else ops.linear_gelu_tanh


class Softmax(Module):
    """``exp(x) / sum(exp(x))`` along `dim`.

    Parameters
    ----------
    dim : int
        The dimension that is normalised. It must not be sharded.
    axis : int
        Another name of `dim`.
    """

    def __init__(self, dim: int = LAST, *, axis: int | None = None):
        name = type(self).__name__
        self.dim = integer(dim if axis is None else one_of(name, dim, LAST, axis), f"{name}: dim")

    def forward(self, input: Any) -> Tensor:
        return ops.softmax(input, self.dim)


class LogSoftmax(Module):
    """``log(softmax(x))`` along `dim`, computed without overflow.

    Parameters
    ----------
    dim : int
        The dimension that is normalised. It must not be sharded.
    axis : int
        Another name of `dim`.
    """

    def __init__(self, dim: int = LAST, *, axis: int | None = None):
        name = type(self).__name__
        self.dim = integer(dim if axis is None else one_of(name, dim, LAST, axis), f"{name}: dim")

    def forward(self, input: Any) -> Tensor:
        return ops.log_softmax(input, self.dim)
