"""The CUDA kernels over rows and elements against the host in float64, with planted faults.

bfloat16 is run on arrays of its bits, which are those of the upper half of float32, because NumPy does not have it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from autograd import kernels, ops
from autograd.arrays.runtime import Program
from autograd.engine.primitive import registry
from autograd.errors import ShapeError
from autograd.kernels import Kernel
from autograd.kernels.cuda import norms, program, rotary, rows
from autograd.ops.nn.fused import Fused

from ...arrays.devices import DEVICES, Device
from . import on_cpu

Array = Any

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
there = pytest.fixture(params=DEVICES)(lambda request: request.param)

importlib.import_module("autograd.ops.everything")  # registers the operations, which are imported at their first use
NAMES = {x.kernel_name.partition(".")[2]: x.kernel_name for x in registry.values() if isinstance(x, Fused)}
WIDTHS = (1, 3, 31, 33, 100, 768, 1000, 5000)
DTYPES = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The dtypes, and the largest difference relative to the largest number, or to 1: some units in the last place, of the
exponential of float32 that a GPU computes fast, and of the results that are rounded to 16 bits."""

EACH_DTYPE = pytest.mark.parametrize(
    "dtype",
    [pytest.param(name, marks=[] if name in ("float32", "bfloat16") else [pytest.mark.slow]) for name in DTYPES],
)


def to_dtype(x: Array, dtype: str) -> Array:
    if x.dtype.kind != "f":
        return x
    if dtype != "bfloat16":
        return x.astype(dtype)
    bits = x.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def to_float64(x: Array) -> Array:
    if x.dtype == numpy.uint16:
        return (x.astype(numpy.uint32) << 16).view(numpy.float32).astype(float)
    return x.astype(float) if x.dtype.kind == "f" else x


def shifted(there: Device, x: Array, by: int) -> Array:
    """A contiguous view that begins `by` elements after an address of its library."""
    whole = there.move(numpy.concatenate([x.reshape(-1)[:1].repeat(by), x.reshape(-1)]) if x.size else x.reshape(-1))
    return whole[by if x.size else 0 :].reshape(x.shape)


@pytest.fixture(autouse=True)
def bits_are_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.import_module("autograd.kernels.cuda.program")
    monkeypatch.setattr(found, "_TYPES", {**found._TYPES, "uint16": "BFloat16"})


def kernel_of(name: str, xs: list[Array], dtype: str) -> Kernel:
    """The kernel of the device; as `find` picks it for dtypes that NumPy has."""
    file = NAMES[name].partition(".")[0]
    kernel: Kernel = getattr(importlib.import_module(f"autograd.kernels.cuda.{file}"), f"{name}_kernel")
    assert dtype == "bfloat16" or kernels.find(NAMES[name], xs) is kernel
    return kernel


def twin_of(name: str, xs: tuple[Array, ...]) -> Kernel:
    """The kernel of the host, or the declaration of an operation that has none there."""
    f: Any = registry.get(name)
    return kernels.find(NAMES[name], xs) or Kernel(
        lambda xs, options, keep: (f.function(*xs, *options), None),
        lambda ct, kept, xs, options, *_: [rule and rule(ct, None, *xs, *options) for rule in f.adjoint],
    )


def check(
    there: Device, name: str, xs: list[Array], options: tuple[Any, ...], dtype: str, *, shift: tuple[int, int] = (0, 0),
    wanted: list[bool] | None = None, factor: float = 1,
) -> None:  # fmt: skip
    """Compare values and cotangents with those of the host in float64."""
    given = [to_dtype(x, dtype) for x in xs]
    exact = tuple(map(to_float64, given))
    twin = twin_of(name, exact)
    moved = [shifted(there, x, shift[0]) for x in given]
    kernel = kernel_of(name, moved, dtype)
    y, kept = kernel.forward(tuple(moved), options, True)
    bare, nothing = kernel.forward(tuple(moved), options, False)
    assert nothing is None
    numpy.testing.assert_array_equal(there.values(bare), there.values(y))
    with numpy.errstate(all="ignore"):
        expected, twin_kept = twin.forward(exact, options, True)
    close(there.values(y), expected, dtype, given[0].dtype, factor)
    ct = to_dtype(numpy.random.default_rng(9).standard_normal(expected.shape), dtype)
    wanted = wanted or [x.dtype.kind == "f" for x in xs]
    found = kernel.backward(shifted(there, ct, shift[1]), kept, tuple(moved), options, wanted, True)
    with numpy.errstate(all="ignore"):
        right = twin.backward(to_float64(ct), twin_kept, exact, options, wanted, False)
    for own, theirs, is_wanted in zip(found, right, wanted, strict=True):
        assert (own is not None) == (theirs is not None and is_wanted)
        if own is not None:
            close(there.values(own), theirs, dtype, given[0].dtype, factor)
    for x, before in zip(moved, given, strict=True):
        numpy.testing.assert_array_equal(there.values(x), before)


def close(found: Array, expected: Array, dtype: str, kind: Any, factor: float) -> None:
    assert found.shape == expected.shape and found.dtype == kind
    scale = max(1.0, float(numpy.max(numpy.abs(expected), initial=0, where=numpy.isfinite(expected))))
    numpy.testing.assert_allclose(to_float64(found), expected, rtol=0, atol=DTYPES[dtype] * scale * factor)


rng = numpy.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order_of_tests() -> None:
    global rng
    rng = numpy.random.default_rng(0)


def draw(*shape: int) -> Array:
    return rng.standard_normal(shape)


def labels(n: int, width: int) -> Array:
    return rng.integers(0, width, n)


def with_tables(n: int, width: int) -> list[Array]:
    return [draw(2, n, 2 * width), draw(n, width), draw(n, width)]


USES: dict[str, tuple[str, Callable[[int, int], list[Array]], tuple[Any, ...]]] = {
    "softmax": ("softmax", lambda n, w: [3 * draw(n, w)], (1,)),
    "softmax of columns": ("softmax", lambda n, w: [3 * draw(2, w, n)], (1,)),
    "log_softmax": ("log_softmax", lambda n, w: [3 * draw(n, w)], (1,)),
    "cross_entropy": ("cross_entropy", lambda n, w: [3 * draw(n, w), labels(n, w)], (None, 0.0)),
    "cross_entropy smoothed": ("cross_entropy", lambda n, w: [3 * draw(n, w), labels(n, w).astype("i4")], (None, 0.1)),
    "cross_entropy ignoring": (
        "cross_entropy", lambda n, w: [3 * draw(n, w), numpy.where(labels(n, 2), -100, labels(n, w))], (-100, 0.2)
    ),
    "class_terms": ("class_terms", lambda n, w: [3 * draw(n, w), labels(n, w + 1) - 1], (0.1, 9999)),
    "normalize": ("normalize", lambda n, w: [draw(n, w) + 2], (1e-2,)),
    "layer_norm": ("layer_norm", lambda n, w: [draw(n, w) + 2, draw(w), draw(w)], (1e-2,)),
    "rms_norm": ("rms_norm", lambda n, w: [draw(n, w) + 2, draw(w)], (1e-2,)),
    "rotary": ("rotary", with_tables, (False,)),
    "rotary of neighbours": ("rotary", with_tables, (True,)),
    "gelu tanh": ("gelu", lambda n, w: [3 * draw(n, w)], ("tanh",)),
    "gelu erf": ("gelu", lambda n, w: [3 * draw(n, w)], ("none",)),
    "silu": ("silu", lambda n, w: [3 * draw(n, w)], ()),
}  # fmt: skip


@EACH_DTYPE
@pytest.mark.parametrize("use", USES)
def test_values_and_cotangents_of_every_width(use: str, dtype: str, there: Device) -> None:
    name, make, options = USES[use]
    for width in WIDTHS:
        n = 11 if width < 768 else 3
        check(there, name, make(n, width), options, dtype)


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(name, marks=pytest.mark.slow) for name in DTYPES if name != "float32")]
)
@pytest.mark.parametrize("use", USES)
def test_views_whose_addresses_are_no_multiples_of_16(use: str, dtype: str, there: Device) -> None:
    name, make, options = USES[use]
    for width, shift in ((1, (1, 0)), (5, (3, 1)), (64, (1, 1)), (64, (0, 1)), (100, (1, 2)), (257, (1, 0))):
        check(there, name, make(5, width), options, dtype, shift=shift)


@EACH_DTYPE
@pytest.mark.parametrize("use", [use for use in USES if "rotary" not in use])
def test_rows_that_shared_memory_does_not_hold(
    use: str, dtype: str, there: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rows, norms):
        monkeypatch.setattr(module, "shared_bytes", lambda x: 4096)
    name, make, options = USES[use]
    for width in (1000, 1001):
        check(there, name, make(3, width), options, dtype, shift=(1, 0))


@pytest.mark.parametrize("most_bytes", [227 << 10, 163 << 10, 99 << 10])  # of sm_90, sm_80, and sm_86 and sm_89
def test_two_blocks_of_wide_rows_share_a_multiprocessor(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the static bytes of each block and those that CUDA takes. A multiprocessor has 1 KiB more than one block."""
    monkeypatch.setattr(rows, "shared_bytes", lambda x: most_bytes - rows.STATIC_BYTES)
    for width, arrays in ((50304, 1), (50304, 2), (16384, 2), (4096, 1)):
        found = rows.held_rows(numpy.empty((2, width), numpy.float32), arrays)
        assert 2 * (found.shared_bytes + rows.STATIC_BYTES + rows.RESERVED_BYTES) <= most_bytes + 1024
        assert 2 * 64 * found.block[0] * found.block[1] <= 65536  # registers, of which a thread may have 64
        assert found.most >= min(width // 4, 1000 // arrays)


@EACH_DTYPE
@pytest.mark.parametrize("use", ["layer_norm", "rms_norm"])
def test_weights_of_many_rows(use: str, dtype: str, there: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that have several groups of rows, and cotangents that are not wanted."""
    monkeypatch.setattr(norms, "GROUPS", 3)
    name, make, options = USES[use]
    for n, width in ((100, 40), (41, 33), (9, 700), (13, 2100)):  # the last: rows of several warps, one after another
        xs = make(n, width)
        check(there, name, xs, options, dtype, factor=2)
        for wanted in ([True, *[False] * (len(xs) - 1)], [False, *[True] * (len(xs) - 1)]):
            check(there, name, xs, options, dtype, wanted=wanted, factor=2)


def test_sums_are_the_same_in_every_run(there: Device) -> None:
    xs = tuple(there.move(to_dtype(x, "float32")) for x in USES["layer_norm"][1](300, 96))
    ct = there.move(draw(300, 96).astype(numpy.float32))
    found = []
    for _ in range(2):
        _, kept = norms.layer_norm_kernel.forward(xs, (1e-5,), True)
        cotangents = norms.layer_norm_kernel.backward(ct, kept, xs, (1e-5,), [True] * 3, True)
        found.append(list(map(there.values, cotangents)))
    for a, b in zip(*found, strict=True):
        numpy.testing.assert_array_equal(a, b)


# -- special numbers, labels and shapes ------------------------------------------------------------------------------


def special(width: int) -> Array:
    """Rows of -inf, with NaN, with infinities, and with large numbers, between rows of usual ones."""
    x = draw(8, width)
    x[1] = -numpy.inf
    x[2, width // 2] = numpy.nan
    x[3, ::2] = -numpy.inf
    x[4, 1] = numpy.inf
    x[5] *= 1e3
    x[6] -= 1e3
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("use", ["softmax", "log_softmax", "cross_entropy", "cross_entropy smoothed", "class_terms"])
def test_special_numbers(use: str, dtype: str, there: Device) -> None:
    name, _, options = USES[use]
    for width in (5, 300):
        x = to_float64(to_dtype(special(width), dtype))
        if use == "class_terms":  # of a row with inf the host's gradient is NaN only there, here in the whole row
            x[4] = 0
        xs = [x] if "softmax" in use else [x, numpy.full(8, 1)]
        # the sum of the logits of a row has an error in proportion to the largest one, as the host's results have
        check(there, name, xs, options, dtype, factor=100 if dtype == "float64" or 0.1 in options else 1)


@pytest.mark.parametrize("use", ["normalize", "layer_norm", "rms_norm", "silu", "gelu tanh", "gelu erf"])
def test_a_nan_stays_in_its_row(use: str, there: Device) -> None:
    name, make, options = USES[use]
    xs = make(4, 40)
    xs[0][2, 7] = numpy.nan
    check(there, name, xs, options, "float32")


@pytest.mark.parametrize("use", ["silu", "gelu tanh", "gelu erf"])
def test_activations_of_large_numbers(use: str, there: Device) -> None:
    name, _, options = USES[use]
    sides = numpy.array([30.0, 88.0, 1e3, 6e4])
    for dtype in DTYPES:
        check(there, name, [numpy.concatenate([-sides, sides])], options, dtype)


def test_labels_of_every_dtype_and_out_of_range(there: Device) -> None:
    x = there.move(draw(6, 50).astype(numpy.float32))
    kernel = kernel_of("cross_entropy", [x], "float32")
    ct = there.move(numpy.ones(6, numpy.float32))
    right = there.values(kernel.forward((x, there.move(numpy.arange(6))), (None, 0.0), False)[0])
    for dtype in "bBhHiIlL":
        given = there.move(numpy.arange(6).astype(dtype))
        numpy.testing.assert_array_equal(there.values(kernel.forward((x, given), (None, 0.0), False)[0]), right)
    for wrong in (-1, 50, -(2**31), 2**31 - 1):
        xs = (x, there.move(numpy.array([0, 1, 2, wrong, 4, 5])))
        losses, kept = kernel.forward(xs, (None, 0.0), True)
        dx, _ = kernel.backward(ct, kept, xs, (None, 0.0), [True, False], True)
        is_wrong = numpy.arange(6) == 3
        assert numpy.array_equal(numpy.isnan(there.values(losses)), is_wrong)
        assert numpy.array_equal(numpy.isnan(there.values(dx)).all(1), is_wrong)
        assert not numpy.isnan(there.values(dx)[~is_wrong]).any()
        ignored = there.values(kernel.forward(xs, (wrong, 0.0), True)[0])
        assert ignored[3] == 0 and numpy.array_equal(ignored[~is_wrong], right[~is_wrong])


def test_the_loss_of_ignored_rows_does_not_read_them(there: Device) -> None:
    x = draw(3, 9)
    x[1] = numpy.nan
    xs = there.move(x), there.move(numpy.array([1, -100, 2]))
    kernel = kernel_of("cross_entropy", list(xs), "float64")
    losses, kept = kernel.forward(xs, (-100, 0.1), True)
    dx, _ = kernel.backward(there.move(numpy.ones(3)), kept, xs, (-100, 0.1), [True, False], True)
    assert there.values(losses)[1] == 0 and not there.values(dx)[1].any()
    assert numpy.isfinite(there.values(dx)).all()


@pytest.mark.parametrize("use", USES)
def test_empty_arrays(use: str, there: Device) -> None:
    name, make, options = USES[use]
    check(there, name, make(0, 6), options, "float32")
    if name in ("class_terms", "rotary", "gelu", "silu"):
        xs = [x if x.dtype.kind == "f" else x - x - 1 for x in (make(4, 1))]
        check(there, name, [x[..., :0] if x.dtype.kind == "f" else x for x in xs], options, "float32")


TABLES = [(7,), (5, 1, 1), (2, 5, 1, 7), (5, 1, 7), (2, 1, 1, 7), (1, 3, 7), (5, 3, 7), (2, 1, 3, 7), (1, 5, 1, 7), ()]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("table", TABLES)
def test_tables_that_are_broadcast(table: tuple[int, ...], interleaved: bool, there: Device) -> None:
    for half in (1, 8):
        cos, sin = draw(*table, half), draw(*table[1:], half) if table[:1] == (7,) else draw(*table, half)
        xs = [to_dtype(x, "float32") for x in (draw(2, 5, 3, 7, 2 * half), cos, sin)]
        moved = tuple(map(there.move, xs))
        kernel = kernel_of("rotary", list(moved), "float32")
        y, kept = kernel.forward(moved, (interleaved,), True)
        expected = ops.rotary(*map(to_float64, xs), interleaved)
        close(there.values(y), expected, "float32", numpy.float32, 1)
        back, *_ = kernel.backward(y, kept, moved, (interleaved,), [True, False, False], True)
        right = ops.rotary(expected, to_float64(xs[1]), -to_float64(xs[2]), interleaved)
        close(there.values(back), right, "float32", numpy.float32, 1)


def test_the_tables_of_self_attention_are_not_copied(there: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a row for each token, and for queries, keys and values: not for batches and heads."""
    sizes: list[int] = []
    true = rotary._table

    def table(t: Array, shape: tuple[int, ...], half: int) -> Array:
        found = true(t, shape, half)
        sizes.append(found.size)
        return found

    monkeypatch.setattr(rotary, "_table", table)
    x, cos, sin = (to_dtype(each, "float32") for each in (draw(2, 5, 3, 4, 16), draw(5, 3, 1, 8), draw(5, 3, 1, 8)))
    y, _ = rotary.rotary_kernel.forward(tuple(map(there.move, (x, cos, sin))), (True,), False)
    close(there.values(y), ops.rotary(*map(to_float64, (x, cos, sin)), True), "float32", numpy.float32, 1)
    assert sizes == [cos.size, sin.size]


def test_rows_that_are_too_wide_are_refused() -> None:
    class Wide:
        shape, dtype, itemsize = (1, 1 << 31), numpy.dtype(numpy.float32), 4

    with pytest.raises(ShapeError, match="at most 268435456"):
        rows.matrix(Wide())


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_constant_rows_is_zero(dtype: str, there: Device) -> None:
    for width in (1, 3, 257, 768, 5000):
        x = numpy.full((3, width), 9999.7)
        x[1] = numpy.arange(width) % 7
        given, one = to_dtype(x, dtype), to_dtype(numpy.ones(width), dtype)
        xs = tuple(map(there.move, (given, one, to_dtype(numpy.zeros(width), dtype))))
        y, _ = norms.layer_norm_kernel.forward(xs, (1e-5,), False)
        found = to_float64(there.values(y))
        assert not found[[0, 2]].any(), (width, abs(found[[0, 2]]).max())
        right = (x[1] - x[1].mean()) / numpy.sqrt(x[1].var() + 1e-5)
        numpy.testing.assert_allclose(found[1], right, rtol=0, atol=2 * DTYPES[dtype])


# -- planted faults --------------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[str, str, str, str]] = {
    "no barrier": ("softmax", "scratch[threadIdx.x / 32 * n + i] = x[i];\n    __syncthreads();",
                   "scratch[threadIdx.x / 32 * n + i] = x[i];", "softmax"),
    "scratch that is used again without a barrier": ("norms", "over_row(sums, scratch[1], Add());",
                                                     "over_row(sums, scratch[0], Add());", "layer_norm"),
    "scratch that is used again without a barrier, in softmax": (
        "softmax", "sum = over_row(sum, scratch[1], Add());", "sum = over_row(sum, scratch[0], Add());", "softmax"),
    "a variance of one number less": ("norms", "variance = sums[1] * share", "variance = sums[1] / (width - 1)",
                                      "layer_norm"),
    "the sum is not rescaled": ("losses", "sum *= exponential(top - most);", "", "cross_entropy"),
    "no maximum of the row": ("softmax", "top = over_row(top, scratch[0], Max());", "", "softmax"),
    "the last pack is left out": ("softmax", "(before + width + N - 1) / N", "(before + width) / N", "softmax"),
    "a row's first elements are taken for whole packs": ("softmax", "pack * N >= before && ", "", "softmax"),
    "no smoothing of the other classes": ("losses", "- top) + even;", "- top);", "cross_entropy smoothed"),
    "the label's place forgets the pack": ("losses", "if (p * N + i == place)", "if (i == place)", "cross_entropy"),
    "no sum of g h": ("norms", "second = sums[1] * share;", "second = 0;", "layer_norm"),
    "the bias is the weight's": ("norms", "db[k][i] += c;", "db[k][i] += c * h;", "layer_norm"),
    "groups overwrite each other": ("norms", "sums[column] = turn ? sums[column] + dw[k][i] : dw[k][i];",
                                    "sums[column] = dw[k][i];", "layer_norm"),
    "the sign of the sine": ("rotary", "a * cos - b * sin", "a * cos + b * sin", "rotary"),
    "the derivative without its second part": ("activations", "d = h + y * ((W)1 - h);", "d = h;", "silu"),
}  # fmt: skip
QUICK = ("no barrier",)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[] if fault in QUICK else [pytest.mark.slow]) for fault in FAULTS]
)
def test_planted_faults_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, old, new, use = FAULTS[fault]
    module = importlib.import_module(f"autograd.kernels.cuda.{file}")
    found = module.PROGRAM
    assert old in found.text
    only = tuple(kernel for kernel in found.kernels if "<float>" in kernel)
    monkeypatch.setattr(module, "PROGRAM", Program(f"planted_{file}", found.text.replace(old, new), only))
    with pytest.raises((AssertionError, on_cpu.KernelError)):
        for shift in ((0, 0), (1, 0)):
            for width in (6, 33, 1500):
                name, make, options = USES[use]
                check(Device(), name, make(40, width), options, "float32", shift=shift)


def test_the_header_of_rows_is_in_the_programs() -> None:
    whole = program("softmax", (), ("rows.cuh", "softmax.cu"))
    assert whole.text.index("struct Row") < whole.text.index("softmax_backward")
    assert "struct Row" not in program("softmax", ()).text


