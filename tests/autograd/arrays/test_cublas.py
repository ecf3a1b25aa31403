"""Matrix products by cuBLAS: how operands are passed, against a model of its product by columns, and on a GPU."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy
import pytest
from numpy.lib.stride_tricks import as_strided

from autograd.arrays import cuda, runtime_of
from autograd.arrays.cublas import Operand, operand

RANDOM = numpy.random.default_rng(0)


def by_columns(x: Operand, rows: int, columns: int, batch: int) -> Any:
    """What cuBLAS reads: matrices of rows and columns, by columns, transposed where it is told so."""
    shape = (batch, columns, rows) if x.is_transposed else (batch, rows, columns)
    n = x.array.itemsize
    stored = as_strided(x.array, shape, (x.stride * n, n, x.leading * n))
    return stored.swapaxes(1, 2) if x.is_transposed else stored


def product(a: Any, b: Any) -> Any:
    """``a @ b`` as it is computed with cuBLAS: ``y.T = b.T a.T`` by columns."""
    batch = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    left, right = operand(a, batch), operand(b, batch)
    turned = by_columns(right, n, k, prod(batch)) @ by_columns(left, k, m, prod(batch))
    return turned.swapaxes(1, 2).reshape(*batch, m, n)


def draw(*shape: int) -> Any:
    return RANDOM.standard_normal(shape)


CASES: dict[str, tuple[Any, Any]] = {
    "matrices": (draw(3, 4), draw(4, 5)),
    "transposed": (draw(4, 3).T, draw(5, 4).T),
    "batches": (draw(2, 6, 3, 4), draw(2, 6, 4, 5)),
    "transposed batches": (draw(6, 4, 3).swapaxes(1, 2), draw(6, 5, 4).swapaxes(1, 2)),
    "the first transposed": (draw(6, 4, 3).swapaxes(1, 2), draw(6, 4, 5)),
    "the second transposed": (draw(6, 3, 4), draw(6, 5, 4).swapaxes(1, 2)),
    "heads": (draw(2, 3, 6, 4).swapaxes(1, 2), draw(2, 3, 6, 4).transpose(0, 2, 3, 1)),
    "one matrix for all": (draw(6, 3, 4), draw(4, 5)),
    "broadcast": (draw(2, 1, 3, 4), draw(6, 4, 5)),
    "parts of rows": (draw(6, 3, 9)[..., 2:6], draw(6, 4, 9)[..., ::2]),
    "every second matrix": (draw(6, 3, 4)[::2], draw(3, 4, 5)),
    "columns and rows of one": (draw(6, 3, 1), draw(6, 1, 5)),
    "one row": (draw(6, 1, 4), draw(6, 4, 1)),
    "reversed": (draw(3, 4)[::-1, ::-1], draw(4, 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_operands(case: str) -> None:
    a, b = CASES[case]
    numpy.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12)


def test_what_is_copied() -> None:
    for case in ("transposed", "transposed batches", "batches", "one matrix for all", "every second matrix"):
        for x in CASES[case]:
            batch = numpy.broadcast_shapes(*(y.shape[:-2] for y in CASES[case]))
            assert operand(x, batch).array is x
    assert operand(CASES["heads"][0], (2, 6)).array is not CASES["heads"][0]  # no even distance between matrices


def on_gpu(x: Any, dtype: str) -> Any:
    """The array on the GPU, with its strides."""
    import cupy

    whole = x
    while whole.base is not None:
        whole = whole.base
    offset = (x.ctypes.data - whole.ctypes.data) // x.itemsize
    moved = cupy.asarray(whole.astype(dtype)).ravel()[offset:]
    strides = [n // x.itemsize * moved.itemsize for n in x.strides]
    return cupy.lib.stride_tricks.as_strided(moved, x.shape, strides)


@pytest.mark.gpu
@pytest.mark.skipif(bool(cuda.why_not()), reason=cuda.why_not() or "")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_products_on_a_gpu(case: str, dtype: str) -> None:
    import cupy

    a, b = (on_gpu(x, dtype) for x in CASES[case])
    runtime: Any = runtime_of(cupy.ndarray)
    needed = CASES[case][0].astype(dtype).astype(float) @ CASES[case][1].astype(dtype).astype(float)
    tolerance = {"float64": 1e-12, "float32": 1e-2, "float16": 1e-2}[dtype]  # float32 may be TF32
    numpy.testing.assert_allclose(cupy.asnumpy(runtime.matmul(a, b)), needed, tolerance, tolerance)
    captured, replay = runtime.capture(lambda: runtime.matmul(a, b))
    replay()
    numpy.testing.assert_allclose(cupy.asnumpy(captured), needed, tolerance, tolerance)
