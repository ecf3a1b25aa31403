"""The model of `examples/gpt.py` in PyTorch, with the same weights by the same names."""

from __future__ import annotations

from typing import Any

import torch

F = torch.nn.functional


class Block(torch.nn.Module):
    """A block. With `apart` the queries, keys and values have a linear layer each, as tensor parallelism needs it."""

    def __init__(self, weights: dict[str, torch.Tensor], heads: int, apart: bool):
        super().__init__()
        width = len(weights["norm1.weight"])
        self.head_width, self.apart = width // heads, apart
        self.norm1, self.norm2 = (_norm(weights, name) for name in ("norm1", "norm2"))
        if apart:
            parts = zip(weights["qkv.weight"].split(width, 1), weights["qkv.bias"].split(width), strict=True)
            self.q, self.k, self.v = (_linear({"w.weight": w, "w.bias": b}, "w") for w, b in parts)
        else:
            self.qkv = _linear(weights, "qkv")
        self.proj, self.up, self.down = (_linear(weights, name) for name in ("proj", "mlp.up", "mlp.down"))

    def forward(self, x: Any, turns: Any) -> Any:
        z = self.norm1(x)
        parts = (self.q(z), self.k(z), self.v(z)) if self.apart else self.qkv(z).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)
        q, k = _rotate(q, turns), _rotate(k, turns)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(z)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    """The logits of tokens [rows, tokens]."""

    def __init__(self, arrays: dict[str, Any], heads: int, apart: bool = False):
        super().__init__()
        weights = {name: torch.from_numpy(a.copy()) for name, a in arrays.items()}
        layers = 1 + max(int(name.partition(".")[0]) for name in weights)
        self.embed = torch.nn.Embedding.from_pretrained(weights["0.table.weight"], freeze=False)
        blocks = []
        for i in range(1, layers - 1):
            mine = {name.partition(".")[2]: w for name, w in weights.items() if name.startswith(f"{i}.")}
            blocks.append(Block(mine, heads, apart))
        self.blocks = torch.nn.ModuleList(blocks)
        self.norm = _norm(weights, f"{layers - 1}.norm")
        self.head = torch.nn.Linear(self.embed.embedding_dim, self.embed.num_embeddings, bias=False)
        self.head.weight = self.embed.weight
        self.half = self.embed.embedding_dim // heads // 2

    def turns(self, tokens: int, dtype: Any) -> Any:
        """The rotations of the positions, as complex numbers [tokens, pairs]."""
        rates = 10000.0 ** (-torch.arange(self.half, dtype=torch.float64) / self.half)
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * rates
        turns = torch.polar(torch.ones_like(angles), angles)
        return turns.to(torch.complex64 if dtype == torch.float32 else torch.complex128)

    def forward(self, tokens: Any, turns: Any = None) -> Any:
        x = self.embed(tokens)
        turns = self.turns(tokens.shape[1], x.dtype) if turns is None else turns
        for block in self.blocks:
            x = block(x, turns)
        return self.head(self.norm(x))

    def gradients(self) -> dict[str, Any]:
        """The gradients by the names of `examples/gpt.py`; matrices of linear layers are (in, out) there."""
        last = len(self.blocks) + 1
        found = {"0.table.weight": self.embed.weight.grad, f"{last}.norm.weight": self.norm.weight.grad,
                 f"{last}.norm.bias": self.norm.bias.grad}  # fmt: skip
        for i, block_module in enumerate(self.blocks, 1):
            for name, path in (("norm1", "norm1"), ("norm2", "norm2"), ("qkv", "qkv"), ("proj", "proj"),
                               ("up", "mlp.up"), ("down", "mlp.down")):  # fmt: skip
                module: Any = getattr(block_module, name)
                found[f"{i}.{path}.weight"] = module.weight.grad.T
                found[f"{i}.{path}.bias"] = module.bias.grad
        return {name: g.numpy() for name, g in found.items()}


def _linear(weights: dict[str, torch.Tensor], name: str) -> torch.nn.Linear:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    made = torch.nn.Linear(*weight.shape)
    made.weight, made.bias = torch.nn.Parameter(weight.T.contiguous()), torch.nn.Parameter(bias.clone())
    return made


def _norm(weights: dict[str, torch.Tensor], name: str) -> torch.nn.LayerNorm:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    made = torch.nn.LayerNorm(len(weight))
    made.weight, made.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
    return made


def _rotate(x: Any, turns: Any) -> Any:
    if not turns.is_complex():  # torch.compile makes no code for complex numbers
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = turns.unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    wide = x.float() if x.itemsize == 2 else x  # there are no complex numbers of two such parts
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
