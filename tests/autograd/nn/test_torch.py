"""Every layer and loss beside torch's of the same name, weight for weight: values and gradients in double precision."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import numpy
import pytest

from autograd import nn

from .torch_side import close, compare, load, names, reference

F = {"dtype": float}
LAYERS: dict[str, Any] = {
    "Linear": lambda: nn.Linear(5, 3, **F),
    "Linear, no bias": lambda: nn.Linear(5, 3, bias=False, **F),
    "Embedding": lambda: nn.Embedding(7, 4, **F),
    "Embedding, padding": lambda: nn.Embedding(7, 4, padding_idx=-5, **F),
    "GroupNorm": lambda: nn.GroupNorm(2, 6, **F),
    "GroupNorm, plain": lambda: nn.GroupNorm(3, 6, eps=0.1, affine=False),
    "LeakyReLU": nn.LeakyReLU,
    "LeakyReLU, slope": lambda: nn.LeakyReLU(0.3),
    "LayerNorm": lambda: nn.LayerNorm(6, **F),
    "LayerNorm, plain": lambda: nn.LayerNorm(6, elementwise_affine=False),
    "LayerNorm, no bias": lambda: nn.LayerNorm(6, bias=False, eps=1e-3, **F),
    "RMSNorm": lambda: nn.RMSNorm(6, **F),
    "RMSNorm, eps": lambda: nn.RMSNorm((6,), eps=0.1, **F),
    "Conv1d": lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, **F),
    "Conv2d": lambda: nn.Conv2d(3, 4, 3, **F),
    "Conv2d, everything": lambda: nn.Conv2d(
        4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, bias=False, **F
    ),
    "Conv2d, same": lambda: nn.Conv2d(2, 3, (2, 3), padding="same", **F),
    "Conv2d, one place": lambda: nn.Conv2d(3, 4, 1, stride=2, **F),
    "MaxPool1d": lambda: nn.MaxPool1d(3, stride=2, padding=1),
    "MaxPool2d": lambda: nn.MaxPool2d(2),
    "MaxPool2d, everything": lambda: nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1)),
    "AvgPool1d": lambda: nn.AvgPool1d(3, stride=2, padding=1),
    "AvgPool2d": lambda: nn.AvgPool2d(2),
    "AvgPool2d, not padding": lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    "ReLU": nn.ReLU,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "SiLU": nn.SiLU,
    "GELU": nn.GELU,
    "GELU, tanh": lambda: nn.GELU("tanh"),
    "Softplus": nn.Softplus,
    "Softmax": lambda: nn.Softmax(-1),
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "Flatten": nn.Flatten,
    "RNNCell": lambda: nn.RNNCell(4, 3, **F),
    "RNNCell, no state": lambda: nn.RNNCell(4, 3, **F),
    "RNNCell, relu": lambda: nn.RNNCell(4, 3, nonlinearity="relu", **F),
    "RNNCell, relu, no state": lambda: nn.RNNCell(4, 3, nonlinearity="relu", **F),
    "GRUCell": lambda: nn.GRUCell(4, 3, **F),
    "GRUCell, no state": lambda: nn.GRUCell(4, 3, **F),
    "GRUCell, no bias": lambda: nn.GRUCell(4, 3, bias=False, **F),
    "LSTMCell, no state": lambda: nn.LSTMCell(4, 3, **F),
    "attention, rotary": lambda: nn.MultiheadAttention(8, 2, batch_first=True, rotary=True, **F),
}


@pytest.mark.parametrize("entry", LAYERS)
def test_a_layer_is_torchs(entry: str) -> None:
    module = LAYERS[entry]()
    load(module, entry)
    f = module
    if entry == "attention, rotary":
        f = lambda x: module(x, need_weights=False, is_causal=True)[0]
    compare(entry, f, module)


def test_an_lstm_is_torchs() -> None:
    cell = nn.LSTMCell(4, 3, **F)
    load(cell, "LSTMCell", lambda path: path.removeprefix("cell."))
    compare("LSTMCell", lambda x, h, c: cell(x, (h, c)), cell, lambda path: path.removeprefix("cell."))


@pytest.mark.parametrize("entry, size, words", [
    ("attention", (8, 2), {}), ("attention, causal", (8, 4), {"is_causal": True}),
    ("attention, no bias", (8, 1, 0.0, False), {}), ("attention, across", (8, 2), {}), ("attention, mask", (8, 2), {}),
])  # fmt: skip
def test_attention_is_torchs(entry: str, size: Any, words: dict[str, Any]) -> None:
    module = nn.MultiheadAttention(*size, batch_first=True, **F)
    load(module, entry, lambda path: path.removeprefix("inner."))
    if entry == "attention, mask":
        words = {"attn_mask": ~reference(entry)["mask"]}
    for need in False, True:
        f = partial(module, need_weights=need, **words)
        compare(entry, lambda *xs, f=f: f(*xs)[0], module, lambda path: path.removeprefix("inner."))


def masks() -> dict[str, Any]:
    return reference("attention masks")


@pytest.mark.parametrize("entry", ["padding", "hidden", "both", "added", "added and padding"])
def test_masks_are_torchs(entry: str) -> None:
    found = masks()
    added = {"attn_mask": found["added"], "key_padding_mask": numpy.where(found["padding"], -numpy.inf, 0.0)}
    both = {"key_padding_mask": found["padding"], "attn_mask": found["hidden"]}
    words = {
        "padding": {"key_padding_mask": found["padding"]}, "hidden": {"attn_mask": found["hidden"]}, "both": both,
        "added": {"attn_mask": added["attn_mask"]}, "added and padding": added,
    }[entry]  # fmt: skip
    module = nn.MultiheadAttention(8, 2, batch_first=True, **F)
    load(module, f"attention, {entry}", lambda path: path.removeprefix("inner."))

    def with_weights(x: Any) -> Any:
        return module(x, x, x, average_attn_weights=False, **words)

    compare(f"attention, {entry}", with_weights, module, lambda path: path.removeprefix("inner."))
    x = reference(f"attention, {entry}")["in/0"]
    close(module(x, need_weights=False, **words)[0].numpy(), with_weights(x)[0].numpy(), "without the weights")
    mean = module(x, **words)[1].numpy()
    close(mean, with_weights(x)[1].numpy().mean(1), "averaged weights")


@pytest.mark.parametrize("name, words", [
    ("", {}), (", first", {"norm_first": True, "activation": "gelu"}), (", plain", {"bias": False}),
])  # fmt: skip
def test_an_encoder_layer_is_torchs(name: str, words: dict[str, Any]) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, **words, **F)
    load(layer, f"TransformerEncoderLayer{name}")
    found = masks()
    compare(f"TransformerEncoderLayer{name}", lambda x: layer(x, found["hidden"], found["padding"]), layer)


@pytest.mark.parametrize("name, words", [
    ("", {}), (", two", {"num_layers": 2}), (", plain", {"bias": False}),
    (", both ways", {"num_layers": 2, "bidirectional": True}),
])  # fmt: skip
@pytest.mark.parametrize("state", ["", ", state"])
def test_an_lstm_of_sequences_is_torchs(name: str, words: dict[str, Any], state: str) -> None:
    entry = f"LSTM{name}{state}"
    module = nn.LSTM(4, 3, batch_first=True, **words, **F)
    load(module, entry, lambda path: path.removeprefix("inner."))

    def f(x: Any, *hc: Any) -> Any:
        y, (h, c) = module(x, hc or None)
        return y, h, c

    compare(entry, f, module, lambda path: path.removeprefix("inner."))


@pytest.mark.parametrize("name, make, shape", [
    ("BatchNorm1d", nn.BatchNorm1d, (5, 3)), ("BatchNorm1d, places", nn.BatchNorm1d, (4, 3, 6)),
    ("BatchNorm2d", nn.BatchNorm2d, (2, 3, 4, 5)),
])  # fmt: skip
@pytest.mark.parametrize("label, words", [
    ("", {}), (", mean of all", {"momentum": None}), (", plain", {"affine": False}),
])  # fmt: skip
def test_batch_norm_is_torchs(name: str, make: Any, shape: Any, label: str, words: dict[str, Any]) -> None:
    module = make(3, **words, **F)
    reference(name + label)
    before = numpy.random.default_rng(zlib.crc32((name + "before").encode())).standard_normal(shape) * 2 + 1
    module(before)
    load(module, name + label)
    compare(name + label, module, module)
    for key, value in names(name + label, under="buffer").items():
        close(getattr(module, key), value, key)
    assert module.eval() is module and not module.training
    load(module, f"{name}{label}, evaluation")
    compare(f"{name}{label}, evaluation", module, module)
    for key, value in names(f"{name}{label}, evaluation", under="buffer").items():
        close(getattr(module, key), value, key)


def test_batch_norm_without_running_statistics_is_torchs() -> None:
    module = nn.BatchNorm1d(3, track_running_stats=False, **F).eval()
    load(module, "BatchNorm1d, untracked")
    compare("BatchNorm1d, untracked", module, module)
    assert list(module.state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_are_torchs(reduction: str) -> None:
    given = reference("losses")
    labels, whole, weight, target = (given[k] for k in ("labels", "whole", "weight", "target"))
    for smoothing in (0.0, 0.2):
        for label, ids in (("", whole), (", ignored", labels)):
            for name, w in (("", None), (", weight", weight)):
                loss = nn.CrossEntropyLoss(w, reduction=reduction, label_smoothing=smoothing)
                compare(f"cross_entropy {reduction} {smoothing}{label}{name}", lambda x, f=loss, t=ids: f(x, t))
    for name, w in (("", None), (", weight", weight)):
        compare(f"nll_loss {reduction}{name}", lambda x, w=w: nn.nll_loss(x, labels, w, reduction=reduction))
        compare(f"nll_loss {reduction}{name}", lambda x, w=w: nn.NLLLoss(w, reduction=reduction)(x, labels))
    for f, name in ((nn.mse_loss, "mse_loss"), (nn.l1_loss, "l1_loss")):
        compare(f"{name} {reduction}", lambda x, y, f=f: f(x, y, reduction=reduction))
    compare(f"mse_loss {reduction}", nn.MSELoss(reduction=reduction))
    compare(f"l1_loss {reduction}", nn.L1Loss(reduction=reduction))
    for beta in (1.0, 0.3):
        compare(f"smooth_l1_loss {reduction} {beta}", nn.SmoothL1Loss(reduction=reduction, beta=beta))
    bce = nn.BCEWithLogitsLoss
    for name, words in (("", {}), (", weight", {"weight": weight}), (", pos_weight", {"pos_weight": weight})):
        compare(f"bce {reduction}{name}", lambda x, words=words: bce(reduction=reduction, **words)(x, target))
