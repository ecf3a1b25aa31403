"""Gradients of small models equal torch's to 1e-10 in double precision, every parameter."""

from __future__ import annotations

from typing import Any

import pytest

from autograd import nn, ops

from .torch_side import compare, load, names

F = {"dtype": float}


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        self.ln_1, self.ln_2 = nn.LayerNorm(dim, **F), nn.LayerNorm(dim, **F)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True, rotary=True, **F)
        self.up, self.down = nn.Linear(dim, 4 * dim, **F), nn.Linear(4 * dim, dim, **F)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x), need_weights=False, is_causal=True)[0]
        return x + self.down(ops.gelu(self.up(self.ln_2(x)), "tanh"))


class GPT(nn.Module):
    """Token embeddings, rotary positions, causal attention, GELU; the head is the embedding's weight where tied."""

    def __init__(self, vocabulary: int, dim: int, heads: int, depth: int, tied: bool):
        self.tokens = nn.Embedding(vocabulary, dim, **F)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(dim, **F)
        self.head = None if tied else nn.Linear(dim, vocabulary, bias=False, **F)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x)
        logits = x @ self.tokens.weight.T if self.head is None else self.head(x)
        logits = logits[:, :-1].reshape(-1, logits.shape[-1])
        return nn.cross_entropy(logits, tokens[:, 1:].reshape(-1))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        self.features = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1, **F), nn.BatchNorm2d(6, **F), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2, **F), nn.BatchNorm2d(8, **F), nn.SiLU(), nn.AvgPool2d(2),
        )  # fmt: skip
        self.classify = nn.Linear(8, 4, **F)

    def forward(self, x: Any, labels: Any) -> Any:
        x = self.features(x)
        return nn.cross_entropy(self.classify(x.reshape(len(x), -1)), labels, label_smoothing=0.1)


class Recurrent(nn.Module):
    def __init__(self, kind: str):
        self.embed = nn.Embedding(9, 5, **F)
        self.cell = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](5, 7, **F)
        self.read = nn.Linear(7, 9, **F)

    def forward(self, tokens: Any) -> Any:
        state, total = None, 0
        for t in range(tokens.shape[1] - 1):
            state = self.cell(self.embed(tokens[:, t]), state)
            h = state[0] if isinstance(state, tuple) else state
            total = total + nn.cross_entropy(self.read(h), tokens[:, t + 1], reduction="sum")
        return total / tokens[:, 1:].size


MODELS: dict[str, Any] = {
    "gpt, untied": lambda: GPT(11, 16, 4, 2, tied=False),
    "gpt, tied": lambda: GPT(11, 16, 4, 2, tied=True),
    "conv net": ConvNet,
    "recurrent rnn": lambda: Recurrent("rnn"),
    "recurrent lstm": lambda: Recurrent("lstm"),
    "recurrent gru": lambda: Recurrent("gru"),
}


@pytest.mark.parametrize("entry", MODELS)
def test_the_gradients_of_a_model_are_torchs(entry: str) -> None:
    model = MODELS[entry]()
    assert set(names(entry, under="param")) == {name for name, _ in model.named_parameters()}
    load(model, entry)
    compare(entry, model, model)
