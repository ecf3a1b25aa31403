"""Recurrent cells, one step of a sequence, and the LSTM of whole sequences.

Weights have shape [in, gates * hidden], the transpose of torch's, and are initialised uniformly in +-1 / sqrt(hidden).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops, random
from ..arrays.capture import recorded
from ..arrays.device import zeros_on
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import RingtapeError
from ..ops.arguments import operand, raw
from .arguments import batch_first as as_batch_first
from .arguments import count, flag, probability, tokens_first
from .dropout import dropout
from .linear import uniform_parameter
from .module import Module

__all__ = ["GRUCell", "LSTM", "LSTMCell", "RNNCell"]


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

    def stores_transposed(self, attribute: str) -> bool:
        return attribute.startswith("weight_")

    def _from_input(self, x: Any) -> Any:
        return x @ self.weight_ih if self.bias_ih is None else ops.linear(x, self.weight_ih, self.bias_ih)

    def _from_hidden(self, h: Any) -> Any:
        return h @ self.weight_hh if self.bias_hh is None else ops.linear(h, self.weight_hh, self.bias_hh)

    def _gate(self, x: Any, i: int) -> Any:
        return x[..., i * self.hidden_size : (i + 1) * self.hidden_size]

    def _initial_state(self, x: Any) -> Any:
        return initial_state(x, self.hidden_size)


def initial_state(x: Any, width: int) -> Any:
    """Zeros [..., width], with the layout of x."""
    zeros = recorded(zeros_on, raw(x), (*map(int, x.shape[:-1]), width), x.dtype)
    return zeros if x.__class__ not in TENSORS or state.grid is None else Tensor(zeros, x.labelled(state.grid))


def lstm_step(z: Any, c: Any) -> tuple[Any, Any]:
    """The next state (h, c) of an LSTM from its four gates side by side."""
    width = z.shape[-1] // 4
    i, f, g, o = (z[..., k * width : (k + 1) * width] for k in range(4))
    c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(c), c


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

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", *,
        dtype: Any = np.float32, key: random.Key | None = None,
    ):  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            text = f"RNNCell: nonlinearity={nonlinearity!r} was given; needed: 'tanh' or 'relu'"
            raise RingtapeError(text)
        super().__init__(input_size, hidden_size, bias, dtype=dtype, key=key)
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        hx = self._initial_state(input) if hx is None else hx
        z = self._from_input(input) + self._from_hidden(hx)
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

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        h, c = (self._initial_state(input), self._initial_state(input)) if hx is None else hx
        return lstm_step(self._from_input(input) + self._from_hidden(h), c)


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

    def forward(self, input: Any, hx: Any = None) -> Tensor:
        hx = self._initial_state(input) if hx is None else hx
        a, b = self._from_input(input), self._from_hidden(hx)
        r = ops.sigmoid(self._gate(a, 0) + self._gate(b, 0))
        z = ops.sigmoid(self._gate(a, 1) + self._gate(b, 1))
        n = ops.tanh(self._gate(a, 2) + r * self._gate(b, 2))
        return n + z * (hx - n)


class LSTM(Module):
    """Layers of long short-term memory over a sequence; each step is an `LSTMCell`.

    Call it with x [..., tokens, input_size] (with ``batch_first=True``) and optionally the pair (h, c), each [layers,
    ..., hidden_size], by default zeros; `layers` is the number of layers, or twice that if bidirectional. It returns
    ``y, (h, c)``: the outputs of
    the last layer, [..., tokens, hidden_size] or twice as wide if bidirectional, and the last state of each layer.

    Parameters
    ----------
    input_size, hidden_size : int
    num_layers : int
        Each further layer has the outputs of the one before as its inputs.
    bias : bool
    batch_first : bool
        Whether sequences of three dimensions are [batch, tokens, width], or [tokens, batch, width], which is torch's
        default. Those of two are [tokens, width]; of more, [..., tokens, width], with ``batch_first=True`` only.
    dropout : float
        The probability of dropping an output of a layer, except of the last one, in training.
    bidirectional : bool
        Whether each layer also has a second cell, which reads the sequence backwards. Its outputs are appended.
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Notes
    -----
    Source: as for `LSTMCell`. Weights are named as in torch ("weight_ih_l0", "bias_hh_l1_reverse"), and stored
    [in, 4 hidden].

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> y, (h, c) = nn.LSTM(3, 4, num_layers=2, batch_first=True)(numpy.zeros((5, 7, 3), numpy.float32))
    >>> y.shape, h.shape, c.shape
    ((5, 7, 4), (2, 5, 4), (2, 5, 4))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, *, dtype: Any = np.float32, key: random.Key | None = None,
    ):  # fmt: skip
        self.batch_first = flag(batch_first, "LSTM: batch_first")
        self.input_size = count(input_size, "LSTM: input_size")
        self.hidden_size = count(hidden_size, "LSTM: hidden_size")
        self.num_layers = count(num_layers, "LSTM: num_layers", 1, most=10_000)
        self.dropout, self.bidirectional = probability(dropout, "LSTM: dropout"), bool(bidirectional)
        key = random.next_key("LSTM") if key is None else key
        self._directions = ("", "_reverse") if bidirectional else ("",)
        wide, bound = 4 * self.hidden_size, 1.0 / max(self.hidden_size, 1) ** 0.5
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else self.hidden_size * len(self._directions)
            for direction in self._directions:
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (width, wide), "weight_hh": (self.hidden_size, wide)}
                shapes |= {"bias_ih": (wide,), "bias_hh": (wide,)} if bias else {}
                for name, shape in shapes.items():
                    path = f"{name}_l{layer}{direction}"
                    setattr(self, path, uniform_parameter(key.fold(path), shape, bound, dtype))

    def stores_transposed(self, attribute: str) -> bool:
        return attribute.startswith("weight_")

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, tuple[Any, Any]]:
        input = operand(input)
        input = input if self.batch_first else as_batch_first(input, "LSTM")
        hs: list[Any] = []
        cs: list[Any] = []
        for layer in range(self.num_layers):
            sides = []
            for direction in self._directions:
                start = None if hx is None else (hx[0][len(hs)], hx[1][len(hs)])
                outputs, (h, c) = self._sweep(input, f"_l{layer}{direction}", start, bool(direction))
                sides.append(outputs)
                hs.append(h)
                cs.append(c)
            input = sides[0] if len(sides) == 1 else ops.concatenate(sides, -1)
            if self.dropout and self.training and layer < self.num_layers - 1:
                input = dropout(input, self.dropout, key=random.next_key("LSTM"))
        return input if self.batch_first else tokens_first(input), (ops.stack(hs), ops.stack(cs))

    def _sweep(self, x: Any, suffix: str, start: Any, is_reverse: bool) -> tuple[Any, tuple[Any, Any]]:
        """One cell over the whole sequence: its outputs in the sequence's order, and its last state."""
        w_ih, w_hh = getattr(self, "weight_ih" + suffix), getattr(self, "weight_hh" + suffix)
        b_ih, b_hh = getattr(self, "bias_ih" + suffix, None), getattr(self, "bias_hh" + suffix, None)
        inputs = x @ w_ih if b_ih is None else ops.linear(x, w_ih, b_ih + b_hh)  # of all steps in one product
        h, c = start or (initial_state(x[..., 0, :], self.hidden_size), initial_state(x[..., 0, :], self.hidden_size))
        steps = range(int(x.shape[-2]))
        outputs: list[Any] = [None] * len(steps)
        for t in reversed(steps) if is_reverse else steps:
            h, c = lstm_step(inputs[..., t, :] + h @ w_hh, c)
            outputs[t] = h
        return ops.stack(outputs, -2), (h, c)
