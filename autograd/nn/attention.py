"""Multi-head attention as a module."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops, random
from ..engine.parameter import Parameter, constant
from ..engine.state import state
from ..errors import ShapeError, call_site
from .arguments import count, number
from .linear import Linear
from .module import Module

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Multi-head scaled dot-product attention with input and output projections: ``out_proj(concat(heads))``.

    Weights are stored [in, out], the transpose of torch's: ``in_proj_weight`` has shape [embed_dim, 3 * embed_dim]
    (queries, keys and values side by side), ``out_proj.weight`` has shape [embed_dim, embed_dim]. Inputs are batch
    first.

    Parameters
    ----------
    embed_dim : int
        Width of the inputs and of the output, a multiple of `num_heads`.
    num_heads : int
    bias : bool
        Whether the projections have biases.
    rotary : bool or float
        Apply rotary position embeddings to queries and keys (`ops.rotary`). A number is the base of the angles; True
        means 10000.
    dtype : dtype
    key : random.Key, optional
        Key of the initial weights. By default the thread's next key.

    Raises
    ------
    ShapeError
        `embed_dim` is not a multiple of `num_heads`, or the width of a head is odd with `rotary`.

    Notes
    -----
    Source: Vaswani et al. 2017, section 3.2.2. Initial values are torch's: Xavier uniform for ``in_proj_weight``, zeros
    for the biases.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> attend = nn.MultiheadAttention(8, 2)
    >>> attend(numpy.zeros((3, 5, 8), numpy.float32), is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self, embed_dim: int, num_heads: int, bias: bool = True, *, rotary: bool | float = False,
        dtype: Any = np.float32, key: random.Key | None = None,
    ):  # fmt: skip
        embed_dim = count(embed_dim, "MultiheadAttention: embed_dim", 1)
        num_heads = count(num_heads, "MultiheadAttention: num_heads", 1)
        if embed_dim % num_heads:
            raise ShapeError(
                f"MultiheadAttention: embed_dim={embed_dim}, num_heads={num_heads}; needed: embed_dim a multiple of "
                "num_heads"
            )
        if rotary and embed_dim // num_heads % 2:
            raise ShapeError(
                f"MultiheadAttention: each head has width {embed_dim // num_heads}; needed with rotary: an even width"
            )
        key = random.next_key("MultiheadAttention") if key is None else key
        self.embed_dim, self.num_heads = embed_dim, num_heads
        base = 10000.0 if rotary is True else rotary
        self.rotary = number(base, "MultiheadAttention: rotary", 0) if rotary else 0.0
        bound = (6.0 / (4 * embed_dim)) ** 0.5
        shape = (embed_dim, 3 * embed_dim)
        self.in_proj_weight = Parameter(
            random.uniform(key.fold("in_proj_weight"), shape, low=-bound, high=bound, dtype=dtype)
        )
        self.in_proj_bias = Parameter(np.zeros(3 * embed_dim, dtype)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype, key=key.fold("out_proj"))
        if self.out_proj.bias is not None:
            self.out_proj.bias = Parameter(np.zeros(embed_dim, dtype))

    def forward(
        self, query: Any, key: Any = None, value: Any = None, *, mask: Any = None, is_causal: bool = False
    ) -> Any:
        """Compute attention.

        Parameters
        ----------
        query : Tensor or array, [..., tokens, embed_dim]
        key, value : Tensor or array, [..., keys, embed_dim], optional
            `key` defaults to `query` (self-attention), `value` to `key`.
        mask : array, broadcastable to [..., num_heads, tokens, keys], optional
            Booleans, True where a query attends to a key, or numbers that are added to the scores.
        is_causal : bool
            Whether each query attends only to keys at its own and earlier positions.

        Returns
        -------
        Tensor or array, [..., tokens, embed_dim]
        """
        width = self.embed_dim // self.num_heads
        if key is None and value is None and not self.rotary:
            qkv = self._project(query, 0, 3)
            *lead, tokens, _ = qkv.shape
            y = ops.self_attention(ops.reshape(qkv, (*lead, tokens, 3, self.num_heads, width)), mask, causal=is_causal)
            return self.out_proj(ops.reshape(y, (*lead, tokens, self.embed_dim)))
        if key is None and value is not None:
            raise ShapeError("MultiheadAttention: value was given without key; needed: key too" + call_site())
        if key is None:
            *lead, tokens, _ = query.shape
            qkv = ops.reshape(self._project(query, 0, 3), (*lead, tokens, 3, self.num_heads, width))
            q, k, v = (qkv[..., i, :, :] for i in range(3))
        else:
            value = key if value is None else value
            q, k, v = (
                ops.reshape(self._project(x, i, i + 1), (*x.shape[:-1], self.num_heads, width))
                for i, x in enumerate((query, key, value))
            )
        q, k, v = (ops.swapaxes(x, -2, -3) for x in (q, k, v))  # [..., heads, tokens, width]
        if self.rotary:
            q, k = self._rotate(q), self._rotate(k)
        y = ops.swapaxes(ops.attention(q, k, v, mask, causal=is_causal), -2, -3)
        return self.out_proj(ops.reshape(y, (*y.shape[:-2], self.embed_dim)))

    def _project(self, x: Any, first: int, last: int) -> Any:
        """Project onto the blocks ``first:last`` of the three (queries, keys, values), in one product."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if last - first < 3:
            part = slice(first * self.embed_dim, last * self.embed_dim)
            weight, bias = weight[:, part], None if bias is None else bias[part]
        return x @ weight if bias is None else ops.linear(x, weight, bias)

    def _rotate(self, x: Any) -> Any:
        tokens, width = x.shape[-2:]
        tables = ops.rotary_angles(int(tokens), int(width), self.rotary, dtype=x.dtype)
        return ops.rotary(x, *(map(constant, tables) if state.grid is not None else tables))
