"""Weights of GPT-2 that torch has written, in a model of `autograd.nn`: the same logits, on any number of ranks.

    python examples/15_torch_weights.py                        one process
    python examples/15_torch_weights.py --ranks 2              two threads of one process
    mpiexec -n 4 python examples/15_torch_weights.py           four processes

The weights are random, of a small model with the names and the shapes of Hugging Face's GPT-2; ``gpt2/torch_gpt2.py``
is the model in torch, which has written them with its logits. Three things are not as in a torch module of `nn.Linear`:
the layers are Conv1D, whose matrices are [in, out], as those of ringtape; all names but one have the prefix
"transformer."; and the file has masks, which are no weights here. The tied weight is in the file once.

The ranks divide the heads, the hidden units and the matrices before and after them.

    --save FILE          write the weights with the names of torch, for ``gpt2/torch_gpt2.py check FILE``
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads this when it is imported; the ranks share the cores

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn
from parallel import Column, Row, parallelize

FOLDER = Path(__file__).parent / "gpt2"
PREFIX = "transformer."

parser = argparse.ArgumentParser(description="Load weights of GPT-2 that torch has written.")
parser.add_argument("file", nargs="?", default=str(FOLDER / "weights.safetensors"))
parser.add_argument("--logits", default=str(FOLDER / "logits.npz"), metavar="FILE", help="tokens, and torch's logits")
parser.add_argument("--heads", type=int, default=4, help="the number of heads, which a file of weights does not say")
parser.add_argument("--ranks", type=int, metavar="N", help="run on N threads of this process")
parser.add_argument("--save", metavar="FILE", help="write the weights again")


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attend = nn.SelfAttention(width // heads)

    def forward(self, x: Any) -> Any:
        qkv = self.c_attn(x)
        return self.c_proj(self.attend(anp.reshape(qkv, (*qkv.shape[:2], 3, -1))))


class MLP(nn.Module):
    def __init__(self, width: int):
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = nn.GELU("tanh")

    def forward(self, x: Any) -> Any:
        return nn.in_turn(x, self.c_fc, self.activation, self.c_proj)


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), MLP(width)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """GPT-2 with the names of its parameters in Hugging Face's model."""

    def __init__(self, vocabulary: int, positions: int, width: int, heads: int, layers: int):
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.TiedLinear(self.wte)

    def forward(self, tokens: Any) -> Any:
        x = self.wte(tokens) + self.wpe(ag.constant(np.arange(tokens.shape[1])))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def load(path: str, heads: int) -> GPT2:
    """A model of the sizes in a file, with the weights in it."""
    entries = nn.contents(path)  # reads no array
    table = next(x for x in ("lm_head.weight", f"{PREFIX}wte.weight") if x in entries)
    layers = {found[1] for x in entries if (found := re.match(r".*\bh\.(\d+)\.", x))}
    positions = entries[f"{PREFIX}wpe.weight"].shape[0]
    model = GPT2(entries[table].shape[0], positions, entries[table].shape[1], heads, len(layers))
    nn.load(model, path, names=names(model), ignore="*.attn.bias")
    return model


def names(model: GPT2) -> dict[str, str]:
    """The names of the file. Its matrices are not transposed; `nn.torch_names` is for layers that are `nn.Linear`."""
    return {x: x if x.startswith("lm_head.") else PREFIX + x for x in nn.torch_names(model)}


def plan(heads: int, width: int) -> dict[str, Any]:
    """How the layers are divided: each rank has whole heads."""
    each = width // heads
    return {
        "*.attn.c_attn": Column("tp", blocks=3, unit=each), "*.attn.c_proj": Row("tp", unit=each),
        "*.mlp.c_fc": Column("tp"), "*.mlp.c_proj": Row("tp"),
    }  # fmt: skip


def program(options: argparse.Namespace) -> None:
    """The program of every rank."""
    with np.load(options.logits) as file:
        tokens, theirs = file["tokens"], file["logits"]
    with cc.Mesh(tp=-1) as mesh:
        model = load(options.file, options.heads)
        vocabulary, width = model.wte.weight.shape
        if options.save:
            nn.save(model, options.save, names=names(model))  # the same file from all ranks
        parallelize(model, plan(options.heads, width))
        with ag.no_grad():
            logits = model(ag.constant(tokens)).numpy()
        held = sum(p.numpy().size for p in model.parameters())
        if mesh.ranks.rank == 0:
            print(f"{len(model.h)} layers of width {width}, {options.heads} heads, {vocabulary} tokens; "
                  f"ranks: {mesh.ranks.size}, of which the first holds {held} numbers")  # fmt: skip
    difference = float(np.abs(logits - theirs).max())
    if difference > 1e-5 * max(1.0, float(np.abs(theirs).max())):
        raise SystemExit(f"the logits differ from torch's by {difference:.1e}")
    if mesh.ranks.rank == 0:
        print(f"logits of {tokens.size} tokens: from {theirs.min():.3f} to {theirs.max():.3f}")
        print(f"largest difference from torch's: {difference:.1e}")


if __name__ == "__main__":
    options = parser.parse_args()
    if options.ranks:
        cc.run(program, options.ranks, options)
    else:
        program(options)
