"""Recurrent cells: one step of a sequence.

Weights have shape [in, gates * hidden], the transpose of torch's, and are initialised uniformly in +-1 / sqrt(hidden).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops, random
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import RingtapeError
from .arguments import count
from .linear import uniform_parameter
from .module import Module

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class _Cell(Module):
    """Weights and biases of a cell, and its two products."""

    gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, *, dtype: Any = np.float32,
        key: random.Key | None = None,
    ):  # fmt: skip
        name = type(self).__name__
        input_size, hidden_size = count(input_size, f"{name}: input_size"), count(hidden_size, f"{name}: hidden_size")
        key = random.next_key(name) if key is None else key
        self.input_size, self.hidden_size = input_size, hidden_size
        wide, bound = self.gates * hidden_size, 1.0 / max(hidden_size, 1) ** 0.5
        self.weight_ih = uniform_parameter(key.fold("weight_ih"), (input_size, wide), bound, dtype)
        self.weight_hh = uniform_parameter(key.fold("weight_hh"), (hidden_size, wide), bound, dtype)
        self.bias_ih = uniform_parameter(key.fold("bias_ih"), (wide,), bound, dtype) if bias else None
        self.bias_hh = uniform_parameter(key.fold("bias_hh"), (wide,), bound, dtype) if bias else None

    def _from_input(self, x: Any) -> Any:
        return x @ self.weight_ih if self.bias_ih is None else ops.linear(x, self.weight_ih, self.bias_ih)

    def _from_hidden(self, h: Any) -> Any:
        return h @ self.weight_hh if self.bias_hh is None else ops.linear(h, self.weight_hh, self.bias_hh)

    def _gate(self, x: Any, i: int) -> Any:
        return x[..., i * self.hidden_size : (i + 1) * self.hidden_size]

    def _initial_state(self, x: Any) -> Any:
        """Zeros, with the layout of x."""
        zeros = np.zeros((*map(int, x.shape[:-1]), self.hidden_size), x.dtype)
        if x.__class__ not in TENSORS or state.grid is None:
            return zeros
        return Tensor(zeros, x.labelled(state.grid))


class RNNCell(_Cell):
    """Elman cell: ``h' = tanh(x @ weight_ih + bias_ih + h @ weight_hh + bias_hh)``.

    Call it with x [..., input_size] and the state h [..., hidden_size], by default zeros. It returns the next state.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    nonlinearity : {"tanh", "relu"}
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Notes
    -----
    Source: Elman 1990.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> cell = nn.RNNCell(3, 4)
    >>> h = None
    >>> for x in numpy.zeros((6, 2, 3), numpy.float32):
    ...     h = cell(x, h)
    >>> h.shape
    (2, 4)
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", **words: Any):
        if nonlinearity not in ("tanh", "relu"):
            raise RingtapeError(f"RNNCell: nonlinearity={nonlinearity!r} was given; needed: 'tanh' or 'relu'")
        super().__init__(input_size, hidden_size, bias, **words)
        self.nonlinearity = nonlinearity

    def forward(self, x: Any, h: Any = None) -> Any:
        h = self._initial_state(x) if h is None else h
        z = self._from_input(x) + self._from_hidden(h)
        return ops.tanh(z) if self.nonlinearity == "tanh" else ops.relu(z)


class LSTMCell(_Cell):
    """Long short-term memory cell: ``c' = s(f) c + s(i) tanh(g)``, ``h' = s(o) tanh(c')``; s is the logistic function.

    The gates i, f, g, o are the four parts of ``x @ weight_ih + bias_ih + h @ weight_hh + bias_hh``. Call it with x
    [..., input_size] and the pair (h, c), by default zeros. It returns the next pair.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Notes
    -----
    Source: Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    gates = 4

    def forward(self, x: Any, hc: Any = None) -> tuple[Any, Any]:
        h, c = (self._initial_state(x), self._initial_state(x)) if hc is None else hc
        z = self._from_input(x) + self._from_hidden(h)
        i, f, g, o = (self._gate(z, k) for k in range(4))
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(c), c


class GRUCell(_Cell):
    """Gated recurrent unit: ``n = tanh(a_n + s(r) b_n)``, ``h' = (1 - s(z)) n + s(z) h``; s is the logistic function.

    ``a = x @ weight_ih + bias_ih`` and ``b = h @ weight_hh + bias_hh`` have three parts each; the gates are
    ``r = a_r + b_r`` and ``z = a_z + b_z``. Call it with x [..., input_size] and the state h [..., hidden_size], by
    default zeros. It returns the next state.

    Parameters
    ----------
    input_size, hidden_size : int
    bias : bool
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Notes
    -----
    Source: Cho et al. 2014, section 2.3, but with the reset gate applied after the product, as in torch.
    """

    gates = 3

    def forward(self, x: Any, h: Any = None) -> Any:
        h = self._initial_state(x) if h is None else h
        a, b = self._from_input(x), self._from_hidden(h)
        r = ops.sigmoid(self._gate(a, 0) + self._gate(b, 0))
        z = ops.sigmoid(self._gate(a, 1) + self._gate(b, 1))
        n = ops.tanh(self._gate(a, 2) + r * self._gate(b, 2))
        return n + z * (h - n)
