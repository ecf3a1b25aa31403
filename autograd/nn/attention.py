"""Multi-head attention as a module."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops, random
from ..arrays.device import device_of, move, on_host
from ..engine.leaves import Parameter, constant, tensor
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import DtypeError, ShapeError, typed_errors
from ..layouts.layout import Shard
from ..ops.arguments import operand, raw
from .arguments import batch_first as as_batch_first
from .arguments import count, flag, number, probability, tokens_first
from .dropout import dropout
from .linear import Linear
from .module import Module

__all__ = ["MultiheadAttention", "SelfAttention"]

_MOST_TABLES = 64


def as_mask(mask: Any, what: str, true: str = "not attended to") -> Any:
    """A mask of attention as an operand; DtypeError unless it has booleans, or numbers that are added to the scores."""
    mask = operand(mask)
    if raw(mask).dtype.kind not in "bf":
        raise DtypeError(
            f"{what} of {raw(mask).dtype}; needed: booleans (True: {true}) or floating-point numbers that are added to "
            "the scores"
        )
    return mask


def seen_keys(mask: Any, lead: int, what: str) -> Any:
    """A mask of keys, [..., keys] with True for padding, as one of `ops.attention`: [..., 1, 1, keys], True if seen.

    `lead` is the number of the keys' leading dimensions.
    """
    mask = as_mask(mask, what)
    shape = mask.shape
    if len(shape) != lead + 1:
        raise ShapeError(
            f"{what} of shape {tuple(shape)}; needed: [..., keys], with the {lead} leading dimensions of the keys"
        )
    mask = ops.reshape(mask, (*shape[:-1], 1, 1, shape[-1]))
    return ops.equal(mask, False) if raw(mask).dtype.kind == "b" else mask


def both_masks(a: Any, b: Any) -> Any:
    """Two masks of `ops.attention` as one; None stands for none."""
    if a is None or b is None:
        return b if a is None else a
    if raw(a).dtype == raw(b).dtype == bool:
        return ops.where(a, b, False)
    return sum(ops.where(m, 0.0, -np.inf) if raw(m).dtype == bool else m for m in (a, b))


class SelfAttention(Module):
    """Self-attention of given queries, keys and values. It has no projections, so no parameters.

    Parameters
    ----------
    head_width : int
        The width of a head. The number of heads follows from the width of the input.
    causal : bool
        Whether each token attends only to its own and earlier positions.
    rotary : bool or float
        Apply rotary position embeddings to queries and keys, in adjacent pairs of features (`ops.rotary`). A number is
        the base of the angles; True means 10000.

    Raises
    ------
    ShapeError
        `head_width` is odd, with `rotary`; or, at a call, the input is not [..., tokens, 3, heads * head_width].

    Notes
    -----
    ``softmax(q k' / sqrt(head_width)) v`` of each head. Sources: Vaswani et al. 2017, section 3.2.1; Su et al. 2021,
    section 3.4.2 (rotary).

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> attend = nn.SelfAttention(4, rotary=True)
    >>> attend(numpy.zeros((2, 5, 3, 8), numpy.float32)).shape       # 2 rows of 5 tokens, 2 heads
    (2, 5, 8)
    """

    def __init__(self, head_width: int, *, causal: bool = True, rotary: bool | float = False):
        self.head_width = count(head_width, "SelfAttention: head_width", 1)
        self.causal = flag(causal, "SelfAttention: causal")
        self.rotary = number(10000.0 if rotary is True else rotary, "SelfAttention: rotary", 0) if rotary else 0.0
        if self.rotary and self.head_width % 2:
            text = f"SelfAttention: head_width={head_width} was given with rotary; needed: an even width"
            raise ShapeError(text)
        # By positions, dtype and device: without it, `rotate` takes twice the time, 1,000 us for 4 x 512 tokens.
        self._tables: dict[Any, tuple[Any, Any]] = {}

    @typed_errors
    def heads(self, qkv: Any) -> Any:
        """The input by heads: [..., tokens, 3, heads, head_width] of [..., tokens, 3, heads * head_width]."""
        shape = tuple(raw(qkv).shape)
        if len(shape) < 3 or shape[-2] != 3 or shape[-1] % self.head_width:
            fix = "ops.reshape(x, (*x.shape[:-1], 3, -1)), for queries, keys and values side by side"
            layout = getattr(qkv, "layout", None)
            for axis, label in () if layout is None else layout.items():
                if isinstance(label, Shard) and label.dim == len(shape) - 1:
                    fix = f"Column({axis!r}, blocks=3, unit={self.head_width}), and the same unit in the Row after it, "
                    fix += "so that each rank has whole heads"
            raise ShapeError(
                f"SelfAttention(head_width={self.head_width}): an input of shape {shape}; needed: [..., tokens, 3, "
                f"heads * {self.head_width}]\n  fix: {fix}"
            )
        return ops.reshape(qkv, (*qkv.shape[:-1], -1, self.head_width))

    def rotate(self, x: Any, positions: Any = None) -> Any:
        """Rotate queries and keys of [..., tokens, 3, heads, head_width] by their positions; values stay.

        `positions`, an array [tokens] of int, is by default 0, 1, ... All rows of the batch have the same positions.
        Where the ranks hold different tokens, it is a Tensor with the labels of its tokens; an array is V.
        """
        if not self.rotary:
            return x
        known, tokens = positions is None, int(raw(x).shape[-4])
        where = np.arange(tokens) if known else on_host(raw(positions), "SelfAttention.rotate", "positions")
        key = (tokens if known else where.tobytes(), raw(x).dtype, device_of(raw(x)))
        tables = self._tables.get(key)
        if tables is None:
            cos, sin = ops.rotary_angles_at(where, self.head_width, self.rotary, dtype=raw(x).dtype)
            one, zero = np.ones_like(cos), np.zeros_like(sin)  # the values are not rotated
            made = np.stack([cos, cos, one], 1)[:, :, None], np.stack([sin, sin, zero], 1)[:, :, None]
            tables = move(made[0], raw(x)), move(made[1], raw(x))
            if len(self._tables) == _MOST_TABLES:  # of positions that are others at each call
                self._tables.clear()
            self._tables[key] = tables
        if state.grid is not None:
            labels = positions.layout if positions.__class__ in TENSORS else None
            make = constant if known else tensor if labels is None else lambda table: Tensor(table, labels)
            tables = make(tables[0]), make(tables[1])
        return ops.rotary(x, tables[0], tables[1], interleaved=True)

    def forward(self, qkv: Any, attn_mask: Any = None, key_padding_mask: Any = None) -> Any:
        """Compute attention.

        Parameters
        ----------
        qkv : Tensor or array, [..., tokens, 3, heads * head_width]
            The heads may be sharded.
        attn_mask : array, broadcastable to [..., heads, tokens, tokens], optional
            Booleans, True where a query does not attend to a key, or numbers that are added to the scores, as in
            `MultiheadAttention`. It is in addition to the causal mask.
        key_padding_mask : array, [..., tokens], optional
            Booleans, True for a key that no query attends to, or numbers that are added to the scores.

        Returns
        -------
        Tensor or array, [..., tokens, heads * head_width]
            Zeros for a query that attends to no key.
        """
        x = self.rotate(self.heads(qkv))
        y = ops.self_attention(x, self.mask(attn_mask, key_padding_mask, x), causal=self.causal)
        return ops.reshape(y, (*y.shape[:-2], -1))

    @typed_errors
    def mask(self, attn_mask: Any, key_padding_mask: Any, x: Any) -> Any:
        """Both masks as one of `ops.attention`, for the input by heads."""
        name, found = type(self).__name__, None
        if attn_mask is not None:
            found = as_mask(attn_mask, f"{name}: attn_mask")
            found = ops.equal(found, False) if raw(found).dtype.kind == "b" else found
        if key_padding_mask is None:
            return found
        return both_masks(found, seen_keys(key_padding_mask, len(raw(x).shape) - 4, f"{name}: key_padding_mask"))


class MultiheadAttention(Module):
    """Multi-head scaled dot-product attention with input and output projections: ``out_proj(concat(heads))``.

    Weights are stored [in, out], the transpose of torch's: ``in_proj_weight`` has shape ``[embed_dim, 3 * embed_dim]``
    (queries, keys and values side by side), ``out_proj.weight`` has shape [embed_dim, embed_dim].

    Parameters
    ----------
    embed_dim : int
        Width of the inputs and of the output, a multiple of `num_heads`.
    num_heads : int
    dropout : float
        The probability of dropping a weight of the attention in training.
    bias : bool
        Whether the projections have biases.
    batch_first : bool
        Whether inputs and outputs of three dimensions are [batch, tokens, embed_dim], or [tokens, batch, embed_dim],
        which is torch's default. Those of two are [tokens, embed_dim]; of more, [..., tokens, embed_dim], with
        ``batch_first=True`` only.
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
    >>> attend = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = numpy.zeros((3, 5, 8), numpy.float32)
    >>> y, weights = attend(x, x, x)
    >>> y.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    >>> y, _ = attend(x, x, x, need_weights=False, is_causal=True)
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, *, batch_first: bool = False,
        rotary: bool | float = False, dtype: Any = np.float32, key: random.Key | None = None,
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
        self.batch_first = flag(batch_first, "MultiheadAttention: batch_first")
        self.dropout = probability(dropout, "MultiheadAttention: dropout")
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

    def stores_transposed(self, attribute: str) -> bool:
        return attribute == "in_proj_weight"

    def forward(
        self, query: Any, key: Any = None, value: Any = None, key_padding_mask: Any = None, need_weights: bool = True,
        attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Compute attention. The shapes are those of ``batch_first=True``.

        Parameters
        ----------
        query : Tensor or array, [..., tokens, embed_dim]
        key, value : Tensor or array, [..., keys, embed_dim], optional
            `key` defaults to `query` (self-attention), `value` to `key`. If they are the same Tensor or array, it is
            projected in one product.
        key_padding_mask : array, [..., keys], optional
            Booleans, True for a key that no query attends to, or numbers that are added to the scores.
        need_weights : bool
            Whether to return the weights, which the fused attention does not compute: False is several times as fast.
        attn_mask : array, [tokens, keys], or broadcastable to [..., num_heads, tokens, keys], optional
            Booleans, True where a query does not attend to a key, or numbers that are added to the scores. Torch's
            ``[batch * num_heads, tokens, keys]`` is taken too.
        average_attn_weights : bool
            Whether the weights are averaged over the heads.
        is_causal : bool
            Whether each query attends only to keys at its own and earlier positions. Unlike in torch it needs no mask.

        Returns
        -------
        output : Tensor or array, [..., tokens, embed_dim]
            Zeros, before the output projection, of a query that attends to no key.
        weights : Tensor or array, [..., tokens, keys], or None
            [..., num_heads, tokens, keys] if they are not averaged; None unless `need_weights`.

        Raises
        ------
        ShapeError
            `value` is given without `key`; or an input has more than three dimensions, without ``batch_first=True``.
        """
        if key is None and value is not None:
            raise ShapeError("MultiheadAttention: value was given without key; needed: key too")
        if key is query and (value is None or value is query):
            key = value = None
        if not self.batch_first:
            given = (query, key, value)
            query, key, value = (None if x is None else as_batch_first(x, "MultiheadAttention") for x in given)
        y, weights = self._attend(query, key, value, key_padding_mask, need_weights, attn_mask, is_causal)
        if not self.batch_first:
            y = tokens_first(y)
        return y, weights if weights is None or not average_attn_weights else ops.mean(weights, -3)

    def _attend(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any, need_weights: bool, attn_mask: Any,
        is_causal: bool,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The outputs, [..., tokens, embed_dim], and the weights of each head or None."""
        is_dropping = self.training and self.dropout > 0
        if key is None and value is None and not (self.rotary or need_weights or is_dropping):
            qkv = self._by_heads(self._project(query, 0, 3), 3)
            *lead, tokens, _, _, _ = qkv.shape
            mask = self._mask(attn_mask, key_padding_mask, lead, tokens)
            return self._merged(ops.self_attention(qkv, mask, causal=is_causal)), None
        if key is None:
            qkv = self._by_heads(self._project(query, 0, 3), 3)
            q, k, v = (qkv[..., i, :, :] for i in range(3))
        else:
            value = key if value is None else value
            q, k, v = (
                self._by_heads(self._project(x, i, i + 1), 1) for i, x in enumerate((query, key, value))
            )
        q, k, v = (ops.swapaxes(x, -2, -3) for x in (q, k, v))  # [..., heads, tokens, width]
        if self.rotary:
            q, k = self._rotate(q), self._rotate(k)
        mask = self._mask(attn_mask, key_padding_mask, q.shape[:-3], q.shape[-2])
        weights = None
        if need_weights or is_dropping:
            weights = ops.attention_weights(q, k, mask, causal=is_causal)
            kept = dropout(weights, self.dropout, key=random.next_key("MultiheadAttention")) if is_dropping else weights
            y = kept @ v
        else:
            y = ops.attention(q, k, v, mask, causal=is_causal)
        return self._merged(ops.swapaxes(y, -2, -3)), weights if need_weights else None

    def _by_heads(self, x: Any, blocks: int) -> Any:
        """A projection onto `blocks` blocks as [..., tokens, blocks, heads, width]; without the blocks if it is one."""
        split = (blocks, self.num_heads) if blocks > 1 else (self.num_heads,)
        return ops.reshape(x, (*x.shape[:-1], *split, self.embed_dim // self.num_heads))

    def _merged(self, y: Any) -> Any:
        """The output projection of the values of all heads, [..., tokens, heads, width]."""
        return self.out_proj(ops.reshape(y, (*y.shape[:-2], self.embed_dim)))

    def _mask(self, attn_mask: Any, key_padding_mask: Any, lead: Any, tokens: Any) -> Any:
        """Both masks as one of `ops.attention`, whose booleans are True where a query attends to a key."""
        found = None
        for what, mask in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
            if mask is None:
                continue
            if what == "key_padding_mask":
                mask = seen_keys(mask, len(lead), f"MultiheadAttention: {what}")
            else:
                mask = as_mask(mask, f"MultiheadAttention: {what}")
                shape = mask.shape
                if len(shape) == 3 and len(lead) == 1 and shape[0] not in (1, self.num_heads):
                    mask = ops.reshape(mask, (lead[0], self.num_heads, *shape[1:]))
                mask = ops.equal(mask, False) if raw(mask).dtype.kind == "b" else mask
            found = both_masks(found, mask)
        return found

    def _project(self, x: Any, first: int, last: int) -> Any:
        """Project onto the blocks ``first:last`` of the three (queries, keys, values), in one product."""
        weight: Tensor = self.in_proj_weight
        bias: Tensor | None = self.in_proj_bias
        if last - first < 3:
            part = slice(first * self.embed_dim, last * self.embed_dim)
            weight, bias = weight[:, part], None if bias is None else bias[part]
        return x @ weight if bias is None else ops.linear(x, weight, bias)

    def _rotate(self, x: Any) -> Any:
        tokens, width = x.shape[-2:]
        tables = ops.rotary_angles(int(tokens), int(width), self.rotary, dtype=x.dtype)
        return ops.rotary(x, *(map(constant, tables) if state.grid is not None else tables))
