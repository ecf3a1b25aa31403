"""Random calls of `autograd.nn`, `autograd.nn.init` and `autograd.random` with legal, wrong and odd arguments.

    python -m tests.autograd.nn.fuzz --calls 20000 --seed 1

`CALLS` lists, for each function and module, its arguments with their kinds. A `Kind` draws legal values and tells legal
from illegal ones; where only the whole call shows it, as for the shape of an array, it answers None. Torch's rules are
the reference. In a call at most two arguments are not legal. The outcomes of one call:

agreed     A legal call returns, and its backward pass runs; an illegal one raises a `RingtapeError`.
internal   The call, or its backward pass, raises anything but a `RingtapeError`.
accepted   An argument is illegal, and the call returns.
refused    All arguments are legal, and the call raises.
"""

from __future__ import annotations

import argparse
import inspect
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import autograd as ag
from autograd import nn
from autograd import random as draws
from autograd.errors import RingtapeError

ODD: list[Any] = [
    None, "x", b"a", 1.5, -1, 0, 7, -100, 2**70, -(2**63), float("nan"), float("inf"), 1j, True, [0], (), {}, object,
    np.int64(2), np.float32(0.5), np.array(1), np.array([0, 1]), np.array(["a"]), np.zeros(0), [1, "x"], (0, 9), -0.5,
    np.datetime64("2020-01-01"), "\N{SNOWMAN}", 1e400, slice(None), [[1.0], [2.0, 3.0]],
]  # fmt: skip


@dataclass
class Kind:
    """One kind of argument. `legal` returns True, False, or None where only the call shows it."""

    draw: Callable[[Any], Any]
    legal: Callable[[Any], bool | None]
    wrong: list[Any] = field(default_factory=list)


def is_integer(v: Any) -> bool:
    return isinstance(v, int | np.integer) and not isinstance(v, bool)


def is_real(v: Any) -> bool:
    return isinstance(v, int | float | np.integer | np.floating) and not isinstance(v, bool)


def unknown(v: Any) -> None:
    return None


def count(value: int, least: int = 0) -> Kind:
    """A number of channels, features or positions."""

    def legal(v: Any) -> bool | None:
        if isinstance(v, bool | np.bool_) or (isinstance(v, np.ndarray) and v.shape == () and v.dtype.kind in "iu"):
            return None
        return False if not is_integer(v) or v < least or v >= 2**31 else None if v != value else True

    return Kind(lambda d: value, legal, [-1, -3, 1.5, "3", None, float("nan")])


def number(low: float, high: float, *values: float, closed: bool = True, infinite: bool = False) -> Kind:
    def legal(v: Any) -> bool | None:
        if isinstance(v, bool | np.bool_) or (isinstance(v, np.ndarray) and v.size == 1 and v.dtype.kind in "biuf"):
            return None
        if not is_real(v) or v != v:
            return False
        if not infinite and abs(v) == float("inf"):
            return False
        if abs(v) > 1e30:
            return None
        return bool(low <= v <= high if closed else low < v < high)

    return Kind(lambda d: d.choice(values), legal, [float("nan"), "0.5", 1j, low - 1 if low > -1e9 else 1j])


def bound(*values: float) -> Kind:
    """A number whose legal values depend on other arguments."""
    kind = number(-float("inf"), float("inf"), *values)
    return Kind(kind.draw, lambda v: False if kind.legal(v) is False else None, [float("nan"), "0.5", 1j])


def probability() -> Kind:
    return number(0, 1, 0.0, 0.25, 0.5, 1.0)


def eps(optional: bool = False) -> Kind:
    kind = number(0, 1e30, 1e-5, 1e-3)
    legal = (lambda v: None if v is None else kind.legal(v)) if optional else kind.legal
    return Kind(kind.draw, legal, [*kind.wrong, -1.0, -1e-5])


def choice(*values: Any, optional: bool = False) -> Kind:
    def legal(v: Any) -> bool:
        return (v is None and None in values) or (isinstance(v, str) and v in values)

    return Kind(lambda d: d.choice(values), legal, ["x", "", 1, "Mean"])


def flag() -> Kind:
    return Kind(lambda d: d.random() < 0.5, unknown)


def boolean() -> Kind:
    """True or False, and nothing else."""
    return Kind(lambda d: d.random() < 0.5, lambda v: v is True or v is False, [0, 1, None, "x"])


def dtype() -> Kind:
    def legal(v: Any) -> bool | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind = np.dtype(v)
        except Exception:
            return False
        return None if v is None or kind.kind == "f" else False

    return Kind(
        lambda d: d.choice(["float32", np.float64, np.dtype("float16")]), legal, ["int64", "U3", object, "bool"]
    )


def key() -> Kind:
    return Kind(
        lambda d: draws.Key(d.randrange(100), "fuzz"), lambda v: None if v is None else isinstance(v, draws.Key)
    )


def array(
    *shape: int, kinds: str = "f", is_moved: bool = False, low: float = -2.0, high: float = 2.0, optional: bool = False
) -> Kind:
    """An array of a shape. Another shape may be legal, too."""

    def draw(d: Any, shape: tuple[int, ...] = shape, dtype: str = "float64") -> Any:
        x = np.random.default_rng(d.randrange(2**30)).uniform(low, high, shape).astype(dtype)
        return ag.tensor(x, requires_grad=True) if d.random() < 0.5 and kinds == "f" else x

    def legal(v: Any) -> bool | None:
        v = v.array if isinstance(v, ag.Tensor) else v
        if v is None:
            return None if optional else False
        if isinstance(v, str | bytes | dict | slice | type):
            return False
        if isinstance(v, np.ndarray) and v.dtype.kind in "SUM":
            return None if is_moved else False  # as in NumPy
        return None

    wrong: list[Any] = [None, "x", {}, np.array("a"), np.array([object()])]
    shapes: list[tuple[int, ...]] = [(), (0,), (5,), (7, 7), (2, 0), (2, 3, 4), (1, 2, 3, 4, 5)]
    wrong += [draw(random.Random(i), other) for i, other in enumerate(shapes)]
    wrong += [np.zeros(shape, kind) for kind in ("int64", "bool", "complex128", "float16", "object", "U1")]
    wrong += [np.full(shape, np.nan)]
    return Kind(draw, legal, wrong)


def labels(n: int, classes: int) -> Kind:
    def legal(v: Any) -> bool | None:
        v = v.array if isinstance(v, ag.Tensor) else v
        if not isinstance(v, np.ndarray):
            return None if isinstance(v, list | tuple | int | np.integer) else False
        if v.dtype.kind not in "iu" or v.shape != (n,):
            return False
        return bool(((v >= 0) & (v < classes)).all()) or None

    wrong = [np.full(n, classes), np.full(n, -1), np.full(n, -(2**63)), np.zeros(n), np.zeros(n, bool),
             np.zeros(n + 1, int),
             np.zeros((n, 1), int), np.zeros(n, "U1"), None, "x", np.full(n, 2**63, np.uint64)]  # fmt: skip
    return Kind(lambda d: np.array([d.randrange(classes) for _ in range(n)]), legal, wrong)


def indices(rows: int) -> Kind:
    kind = labels(4, rows)

    def legal(v: Any) -> bool | None:
        v = v.array if isinstance(v, ag.Tensor) else v
        if not isinstance(v, np.ndarray):
            return None if isinstance(v, list | tuple | int | np.integer) else False
        return v.dtype.kind in "iu" and bool(((v >= 0) & (v < rows)).all())

    return Kind(kind.draw, legal, kind.wrong)


def windows(*values: Any, least: int = 1, words: tuple[str, ...] = ()) -> Kind:
    def legal(v: Any) -> bool | None:
        if isinstance(v, str):
            return v in words or False
        if isinstance(v, list | tuple):
            return None if v and all(is_integer(n) and n >= least for n in v) else False
        if is_integer(v):
            return None if v >= least else False
        return None if isinstance(v, bool | np.ndarray | np.bool_) or v is None else False

    return Kind(lambda d: d.choice(values), legal, [0 if least else -1, -1, 1.5, "x", (1, 2, 3, 4), (), float("nan")])


def axis(ndim: int) -> Kind:
    def legal(v: Any) -> bool | None:
        if isinstance(v, bool | np.ndarray | np.bool_):
            return None
        return (-ndim <= v < ndim or None) if is_integer(v) and -6 < v < 5 else False

    return Kind(lambda d: d.randrange(-ndim, ndim), legal, [9, -9, 1.5, None, "x", (0,)])


def shape() -> Kind:
    def legal(v: Any) -> bool | None:
        if isinstance(v, ag.Tensor | np.ndarray | np.bool_ | bool):
            return None
        entries = v if isinstance(v, list | tuple) else (v,)
        return all(is_integer(n) and 0 <= n < 2**20 for n in entries)

    return Kind(
        lambda d: d.choice([3, (2, 3), (), (0,), [4], (2, 0, 3)]), legal, [-1, (-1,), 1.5, None, "x", (2, 1.5), 2**70]
    )


REDUCTION = ("none", "sum", "mean")


@dataclass
class Entry:
    """A callable with the kinds of its arguments, positional in order; `inputs` of the made module, if it makes one."""

    f: Callable[..., Any]
    kinds: dict[str, Kind]
    inputs: list[Kind] | None = None


def parameter() -> Kind:
    return Kind(lambda d: ag.Parameter(np.zeros((4, 3), "float32")), lambda v: isinstance(v, ag.Parameter))


PARTS = {"dtype": dtype(), "key": key()}
CALLS: dict[str, Entry] = {
    # -- modules
    "Linear": Entry(
        nn.Linear, {"in_features": count(3), "out_features": count(4), "bias": flag(), **PARTS}, [array(2, 3)]
    ),
    "Embedding": Entry(nn.Embedding, {"num_embeddings": count(5), "embedding_dim": count(3), **PARTS}, [indices(5)]),
    "Flatten": Entry(
        nn.Flatten,
        {
            "start_dim": Kind(
                lambda d: 1,
                lambda v: (
                    (is_integer(v) and v == 1) or (None if is_integer(v) or isinstance(v, bool | np.ndarray) else False)
                ),
                ["x", 1.5, None],
            )
        },
        [array(2, 3, 4, is_moved=True)],
    ),
    "Dropout": Entry(nn.Dropout, {"p": probability()}, [array(2, 3)]),
    "LayerNorm": Entry(
        nn.LayerNorm,
        {"normalized_shape": count(3, 1), "eps": eps(), "elementwise_affine": flag(), "bias": flag(), "dtype": dtype()},
        [array(2, 3)],
    ),
    "RMSNorm": Entry(
        nn.RMSNorm,
        {"normalized_shape": count(3, 1), "eps": eps(optional=True), "elementwise_affine": flag(), "dtype": dtype()},
        [array(2, 3)],
    ),
    "BatchNorm1d": Entry(
        nn.BatchNorm1d,
        {
            "num_features": count(3),
            "eps": eps(),
            "momentum": Kind(lambda d: 0.1, lambda v: None if v is None else probability().legal(v), [-1, 1.5, "x"]),
            "affine": flag(),
            "track_running_stats": flag(),
            "dtype": dtype(),
        },
        [array(4, 3)],
    ),
    "BatchNorm2d": Entry(
        nn.BatchNorm2d,
        {
            "num_features": count(3),
            "eps": eps(),
            "momentum": Kind(lambda d: 0.1, lambda v: None if v is None else probability().legal(v), [-1, 1.5, "x"]),
            "affine": flag(),
        },
        [array(4, 3, 2, 2)],
    ),
    "MultiheadAttention": Entry(
        nn.MultiheadAttention,
        {"embed_dim": count(8, 1), "num_heads": count(2, 1), "bias": flag(), "rotary": flag(), **PARTS},
        [array(2, 5, 8)],
    ),
    "Conv1d": Entry(
        nn.Conv1d,
        {
            "in_channels": count(4),
            "out_channels": count(2),
            "kernel_size": windows(1, 2, (3,)),
            "stride": windows(1),
            "padding": windows(0, 1, "same", "valid", least=0, words=("same", "valid")),
            "dilation": windows(1),
            "groups": count(2, 1),
            "bias": flag(),
            **PARTS,
        },
        [array(2, 4, 6)],
    ),
    "Conv2d": Entry(
        nn.Conv2d,
        {
            "in_channels": count(4),
            "out_channels": count(2),
            "kernel_size": windows(1, 2, (3, 2)),
            "stride": windows(1),
            "padding": windows(0, 1, (1, 0), "valid", least=0, words=("same", "valid")),
            "dilation": windows(1),
            "groups": count(2, 1),
            "bias": flag(),
        },
        [array(2, 4, 6, 6)],
    ),
    "MaxPool1d": Entry(
        nn.MaxPool1d,
        {
            "kernel_size": windows(2, 3),
            "stride": windows(1, 2, None),
            "padding": windows(0, 1, least=0),
            "dilation": windows(1),
        },
        [array(2, 3, 6)],
    ),
    "AvgPool2d": Entry(
        nn.AvgPool2d,
        {
            "kernel_size": windows(2, (3, 2)),
            "stride": windows(1, None),
            "padding": windows(0, 1, least=0),
            "count_include_pad": flag(),
        },
        [array(2, 3, 6, 6)],
    ),
    "RNNCell": Entry(
        nn.RNNCell,
        {"input_size": count(3), "hidden_size": count(4), "bias": flag(), "nonlinearity": choice("tanh", "relu")},
        [array(2, 3), array(2, 4, optional=True)],
    ),
    "GRUCell": Entry(
        nn.GRUCell,
        {"input_size": count(3), "hidden_size": count(4), "bias": flag()},
        [array(2, 3), array(2, 4, optional=True)],
    ),
    "LSTMCell": Entry(nn.LSTMCell, {"input_size": count(3), "hidden_size": count(4), "bias": flag()}, [array(2, 3)]),
    "GELU": Entry(nn.GELU, {"approximate": choice("none", "tanh")}, [array(2, 3)]),
    "Softmax": Entry(nn.Softmax, {"dim": axis(2)}, [array(2, 3)]),
    "LogSoftmax": Entry(nn.LogSoftmax, {"dim": axis(2)}, [array(2, 3)]),
    "ReLU": Entry(nn.ReLU, {}, [array(2, 3)]),
    "CrossEntropyLoss": Entry(
        nn.CrossEntropyLoss,
        {
            "weight": array(4, low=0.5, high=1.0, kinds="", optional=True),
            "ignore_index": Kind(
                lambda d: -100,
                lambda v: None if is_integer(v) or isinstance(v, bool | np.ndarray | np.bool_) else False,
                ["x", 1.5, None],
            ),
            "reduction": choice(*REDUCTION),
            "label_smoothing": probability(),
        },
        [array(3, 4), labels(3, 4)],
    ),
    "NLLLoss": Entry(
        lambda reduction: nn.NLLLoss(reduction=reduction),
        {"reduction": choice(*REDUCTION)},
        [array(3, 4), labels(3, 4)],
    ),
    "MSELoss": Entry(nn.MSELoss, {"reduction": choice(*REDUCTION)}, [array(3, 4), array(3, 4)]),
    "L1Loss": Entry(nn.L1Loss, {"reduction": choice(*REDUCTION)}, [array(3, 4), array(3, 4)]),
    "SmoothL1Loss": Entry(
        nn.SmoothL1Loss,
        {"reduction": choice(*REDUCTION), "beta": number(0, 1e30, 0.0, 1.0)},
        [array(3, 4), array(3, 4)],
    ),
    "BCEWithLogitsLoss": Entry(
        lambda reduction: nn.BCEWithLogitsLoss(reduction=reduction),
        {"reduction": choice(*REDUCTION)},
        [array(3, 4), array(3, 4, low=0, high=1)],
    ),
    # -- functions
    "cross_entropy": Entry(
        nn.cross_entropy, {"input": array(3, 4), "target": labels(3, 4), "reduction": choice(*REDUCTION)}
    ),
    "smoothed cross_entropy": Entry(
        lambda x, t, r, ignore_index, label_smoothing: nn.cross_entropy(
            x, t, reduction=r, ignore_index=ignore_index, label_smoothing=label_smoothing
        ),
        {
            "logits": array(3, 4),
            "labels": labels(3, 4),
            "reduction": choice(*REDUCTION),
            "ignore_index": Kind(
                lambda d: d.choice([None, -100, 9]),
                lambda v: None if v is None or is_integer(v) or isinstance(v, bool | np.ndarray | np.bool_) else False,
                ["x", 1.5],
            ),
            "label_smoothing": probability(),
        },
    ),
    "nll_loss": Entry(nn.nll_loss, {"input": array(3, 4), "target": labels(3, 4)}),
    "mse_loss": Entry(nn.mse_loss, {"input": array(3, 4), "target": array(3, 4), "reduction": choice(*REDUCTION)}),
    "l1_loss": Entry(nn.l1_loss, {"input": array(3, 4), "target": array(3, 4), "reduction": choice(*REDUCTION)}),
    "smooth_l1_loss": Entry(
        nn.smooth_l1_loss,
        {
            "input": array(3, 4),
            "target": array(3, 4),
            "reduction": choice(*REDUCTION),
            "beta": number(0, 1e30, 0.0, 1.0),
        },
    ),
    "binary_cross_entropy_with_logits": Entry(
        nn.binary_cross_entropy_with_logits,
        {
            "input": array(3, 4),
            "target": array(3, 4, low=0, high=1),
            "weight": array(4, low=0, high=1, kinds="", optional=True),
            "reduction": choice(*REDUCTION),
        },
    ),
    "softmax": Entry(nn.softmax, {"input": array(2, 3), "dim": axis(2)}),
    "log_softmax": Entry(nn.log_softmax, {"input": array(2, 3), "dim": axis(2)}),
    "layer_norm": Entry(
        ag.ops.layer_norm,
        {"x": array(2, 3), "weight": array(3, optional=True), "bias": array(3, optional=True), "eps": eps()},
    ),
    "rms_norm": Entry(
        ag.ops.rms_norm, {"x": array(2, 3), "weight": array(3, optional=True), "eps": eps(optional=True)}
    ),
    "dropout": Entry(nn.dropout, {"input": array(2, 3), "p": probability(), "training": boolean(), "key": key()}),
    "embedding": Entry(nn.embedding, {"input": indices(5), "weight": array(5, 3, is_moved=True)}),
    "gelu": Entry(nn.gelu, {"input": array(2, 3), "approximate": choice("none", "tanh")}),
    **{name: Entry(getattr(nn, name), {"x": array(2, 3)}) for name in ("relu", "sigmoid", "silu", "softplus", "tanh")},
    "max_pool": Entry(
        nn.max_pool,
        {
            "x": array(2, 3, 6),
            "kernel_size": windows(2, 3),
            "stride": windows(1, 2, None),
            "padding": windows(0, 1, least=0),
            "dilation": windows(1),
        },
    ),
    "avg_pool": Entry(
        nn.avg_pool,
        {
            "x": array(2, 3, 6),
            "kernel_size": windows(2, 3),
            "stride": windows(1, 2, None),
            "padding": windows(0, 1, least=0),
        },
    ),
    "convolution": Entry(
        ag.ops.convolution,
        {
            "x": array(2, 4, 6),
            "weight": array(2, 2, 3),
            "bias": array(2, optional=True),
            "stride": windows(1, 2),
            "padding": windows(0, 1, least=0, words=("same", "valid")),
            "dilation": windows(1, 2),
            "groups": count(2, 1),
        },
    ),
    "attention": Entry(
        ag.ops.attention,
        {
            "q": array(2, 2, 5, 4),
            "k": array(2, 2, 6, 4),
            "v": array(2, 2, 6, 3),
            "mask": array(5, 6, kinds="", optional=True),
        },
    ),
    # -- initialisers
    **{
        name: Entry(getattr(nn.init, name), {"tensor": parameter(), **kinds, "key": key()})
        for name, kinds in {
            "uniform_": {"a": bound(-1.0, 0.0), "b": bound(1.0, 2.0)},
            "normal_": {"mean": bound(0.0, 1.0), "std": number(0, 1e30, 0.0, 1.0)},
            "trunc_normal_": {"mean": bound(0.0), "std": bound(1.0), "a": bound(-2.0), "b": bound(2.0)},
            "xavier_uniform_": {"gain": bound(1.0, 2.0)},
            "xavier_normal_": {"gain": number(0, 1e30, 1.0)},
            "orthogonal_": {"gain": bound(1.0)},
            "kaiming_uniform_": {"a": bound(0.0, 1.0), "mode": choice("fan_in", "fan_out")},
            "kaiming_normal_": {"a": bound(0.0, 1.0), "mode": choice("fan_in", "fan_out")},
        }.items()
    },
    "constant_": Entry(
        nn.init.constant_,
        {
            "tensor": parameter(),
            "val": Kind(lambda d: 1.0, lambda v: None if is_real(v) else bound().legal(v), ["0.5", 1j, None]),
        },
    ),
    "zeros_": Entry(nn.init.zeros_, {"tensor": parameter()}),
    "calculate_gain": Entry(nn.init.calculate_gain, {"nonlinearity": choice("relu", "tanh", "linear", "leaky_relu")}),
    # -- random numbers
    "Key": Entry(
        draws.Key,
        {
            "seed": Kind(
                lambda d: d.randrange(9),
                lambda v: None if isinstance(v, bool | np.ndarray | np.bool_) else is_integer(v),
                [1.5, "x", None],
            ),
            "name": Kind(lambda d: "a", lambda v: isinstance(v, str), [1, None]),
        },
    ),
    "uniform": Entry(
        lambda k, s, low, high, dtype: draws.uniform(k, s, low=low, high=high, dtype=dtype),
        {
            "key": Kind(key().draw, lambda v: isinstance(v, draws.Key), [None, 1, "x"]),
            "shape": shape(),
            "low": bound(-1.0, 0.0),
            "high": bound(1.0, 2.0),
            "dtype": dtype(),
        },
    ),
    "normal": Entry(
        lambda k, s, mean, std, dtype: draws.normal(k, s, mean=mean, std=std, dtype=dtype),
        {
            "key": Kind(key().draw, lambda v: isinstance(v, draws.Key), [None, 1, "x"]),
            "shape": shape(),
            "mean": bound(-1.0, 0.0),
            "std": number(0, 1e30, 0.0, 2.0),
            "dtype": dtype(),
        },
    ),
    "truncated_normal": Entry(
        lambda k, s, mean, std, dtype: draws.truncated_normal(k, s, mean=mean, std=std, dtype=dtype),
        {
            "key": Kind(key().draw, lambda v: isinstance(v, draws.Key), [None, 1, "x"]),
            "shape": shape(),
            "mean": bound(0.0),
            "std": bound(1.0),
            "dtype": dtype(),
        },
    ),
    "bernoulli": Entry(
        draws.bernoulli,
        {
            "key": Kind(key().draw, lambda v: isinstance(v, draws.Key), [None, 1, "x"]),
            "shape": shape(),
            "p": probability(),
        },
    ),
    "integers": Entry(
        draws.integers,
        {
            "key": Kind(key().draw, lambda v: isinstance(v, draws.Key), [None, 1, "x"]),
            "shape": shape(),
            "low": Kind(
                lambda d: -3,
                lambda v: (
                    None
                    if isinstance(v, bool | np.ndarray | np.bool_) or (is_integer(v) and -(2**63) <= v < 2**63)
                    else False
                ),
                [1.5, "x", None, 9],
            ),
            "high": Kind(
                lambda d: 4,
                lambda v: (
                    None
                    if isinstance(v, bool | np.ndarray | np.bool_) or (is_integer(v) and -(2**63) < v <= 2**63)
                    else False
                ),
                [1.5, "x", None, -9],
            ),
        },
    ),
    "permutation": Entry(
        draws.permutation,
        {
            "key": Kind(key().draw, lambda v: isinstance(v, draws.Key), [None, 1, "x"]),
            "n": Kind(
                lambda d: d.randrange(5),
                lambda v: (
                    None
                    if isinstance(v, bool | np.ndarray | np.bool_ | list | tuple)
                    else is_integer(v) and 0 <= v < 2**20
                ),
                [-1, 1.5, None, "x"],
            ),
        },
    ),
    "next_key": Entry(draws.next_key, {"name": Kind(lambda d: "a", lambda v: isinstance(v, str), [1, None])}),
    "seed": Entry(
        draws.seed,
        {
            "n": Kind(
                lambda d: d.randrange(9),
                lambda v: None if isinstance(v, bool | np.ndarray | np.bool_) else is_integer(v),
                [1.5, "x", None],
            )
        },
    ),
}


@dataclass
class Outcome:
    kind: str
    text: str


def shown(v: Any) -> str:
    if isinstance(v, ag.Tensor):
        return f"Tensor({v.array.dtype}{list(v.array.shape)})"
    if isinstance(v, np.ndarray) and v.size > 3:
        return f"array({v.dtype}{list(v.shape)})"
    return repr(v)[:60]


def one_call(name: str, seed: int) -> Outcome:
    """Draw the arguments of one call, run it, and judge."""
    d = random.Random(f"{name} {seed}")
    entry = CALLS[name]
    kinds = [*entry.kinds.items(), *((f"input {i}", k) for i, k in enumerate(entry.inputs or []))]
    at = {d.randrange(len(kinds)) for _ in range(d.choice([0, 1, 1, 1, 1, 2]))}
    values, verdicts = [], []
    for i, (_, kind) in enumerate(kinds):
        v = (
            d.choice(kind.wrong + ODD if d.random() < 0.5 or not kind.wrong else kind.wrong)
            if i in at
            else kind.draw(d)
        )
        values.append(v)
        verdicts.append(kind.legal(v) if i in at else True)
    n = len(entry.kinds)
    has_signature = inspect.isfunction(entry.f) or inspect.isclass(entry.f)
    parameters = inspect.signature(entry.f).parameters if has_signature else {}
    named = [k for k in entry.kinds if k in parameters and (
        parameters[k].kind is inspect.Parameter.KEYWORD_ONLY or (k == "key" and name.endswith("_")))]  # fmt: skip
    text = f"{name}({', '.join(f'{k}={shown(v)}' for (k, _), v in zip(kinds, values, strict=True))})"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            with ag.Tape() as tape:
                y = entry.f(*values[: n - len(named)], **dict(zip(named, values[n - len(named) : n], strict=True)))
                if entry.inputs is not None:
                    y = y(*values[n:])
                y = y[0] if isinstance(y, tuple) and y else y
                loss = y.sum() if isinstance(y, ag.Tensor) and y.requires_grad and y.dtype.kind == "f" else None
            if loss is not None and not isinstance(y, ag.Parameter):
                tape.backward(loss)
    except RingtapeError as error:
        if all(v is True for v in verdicts):
            return Outcome("refused", f"{text}: {type(error).__name__}: {error}")
        return Outcome("agreed", "")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("internal", f"{text}: {type(error).__name__}: {error} ({last.filename[-40:]}:{last.lineno})")
    if any(v is False for v in verdicts):
        wrong = [k for (k, _), v in zip(kinds, verdicts, strict=True) if v is False]
        return Outcome("accepted", f"{text}: {', '.join(wrong)}")
    return Outcome("agreed", "")


def run(calls: int, seed: int, only: str = "") -> tuple[Counter[str], list[Outcome]]:
    """Run this many calls, in turn over the functions."""
    names = [name for name in CALLS if only in name]
    outcomes: list[Outcome] = []
    counts: Counter[str] = Counter()
    for i in range(calls):
        outcome = one_call(names[i % len(names)], seed * 10**6 + i)
        counts[outcome.kind] += 1
        if outcome.kind != "agreed":
            outcomes.append(outcome)
    return counts, outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the names to call")
    given = parser.parse_args()
    counts, outcomes = run(given.calls, given.seed, given.only)
    for outcome in outcomes:
        print(f"{outcome.kind:<9} {outcome.text}")
    print(f"{given.calls} calls: {dict(counts)}")
    return 1 if outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main())
