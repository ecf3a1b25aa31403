"""A GPT as an ordinary model of `autograd.nn`. It knows nothing of ranks; `train_gpt.py` divides it by a plan of names.

The layers are in a `Sequential`: the embedding, the blocks, and the head, which gives the logits. Norms come first,
positions are rotary, the activation is GELU, and the head's matrix is the table of the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import autograd.numpy as anp
from autograd import nn, random
from parallel import MixtureOfExperts


@dataclass(frozen=True)
class Config:
    """The sizes of a model: `width` is that of the stream, and each head has ``width / heads``."""

    vocabulary: int
    width: int = 128
    heads: int = 4
    layers: int = 4
    dropout: float = 0.0
    experts: int = 0
    """With experts, every second block has a mixture of them in the place of its MLP."""


class Embed(nn.Module):
    """The embedding of tokens [rows, tokens]."""

    def __init__(self, config: Config, key: random.Key, dtype: Any):
        self.table = nn.Embedding(config.vocabulary, config.width, dtype=dtype, key=key)
        self.table.weight.data *= 0.02
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Any) -> Any:
        return self.dropout(self.table(tokens))


class MLP(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, config: Config, key: random.Key, dtype: Any):
        self.up = nn.Linear(config.width, 4 * config.width, dtype=dtype, key=key.fold("up"))
        self.activation = nn.GELU("tanh")
        self.down = nn.Linear(4 * config.width, config.width, dtype=dtype, key=key.fold("down"))

    def forward(self, x: Any) -> Any:
        return nn.in_turn(x, self.up, self.activation, self.down)


class Block(nn.Module):
    """Attention and an MLP, each with a norm before it and a residual connection around it."""

    def __init__(self, config: Config, key: random.Key, dtype: Any, mlp: nn.Module | None = None):
        width = config.width
        self.norm1 = nn.LayerNorm(width, dtype=dtype)
        self.qkv = nn.Linear(width, 3 * width, dtype=dtype, key=key.fold("qkv"))
        self.attend = nn.SelfAttention(width // config.heads, rotary=True)
        self.proj = nn.Linear(width, width, dtype=dtype, key=key.fold("proj"))
        self.dropout1 = nn.Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(width, dtype=dtype)
        self.mlp = MLP(config, key, dtype) if mlp is None else mlp
        self.dropout2 = nn.Dropout(config.dropout)

    def forward(self, x: Any) -> Any:
        qkv = self.qkv(self.norm1(x))
        qkv = anp.reshape(qkv, (*qkv.shape[:2], 3, -1))
        x = x + self.dropout1(self.proj(self.attend(qkv)))
        return x + self.dropout2(self.mlp(self.norm2(x)))


class Head(nn.Module):
    """The logits of the next tokens, [rows, tokens, vocabulary]."""

    def __init__(self, config: Config, table: nn.Embedding, dtype: Any):
        self.norm = nn.LayerNorm(config.width, dtype=dtype)
        self.out = nn.TiedLinear(table)

    def forward(self, x: Any) -> Any:
        return self.out(self.norm(x))


class Loss(nn.Module):
    """The sum of the cross-entropies of all tokens. The program divides it by their global number."""

    def __init__(self) -> None:
        self.rows = nn.CrossEntropyLoss(reduction="sum")

    def forward(self, logits: Any, targets: Any) -> Any:
        return self.rows(anp.reshape(logits, (-1, logits.shape[-1])), anp.reshape(targets, (-1,)))


def gpt(config: Config, key: random.Key, dtype: Any = np.float32) -> nn.Sequential:
    """The layers of a GPT, with initial weights that depend on the key alone."""
    embed = Embed(config, key.fold("embed"), dtype)
    blocks = []
    for i in range(config.layers):
        of, mlp = key.fold(f"block {i}"), None
        if config.experts and i % 2:
            mlp = MixtureOfExperts(
                config.width, 4 * config.width, config.experts, key=of.fold("experts"), dtype=dtype
            )
        blocks.append(Block(config, of, dtype, mlp))
    return nn.Sequential(embed, *blocks, Head(config, embed.table, dtype))
