"""The results of torch, computed by an interpreter that has it: ``python torch_reference.py OUT.npz``.

Every entry runs a module on random operands in double precision, and writes its operands, parameters, buffers, outputs,
cotangents, and the gradients of operands and parameters. `test_torch.py` and
`test_models_torch.py` read them. Nothing of ringtape is imported here.
"""

from __future__ import annotations

import math
import sys
import zlib
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
FOUND: dict[str, Any] = {}


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def entry(name: str, module: Any, *inputs: Any, parameters: bool = True, **words: Any) -> None:
    """Run a module and its backward with random cotangents, and store all arrays."""
    random = rng(name)
    own = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    with torch.no_grad():
        for p in own.values():
            p.grad = None
            p.copy_(torch.tensor(random.standard_normal(p.shape) * 0.5))
    xs = []
    for i, x in enumerate(inputs):
        x = torch.tensor(random.standard_normal(x)) if isinstance(x, tuple) else torch.as_tensor(x)
        xs.append(x.requires_grad_() if x.dtype == torch.float64 else x)
        FOUND[f"{name}/in/{i}"] = x.detach().numpy().copy()
    for key, p in own.items():
        FOUND[f"{name}/param/{key}"] = p.detach().numpy().copy()
    out = module(*xs, **words)
    outs = out if isinstance(out, tuple) else (out,)
    cts = [torch.tensor(random.standard_normal(y.shape)) for y in outs]
    torch.autograd.backward(outs, cts)
    for i, (y, ct) in enumerate(zip(outs, cts, strict=True)):
        FOUND[f"{name}/out/{i}"], FOUND[f"{name}/ct/{i}"] = y.detach().numpy(), ct.numpy()
    for i, x in enumerate(xs):
        if x.grad is not None:
            FOUND[f"{name}/grad/in/{i}"] = x.grad.numpy()
    for key, p in own.items():
        if p.grad is not None:
            FOUND[f"{name}/grad/param/{key}"] = p.grad.numpy()
    if isinstance(module, nn.Module):
        for key, b in module.named_buffers():
            FOUND[f"{name}/buffer/{key}"] = b.numpy().copy()


# -- layers ----------------------------------------------------------------------------------------------------------


def layers() -> None:
    entry("Linear", nn.Linear(5, 3), (4, 5))
    entry("Linear, no bias", nn.Linear(5, 3, bias=False), (2, 4, 5))
    entry("Embedding", nn.Embedding(7, 4), rng("index").integers(0, 7, (3, 5)))
    entry("Embedding, padding", nn.Embedding(7, 4, padding_idx=2), np.array([[0, 2, 2], [6, 1, 2]]))
    entry("GroupNorm", nn.GroupNorm(2, 6), (3, 6, 4, 5))
    entry("GroupNorm, plain", nn.GroupNorm(3, 6, eps=0.1, affine=False), (2, 6))
    entry("LeakyReLU", nn.LeakyReLU(), (3, 4))
    entry("LeakyReLU, slope", nn.LeakyReLU(0.3), (3, 4))
    for name, words in (
        ("", {}), (", two", {"num_layers": 2}), (", plain", {"bias": False}),
        (", both ways", {"num_layers": 2, "bidirectional": True}),
    ):  # fmt: skip
        class Flat(nn.Module):
            def __init__(self, words: Any = words) -> None:
                super().__init__()
                self.inner = nn.LSTM(4, 3, batch_first=True, **words)

            def forward(self, x: Any, *hc: Any) -> Any:
                y, (h, c) = self.inner(x, hc or None)
                return y, h, c

        layers = words.get("num_layers", 1) * (2 if "bidirectional" in words else 1)
        entry(f"LSTM{name}", Flat(), (2, 5, 4))
        entry(f"LSTM{name}, state", Flat(), (2, 5, 4), (layers, 2, 3), (layers, 2, 3))
    entry("LayerNorm", nn.LayerNorm(6), (2, 3, 6))
    entry("LayerNorm, plain", nn.LayerNorm(6, elementwise_affine=False), (2, 6))
    entry("LayerNorm, no bias", nn.LayerNorm(6, bias=False, eps=1e-3), (2, 6))
    entry("RMSNorm", nn.RMSNorm(6), (2, 3, 6))
    entry("RMSNorm, eps", nn.RMSNorm(6, eps=0.1), (2, 3, 6))
    batch_norms()
    entry("Conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (2, 4, 11))
    entry("Conv2d", nn.Conv2d(3, 4, 3), (2, 3, 6, 5))
    entry("Conv2d, everything", nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2,
                                          bias=False), (2, 4, 7, 6))  # fmt: skip
    entry("Conv2d, same", nn.Conv2d(2, 3, (2, 3), padding="same"), (1, 2, 5, 5))
    entry("Conv2d, one place", nn.Conv2d(3, 4, 1, stride=2), (2, 3, 5, 4))
    entry("MaxPool1d", nn.MaxPool1d(3, stride=2, padding=1), (2, 3, 9))
    entry("MaxPool2d", nn.MaxPool2d(2), (2, 3, 6, 5))
    entry("MaxPool2d, everything", nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1)), (2, 3, 7, 6))
    entry("AvgPool1d", nn.AvgPool1d(3, stride=2, padding=1), (2, 3, 9))
    entry("AvgPool2d", nn.AvgPool2d(2), (2, 3, 6, 5))
    entry("AvgPool2d, not padding", nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (2, 3, 6, 5))
    for name, module in (("ReLU", nn.ReLU()), ("Tanh", nn.Tanh()), ("Sigmoid", nn.Sigmoid()), ("SiLU", nn.SiLU()),
                         ("GELU", nn.GELU()), ("GELU, tanh", nn.GELU("tanh")), ("Softplus", nn.Softplus()),
                         ("Softmax", nn.Softmax(-1)), ("LogSoftmax", nn.LogSoftmax(1)), ("Flatten", nn.Flatten())):
        entry(name, module, (3, 4, 5))
    for name, cell in (("RNNCell", nn.RNNCell(4, 3)), ("RNNCell, relu", nn.RNNCell(4, 3, nonlinearity="relu")),
                       ("GRUCell", nn.GRUCell(4, 3)), ("GRUCell, no bias", nn.GRUCell(4, 3, bias=False))):  # fmt: skip
        entry(name, cell, (2, 4), (2, 3))
        entry(f"{name}, no state", cell, (2, 4))
    lstm = nn.LSTMCell(4, 3)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = lstm

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            return self.cell(x, (h, c))

    entry("LSTMCell", Pair(), (2, 4), (2, 3), (2, 3))
    entry("LSTMCell, no state", lstm, (2, 4))
    attentions()


def batch_norms() -> None:
    for name, make, shape in (
        ("BatchNorm1d", nn.BatchNorm1d, (5, 3)), ("BatchNorm1d, places", nn.BatchNorm1d, (4, 3, 6)),
        ("BatchNorm2d", nn.BatchNorm2d, (2, 3, 4, 5)),
    ):  # fmt: skip
        for words, label in (({}, ""), ({"momentum": None}, ", mean of all"), ({"affine": False}, ", plain")):
            module = make(3, **words)
            module(torch.tensor(rng(name + "before").standard_normal(shape) * 2 + 1))  # something is in the averages
            entry(f"{name}{label}", module, shape)
            module.eval()
            entry(f"{name}{label}, evaluation", module, shape)
    entry("BatchNorm1d, untracked", nn.BatchNorm1d(3, track_running_stats=False).eval(), (5, 3))


class Attend(nn.Module):
    """torch's MultiheadAttention with the output alone; rotary by the formula of Su et al. 2021, in halves."""

    def __init__(self, dim: int, heads: int, bias: bool = True):
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, heads, bias=bias, batch_first=True)

    def forward(self, q: Any, k: Any = None, v: Any = None, causal: bool = False, hidden: Any = None) -> Any:
        k = q if k is None else k
        v = k if v is None else v
        mask = hidden
        if causal:
            mask = torch.triu(torch.ones(q.shape[1], k.shape[1], dtype=torch.bool), 1)
        return self.inner(q, k, v, attn_mask=mask, need_weights=False)[0]


def turned(x: Any, base: float = 10000.0) -> Any:
    width = x.shape[-1]
    angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(0, width, 2) / width)
    a, b = x[..., : width // 2], x[..., width // 2 :]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class RotaryAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = nn.Linear(dim, dim)
        self.heads = heads

    def forward(self, x: Any, causal: bool = True) -> Any:
        n, t, d = x.shape
        q, k, v = (y.reshape(n, t, self.heads, -1).transpose(1, 2) for y in F.linear(
            x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1))  # fmt: skip
        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=causal)
        return self.out_proj(y.transpose(1, 2).reshape(n, t, d))


def attentions() -> None:
    entry("attention", Attend(8, 2), (2, 5, 8))
    entry("attention, causal", Attend(8, 4), (2, 5, 8), causal=True)
    entry("attention, no bias", Attend(8, 1, bias=False), (1, 4, 8))
    entry("attention, across", Attend(8, 2), (2, 3, 8), (2, 5, 8), (2, 5, 8))
    seen = rng("seen").random((5, 5)) < 0.6
    seen[:, 0] = True
    FOUND["attention, mask/mask"] = seen
    entry("attention, mask", Attend(8, 2), (2, 5, 8), hidden=torch.tensor(~seen))
    entry("attention, rotary", RotaryAttention(8, 2), (2, 5, 8))
    padding = rng("padding").random((2, 5)) < 0.4
    padding[:, 0] = False
    hidden = np.triu(np.ones((5, 5), bool), 1)
    added = rng("added").standard_normal((4, 5, 5))
    FOUND["attention masks/padding"], FOUND["attention masks/hidden"], FOUND["attention masks/added"] = (
        padding, hidden, added,
    )  # fmt: skip
    masks = {"key_padding_mask": torch.tensor(padding), "attn_mask": torch.tensor(hidden)}
    for name, words in (
        ("padding", {"key_padding_mask": masks["key_padding_mask"]}), ("hidden", {"attn_mask": masks["attn_mask"]}),
        ("both", masks), ("added", {"attn_mask": torch.tensor(added)}),
        ("added and padding", {"attn_mask": torch.tensor(added),
                               "key_padding_mask": torch.where(masks["key_padding_mask"], -torch.inf, 0.0)}),
    ):  # fmt: skip
        class Masked(Attend):
            def forward(self, x: Any, words: Any = words) -> Any:
                return self.inner(x, x, x, average_attn_weights=False, **words)

        entry(f"attention, {name}", Masked(8, 2), (2, 5, 8))
    first = {"norm_first": True, "activation": "gelu"}
    for name, words in (("", {}), (", first", first), (", plain", {"bias": False})):
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, **words)
        entry(f"TransformerEncoderLayer{name}", layer, (2, 5, 8), src_mask=masks["attn_mask"],
              src_key_padding_mask=masks["key_padding_mask"])  # fmt: skip


# -- losses ----------------------------------------------------------------------------------------------------------


def losses() -> None:
    labels = np.array([0, 3, -100, 1, 2, 3])
    whole = np.array([0, 3, 2, 1, 2, 3])
    weight = rng("weight").uniform(0.5, 2.0, 4)
    FOUND["losses/labels"], FOUND["losses/whole"], FOUND["losses/weight"] = labels, whole, weight
    target = rng("target").random((3, 4))
    FOUND["losses/target"] = target
    t, w = torch.tensor(target), torch.tensor(weight)
    for reduction in ("none", "sum", "mean"):
        for smoothing in (0.0, 0.2):
            for label, ids in (("", whole), (", ignored", labels)):
                for name, given in (("", None), (", weight", w)):
                    loss = nn.CrossEntropyLoss(given, reduction=reduction, label_smoothing=smoothing)
                    entry(f"cross_entropy {reduction} {smoothing}{label}{name}",
                          lambda x, loss=loss, ids=ids: loss(x, torch.tensor(ids)), (6, 4))  # fmt: skip
        for name, given in (("", None), (", weight", w)):
            entry(f"nll_loss {reduction}{name}", lambda x, g=given, r=reduction: F.nll_loss(
                x, torch.tensor(labels), g, reduction=r), (6, 4))  # fmt: skip
        entry(f"mse_loss {reduction}", lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r), (3, 4), (3, 4))
        entry(f"l1_loss {reduction}", lambda x, y, r=reduction: F.l1_loss(x, y, reduction=r), (3, 4), (3, 4))
        for beta in (1.0, 0.3):
            entry(f"smooth_l1_loss {reduction} {beta}", lambda x, y, r=reduction, b=beta: F.smooth_l1_loss(
                x, y, reduction=r, beta=b), (3, 4), (3, 4))  # fmt: skip
        for name, words in (("", {}), (", weight", {"weight": w}), (", pos_weight", {"pos_weight": w})):
            entry(f"bce {reduction}{name}", lambda x, r=reduction, words=words: F.binary_cross_entropy_with_logits(
                x, t, reduction=r, **words), (3, 4))  # fmt: skip


# -- models ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(dim), RotaryAttention(dim, heads), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, dim: int, heads: int, depth: int, tied: bool):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(dim)
        self.head = None if tied else nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.ln_f(x)
        logits = F.linear(x, self.tokens.weight) if self.head is None else self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="mean")


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(8), nn.SiLU(), nn.AvgPool2d(2),
        )  # fmt: skip
        self.classify = nn.Linear(8, 4)

    def forward(self, x: Any, labels: Any) -> Any:
        return F.cross_entropy(self.classify(self.features(x).flatten(1)), labels, label_smoothing=0.1)


class Recurrent(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.cell = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](5, 7)
        self.read = nn.Linear(7, 9)

    def forward(self, tokens: Any) -> Any:
        state, total = None, 0.0
        for t in range(tokens.shape[1] - 1):
            state = self.cell(self.embed(tokens[:, t]), state)
            h = state[0] if isinstance(state, tuple) else state
            total = total + F.cross_entropy(self.read(h), tokens[:, t + 1], reduction="sum")
        return total / tokens[:, 1:].numel()


def models() -> None:
    tokens = rng("tokens").integers(0, 11, (3, 8))
    entry("gpt, untied", GPT(11, 16, 4, 2, tied=False), tokens)
    entry("gpt, tied", GPT(11, 16, 4, 2, tied=True), tokens)
    entry("conv net", ConvNet(), (3, 2, 8, 8), rng("labels").integers(0, 4, 3))
    for kind in ("rnn", "lstm", "gru"):
        entry(f"recurrent {kind}", Recurrent(kind), rng("text").integers(0, 9, (2, 7)))


# -- optimizers, schedules, clipping ---------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "SGD, dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "SGD, nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02}),
    "Adam": (torch.optim.Adam, {"lr": 0.05}),
    "Adam, everything": (torch.optim.Adam, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.05}),
    "AdamW, everything": (torch.optim.AdamW, {"lr": 0.05, "betas": (0.7, 0.9), "eps": 1e-4, "weight_decay": 0.3}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1}),
    "Adagrad, everything": (torch.optim.Adagrad, {
        "lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.05, "initial_accumulator_value": 0.3, "eps": 1e-3,
    }),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.02}),
    "RMSprop, momentum": (torch.optim.RMSprop, {"lr": 0.02, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1}),
    "RMSprop, centered": (torch.optim.RMSprop, {"lr": 0.02, "alpha": 0.8, "centered": True, "eps": 1e-3}),
    "RMSprop, everything": (torch.optim.RMSprop, {"lr": 0.02, "alpha": 0.7, "centered": True, "momentum": 0.5}),
    "SGD, maximize": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "maximize": True}),
    "SGD, maximize and nesterov": (torch.optim.SGD, {
        "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02, "maximize": True,
    }),
    "Adam, amsgrad": (torch.optim.Adam, {"lr": 0.05, "betas": (0.8, 0.6), "weight_decay": 0.1, "amsgrad": True}),
    "Adam, maximize": (torch.optim.Adam, {"lr": 0.05, "maximize": True}),
    "AdamW, amsgrad and maximize": (torch.optim.AdamW, {
        "lr": 0.05, "betas": (0.7, 0.5), "weight_decay": 0.3, "amsgrad": True, "maximize": True,
    }),
    "Adagrad, maximize": (torch.optim.Adagrad, {"lr": 0.03, "weight_decay": 0.05, "maximize": True}),
    "RMSprop, maximize": (torch.optim.RMSprop, {"lr": 0.02, "momentum": 0.5, "centered": True, "maximize": True}),
}  # fmt: skip
SCHEDULES: dict[str, Any] = {
    "step_lr": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
    "multi_step_lr": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5, 5, 9], 0.5),
    "exponential_lr": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "linear_lr": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.25, 0.75, 6),
    "cosine_annealing_lr": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8, 0.01),
    "sequential_lr": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 4), torch.optim.lr_scheduler.CosineAnnealingLR(o, 8)], [4]
    ),
    "chained_lr": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 4), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "cosine_annealing_warm_restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
    "lambda_lr": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one_cycle_lr": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.4, 12, cycle_momentum=False),
    "one_cycle_lr, linear": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, 0.4, 12, pct_start=0.4, anneal_strategy="linear", cycle_momentum=False, div_factor=10.0,
        final_div_factor=100.0,
    ),
}  # fmt: skip


def optimizers() -> None:
    for name, (make, words) in OPTIMIZERS.items():
        random = rng(name)
        shapes = [(3, 4), (5,), ()]
        ps = [nn.Parameter(torch.tensor(random.standard_normal(s))) for s in shapes]
        for i, p in enumerate(ps):
            FOUND[f"{name}/start/{i}"] = p.detach().numpy().copy()
        optimizer = make(ps, **words)
        for step in range(6):
            for i, p in enumerate(ps):
                g = random.standard_normal(p.shape)
                p.grad = None if step == 2 and i == 1 else torch.tensor(g)  # one step without a gradient
                FOUND[f"{name}/grad/{step}/{i}"] = g
            optimizer.step()
            for i, p in enumerate(ps):
                FOUND[f"{name}/value/{step}/{i}"] = p.detach().numpy().copy()
    for name, make in SCHEDULES.items():
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
        schedule = make(optimizer)
        rates = []
        for step in range(12):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if step < 11:  # OneCycleLR ends with the cycle
                schedule.step()
        FOUND[f"schedule/{name}"] = np.array(rates)
    for norm in (1.0, 2.0, math.inf):
        for limit in (0.5, 100.0):
            ps = [nn.Parameter(torch.zeros(s)) for s in ((3, 4), (5,))]
            for i, p in enumerate(ps):
                p.grad = torch.tensor(rng(f"clip{i}").standard_normal(p.shape))
                FOUND[f"clip/{i}"] = p.grad.numpy().copy()
            total = nn.utils.clip_grad_norm_(ps, limit, norm)
            FOUND[f"clip/{norm}/{limit}"] = np.concatenate([total.reshape(1), *(p.grad.numpy().ravel() for p in ps)])


def complex_optimizers() -> None:
    """A complex matrix, a real vector and a complex number; see `complex_case.py` in the tests of `optim`."""
    for name, (make, words) in OPTIMIZERS.items():
        random, into = rng(f"complex {name}"), f"complex/{name}"
        re, im = (random.standard_normal((12, 3)) for _ in range(2))
        x, y = 0.4 * (re + 1j * im), random.standard_normal((12, 2)) + 1j * random.standard_normal((12, 2))
        w = random.standard_normal((3, 2)) + 1j * random.standard_normal((3, 2))
        start = w, 1 + random.standard_normal(2), np.array(0.5 - 0.25j)
        FOUND[f"{into}/x"], FOUND[f"{into}/y"] = x, y
        ps = [nn.Parameter(torch.tensor(a)) for a in start]
        for i, a in enumerate(start):
            FOUND[f"{into}/start/{i}"] = a
        optimizer, sign = make(ps, **words), -1 if words.get("maximize") else 1
        for step in range(60):
            optimizer.zero_grad()
            loss = sign * ((torch.tensor(x) @ ps[0] * ps[1] + ps[2] - torch.tensor(y)).abs() ** 2).sum() / 12
            loss.backward()
            if not step:
                for i, p in enumerate(ps):
                    FOUND[f"{into}/grad/{i}"] = p.grad.numpy().copy()
            optimizer.step()
            for i, p in enumerate(ps):
                FOUND[f"{into}/value/{step}/{i}"] = p.detach().numpy().copy()
        for i, p in enumerate(ps):
            for key, value in optimizer.state[p].items():
                if torch.is_tensor(value) and key != "step":
                    FOUND[f"{into}/state/{key}/{i}"] = value.numpy().copy()


if __name__ == "__main__":
    layers()
    losses()
    models()
    optimizers()
    complex_optimizers()
    np.savez(sys.argv[1], **{k.replace("/", "|"): v for k, v in FOUND.items()})
