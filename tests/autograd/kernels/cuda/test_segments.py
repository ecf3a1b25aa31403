"""The segmented sum of the device against a sum in float64, and the gradients that are made of it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import autograd as ag
import autograd.numpy as np
from autograd import kernels, ops
from autograd.arrays.runtime import Program
from autograd.kernels.cuda import segments

from ...arrays.devices import DEVICES, Device
from . import on_cpu
from .test_rows import DTYPES, bits_are_bfloat16, to_dtype, to_float64

Array = Any

__all__ = ["bits_are_bfloat16"]

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
there = pytest.fixture(params=DEVICES)(lambda request: request.param)


def places(n: int, count: int, seed: int = 0) -> Array:
    """Places of which some never occur, some once, and one in a third of all rows."""
    rng = numpy.random.default_rng(seed)
    found = rng.integers(0, count, n)
    found[rng.random(n) < 0.3] = count // 2
    return found


def expected(xs: Array, at: Array, count: int) -> Array:
    out = numpy.zeros((count, *xs.shape[1:]), complex if xs.dtype.kind == "c" else float)
    numpy.add.at(out, at, xs)
    return out


def check(there: Device, n: int, width: int, count: int, dtype: str, at: Array | None = None, shift: int = 0) -> None:
    at = places(n, count) if at is None else at
    xs = to_dtype(numpy.random.default_rng(1).standard_normal((n, width)), dtype)
    whole = numpy.concatenate([xs.reshape(-1)[:1].repeat(shift), xs.reshape(-1)])
    moved = there.move(whole)[shift:].reshape(xs.shape)
    found = there.values(segments.sum_rows(moved, there.move(at), count))
    right = expected(to_float64(xs), at, count)
    scale = max(1.0, float(abs(right).max(initial=0)))
    assert found.dtype == xs.dtype and found.shape == right.shape
    numpy.testing.assert_allclose(to_float64(found), right, rtol=0, atol=DTYPES[dtype] * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_all_widths_and_lengths(dtype: str, there: Device) -> None:
    for n in (1, 31, 32, 33, 64, 65, 700):
        for width in (1, 3, 8, 40):
            check(there, n, width, 11, dtype)
    check(there, 65, 8, 5, dtype, shift=1)
    check(there, 100, 1100, 3, dtype)  # several blocks of columns


def test_one_place_places_in_order_and_segments_that_end_with_a_chunk(there: Device) -> None:
    for n in (32, 64, 640, 1000):
        check(there, n, 5, 3, "float32", numpy.zeros(n, int))
        check(there, n, 5, n, "float32", numpy.arange(n))
        check(there, n, 5, n, "float32", numpy.arange(n) // 32)
        check(there, n, 5, n, "float32", (numpy.arange(n) + 16) // 32)
        check(there, n, 4, n, "float32", (numpy.arange(n) + 1) // 64)


def test_negative_places_and_other_dtypes_of_places(there: Device) -> None:
    at = places(200, 9)
    for dtype in ("int8", "int32", "uint8", "int64"):
        check(there, 200, 4, 9, "float64", at.astype(dtype))
    check(there, 200, 4, 9, "float64", numpy.where(numpy.arange(200) % 2, at, at - 9))


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint32", "bool"])
def test_integers(dtype: str, there: Device) -> None:
    xs, at = numpy.random.default_rng(0).integers(-9 if dtype[0] == "i" else 0, 2, (50, 3)).astype(dtype), places(50, 4)
    found = there.values(segments.sum_rows(there.move(xs), there.move(at), 4))
    right = numpy.zeros((4, 3), int)
    numpy.add.at(right, at, xs)
    assert found.dtype == xs.dtype and (found == right.astype(dtype)).all()


def test_nothing(there: Device) -> None:
    for n, width, count in ((0, 4, 3), (3, 0, 3), (0, 4, 0)):
        check(there, n, width, count, "float32", numpy.zeros(n, int))


def test_the_host_sums_a_row_that_has_two_names() -> None:
    """Of places -1 and 2 of three rows one sum used to overwrite the other."""
    rng = numpy.random.default_rng(0)
    at, xs = rng.integers(-5, 5, 60), rng.standard_normal((60, 2))
    found = kernels.functions("segments", numpy.ndarray).sum_rows(xs, at, 5)
    numpy.testing.assert_allclose(found, expected(xs, at, 5), rtol=1e-12)
    table, index = ag.Parameter(numpy.ones((4, 2))), ag.tensor(numpy.array([-1, 3, 3, 0]))
    with ag.Tape() as tape:
        loss = ops.take_rows(table, index).sum()
    tape.backward(loss)
    assert table.grad is not None and table.grad.numpy()[:, 0].tolist() == [1, 0, 0, 3]


# -- the gradients that are such sums ----------------------------------------------------------------------------------

TAKES = {
    "rows": (lambda x, i: ops.take_rows(x, i), (7, 4)),
    "an index": (lambda x, i: x[i], (7, 4)),
    "an index among slices": (lambda x, i: x[1:, i, 1], (3, 7, 2, 2)),
    "an index after an ellipsis": (lambda x, i: x[..., i], (2, 7)),
    "two indices": (lambda x, i: x[i, i - 5], (7, 7, 2)),
    "elements along an axis": (lambda x, i: np.take_along_axis(x, i.reshape(-1, 1), 0), (7, 1)),
    "rows of a part": (lambda x, i: ops.nn.embedding.take_own_rows(x, i - 2), (7, 4)),
}


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_gradients_of_what_was_taken_by_index(name: str, dtype: str, there: Device) -> None:
    function, shape = TAKES[name]
    rng = numpy.random.default_rng(3)
    index = rng.integers(0, 7, 90)
    index[:40] = 5
    values = rng.integers(-3, 4, shape).astype(dtype)
    found = []
    for move, values_of in ((numpy.asarray, lambda x: x.array), (there.move, there.values)):
        x, i = ag.Parameter(move(values)), ag.tensor(move(index))
        with there.without_crossings(moves=True):
            with ag.Tape() as tape:
                y = function(x, i)
                ct = ag.tensor(move((numpy.arange(y.size) % 5 - 2).reshape(y.shape).astype(dtype)))
            tape.backward(y, ct)
        found.append(values_of(x.grad))
    numpy.testing.assert_array_equal(found[1], found[0])  # sums of small integers are exact
    assert found[0].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_addends_of_sixteen_bits(dtype: str, there: Device) -> None:
    """5,000 ones: a sum that is rounded after each addition ends at 2,048, or 256."""
    kind = numpy.dtype(dtype if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16)
    for take in (ops.take_rows, lambda w, i: w[i]):
        table = ag.Parameter(there.move(numpy.ones((4, 8), kind)))
        index = ag.tensor(there.move(numpy.zeros(5000, int)))
        with ag.Tape() as tape:
            loss = take(table, index).astype("float32").sum()
        tape.backward(loss)
        gradient = there.values(table.grad).astype(float)
        assert (gradient[0] == float(numpy.asarray(5000, kind))).all() and not gradient[1:].any()


def test_the_same_bits_each_time(there: Device) -> None:
    xs = there.move(numpy.random.default_rng(0).standard_normal((3000, 6)).astype("f4"))
    at = there.move(places(3000, 4))
    assert len({there.values(segments.sum_rows(xs, at, 4)).tobytes() for _ in range(3)}) == 1


def test_a_cotangent_that_is_not_a_number_stays_with_the_rows_of_other_parts(there: Device) -> None:
    x, i = ag.Parameter(there.move(numpy.ones((3, 2)))), ag.tensor(there.move(numpy.array([0, -1, 2])))
    ct = numpy.ones((3, 2))
    ct[1] = numpy.nan
    with ag.Tape() as tape:
        y = ops.nn.embedding.take_own_rows(x, i)
    tape.backward(y, ag.tensor(there.move(ct)))
    numpy.testing.assert_array_equal(there.values(x.grad), [[1, 1], [0, 0], [1, 1]])


# -- planted faults ----------------------------------------------------------------------------------------------------

FAULTS = {
    "a tail is not kept": ("else if (end < rows && places[end] == place) keep(1);", "else if (false) keep(1);"),
    "a head is written": ("if (is_head) keep(0);\n    else if", "if (false) keep(0);\n    else if"),
    "a chunk too few": ("of <= last; of += 8", "of < last; of += 8"),
    "the join begins in each chunk": ("first > 0 && places[first - 1] == place && ", "false && "),
    "no barrier": ("    __syncthreads();\n    if (threadIdx.y > 0", "    if (threadIdx.y > 0"),
    "sums of 16 bits": ("sum[i] += wide(found[u].at[i]);", "sum[i] = wide(narrow<T>(sum[i] + wide(found[u].at[i])));"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = FAULTS[fault]
    dtype, name = ("float16", "<Half") if "16" in fault else ("float32", "<float")
    assert old in segments.PROGRAM.text
    only = tuple(kernel for kernel in segments.PROGRAM.kernels if name in kernel)
    text = segments.PROGRAM.text.replace(old, new)
    monkeypatch.setattr(segments, "PROGRAM", Program("planted_segments", text, only))
    faulty, large = DEVICES[0].values[0], numpy.ones((32, 8), dtype)
    large[0] = 2048  # to which float16 adds 1 in vain
    with pytest.raises((AssertionError, on_cpu.KernelError)):
        check(faulty, 1000, 8, 5, dtype, numpy.repeat(numpy.arange(5), 200))
        found = segments.sum_rows(faulty.move(large), faulty.move(numpy.zeros(32, int)), 1)
        assert (faulty.values(found) == numpy.float16(2048 + 31)).all()
