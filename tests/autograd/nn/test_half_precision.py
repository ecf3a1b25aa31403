"""Layers and losses in float16 and bfloat16, against float64: value, both modes and second order.

Inputs have values from 1e-8 to 6e4, parameters ordinary ones. A layer of several products rounds between them, so it is
checked with ordinary inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from autograd import nn

from ...proofs.operations import Case
from ..halves import HALVES
from ..ops.test_half_precision import SCALES, faults

LABELS = numpy.array([0, 3, 1, 2, 1])


def of_labels(**options: Any) -> Callable[[], Any]:
    return lambda: lambda x: nn.cross_entropy(x, LABELS, **options)


LAYERS: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]]]] = {
    "Linear": (lambda: nn.Linear(4, 3), [(5, 4)]),
    "LayerNorm": (lambda: nn.LayerNorm(4), [(5, 4)]),
    "LayerNorm without a bias": (lambda: nn.LayerNorm(4, bias=False), [(5, 4)]),
    "LayerNorm, plain": (lambda: nn.LayerNorm(4, elementwise_affine=False), [(5, 4)]),
    "RMSNorm": (lambda: nn.RMSNorm(4, 1e-5), [(5, 4)]),
    "RMSNorm, plain": (lambda: nn.RMSNorm(4, 1e-5, False), [(5, 4)]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [(3, 4, 5)]),
    "GroupNorm, plain": (lambda: nn.GroupNorm(2, 4, affine=False), [(3, 4, 5)]),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), [(5, 4)]),
    "BatchNorm1d, plain": (lambda: nn.BatchNorm1d(4, affine=False), [(5, 4, 3)]),
    "BatchNorm1d, evaluation": (lambda: nn.BatchNorm1d(4).eval(), [(5, 4)]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), [(3, 2, 4, 4)]),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3), [(2, 2, 7)]),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2, padding=1), [(2, 2, 4, 4)]),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), [(1, 2, 4, 4)]),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), [(1, 2, 4, 4)]),
    "GELU": (lambda: nn.GELU(), [(6,)]),
    "GELU, tanh": (lambda: nn.GELU("tanh"), [(6,)]),
    "SiLU": (lambda: nn.SiLU(), [(6,)]),
    "Softplus": (lambda: nn.Softplus(), [(6,)]),
    "Tanh": (lambda: nn.Tanh(), [(6,)]),
    "Sigmoid": (lambda: nn.Sigmoid(), [(6,)]),
    "LeakyReLU": (lambda: nn.LeakyReLU(), [(6,)]),
    "Softmax": (lambda: nn.Softmax(-1), [(3, 4)]),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), [(3, 4)]),
    "MSELoss": (lambda: nn.MSELoss(), [(5, 4), (5, 4)]),
    "MSELoss, sum": (lambda: nn.MSELoss(reduction="sum"), [(5, 4), (5, 4)]),
    "L1Loss": (lambda: nn.L1Loss(), [(5, 4), (5, 4)]),
    "SmoothL1Loss": (lambda: nn.SmoothL1Loss(), [(5, 4), (5, 4)]),
    "BCEWithLogitsLoss": (lambda: nn.BCEWithLogitsLoss(), [(5, 4), (5, 4)]),
    "NLLLoss": (lambda: lambda x: nn.nll_loss(x, LABELS), [(5, 4)]),
    "cross_entropy": (of_labels(), [(5, 4)]),
    "cross_entropy, sum": (of_labels(reduction="sum"), [(5, 4)]),
    "cross_entropy, smoothed": (of_labels(label_smoothing=0.1), [(5, 4)]),
    "cross_entropy, ignored": (of_labels(ignore_index=1), [(5, 4)]),
    "cross_entropy, weighted": (
        lambda: lambda x: nn.cross_entropy(x, LABELS, numpy.array([1, 2, 0.5, 1]).astype(x.dtype)), [(5, 4)]
    ),
}  # fmt: skip

LAYERS_OF_SEVERAL_PRODUCTS: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]]]] = {
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), [(2, 3, 4)]),
    "SelfAttention": (lambda: nn.SelfAttention(4), [(2, 3, 4)]),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), [(2, 3, 4)]),
    "LSTM": (lambda: nn.LSTM(3, 4), [(5, 2, 3)]),
    "GRUCell": (lambda: nn.GRUCell(3, 4), [(2, 3), (2, 4)]),
    "RNNCell": (lambda: nn.RNNCell(3, 4), [(2, 3), (2, 4)]),
}


class Ordinary:
    """A parameter of a layer, whose values are not scaled."""

    is_scaled = False

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape

    def __call__(self, rng: numpy.random.Generator) -> Any:
        return 0.5 * rng.standard_normal(self.shape)


def case_of(name: str, make: Callable[[], Any], shapes: list[tuple[int, ...]]) -> Case:
    """The layer as a function of its inputs and its parameters."""
    layer = make()
    parameters = dict(layer.named_parameters()) if isinstance(layer, nn.Module) else {}

    def f(*xs: Any) -> Any:
        layer = make()
        inputs, values = xs[: len(shapes)], xs[len(shapes) :]
        if isinstance(layer, nn.Module):
            layer.to(dtype=str(inputs[0].dtype))
            for path, value in zip(parameters, values, strict=True):
                *owners, last = path.split(".")
                owner = layer
                for each in owners:
                    owner = getattr(owner, each)
                vars(owner)[last] = value
        y = layer(*inputs)
        return y if hasattr(y, "dtype") else y[0]

    def drawn(shape: tuple[int, ...]) -> Callable[[numpy.random.Generator], Any]:
        return lambda rng: rng.standard_normal(shape)

    return Case(name, "", f, None, (*map(drawn, shapes), *(Ordinary(p.shape) for p in parameters.values())))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str) -> None:
    case = case_of(name, *LAYERS[name])
    found = [text for dtype in HALVES for scale in SCALES for text in faults(case, dtype, scale)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", LAYERS_OF_SEVERAL_PRODUCTS)
def test_a_layer_of_several_products(name: str) -> None:
    case = case_of(name, *LAYERS_OF_SEVERAL_PRODUCTS[name])
    found = [text for dtype in HALVES for text in faults(case, dtype, "own", roundings=40)]
    assert not found, "\n".join(found)
