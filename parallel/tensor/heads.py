"""Multi-head attention of which each rank computes some heads, and its style `Heads`."""

from __future__ import annotations

from typing import Any

import collectives as cc
from autograd import nn, ops
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError
from autograd.layouts.layout import I, Label, P

from ..plan import Shards
from .layers import RowLinear, blockwise
from .regions import axis_name, destination, enter, is_alone

__all__ = ["Heads", "HeadsAttention"]


class HeadsAttention(nn.MultiheadAttention):
    """I or Shard(tokens) -> I or Shard(tokens): multi-head attention with this rank's heads.

    The input projection is divided by columns, within the queries, the keys and the values, and the output projection
    by rows. The weights of the attention, where they are asked for, are those of all heads if they are averaged (I),
    and else ``Shard`` of the heads.

    Parameters
    ----------
    attention : nn.MultiheadAttention
        The module to replace.
    axis : str
    to : I or Shard
        The label of the output.
    shards : Shards

    Notes
    -----
    Forward one all-reduce of the output, backward one for each of query, key and value that differ. Averaged weights
    need one more, forward. A rank may have no head.
    """

    def __init__(self, attention: nn.MultiheadAttention, axis: str, to: Label, shards: Shards):
        self.embed_dim, self.num_heads = attention.embed_dim, attention.num_heads
        self.batch_first, self.dropout, self.rotary = attention.batch_first, attention.dropout, attention.rotary
        self.axis, width = axis, attention.embed_dim // attention.num_heads
        self.in_proj_weight = shards.divide(attention.in_proj_weight, axis, 1, 3, width)
        bias = attention.in_proj_bias
        self.in_proj_bias = None if bias is None else shards.divide(bias, axis, 0, 3, width)
        out = attention.out_proj
        self.out_proj: Any = RowLinear(shards.divide(out.weight, axis, 0, unit=width), out.bias, axis, to)

    def stores_transposed(self, attribute: str) -> bool:
        return False

    def blocks_of(self, attribute: str) -> int:
        return 3 if attribute.startswith("in_proj_") else 1

    def _attend(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any, need_weights: bool, attn_mask: Any,
        is_causal: bool,
    ) -> tuple[Any, Any]:  # fmt: skip
        if not is_alone(self.in_proj_weight):
            given = (query, key, key if value is None else value)
            entered: dict[int, Any] = {id(None): None}
            for x in given:
                if id(x) not in entered:  # each once
                    entered[id(x)] = enter(x, self.axis, "HeadsAttention")
            query, key, value = (entered[id(x)] for x in given)
        return super()._attend(query, key, value, key_padding_mask, need_weights, attn_mask, is_causal)

    def forward(
        self, query: Any, key: Any = None, value: Any = None, key_padding_mask: Any = None, need_weights: bool = True,
        attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Compute attention: see `nn.MultiheadAttention.forward`."""
        y, weights = super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )
        if weights is not None and weights.layout is not None and weights.layout[self.axis] is P:
            weights = cc.all_reduce(weights, self.axis, to=I)
        return y, weights

    def _project(self, x: Any, first: int, last: int) -> Any:
        """Project onto blocks of the three: [..., tokens, last - first, width of this rank's heads]."""
        weight: Tensor = self.in_proj_weight
        bias: Tensor | None = self.in_proj_bias
        if last - first < 3:
            weight, bias = weight[:, first:last], None if bias is None else bias[first:last]
        return blockwise(x, weight, bias, self.axis)

    def _by_heads(self, x: Any, blocks: int) -> Any:
        lead = x.shape[:-1] if blocks > 1 else x.shape[:-2]
        return ops.reshape(x, (*lead, -1, self.embed_dim // self.num_heads))

    def _merged(self, y: Any) -> Any:
        return self.out_proj(ops.reshape(y, (*y.shape[:-2], -1)))


class Heads:
    """The style of an `nn.MultiheadAttention` whose heads are divided: `HeadsAttention`.

    `nn.SelfAttention` has no parameters and needs no style: it takes the parts of a layer of style
    ``Column(axis, blocks=3)``, and a layer of style `Row` takes its output.

    Parameters
    ----------
    axis : str
    to : I or Shard
        The label of the output: I, or ``Shard(1)`` for sequence parallel. The dimensions are those of
        ``batch_first=True``.

    Examples
    --------
    >>> from parallel import Column, Heads, Row
    >>> plan = {"*.self_attn": Heads("tp"), "*.linear1": Column("tp"), "*.linear2": Row("tp")}
    """

    def __init__(self, axis: str, to: Label = I):
        self.axis, self.to = axis_name(axis, "Heads"), destination(to, "Heads")

    def __repr__(self) -> str:
        return f"Heads({self.axis!r}{'' if self.to is I else f', to={self.to!r}'})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The `HeadsAttention` that replaces an `nn.MultiheadAttention`."""
        if type(module) is not nn.MultiheadAttention:
            is_bare = isinstance(module, nn.SelfAttention)
            fix = "no style for it: Column(axis, blocks=3) and Row(axis) for the layers around it" if is_bare else (
                "a pattern that matches attention modules only")  # fmt: skip
            raise ArgumentError(
                f"{self!r}: {path!r} is a {type(module).__name__}; needed: an nn.MultiheadAttention\n  fix: {fix}"
            )
        return HeadsAttention(module, self.axis, self.to, shards)
