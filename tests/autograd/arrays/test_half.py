"""float16 on the CPU: computed in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import autograd as ag
import autograd.numpy as anp
from autograd import nn, ops
from autograd.arrays.half import rounded

HALF_ULP = 2.0**-11  # the largest relative error of one rounding to float16


def draw(seed: int, *shape: int, mean: float = 0.0) -> Any:
    return (np.random.default_rng(seed).normal(size=shape) + mean).astype(np.float16)


def gradients(f: Callable[..., Any], arrays: list[Any], seed: int) -> list[Any]:
    """The result and the gradients for a random cotangent."""
    xs = [ag.tensor(a, requires_grad=True) for a in arrays]
    with ag.Tape() as tape:
        y = f(*xs)
    tape.backward(y, draw(seed, *y.shape).astype(arrays[0].dtype))
    return [y.numpy(), *(x.grad.numpy() for x in xs if x.grad is not None)]


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul": (lambda a, b: a @ b, [(3, 3000), (3000, 2)]),
    "matmul of batches": (lambda a, b: a @ b, [(2, 3, 300), (2, 300, 4)]),
    "vector": (lambda a, b: a @ b, [(3000,), (3000, 2)]),
    "rows": (lambda a, b: a @ b, [(4, 500, 3), (3, 2)]),
    "einsum": (lambda a, b: anp.einsum("ijk,lk->lij", a, b), [(2, 3, 900), (2, 900)]),
    "convolution": (lambda x, w: ops.convolution(x, w), [(40, 3, 9, 9), (2, 3, 3, 3)]),
    "one convolution of many windows": (lambda x, w: ops.convolution(x, w), [(2, 1, 40, 40), (2, 1, 2, 2)]),
    "sum": (lambda x: x.sum(axis=0), [(4000, 3)]),
    "broadcast": (lambda a, b: a + b, [(50, 60, 2), (60, 2)]),
    "softmax": (lambda x: ops.softmax(x, 1), [(5, 600)]),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, w, b), [(400, 8), (8,), (8,)]),
    "gelu": (lambda x: ops.gelu(x), [(50, 60)]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CASES)
def test_a_float16_result_is_the_float32_one_rounded_once(name: str) -> None:
    f, shapes = CASES[name]
    arrays = [draw(i, *shape, mean=0.5) for i, shape in enumerate(shapes)]
    ours = gradients(f, arrays, 7)
    exact = gradients(f, [a.astype(np.float64) for a in arrays], 7)
    for have, need in zip(ours, exact, strict=True):
        assert have.dtype == np.float16
        assert np.abs(have - need).max() <= (1.2 * HALF_ULP) * np.abs(need).max()


def test_a_linear_layer() -> None:
    layer = nn.Linear(3000, 4).half()
    wide = nn.Linear(3000, 4, dtype=float)
    for p, q in zip(layer.parameters(), wide.parameters(), strict=True):
        q.data = p.numpy().astype(float)
    x, ct = draw(0, 700, 3000), draw(1, 700, 4)
    for model, dtype in ((layer, np.float16), (wide, np.float64)):
        with ag.Tape() as tape:
            y = model(ag.tensor(x.astype(dtype)))
        tape.backward(y, ct.astype(dtype))
    for p, q in zip(layer.parameters(), wide.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert np.abs(p.grad.numpy() - q.grad.numpy()).max() <= 2 * HALF_ULP * np.abs(q.grad.numpy()).max()


def test_rounding_is_numpys() -> None:
    """All float16 numbers, all ties between two subnormal ones and their neighbours, and what overflows."""
    ties = np.arange(-5000, 5000) * 2.0**-26
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    x = np.concatenate([ties, np.nextafter(ties, 1), [65519.9, 65520.0, -1e9, 1e-12, -1e-12]]).astype(np.float32)
    for part in (every[np.isfinite(every)], x):
        with np.errstate(over="ignore"):
            expected = part.astype(np.float16)
        assert np.array_equal(rounded(part).view(np.uint16), expected.view(np.uint16))
    assert np.isnan(rounded(np.array([np.nan, 1.0], np.float32))[0])


@pytest.mark.filterwarnings("error")
def test_an_overflow_is_infinite_without_a_warning() -> None:
    big = ag.tensor(np.full((2, 2), 3e4, np.float16))
    assert np.isinf((big @ big).numpy()).all()
    assert np.isinf(big.sum(axis=0).sum().numpy())
