"""Compiled reductions have the bits of NumPy's, of temporary arrays and of arrays with any layout."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograd.compiler import reductions
from autograd.compiler.emit import function_text
from autograd.compiler.loops import REDUCTIONS, Loop, Pointer, Unsupported, pointer_of
from autograd.compiler.machine import compile_loops, is_available
from autograd.compiler.operations import literal

from .running import made, numbers, run, same, write_anew

pytestmark = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")

EXTENTS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 136, 255, 256, 257, 300, 511, 1000, 1023, 1025)
CASES = [
    (op, dtype)
    for op, dtypes in REDUCTIONS.items()
    for dtype in dtypes
    if dtype not in ("i1", "i2", "u2", "u4") and not op.startswith("arg")
]


def _plain(dtype: str, shape: Any, random: np.random.Generator) -> Any:
    """Numbers of one size, so that the order of additions shows, and few infinities; zeros have one sign."""
    x = numbers(dtype, int(np.prod(shape)), random).reshape(shape)
    if dtype[0] == "f":
        x = np.asarray(random.standard_normal(shape) + 0.3, dtype)
    return x


def _reduced(op: str, x: Any, axes: tuple[int, ...]) -> Any:
    dtype = None if op.startswith("logical") or x.dtype.kind in "fb" or op in ("maximum", "minimum") else x.dtype
    with np.errstate(all="ignore"):
        return getattr(np, op).reduce(x, axis=axes, keepdims=True, **({} if dtype is None else {"dtype": dtype}))


def _of(x: Any, op: str, axes: tuple[int, ...], layout: Any) -> tuple[Loop, Any]:
    """The loop that reduces an array, and its result."""
    out = np.empty([1 if d in axes else n for d, n in enumerate(x.shape)], x.dtype)
    to = Pointer(x.dtype.str[1:], tuple(0 if d in axes else s for d, s in enumerate(out.strides)))
    return Loop(x.shape, (pointer_of(x), to), (("load", 0), ("reduce", op, 1, 0, axes, layout))), out


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_all_extents(op: str, dtype: str) -> None:
    random = np.random.default_rng(0)
    for n in EXTENTS if dtype[0] == "f" and op == "add" else EXTENTS[::3]:  # NumPy adds floats pairwise
        if n == 0 and op in ("maximum", "minimum"):
            continue
        for shape, axes in (((3, n), (1,)), ((n, 5), (0,))):
            x = _plain(dtype, shape, random)
            loop, out = _of(x, op, axes, None)
            assert run(loop, [x, out]) >= 0
            assert same(out, _reduced(op, x, axes)), (op, dtype, shape, axes)


@pytest.mark.parametrize("op", ["add", "maximum", "multiply"])
@pytest.mark.parametrize("shape", [(9, 17), (4, 5, 6), (2, 64, 3), (3, 2, 40, 8), (2, 3, 1, 130), (1, 1), ()])
def test_all_subsets_of_axes(op: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    for count in range(len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            x = _plain("f4", shape, random)
            loop, out = _of(x, op, axes, None)
            assert run(loop, [x, out]) >= 0
            assert same(out, _reduced(op, x, axes)), (op, shape, axes)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_layouts(seed: int) -> None:
    """What NumPy's iterator does with axes that are swapped, reversed, repeated, or have gaps."""
    random = np.random.default_rng(seed)
    shape = tuple(int(random.choice([1, 2, 3, 8, 9, 16, 130, 300])) for _ in range(random.integers(1, 5)))
    while np.prod(shape) > 40_000:
        shape = shape[1:]
    x = made(shape, "f4", random)
    steps = x.strides
    x = np.ndarray(shape, "f4", _span(x, random), _start(x), steps)
    axes = tuple(int(d) for d in random.choice(len(shape), random.integers(1, len(shape) + 1), replace=False))
    op = str(random.choice(["add", "add", "add", "multiply", "minimum"]))
    loop, out = _of(x, op, axes, x.strides)
    try:
        compile_loops([loop])
    except Unsupported as error:
        assert "side by side" in str(error) and op != "multiply"
        return
    assert run(loop, [x, out]) >= 0
    assert same(out, _reduced(op, x, axes)), (shape, steps, axes, op)


def _start(x: Any) -> int:
    return -sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True) if s < 0)


def _span(x: Any, random: np.random.Generator) -> Any:
    size = sum((n - 1) * abs(s) for n, s in zip(x.shape, x.strides, strict=True)) // 4 + 1
    return random.uniform(0.5, 1.5, size).astype("f4")


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_producers_in_the_loop(seed: int) -> None:
    """The values are those of a temporary array in C order, whatever the layouts of the operands."""
    random = np.random.default_rng(seed)
    shape = tuple(int(random.choice([1, 2, 3, 8, 9, 16, 64, 130, 300])) for _ in range(random.integers(1, 4)))
    while np.prod(shape) > 40_000:
        shape = shape[1:]
    dtype = str(random.choice(["f4", "f8"]))
    x, y = (np.clip(np.nan_to_num(made(shape, dtype, random)), -9, 9) for _ in range(2))
    y = y[tuple(slice(0, 1) if random.random() < 0.4 else slice(None) for _ in shape)]
    x = x.T.copy().T if random.random() < 0.5 else x
    axes = tuple(int(d) for d in random.choice(len(shape), random.integers(0, len(shape) + 1), replace=False))
    op = str(random.choice(["add", "add", "multiply", "maximum"]))
    one = np.ones((), dtype)
    values = np.ascontiguousarray((x * y + one) / (x * x + one))
    needed, middle = _reduced(op, values, axes), np.empty(shape, dtype)
    out = np.empty(needed.shape, dtype)
    to = Pointer(dtype, tuple(0 if d in axes else s for d, s in enumerate(out.strides)))
    steps = (
        ("load", 0), ("load", 1), ("constant", dtype, one.tobytes().hex()), ("multiply", 0, 1), ("add", 3, 2),
        ("multiply", 0, 0), ("add", 5, 2), ("divide", 4, 6), ("store", 2, 7), ("reduce", op, 3, 7, axes),
    )  # fmt: skip
    loop = Loop(shape, (pointer_of(x), pointer_of(y, shape), pointer_of(middle), to), steps)
    assert run(loop, [x, y, middle, out]) >= 0
    assert same(middle, values) and same(out, needed), loop


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
def test_special_numbers(op: str, dtype: str) -> None:
    """Infinities and NaN, and sums of zeros."""
    random = np.random.default_rng(3)
    for n in (1, 5, 8, 30, 200):
        x = numbers(dtype, 20 * n, random).reshape(20, n)
        x[10:][np.isnan(x[10:])] = 1
        x[15:][np.isinf(x[15:])] = 1
        x[18] = -0.0
        x[19] = 0.0
        for axes in ((0,), (1,), (0, 1)):
            loop, out = _of(x, op, axes, None)
            assert run(loop, [x, out]) >= 0
            assert same(out, _reduced(op, x, axes)), (n, axes)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_the_sign_of_a_zero(seed: int) -> None:
    """Of zeros with both signs NumPy returns the one that it compares last, which depends on layout and processor."""
    random = np.random.default_rng(seed)
    shape = tuple(int(random.choice([1, 2, 3, 5, 9, 17, 40, 130])) for _ in range(random.integers(1, 4)))
    dtype, op = str(random.choice(["f4", "f8"])), str(random.choice(["maximum", "minimum"]))
    x = made(shape, dtype, random)
    few = random.random() < 0.5
    numbers_ = random.choice(
        [0.0, -0.0, -1.0 if op == "maximum" else 1.0], size=x.size, p=[0.1, 0.1, 0.8] if few else None
    )
    flat = np.zeros(_span(x, random).size * 4 // x.itemsize + 1, dtype)
    flat[:] = random.choice(numbers_, flat.size)
    layout = x.strides
    x = np.ndarray(shape, dtype, flat, _start(x), layout)
    axes = tuple(int(d) for d in random.choice(len(shape), random.integers(1, len(shape) + 1), replace=False))
    if random.random() < 0.3:
        x, layout = x.copy(), None
    loop, out = _of(x, op, axes, layout)
    try:
        assert run(loop, [x, out]) >= 0
    except Unsupported as error:
        assert "side by side" in str(error)
        return
    assert same(out, _reduced(op, x, axes)), (shape, x.strides, axes, op)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_all_pairs_of_zeros(op: str, dtype: str) -> None:
    """In a row of their own; and one in the first row of a result, the other in the second."""
    other = -1 if op == "maximum" else 1
    for n in (5, 9, 17, 18, 40, 67):
        pairs = list(itertools.permutations(range(n), 2))[:: 1 if n < 20 else 3]
        alone, two = np.full((len(pairs), n), other, dtype), np.full((2, len(pairs), n), other, dtype)
        for row, (i, j) in enumerate(pairs):
            alone[row, i], alone[row, j] = two[0, row, i], two[1, row, j] = 0.0, -0.0
        for x, axes in ((alone, (1,)), (two, (0, 2)), (two[:, :, ::-1].copy(), (0, 2))):
            loop, out = _of(x, op, axes, None)
            assert run(loop, [x, out]) >= 0
            assert same(out, _reduced(op, x, axes)), (n, axes)


def test_a_reduction_without_axes_of_more_than_one_element() -> None:
    x = np.array([[-0.0, 1.0]])
    for axes in ((), (0,)):
        loop, out = _of(x, "add", axes, None)
        assert run(loop, [x, out]) == 0
        assert same(out, _reduced("add", x, axes))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("rows", "n"), [(7, 300), (64, 130), (63, 130), (1000, 9), (911, 9), (3, 5000), (5, 2), (130, 64)]
)
def test_rows_that_numpy_copies_to_its_buffer(rows: int, n: int, dtype: str) -> None:
    """Two summed axes side by side, which are not one in memory; alone, and with other axes around them."""
    random = np.random.default_rng(9)
    for shape, axes in (((), (0, 1)), ((2,), (1, 2)), ((3, 2), (0, 2, 3)), ((2, 3), (2, 3))):
        x = random.standard_normal((*shape, rows, n + 1)).astype(dtype)[..., :n]
        loop, out = _of(x, "add", axes, x.strides)
        assert run(loop, [x, out]) >= 0
        assert same(out, _reduced("add", x, axes))


def test_axes_that_numpy_copies_in_another_way_are_refused() -> None:
    x = np.zeros((4, 10, 10), "f4")[:, :5, :5]
    for op, each, axes in (("add", x, (0, 1, 2)), ("maximum", x[0], (0, 1))):
        with pytest.raises(Unsupported, match="side by side"):
            compile_loops([_of(each, op, axes, each.strides)[0]])
        compile_loops([_of(each, op, axes, None)[0]])


@pytest.mark.parametrize(
    "steps",
    [
        (("load", 0), ("reduce", "add", 0, 0, (0,))),
        (("load", 0), ("reduce", "subtract", 1, 0, (0,))),
        (("load", 0), ("reduce", "logical_and", 1, 0, (0,))),
        (("load", 0), ("reduce", "add", 1, 0, (1,))),
        (("load", 0), ("reduce", "add", 1, 0, (0,)), ("load", 0)),
    ],
)
def test_what_has_no_compiled_form_is_refused(steps: Any) -> None:
    with pytest.raises(Unsupported):
        compile_loops([Loop((8,), (Pointer("f4", (4,)), Pointer("f4", (0,))), steps)])


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "b1"])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_places_of_extremes(op: str, dtype: str) -> None:
    """The first extreme counts, and the first NaN before all."""
    random = np.random.default_rng(4)
    for shape in ((1,), (7,), (200,), (20, 10), (3, 64), (5, 4, 33)):
        for axis in range(len(shape)):
            x = made(shape, dtype, random)
            if dtype[0] == "f" and random.random() < 0.5:
                x = np.clip(np.nan_to_num(x), -1, 1).round()
            needed = np.asarray(getattr(np, op)(x, axis=axis, keepdims=True))
            out = np.empty(needed.shape, np.int64)
            to = Pointer("i8", tuple(0 if d == axis else s for d, s in enumerate(out.strides)))
            steps = (("load", 0), ("reduce", op, 1, 0, (axis,)))
            assert run(Loop(shape, (pointer_of(x), to), steps), [x, out]) >= 0
            assert same(out, needed), (shape, axis)


def test_the_place_of_an_extreme_of_computed_values() -> None:
    random = np.random.default_rng(5)
    x, y, out = random.standard_normal((6, 70)), random.standard_normal(70), np.empty(6, np.int64)
    middle = np.empty((6, 70))
    pointers = (pointer_of(x), pointer_of(y, x.shape), Pointer("i8", (8, 0)), pointer_of(middle))
    steps = (("load", 0), ("load", 1), ("multiply", 0, 1), ("store", 3, 2), ("reduce", "argmax", 2, 2, (1,)))
    assert run(Loop(x.shape, pointers, steps), [x, y, out, middle]) == 0
    assert same(out, (x * y).argmax(1)) and same(middle, x * y)


def test_another_order_of_numpys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums and extremes are refused where NumPy does otherwise than this version."""
    assert reductions._is_pairwise("f4") and reductions._is_pairwise("f8")
    ranks = reductions._ranks_of_zeros("maximum", "f4")
    assert ranks is not None and sorted(ranks) == [*range(len(ranks))]
    for name, value in (("_BLOCK", 64), ("_LANES", 4)):
        with monkeypatch.context() as patch:
            patch.setattr(reductions, name, value)
            assert not reductions._is_pairwise.__wrapped__("f4")
    assert reductions._buffers_rows("f4") and reductions._buffers_rows("f8")
    with monkeypatch.context() as patch:
        patch.setattr(reductions, "_BUFFER", 4096)
        assert not reductions._buffers_rows.__wrapped__("f4")
    monkeypatch.setattr(reductions, "_is_pairwise", lambda dtype: False)
    monkeypatch.setattr(reductions, "_ranks_of_zeros", lambda op, dtype: None)
    x = np.zeros(8)
    for op in ("add", "maximum"):
        with pytest.raises(Unsupported):
            function_text(_of(x, op, (0,), None)[0], "f")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_BLOCK", 64), ("_LANES", 16), ("_identity", lambda op, dtype, lanes=1: literal(dtype, 1, lanes)),
        ("_order_of", lambda strides: [*range(len(strides))]),
    ],
)  # fmt: skip
def test_planted_faults_are_found(name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong block, number of lanes, first number, or order of axes changes the bits of some sum."""

    def found() -> list[bool]:
        random, results = np.random.default_rng(6), []
        for shape, axes in (((300,), (0,)), ((30, 77), (0,)), ((30, 77), (1,))):
            x = np.asfortranarray(random.standard_normal(shape).astype("f4"))
            loop, out = _of(x, "add", axes, x.strides)
            run(loop, [x, out])
            results.append(same(out, _reduced("add", x, axes)))
        return results

    assert all(found())
    write_anew(monkeypatch)
    monkeypatch.setattr(reductions, "_is_pairwise", lambda dtype: True)
    monkeypatch.setattr(reductions, name, fault)
    assert not all(found())
