"""Attention on a device against the host's kernels in float64: the same bodies on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest

from autograd import arrays, kernels, ops
from autograd.arrays.runtime import Program
from autograd.kernels import attention as host
from autograd.kernels.cuda import attention as device
from autograd.kernels.cuda.program import launch, launch_known, program

from ...arrays.devices import DEVICES, Device
from . import compiled_report
from .compiled_report import compile_program
from .test_nvrtc import nvrtc

__all__ = ["nvrtc"]

pytestmark = pytest.mark.usefixtures("compiler_of_kernels")
there = pytest.fixture(params=DEVICES)(lambda request: request.param)
Array = Any

TOLERANCES = {"float64": 1e-13, "float32": 2e-6, "tf32": 3e-3, "float16": 3e-3, "bfloat16": 2.4e-2}
"""Errors relative to the largest element: some roundings of operands; of TF32 and float16 2^-11, of bfloat16 2^-8."""
TOWARDS_ZERO = 3e-5
"""In float32 on a GPU: tensor cores may round sums towards zero. The error of rows of 128 elements is then 1.7e-5."""
KEYS = 130
ROWS_THAT_SEE_NOTHING = 60


@pytest.fixture
def tf32() -> Iterator[None]:
    arrays.allow_tf32()
    yield
    arrays.allow_tf32(False)


# -- products of fragments ---------------------------------------------------------------------------------------------

PRODUCTS = Program("products", program("products", (), ("matrix.cuh", "attention.cu")).text + """
// s = x y' and o = s z for x [32, 32], y [16, 32], z [16, 32], by one warp
template <typename P> __global__ void products(const Element<P> *x, const Element<P> *y, const Element<P> *z, Sum<P> *s,
                                               Sum<P> *o) {
    typedef Element<P> E;
    constexpr int STRIDE = 32 + 16 / sizeof(E);
    DYNAMIC_SHARED(memory);
    E *tile = (E *)memory;
    for (int i = threadIdx.x; i < 64 * 32; i += 32) {
        int row = i / 32;
        tile[row * STRIDE + i % 32] = (row < 32 ? x : row < 48 ? y - 32 * 32 : z - 48 * 32)[i];
    }
    __syncwarp();
    Sum<P> scores[2][2][4], sums[2][4][4];
    clear(scores);
    clear(sums);
    Address at = shared_address(memory);
    add_product_transposed<P, 32, STRIDE>(scores, at, at + 32 * STRIDE * sizeof(E));
    add_product<P, STRIDE>(sums, scores, at + 48 * STRIDE * sizeof(E));
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < 4; i++) {
            int row = 16 * m + threadIdx.x / 4 + 8 * (i / 2), column = threadIdx.x % 4 * 2 + i % 2;
            for (int n = 0; n < 2; n++) s[row * 16 + 8 * n + column] = scores[m][n][i];
            for (int n = 0; n < 4; n++) o[row * 32 + 8 * n + column] = sums[m][n][i];
        }
}
""", tuple(f"products<{kind}>" for kind in ("Half", "BFloat16", "float", "Tf32", "double")))  # fmt: skip
STORED = {"Half": numpy.float16, "BFloat16": numpy.uint16, "float": numpy.float32, "Tf32": numpy.float32,
          "double": numpy.float64}  # fmt: skip


def multiplied(there: Device, kind: str, x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """The two products of the kernel above."""
    wide = numpy.float64 if kind == "double" else numpy.float32
    if kind == "BFloat16":
        xs = [there.move((a.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)) for a in (x, y, z)]
    else:
        xs = [there.move(a.astype(STORED[kind])) for a in (x, y, z)]
    s, o = (there.move(numpy.zeros(shape, wide)) for shape in ((32, 16), (32, 32)))
    launch(PRODUCTS, f"products<{kind}>", (1,), (32,), [*xs, s, o], 64 * (32 * 8 + 16))
    return there.values(s), there.values(o)


@pytest.mark.parametrize("kind", STORED)
def test_products_of_small_integers_are_exact(kind: str, there: Device) -> None:
    rng = numpy.random.default_rng(0)
    x, y, z = (rng.integers(-2, 3, (n, 32)).astype(float) for n in (32, 16, 16))
    s, o = multiplied(there, kind, x, y, z)
    numpy.testing.assert_array_equal(s, x @ y.T)
    numpy.testing.assert_array_equal(o, x @ y.T @ z)


def test_products_of_float32_keep_its_precision_unless_tf32_is_asked_for(there: Device) -> None:
    rng = numpy.random.default_rng(1)
    x, y, z = (rng.standard_normal((n, 32)).astype(numpy.float32) for n in (32, 16, 16))
    exact = x.astype(float) @ y.T.astype(float)
    split, rounded = (abs(multiplied(there, kind, x, y, z)[0] - exact).max() for kind in ("float", "Tf32"))
    assert split < 5e-7 * abs(exact).max() and 5e-5 * abs(exact).max() < rounded < 2e-3 * abs(exact).max()


# -- against the host's kernels ----------------------------------------------------------------------------------------

rng = numpy.random.default_rng(2)
n = rng.standard_normal
SEEN = rng.random((1, 70, KEYS)) < 0.5
SEEN[0, 5] = False  # a row that sees nothing
ADDED = 3 * n((2, 1, 70, KEYS))
ADDED[0, 0, 3] = ADDED[1, 0, :, :20] = -numpy.inf


def views(batch: int, tokens: int, heads: int, width: int) -> list[Array]:
    x = n((batch, tokens, 3, heads, width))
    return [x[..., i, :, :].swapaxes(-2, -3) for i in range(3)]


CASES: dict[str, tuple[Sequence[Array], tuple[bool, float]]] = {
    "full": ([n((2, 70, 16)), n((2, KEYS, 16)), n((2, KEYS, 16))], (False, 0.3)),
    "causal": ([n((2, KEYS, 16)), n((2, KEYS, 16)), n((2, KEYS, 16))], (True, 0.25)),
    "causal, more keys": ([n((1, 1, 70, 16)), n((1, 1, KEYS, 16)), n((1, 1, KEYS, 16))], (True, 0.25)),
    "causal, fewer keys": ([n((1, KEYS, 8)), n((1, KEYS - ROWS_THAT_SEE_NOTHING, 8)),
                            n((1, KEYS - ROWS_THAT_SEE_NOTHING, 8))], (True, 0.25)),
    "grouped": ([n((2, 4, 70, 16)), n((2, 2, 70, 16)), n((2, 2, 70, 16))], (True, 0.25)),
    "odd widths": ([n((2, 1, 33, 7)), n((2, 1, 50, 7)), n((2, 1, 50, 5))], (False, 0.25)),
    "parts of one array": (views(2, 40, 2, 12), (True, 0.25)),
    "two dimensions of batches": ([n((2, 2, 1, 20, 8)) for _ in range(3)], (True, 0.25)),
    "strided elements": ([n((1, 20, 16))[..., ::2] for _ in range(3)], (True, 0.25)),
    "reversed rows": ([n((1, 20, 16))[:, ::-1] for _ in range(3)], (True, 0.25)),
    "large scores": ([25 * n((1, 70, 16)), n((1, 70, 16)), n((1, 70, 16))], (True, 1.0)),
    "negative scale": ([n((1, 70, 16)) for _ in range(3)], (True, -0.5)),
    "zero scale": ([n((1, 70, 16)) for _ in range(3)], (True, 0.0)),
    "one token": ([n((3, 1, 4)) for _ in range(3)], (True, 0.5)),
    "without keys": ([n((1, 3, 4)), n((1, 0, 4)), n((1, 0, 4))], (False, 0.5)),
    "without queries": ([n((1, 0, 4)), n((1, 3, 4)), n((1, 3, 4))], (False, 0.5)),
    "without width": ([n((1, 3, 0)), n((1, 3, 0)), n((1, 3, 4))], (False, 0.0)),
    "booleans": ([n((2, 70, 16)), n((2, KEYS, 16)), n((2, KEYS, 16)), SEEN], (True, 0.5)),
    "booleans of keys": ([n((2, 1, 70, 16)), n((2, 1, KEYS, 16)), n((2, 1, KEYS, 16)), SEEN[:, :1]], (False, 0.5)),
    "addends": ([n((2, 2, 70, 16)), n((2, 2, KEYS, 16)), n((2, 2, KEYS, 16)), ADDED], (False, -0.5)),
    "booleans of two dimensions of batches": ([*(n((2, 2, 1, 20, 8)) for _ in range(3)),
                                               rng.random((2, 1, 20, 20)) < 0.7], (True, 0.5)),
}  # fmt: skip
WIDE = {
    "width 64": ([n((2, 70, 64)), n((1, KEYS, 64)), n((1, KEYS, 64))], (True, 0.125)),
    "width 40": (views(1, 70, 1, 40), (True, 0.15)),
}


def close(found: Array, expected: Array, tolerance: float) -> None:
    found = found.astype(float)
    assert found.shape == expected.shape
    numpy.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(abs(expected).max(initial=0), 0.1))


def check(
    there: Device, xs: Sequence[Array], options: tuple[bool, float], dtype: Any, tolerance: float,
    wanted: Sequence[bool] = (True,) * 3,
) -> None:  # fmt: skip
    """Forward and backward on the device against the host's kernel in float64."""
    if there.name == "cupy" and dtype == numpy.float32:
        tolerance = max(tolerance, TOWARDS_ZERO)
    xs = [x if x.dtype == bool else x.astype(dtype) for x in xs]
    exact = tuple(x if x.dtype == bool else x.astype(float) for x in xs)
    with numpy.errstate(all="ignore"):
        expected, kept = host.attention_kernel.forward(exact, options, True)
        ct = numpy.random.default_rng(3).standard_normal(expected.shape).astype(dtype)
        cotangents = host.attention_kernel.backward(ct.astype(float), kept, exact, options, wanted, True)
    moved, moved_ct = tuple(map(there.move, xs)), there.move(ct)
    kernel = kernels.find("attention.attention", moved)
    assert kernel is device.attention_kernel
    with there.without_crossings():
        y, kept = kernel.forward(moved, options, True)
        bare, nothing = kernel.forward(moved, options, False)
        found = kernel.backward(moved_ct, kept, moved, options, wanted, False)
        again = kernel.backward(moved_ct, kept, moved, options, wanted, True)
    assert y.dtype == dtype and nothing is None and len(found) == len(xs)
    numpy.testing.assert_array_equal(there.values(bare), there.values(y))
    close(there.values(y), expected, tolerance)
    for want, a, b, c in zip(wanted, found, again, cotangents, strict=False):
        assert (a is not None) == want
        if want:
            assert a.dtype == dtype
            close(there.values(a), c, tolerance)
            numpy.testing.assert_array_equal(there.values(b), there.values(a), "not the same each time")


@pytest.mark.parametrize("name", CASES)
def test_attention_in_float64(name: str, there: Device) -> None:
    check(there, *CASES[name], numpy.float64, TOLERANCES["float64"])


@pytest.mark.parametrize("name", ["causal", "causal, more keys", "grouped", "odd widths"])
def test_attention_in_float32(name: str, there: Device) -> None:
    check(there, *CASES[name], numpy.float32, TOLERANCES["float32"])


@pytest.mark.parametrize("name", ["width 64", pytest.param("width 40", marks=pytest.mark.slow)])
def test_attention_in_float16(name: str, there: Device) -> None:
    check(there, *WIDE[name], numpy.float16, TOLERANCES["float16"])


@pytest.mark.slow
def test_attention_in_bfloat16(there: Device) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed (extra: gpu): there is no bfloat16")
    for xs, options in (*WIDE.values(), CASES["booleans"], CASES["addends"], CASES["grouped"]):
        check(there, xs, options, numpy.dtype(ml_dtypes.bfloat16), TOLERANCES["bfloat16"])


@pytest.mark.slow
@pytest.mark.parametrize("width", [33, 64, 128, 200])
@pytest.mark.parametrize("dtype", ["float16", "float32", "tf32", "float64"])
def test_attention_of_all_widths(dtype: str, width: int, there: Device, request: pytest.FixtureRequest) -> None:
    if dtype == "float64" and width > 128:
        pytest.skip("float64 has kernels for widths up to 128")
    if dtype == "tf32":
        request.getfixturevalue("tf32")
    stored = numpy.dtype("float32" if dtype == "tf32" else dtype)
    seen = rng.random((150, 150)) < 0.6
    for mask in ([], [seen], [n((150, 150))]):
        xs = [n((2, 150, width)), n((1, 150, width)), n((1, 150, width)), *mask]
        check(there, xs, (True, width**-0.5), stored, TOLERANCES[dtype])
    for i in range(3):
        check(there, xs, (True, 0.1), stored, TOLERANCES[dtype], [i == j for j in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_cases_in_shorter_types(dtype: str, name: str, there: Device) -> None:
    large = 50 if name == "large scores" else 1  # the roundings of scores of about 100, and then of their exponentials
    check(there, *CASES[name], numpy.dtype(dtype), TOLERANCES[dtype] * large)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_what_is_wanted_is_computed(wanted: Any, there: Device) -> None:
    check(there, *CASES["grouped"], numpy.float64, TOLERANCES["float64"], wanted)


def test_self_attention_of_one_array(there: Device) -> None:
    x = n((2, 40, 3, 2, 12))
    expected, kept = host.self_attention_kernel.forward((x,), (True, 0.3), True)
    ct = n(expected.shape)
    cotangents = host.self_attention_kernel.backward(ct, kept, (x,), (True, 0.3), [True], True)
    kernel, moved = device.self_attention_kernel, there.move(x)
    with there.without_crossings():
        y, kept = kernel.forward((moved,), (True, 0.3), True)
    assert sum(a.nbytes for a in kept) == y.nbytes + 2 * 2 * 40 * 8, "more than the output and a number for each row"
    close(there.values(y), expected, TOLERANCES["float64"])
    (dx,) = kernel.backward(there.move(ct), kept, (moved,), (True, 0.3), [True], True)
    close(there.values(dx), cotangents[0], TOLERANCES["float64"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_blocks_of_attention_with_both_cotangents(dtype: str, there: Device) -> None:
    """Two blocks of keys, merged by their logarithms, are all keys; their cotangents add up."""
    tolerance = TOLERANCES[dtype]
    q, k, v = (n((2, 70, 16)).astype(dtype) for _ in range(3))
    kernel, options = device.attention_block_kernel, (False, 0.3)
    exact = tuple(x.astype(float) for x in (q, k, v))
    expected, log_sums = host.attention_block_kernel.forward(exact, options, False)[0]
    parts = [slice(0, 30), slice(30, 70)]
    moved = [tuple(map(there.move, (q, k[:, part], v[:, part]))) for part in parts]
    found = [[there.values(a) for a in kernel.forward(xs, options, False)[0]] for xs in moved]
    total = numpy.logaddexp(found[0][1], found[1][1])
    close(total, log_sums, tolerance)
    close(sum(o * numpy.exp(log - total)[..., None] for o, log in found), expected, tolerance)

    ct, log_ct = n(expected.shape).astype(dtype), n(log_sums.shape).astype(dtype)
    residuals = ct, (ct * expected).sum(-1) - log_ct, log_sums
    cotangents = host.attention_block_kernel.backward(residuals, None, exact, options, (True,) * 3, True)
    strided = numpy.stack([residuals[1], residuals[2]], -1).astype(dtype)  # the terms of rows are columns of an array
    given = there.move(ct), there.move(strided)[..., 0], there.move(strided)[..., 1]
    got = [kernel.backward(given, None, xs, options, (True,) * 3, True) for xs in moved]
    close(there.values(got[0][0]).astype(float) + there.values(got[1][0]), cotangents[0], 10 * tolerance)
    for i in (1, 2):
        close(numpy.concatenate([there.values(g[i]) for g in got], 1), cotangents[i], 10 * tolerance)


def test_log_sums_of_rows_that_see_nothing(there: Device) -> None:
    xs, options = CASES["causal, fewer keys"]
    moved = tuple(map(there.move, xs))
    out, log_sums = device.attention_block_kernel.forward(moved, options, False)[0]
    empty = there.values(log_sums)[0, :ROWS_THAT_SEE_NOTHING]
    assert (empty == -numpy.inf).all() and not there.values(out)[0, :ROWS_THAT_SEE_NOTHING].any()
    assert numpy.isfinite(there.values(log_sums)[0, ROWS_THAT_SEE_NOTHING:]).all()
    ct, dots = (there.move(n(shape)) for shape in (out.shape, log_sums.shape))
    dq, dk, dv = device.attention_block_kernel.backward((ct, dots, log_sums), None, moved, options, (True,) * 3, True)
    assert not there.values(dq)[0, :ROWS_THAT_SEE_NOTHING].any()
    assert all(numpy.isfinite(there.values(d)).all() for d in (dk, dv))


def test_wider_operands_have_no_kernel(there: Device) -> None:
    x, wide = there.move(n((1, 3, 4))), there.move(n((1, 3, 257)))
    assert kernels.find("attention.attention", (x, x, x)) is device.attention_kernel
    assert all(kernels.find("attention.attention", xs) is None for xs in ((wide, wide, wide), (x, x, wide)))
    numpy.testing.assert_allclose(
        there.values(ops.attention(wide, wide, wide)), ops.attention(*[there.values(wide)] * 3), rtol=1e-12
    )


def test_allow_tf32(there: Device, tf32: None) -> None:
    assert arrays.tf32_allowed()
    assert "Tf32" in device.kernels(numpy.dtype(numpy.float32), 16, 0).program.name
    assert "Tf32" not in device.kernels(numpy.dtype(numpy.float64), 16, 0).program.name


# -- planted faults ----------------------------------------------------------------------------------------------------

# the kernel, what the fault is, the source, and what it is replaced by
FAULTS = [
    ("attend", "a key too many", "min(keys - 1, query + reach)", "min(keys - 1, query + reach + 1)"),
    ("attend", "sums are not rescaled", "sums[m][half] * rescale + sum", "sums[m][half] + sum"),
    ("attend", "no barrier", "wait_for_copies();\n        __syncthreads();", "wait_for_copies();"),
]
MORE_FAULTS = [
    ("attend_keys", "no row sums", "(ds[m][n][i] - row_d[4 * n].at[i % 2])", "ds[m][n][i]"),
    ("attend", "the output is not rescaled", "o[m][n][2 * half] *= rescale", "o[m][n][2 * half] *= 1"),
    ("attend", "no wait", "wait_for_copies();\n        __syncthreads();", "__syncthreads();"),
    ("attend", "one buffer", "(step + 1) % 2 * STAGE", "step % 2 * STAGE"),
    ("attend_queries", "one buffer", "(step + 1) % 2 * STAGE", "step % 2 * STAGE"),
    ("attend_queries", "no row sums", "(ds[m][n][i] - row_d[m][i / 2])", "ds[m][n][i]"),
    ("attend_queries", "too few keys", "scores.seen(first + ROWS)", "scores.seen(first)"),
    ("attend_keys", "no barrier", "wait_for_copies();\n        __syncthreads();", "wait_for_copies();"),
    ("attend_keys", "one buffer", "stages + step % 2 * STAGE;\n        int head", "stages;\n        int head"),
    ("attend_keys", "the first tiles are left out", "max(0, first - reach) / ROWS", "(first - reach + ROWS) / ROWS"),
]


def planted(faults: Sequence[tuple[str, str, str, str]]) -> Program:
    """One program of several faults, each in a namespace."""
    name = device.kernels(numpy.dtype(float), 16, 0).name
    head, whole = (program("planted", (), files).text for files in (("matrix.cuh",), ("matrix.cuh", "attention.cu")))
    text, names = head, []
    for at, (kernel, _, good, bad) in enumerate(faults):
        assert good in whole[len(head) :]
        text += f"namespace fault_{at} {{\n{whole[len(head) :].replace(good, bad)}\n}}\n"
        names.append(f"fault_{at}::{name(kernel + '<')}")
    return Program("planted", text, tuple(names))


@pytest.mark.parametrize("faults", [FAULTS, pytest.param(MORE_FAULTS, marks=pytest.mark.slow)], ids=["some", "more"])
def test_planted_faults_are_seen(faults: Sequence[tuple[str, str, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    there, faulty = DEVICES[0].values[0], planted(faults)
    for at, fault in enumerate(faults):

        def launch_fault(given: Program, kernel: str, *rest: Any, part: str = fault[0] + "<", at: int = at) -> None:
            if kernel.startswith(part):
                given, kernel = faulty, f"fault_{at}::{kernel}"
            launch_known(given, kernel, *rest)

        monkeypatch.setattr(device, "launch_known", launch_fault)
        try:
            check(there, *CASES["causal"], numpy.float64, TOLERANCES["float64"])
        except AssertionError:
            continue
        pytest.fail(f"{fault[:2]} was not seen")


# -- compilers ---------------------------------------------------------------------------------------------------------

EXAMPLES = [("float32", 64, 0), ("float16", 128, 1), ("float64", 64, 2), ("float32", 256, 0)]


@pytest.mark.parametrize(
    "dtype, width, mask", [("float16", 64, 0), *(pytest.param(*x, marks=pytest.mark.slow) for x in EXAMPLES)]
)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_attention_compiles(
    dtype: str, width: int, mask: int, architecture: str, nvrtc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_report, "ARCHITECTURE", architecture)
    _, works, log = compile_program(nvrtc, device.kernels(numpy.dtype(dtype), width, mask).program)
    assert works, log


def test_a_block_needs_no_more_shared_memory_than_a_multiprocessor_has() -> None:
    """163 KiB on compute capability 8.0, 227 KiB on 9.0."""
    for size, name in ((2, "float16"), (4, "float32"), (8, "float64")):
        for width in device.WIDTHS[: 8 if size < 8 else 6]:
            found = device.kernels(numpy.dtype(name), width, 0)
            forward, queries, keys = found.forward, found.queries, found.keys
            rows = [forward.queries + 4 * forward.keys, 2 * queries.queries + 4 * queries.keys,
                    2 * keys.keys + 4 * keys.queries]  # fmt: skip
            assert max(rows) * found.row_bytes + 4 * keys.queries * max(size, 4) <= 163 << 10
