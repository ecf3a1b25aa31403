"""The layer of a transformer encoder: self-attention and a feed-forward network, each with a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops, random
from ..engine.events import listeners
from ..engine.tensor import TENSORS, Tensor
from ..errors import OptionError
from .attention import MultiheadAttention
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .norms import LayerNorm

__all__ = ["TransformerEncoderLayer"]

_ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {"relu": ops.relu, "gelu": ops.gelu}
_AFTER_LINEAR = ((ops.relu, ops.linear_relu), (ops.gelu, ops.linear_gelu), (ops.silu, ops.linear_silu))


class TransformerEncoderLayer(Module):
    """``x = norm1(x + attention(x))``, ``x = norm2(x + linear2(activation(linear1(x))))``, with dropout.

    With `norm_first` the norms are before attention and network: ``x = x + attention(norm1(x))``.

    Parameters
    ----------
    d_model : int
        The width of x.
    nhead : int
        The number of heads, a divisor of `d_model`.
    dim_feedforward : int
        The width between `linear1` and `linear2`.
    dropout : float
        The probability of dropping a weight of the attention, an element inside the network, or of its branches.
    activation : {"relu", "gelu"} or callable
    layer_norm_eps : float
    batch_first : bool
        As in `MultiheadAttention`.
    norm_first, bias : bool
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Notes
    -----
    Source: Vaswani et al. 2017, section 3; `norm_first`: Xiong et al. 2020.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True)
    >>> layer(numpy.zeros((3, 5, 8), numpy.float32), is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, *, dtype: Any = np.float32, key: random.Key | None = None,
    ):  # fmt: skip
        if not callable(activation) and activation not in _ACTIVATIONS:
            raise OptionError(
                f"TransformerEncoderLayer: activation={activation!r} was given; needed: 'relu', 'gelu' or a function"
            )
        key = random.next_key("TransformerEncoderLayer") if key is None else key
        words = {"dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, key=key.fold("self_attn"), **words
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, key=key.fold("linear1"), **words)
        self.linear2 = Linear(dim_feedforward, d_model, bias, key=key.fold("linear2"), **words)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **words)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **words)
        self.dropout, self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout), Dropout(dropout)
        self.activation: Any = _ACTIVATIONS.get(activation, activation)
        self.norm_first = norm_first

    def _activated(self, x: Any) -> Any:
        """The activation of the first linear layer, on a device in one operation."""
        if x.__class__ in TENSORS and x.array.__class__ is not np.ndarray and not listeners:
            joint = next((joint for f, joint in _AFTER_LINEAR if f is self.activation), None)
            y = NotImplemented if joint is None else self.linear1._forward_with(joint, x)
            if y is not NotImplemented:
                return y
        return self.activation(self.linear1(x))

    def forward(
        self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        """Apply the layer to [..., tokens, d_model] (with ``batch_first=True``).

        The masks are those of `MultiheadAttention`.
        """

        def attention(x: Any) -> Any:
            y, _ = self.self_attn(
                x, key_padding_mask=src_key_padding_mask, need_weights=False, attn_mask=src_mask, is_causal=is_causal
            )
            return self.dropout1(y)

        def network(x: Any) -> Tensor:
            return self.dropout2(self.linear2(self.dropout(self._activated(x))))

        if self.norm_first:
            x = src + attention(self.norm1(src))
            return x + network(self.norm2(x))
        x = self.norm1(src + attention(src))
        return self.norm2(x + network(x))
