"""Random programs of `Trainer`: a model, a plan, a mesh and options, drawn from a seed, and their serial reference.

The reference uses neither `Trainer` nor `Pipeline`: it runs the layers of one process on plain tapes.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import autograd as ag
import autograd.numpy as anp
import collectives as cc
from autograd import nn, optim, random
from collectives import Shard
from parallel import (
    Column,
    Experts,
    MixtureOfExperts,
    Recompute,
    Ring,
    Row,
    Sequence,
    Trainer,
    Ulysses,
    Vocabulary,
    side_losses,
)
from parallel.pipeline import layer_state

STEPS = 2
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "lamb": lambda p: optim.LAMB(p, lr=0.01),
    "lars": lambda p: optim.LARS(p, lr=0.05, momentum=0.9),
}


class Residual(nn.Module):
    """``x + f(x)``."""

    def __init__(self, *layers: nn.Module):
        self.f = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.f(x)


class Attention(nn.Module):
    """Self-attention with its projections."""

    def __init__(self, width: int, heads: int, head_width: int, causal: bool, rotary: bool, key: random.Key):
        inside = heads * head_width
        self.qkv = nn.Linear(width, 3 * inside, dtype=float, key=key.fold("qkv"))
        self.attend = nn.SelfAttention(head_width, causal=causal, rotary=rotary)
        self.proj = nn.Linear(inside, width, dtype=float, key=key.fold("proj"))

    def forward(self, x: Any) -> Any:
        qkv = self.qkv(x)
        return x + self.proj(self.attend(anp.reshape(qkv, (*qkv.shape[:2], 3, -1))))


class Rare(nn.Module):
    """A linear layer for the tokens with a large first feature. Ranks and microbatches without one do not use it."""

    def __init__(self, width: int, least: float, key: random.Key):
        self.extra, self.least = nn.Linear(width, width, dtype=float, key=key), least

    def forward(self, x: Any) -> Any:
        chosen = anp.greater(x[..., :1], self.least)
        if not np.any(chosen.numpy()):
            return x
        return x + anp.where(chosen, self.extra(x), 0.0)


class Unused(nn.Module):
    """A layer that has a parameter and does not use it."""

    def __init__(self) -> None:
        self.weight = ag.Parameter(np.ones(3))

    def forward(self, x: Any) -> Any:
        return x


class Loss(nn.Module):
    """The sum of the cross-entropies of all tokens, or of squares."""

    def __init__(self, squares: bool):
        self.rows = nn.CrossEntropyLoss(reduction="sum")
        self.squares = squares

    def forward(self, y: Any, targets: Any) -> Any:
        if self.squares:
            return ((y - targets) ** 2).sum()
        return self.rows(anp.reshape(y, (-1, y.shape[-1])), anp.reshape(targets, (-1,)))


@dataclass
class Program:
    """What a seed stands for."""

    seed: int
    sizes: dict[str, int] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adamw"
    is_embedded: bool = True
    head: str = "linear"
    rows: int = 4
    tokens: int = 4
    classes: int = 7
    heads: int = 2
    head_width: int = 2
    width: int = 6
    hidden: int = 7
    experts: int = 3
    capacity: float | None = None
    causal: bool = True
    rotary: bool = False
    dropout: float = 0.0

    @property
    def ranks(self) -> int:
        return math.prod(self.sizes.values())

    def model(self) -> nn.Sequential:
        key = random.Key(self.seed, "programs")
        make = {
            "mlp": lambda k: Residual(*self._mlp(k)),
            "wide": lambda k: nn.Sequential(*self._mlp(k)),
            "attention": lambda k: Attention(
                self.width, self.heads, self.head_width, self.causal, self.rotary, k),
            "experts": lambda k: Residual(MixtureOfExperts(
                self.width, self.hidden, self.experts, capacity=self.capacity, dtype=float, key=k)),
            "norm": lambda k: nn.LayerNorm(self.width, dtype=float),
            "rms": lambda k: nn.RMSNorm(self.width, dtype=float),
            "tanh": lambda k: nn.Tanh(),
            "dropout": lambda k: nn.Dropout(self.dropout),
            "rare": lambda k: Rare(self.width, 1.2, k),
            "unused": lambda k: Unused(),
            "linear": lambda k: nn.Linear(self.width, self.width, dtype=float, key=k),
        }  # fmt: skip
        layers: list[nn.Module] = []
        table = None
        if self.is_embedded:
            table = nn.Embedding(self.classes, self.width, dtype=float, key=key.fold("table"))
            layers.append(table)
        shared = nn.Linear(self.width, self.width, dtype=float, key=key.fold("shared"))
        for i, block in enumerate(self.blocks):
            layers.append(
                nn.Sequential(shared, nn.Tanh()) if block == "shared" else make[block](key.fold(f"block {i}"))
            )
        if self.head == "tied":
            layers.append(nn.TiedLinear(table))
        elif self.head == "linear":
            layers.append(nn.Linear(self.width, self.classes, dtype=float, key=key.fold("head")))
        return nn.Sequential(*layers)

    def _mlp(self, key: random.Key) -> list[nn.Module]:
        return [
            nn.Linear(self.width, self.hidden, dtype=float, key=key.fold("up")), nn.GELU("tanh"),
            nn.Linear(self.hidden, self.width, dtype=float, key=key.fold("down")),
        ]  # fmt: skip

    def loss(self) -> Loss:
        return Loss(self.head == "none")

    def batch(self, step: int) -> tuple[Any, Any]:
        rng = np.random.default_rng([self.seed, step])
        shape = self.rows, self.tokens
        inputs = rng.integers(0, self.classes, shape) if self.is_embedded else rng.normal(size=(*shape, self.width))
        if self.head == "none":
            return inputs, rng.normal(size=(*shape, self.width))
        return inputs, rng.integers(0, self.classes, shape)

    def __str__(self) -> str:
        sizes = "x".join(f"{axis}{n}" for axis, n in self.sizes.items())
        rest = {k: v for k, v in vars(self).items() if k not in ("sizes", "seed", "plan")}
        return f"seed {self.seed}: {sizes} {rest}\n  plan {self.plan}"


def drawn(seed: int) -> Program:
    """The program of a seed."""
    rng = np.random.default_rng([seed, 31])

    def chance(p: float) -> bool:
        return bool(rng.random() < p)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    p = Program(seed)
    while not 1 < math.prod(p.sizes.values()) <= 8:
        p.sizes = {axis: n for axis in ("pp", "dp", "ep", "cp", "tp") if (n := pick(0, 0, 1, 2, 2, 3))}
    size = lambda axis: p.sizes.get(axis, 1)
    zigzag = "cp" in p.sizes and chance(0.5)
    ulysses = "cp" in p.sizes and not zigzag and chance(0.4)
    p.heads, p.head_width = pick(2, 3, 5), pick(2, 4)
    if ulysses:
        p.heads = max(p.heads, size("cp") * size("tp"))
    p.width, p.hidden, p.classes = pick(4, 6, 7), pick(3, 5, 8), pick(5, 7, 11)
    p.experts, p.causal, p.rotary = pick(2, 3, 4), chance(0.6), chance(0.3)
    p.capacity = None if zigzag else pick(None, 1.25)
    p.dropout = pick(0.1, 0.4)
    p.tokens = 2 * size("cp") * pick(1, 2) if zigzag else pick(1, 3, 4, 5)
    p.is_embedded = chance(0.6)
    p.head = pick("linear", "tied", "none") if p.is_embedded else pick("linear", "linear", "none")
    kinds = ["mlp", "mlp", "wide", "attention", "attention", "norm", "rms", "tanh", "dropout", "rare", "rare", "unused",
             "linear", "shared"] + ["experts"] * 3 * ("ep" in p.sizes)  # fmt: skip
    p.blocks = [pick(*kinds) for _ in range(int(rng.integers(1, 6)))]
    if not p.is_embedded and p.head == "none":
        p.blocks.append("linear")  # a model has parameters
    p.blocks += [kind for kind, axis in (("attention", "cp"), ("experts", "ep"), ("mlp", "tp"))
                 if axis in p.sizes and kind not in p.blocks]  # fmt: skip
    rng.shuffle(p.blocks)

    microbatches = int(rng.integers(1, 5))
    p.rows = microbatches + int(rng.integers(0, 2 * microbatches + 1))
    p.options = {"microbatches": microbatches, "clip": pick(None, 0.5), "seed": int(rng.integers(100))}
    p.optimizer = pick(*OPTIMIZERS)
    if "pp" in p.sizes:
        p.options["schedule"] = pick("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
    is_tied = p.head == "tied" or p.blocks.count("shared") > 1
    splits = p.options.get("schedule", "").startswith("zb")
    p.options["zero"] = pick(0, 1, 2, *([] if size("pp") > 1 and (is_tied or splits) or splits else [3]))
    p.options["bucket_bytes"] = p.options["first_bucket_bytes"] = pick(0, 64, 500, 1 << 20)
    stages = size("pp") * (2 if p.options.get("schedule") in ("interleaved", "zb-v") else 1)
    fixed = p.is_embedded + (p.head != "none")
    p.blocks += ["tanh"] * max(0, stages - fixed - len(p.blocks))

    # -- the plan
    at = {i + p.is_embedded: block for i, block in enumerate(p.blocks)}
    plan: dict[str, Any] = {}
    in_parts = size("tp") > 1 and "cp" not in p.sizes and p.tokens > 1 and chance(0.35)  # sequence parallel
    if in_parts:  # the style `Sequence` gives zeros, not None, to parameters that are used nowhere
        p.blocks = ["norm" if block == "rare" else block for block in p.blocks]
    to = {"to": Shard(1)} if in_parts else {}
    divides_vocabulary = p.head != "none" and chance(0.5)
    if in_parts:
        p.is_embedded = True
        if p.head == "none":
            p.head = "linear"
        at = {i + 1: block for i, block in enumerate(p.blocks)}
        divides_vocabulary = True
    if p.is_embedded and (divides_vocabulary or in_parts):
        plan["0"] = Vocabulary("tp", **to)
    shared_style = None
    certain = next((i for i, block in at.items() if block == "mlp"), None)  # an axis must divide something
    for i, block in at.items():
        divided = in_parts or i == certain or chance(0.75)
        if block in ("mlp", "wide") and divided:
            path = f"{i}.f" if block == "mlp" else f"{i}"
            plan[f"{path}.0"], plan[f"{path}.2"] = Column("tp"), Row("tp", **to)
        elif block == "attention":
            if divided:
                plan[f"{i}.qkv"] = Column("tp", blocks=3, unit=p.head_width)
                plan[f"{i}.proj"] = Row("tp", unit=p.head_width, **to)
            if "cp" in p.sizes:
                plan[f"{i}.attend"] = Ulysses("cp") if ulysses else Ring("cp", zigzag=zigzag)
        elif block == "experts" and chance(0.8):
            plan[f"{i}.f.0"] = Experts("ep")
        elif block == "shared" and in_parts:
            shared_style = shared_style or i
            if shared_style == i:
                plan[f"{i}.0"] = Sequence("tp")
        elif block in ("norm", "rms", "linear") and in_parts:
            plan[f"{i}"] = Sequence("tp")
        if chance(0.2) and f"{i}" not in plan:
            plan[f"{i}"] = Recompute()
    last = len(p.blocks) + p.is_embedded
    if p.head != "none" and divides_vocabulary:
        plan[f"{last}"] = Vocabulary("tp")
        plan["loss.rows"] = Vocabulary("tp")
    p.plan = plan
    return p


def serial(p: Program) -> tuple[list[float], dict[str, Any]]:
    """The losses of steps on one process, without `Trainer` and `Pipeline`, and the parameters after them."""
    layers, loss, losses = p.model(), p.loss(), []
    parameters = dict(layers.named_parameters())
    optimizer = OPTIMIZERS[p.optimizer](list(parameters.values()))
    m, seed = p.options["microbatches"], p.options["seed"]
    for step in range(STEPS):
        x, y = p.batch(step)
        count, total = y.size, 0.0
        optimizer.zero_grad()
        for i, (a, b) in enumerate(zip(np.array_split(x, m), np.array_split(y, m), strict=True)):
            with ag.Tape() as tape, side_losses() as side:
                h: Any = ag.tensor(a)
                for index, layer in enumerate(layers):
                    with layer_state(seed, step, i, index):
                        h = layer(h)
                with layer_state(seed, step, i, len(layers.layers)):
                    value = loss(h, ag.tensor(b))
                objective = value + sum(side)
            if objective.requires_grad:  # else no parameter was used
                tape.backward(objective, 1.0 / count)
            total += float(objective.array)
        losses.append(total / count)
        if p.options["clip"] is not None:
            optim.clip_grad_norm_(list(parameters.values()), p.options["clip"])
        optimizer.step()
    return losses, {name: q.array for name, q in parameters.items()}


def distributed(p: Program) -> tuple[Any, list[float], dict[str, Any]]:
    """The report of `verify`, the losses, and on the first rank the parameters after the steps. Each rank calls it."""
    trainer = Trainer(
        p.model, p.loss(), cc.Mesh.fit(**p.sizes), copy.copy(p.plan), optimizer=OPTIMIZERS[p.optimizer], **p.options
    )
    report = trainer.verify(*p.batch(0))
    losses = [trainer.step(*p.batch(step)) for step in range(STEPS)]
    whole = trainer.gather()
    return report, losses, {} if whole is None else {name: q.array for name, q in whole.named_parameters()}


def check(p: Program, tolerance: float = 1e-9) -> None:
    """Run a program on a mesh of threads, and compare it with one process."""
    expected, values = serial(p)
    found = cc.run(lambda: distributed(p), p.ranks)
    for report, losses, _ in found:
        assert report.passed, str(report)
        np.testing.assert_allclose(losses, expected, rtol=tolerance)
    for name, value in found[0][2].items():  # an optimizer that normalises also does so to gradients of rounding errors
        assert np.linalg.norm(value - values[name]) <= 1e-6 * np.linalg.norm(values[name]), name
