"""The styles `Ring` and `Ulysses`, by which `parallelize` replaces `nn.SelfAttention` for sequences in parts."""

from __future__ import annotations

from typing import Any

from autograd import nn, ops
from autograd.engine.state import state
from autograd.engine.tensor import Tensor
from autograd.errors import ArgumentError
from autograd.layouts.layout import C, Shard, V
from collectives.ops.arguments import operand

from ..plan import Shards
from .order import Order
from .ring import extents_of_sequence, ring_self_attention
from .ulysses import ulysses_self_attention

__all__ = ["Ring", "RingAttention", "Ulysses", "UlyssesAttention"]


class RingAttention(nn.SelfAttention):
    """`nn.SelfAttention` of a sequence whose parts the ranks of an axis hold, by `ring_self_attention`.

    Rotary embeddings get the positions of this rank's tokens in the whole sequence. Without a mesh it is
    `nn.SelfAttention`.

    Parameters
    ----------
    attention : nn.SelfAttention
        The module to replace.
    axis : str
    zigzag : bool
        As for `ring_self_attention`.

    Raises
    ------
    LayoutError
        At a call: the label of the input does not fit the order, as for `ring_self_attention`. With rotary embeddings
        an input in contiguous order must be Shard of the tokens, also if attention is not causal.
    """

    def __init__(self, attention: nn.SelfAttention, axis: str, zigzag: bool = True):
        super().__init__(attention.head_width, causal=attention.causal, rotary=attention.rotary or False)
        self.axis, self.zigzag = axis, bool(zigzag)

    def forward(self, qkv: Any, attn_mask: Any = None, key_padding_mask: Any = None) -> Any:
        """Compute attention: [..., tokens, 3, heads * head_width] -> [..., tokens, heads * head_width].

        The masks have the meaning that they have in `nn.SelfAttention`, and the labels that they have for
        `ring_self_attention`.
        """
        if state.mesh is None:
            return super().forward(qkv, attn_mask, key_padding_mask)
        x = self.heads(qkv)
        if self.rotary:
            x = self.rotate(x, self._positions(x))
        y = ring_self_attention(
            x, self.axis, mask=self.mask(attn_mask, None, x), key_padding_mask=key_padding_mask, causal=self.causal,
            zigzag=self.zigzag,
        )  # fmt: skip
        return ops.reshape(y, (*y.shape[:-2], -1))

    def _positions(self, x: Any) -> Tensor:
        """The positions of this rank's tokens, with the label of the tokens."""
        x, on = operand(x, self.axis, "RingAttention")
        order, dim = Order(causal=True, zigzag=self.zigzag), x.array.ndim - 4
        extents = extents_of_sequence(x, on, dim, order, "RingAttention")
        assert x.layout is not None
        layout = x.layout.grid.uniform(C)
        for axis in on.names:
            label = x.layout[axis]
            layout = layout.replace((axis,), label.on(0) if isinstance(label, Shard) else V)
        return Tensor(order.positions(on.group.index, extents), layout)


class UlyssesAttention(nn.SelfAttention):
    """`nn.SelfAttention` of a sequence whose parts the ranks of an axis hold, by `ulysses_self_attention`.

    Without a mesh it is `nn.SelfAttention`.

    Parameters
    ----------
    attention : nn.SelfAttention
        The module to replace.
    axis : str

    Raises
    ------
    LayoutError, ShapeError
        At a call: as for `ulysses_self_attention`.
    """

    def __init__(self, attention: nn.SelfAttention, axis: str):
        super().__init__(attention.head_width, causal=attention.causal, rotary=attention.rotary or False)
        self.axis = axis

    def forward(self, qkv: Any, attn_mask: Any = None, key_padding_mask: Any = None) -> Any:
        """Compute attention: [..., tokens, 3, heads * head_width] -> [..., tokens, heads * head_width].

        The masks have the meaning that they have in `nn.SelfAttention`, and the labels that they have for
        `ulysses_self_attention`.
        """
        if state.mesh is None:
            return super().forward(qkv, attn_mask, key_padding_mask)
        x = self.heads(qkv)
        y = ulysses_self_attention(
            x, self.axis, mask=self.mask(attn_mask, None, x), key_padding_mask=key_padding_mask, causal=self.causal,
            rotate=self.rotate,
        )  # fmt: skip
        return ops.reshape(y, (*y.shape[:-2], -1))


class Ring:
    """The style that computes an `nn.SelfAttention` by ring attention: keys and values travel between the ranks.

    Parameters
    ----------
    axis : str
        The mesh axis along which the sequence is divided.
    zigzag : bool
        The order of the tokens: with True that of `zigzag`, which balances causal attention; with False contiguous.

    Examples
    --------
    >>> import numpy, collectives as cc
    >>> from autograd import nn
    >>> from parallel import Ring, context, parallelize
    >>> qkv = numpy.random.default_rng(0).normal(size=(1, 8, 3, 6))
    >>> def program():
    ...     with cc.Mesh(cp=-1):
    ...         model = parallelize(nn.Sequential(nn.SelfAttention(6)), {"0": Ring("cp")})
    ...         return context.unzigzag(model(context.zigzag(qkv, "cp")), "cp").numpy()
    >>> bool(numpy.allclose(cc.run(program, ranks=2)[0], nn.SelfAttention(6)(qkv)))
    True
    """

    def __init__(self, axis: str, zigzag: bool = True):
        self.axis, self.zigzag = axis, zigzag

    def __repr__(self) -> str:
        return f"Ring({self.axis!r}, zigzag={self.zigzag})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The module that replaces an `nn.SelfAttention`; it has no parameters to divide."""
        shards.mesh.axis(self.axis)
        return RingAttention(_self_attention(module, path, self), self.axis, self.zigzag)


class Ulysses:
    """The style that computes an `nn.SelfAttention` by two exchanges: tokens for heads, and back.

    Parameters
    ----------
    axis : str
        The mesh axis along which the sequence is divided, in contiguous order.

    Examples
    --------
    >>> import numpy, autograd as ag, collectives as cc
    >>> from autograd import nn
    >>> from parallel import Ulysses, parallelize
    >>> qkv = numpy.random.default_rng(0).normal(size=(1, 8, 3, 6))
    >>> def program():
    ...     with cc.Mesh(cp=-1):
    ...         model = parallelize(nn.Sequential(nn.SelfAttention(3)), {"0": Ulysses("cp")})
    ...         return cc.all_gather(model(cc.shard(ag.constant(qkv), "cp", 1)), "cp", 1).numpy()
    >>> bool(numpy.allclose(cc.run(program, ranks=2)[0], nn.SelfAttention(3)(qkv)))
    True
    """

    def __init__(self, axis: str):
        self.axis = axis

    def __repr__(self) -> str:
        return f"Ulysses({self.axis!r})"

    def apply(self, module: nn.Module, path: str, shards: Shards) -> nn.Module:
        """The module that replaces an `nn.SelfAttention`; it has no parameters to divide."""
        shards.mesh.axis(self.axis)
        return UlyssesAttention(_self_attention(module, path, self), self.axis)


def _self_attention(module: nn.Module, path: str, style: Any) -> nn.SelfAttention:
    if type(module) is nn.SelfAttention:
        return module
    again = f", which {style} or another style has made" if isinstance(module, nn.SelfAttention) else ""
    raise ArgumentError(
        f"{style}: {path!r} is a {type(module).__name__}{again}; needed: an nn.SelfAttention\n  fix: a pattern that "
        "matches the attention modules only, or a model with nn.SelfAttention in the place of attention"
    )
