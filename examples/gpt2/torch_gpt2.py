"""The model of ``15_torch_weights.py`` in torch, with the names and the shapes of Hugging Face's GPT-2.

    python examples/gpt2/torch_gpt2.py write FOLDER            random weights, and their logits
    python examples/gpt2/torch_gpt2.py check FILE              compare the logits of a file of weights with logits.npz

It needs torch and safetensors, and nothing of ringtape. ``weights.safetensors`` and ``logits.npz`` in this folder are
what ``write`` has written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.nn import functional as F

VOCABULARY, POSITIONS, WIDTH, HEADS, LAYERS = 19, 8, 8, 4, 2


class Conv1D(nn.Module):
    """The linear layer of GPT-2, whose weight is [in, out]: the transpose of that of ``nn.Linear``."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.4)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        mask = torch.tril(torch.ones(POSITIONS, POSITIONS, dtype=torch.bool))
        self.register_buffer("bias", mask.view(1, 1, POSITIONS, POSITIONS))  # files of GPT-2 have it
        self.c_attn, self.c_proj = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = x.shape
        q, k, v = (y.view(rows, tokens, HEADS, -1).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, :, :tokens, :tokens])
        return self.c_proj(y.transpose(1, 2).reshape(rows, tokens, WIDTH))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(WIDTH, 4 * WIDTH), Conv1D(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT2(nn.Module):
    """The head's weight is the table of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = Transformer()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.transformer(tokens))


def write(folder: Path) -> None:
    """Write random weights, and the logits of random tokens."""
    torch.manual_seed(0)
    model = GPT2()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".ln_" in name:
                p.add_(torch.randn(p.shape) * 0.2)
        tokens = torch.randint(VOCABULARY, (2, POSITIONS))
        logits = model(tokens)
    save_model(model, str(folder / "weights.safetensors"))  # a tied weight is written once
    np.savez(folder / "logits.npz", tokens=tokens.numpy(), logits=logits.numpy())


def check(path: Path) -> None:
    """Print how far the logits of other weights are from those that are written in this folder."""
    model = GPT2()
    load_model(model, str(path), strict=False)  # masks need not be there
    written = np.load(Path(__file__).with_name("logits.npz"))
    with torch.no_grad():
        logits = model(torch.tensor(written["tokens"])).numpy()
    print(f"largest difference from the written logits: {np.abs(logits - written['logits']).max():.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["write", "check"])
    parser.add_argument("path", type=Path, metavar="PATH")
    options = parser.parse_args()
    {"write": write, "check": check}[options.what](options.path)
