"""Convolution and pooling in blocks and in both orders of memory: the same values, and memory that does not grow."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autograd import ops
from autograd.engine.primitive import registry
from autograd.ops.nn import convolution as convolutions
from autograd.ops.nn.unfold import Windows, windows
from tests.proofs.operations.nn import numpy_at_maxima, numpy_convolution


def _inside(x: Any) -> Any:
    """The array with its examples innermost in memory."""
    return numpy.ascontiguousarray(numpy.moveaxis(x, 0, -1)).transpose((x.ndim - 1, *range(x.ndim - 1)))


@st.composite
def _geometries(draw: st.DrawFn) -> tuple[int, int, int, int, Windows]:
    ndim, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(ndim)]
    stride, dilation = ([draw(st.integers(1, 2)) for _ in range(ndim)] for _ in range(2))
    extents = [d * (k - 1) + draw(st.integers(1, 4)) for k, d in zip(kernel, dilation, strict=True)]
    padding = [draw(st.integers(0, 2)) for _ in range(ndim)]
    n, channels, outputs = draw(st.integers(1, 6)), groups * draw(st.integers(0, 2)), groups * draw(st.integers(1, 2))
    return n, channels, outputs, groups, windows("test", tuple(extents), kernel, stride, padding, dilation)


@given(_geometries(), st.sampled_from([1, 7, 20, 64, 1 << 18]), st.booleans())
def test_blocks_and_orders_of_memory(drawn: Any, block: int, is_inside: bool) -> None:
    n, channels, outputs, groups, w = drawn
    rng = numpy.random.default_rng(n)
    x = rng.standard_normal((n, channels, *w.extents))
    weight = rng.standard_normal((outputs, channels // groups, *w.kernel))
    ct = rng.standard_normal((n, outputs, *w.number))
    expected = numpy_convolution(x, weight, w, groups)
    if is_inside:
        x, ct = _inside(x), _inside(ct)
    options, before = (tuple(w), groups), convolutions._BLOCK
    convolutions._BLOCK = block
    try:
        y = registry["convolution"](x, weight, options=options)
        of_x = registry["convolution_input"](ct, weight, options=options)
        of_weight = registry["convolution_weight"](ct, x, options=options)
    finally:
        convolutions._BLOCK = before
    numpy.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    pairing = (ct * expected).sum()
    assert (of_x * x).sum() == pytest.approx(pairing, rel=1e-9, abs=1e-9)
    assert (of_weight * weight).sum() == pytest.approx(pairing, rel=1e-9, abs=1e-9)
    other = rng.standard_normal(x.shape)  # not only along x
    assert (of_x * other).sum() == pytest.approx((ct * numpy_convolution(other, weight, w, groups)).sum(), abs=1e-9)
    dense = rng.standard_normal(weight.shape)
    assert (of_weight * dense).sum() == pytest.approx((ct * numpy_convolution(x, dense, w, groups)).sum(), abs=1e-9)


@given(_geometries(), st.booleans(), st.booleans())
def test_pooling(drawn: Any, is_inside: bool, has_nan: bool) -> None:
    n, channels, _, _, w = drawn
    assume(all(2 * low <= k for (low, _), k in zip(w.padding, w.kernel, strict=True)))  # as `max_pool` requires
    rng = numpy.random.default_rng(channels)
    x = rng.integers(0, 3, (n, channels, *w.extents)).astype(float)  # with ties
    if has_nan:
        x.ravel()[:: max(2, x.size // 3)] = numpy.nan
    dx, ct = rng.standard_normal(x.shape), rng.standard_normal((n, channels, *w.number))
    if is_inside:
        x = _inside(x)
    taken = registry["max_pool_tangent"](dx, x, options=(tuple(w),))
    numpy.testing.assert_array_equal(taken, numpy_at_maxima(dx, x, w))
    given_back = registry["max_pool_cotangent"](ct, x, options=(tuple(w),))
    assert (given_back * dx).sum() == pytest.approx((ct * taken).sum(), abs=1e-9)
    numpy.testing.assert_array_equal(registry["max_pool"](x, options=(tuple(w),)), numpy_at_maxima(x, x, w))


def test_the_next_layer_finds_the_examples_innermost() -> None:
    x, weight = numpy.ones((32, 2, 6, 6)), numpy.ones((3, 2, 3, 3))
    y = ops.max_pool(ops.relu(ops.convolution(x, weight, padding=1)), 2)
    assert y.shape == (32, 3, 3, 3)
    assert y.strides[0] == y.itemsize


def test_the_columns_of_the_batch_are_never_whole() -> None:
    x, weight = numpy.ones((64, 16, 16, 16), numpy.float32), numpy.ones((4, 16, 3, 3), numpy.float32)
    columns = x.nbytes * 9
    tracemalloc.start()
    y = ops.convolution(x, weight, padding=1)
    registry["convolution_weight"](y, x, options=(tuple(windows("test", (16, 16), 3, 1, 1)), 1))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < columns / 2
