"""Compiled gathers and scatters are NumPy's indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograd.compiler.loops import Loop, Pointer, Unsupported, dtypes_of, pointer_of
from autograd.compiler.machine import Row, Table, compile_loops, is_available

from .running import DTYPES, made, numbers, run, same

pytestmark = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")

INDICES = ("i1", "i4", "i8", "u1", "u4")


def _indices(shape: Any, n: int, dtype: str, random: np.random.Generator) -> Any:
    low = 0 if dtype[0] == "u" else -n
    return random.integers(low, n, shape).astype(dtype)


def _rows(table: Any, index: Any, out: Any) -> tuple[tuple[int, ...], list[Pointer]]:
    """The loop over ``table[index]`` for rows: its shape, and the pointers of the table, the index and the result."""
    shape = (*index.shape, table.shape[1])
    inner = (0,) * index.ndim
    return shape, [
        Pointer(table.dtype.str[1:], (*inner, table.strides[1])),
        Pointer(index.dtype.str[1:], (*index.strides, 0)),
        pointer_of(out, shape),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", INDICES)
def test_rows_of_a_table(dtype: str, kind: str) -> None:
    random = np.random.default_rng(0)
    for shape in ((7, 5), (3, 32)):
        table, index = made(shape, dtype, random), _indices((4, 6), shape[0], kind, random)
        out = np.empty((4, 6, shape[1]), dtype)
        extents, pointers = _rows(table, index, out)
        pair = ((1, table.strides[0], shape[0]),)
        steps = (("load", 0), ("load", 1), ("load_at", 0, pair), ("store", 2, 2))
        assert run(Loop(extents, tuple(pointers), steps), [table, index, out]) == 0
        assert same(out, table[index])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_pairs_of_indices(seed: int) -> None:
    """``x[i, j]`` with indices that are broadcast, and are results of steps."""
    random = np.random.default_rng(seed)
    x = made((int(random.integers(1, 9)), int(random.integers(1, 9))), "f8", random)
    shape = (3, int(random.integers(1, 9)))
    i = np.broadcast_to(_indices((shape[0], 1), x.shape[0], "i8", random), shape)
    j = np.broadcast_to(_indices(shape[1:], x.shape[1], "i4", random), shape)
    out = np.empty(shape)
    pairs = ((0, x.strides[0], x.shape[0]), (1, x.strides[1], x.shape[1]))
    steps = (("load", 1), ("load", 2), ("load_at", 0, pairs), ("square", 2), ("store", 3, 3))
    pointers = (Pointer("f8", (0, 0)), pointer_of(i), pointer_of(j), pointer_of(out))
    assert run(Loop(shape, pointers, steps), [x, i, j, out]) >= 0
    with np.errstate(all="ignore"):
        assert same(out, np.square(x[i, j]))


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in ("store_at", "add_at") for d in DTYPES])
def test_scatters_with_repeated_indices(name: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    for size, columns in ((40, 3), (9, 16)):
        x, index = numbers(dtype, 5 * columns, random).reshape(5, columns), _indices((size,), 5, "i8", random)
        values = made((size, columns), dtype, random)
        needed, found = x.copy(), x.copy()
        with np.errstate(all="ignore"):
            if name == "add_at":
                np.add.at(needed, index, values)
            else:
                for at, each in zip(index, values, strict=True):
                    needed[at] = each
        extents, pointers = _rows(found, index, values)
        steps = (("load", 1), ("load", 2), (name, 0, ((0, found.strides[0], 5),), 1))
        assert run(Loop(extents, tuple(pointers), steps), [found, index, values]) >= 0
        assert same(found, needed)


@pytest.mark.parametrize("name", ["load_at", "store_at", "add_at"])
@pytest.mark.parametrize("wrong", [5, -6, 2**62, -(2**63)])
@pytest.mark.parametrize("place", [0, 6, 19])
def test_an_index_out_of_range_ends_the_walk(name: str, wrong: int, place: int) -> None:
    """The walk says which row it was, and rows after it are not run."""
    table, index, values, after = np.arange(5.0), np.arange(20) % 5, np.zeros(20), np.zeros(1)
    index[place] = wrong
    pair, last = ((0, 8, 5),), ("store", 2, 1)
    steps = {
        "load_at": (("load", 1), ("load_at", 0, pair), last),
        "store_at": (("load", 1), ("load", 2), ("store_at", 0, pair, 1)),
        "add_at": (("load", 1), ("load", 2), ("add_at", 0, pair, 1)),
    }[name]
    step = Pointer("i8", (8,)), Pointer("f8", (8,))
    one = Loop((1,), (Pointer("f8", (8,)),), (("load", 0), ("invert", 0)))
    with pytest.raises(Unsupported):
        dtypes_of(one)
    fill = Loop((1,), (Pointer("f8", (8,)),), (("constant", "f8", np.float64(7).tobytes().hex()), ("store", 0, 0)))
    addresses = compile_loops([fill, Loop((20,), (Pointer("f8", (0,)), *step), steps)])
    calls = Table()
    calls.add(Row(addresses[0]), [(3, 0)])
    calls.add(Row(addresses[1]), [(0, 0), (1, 0), (2, 0)])
    calls.add(Row(addresses[0]), [(4, 0)])
    before, last_one = np.zeros(1), np.zeros(1)
    assert calls.finish()(table, index, values, before, last_one) == -2
    assert before == 7 and last_one == 0 == after


def test_an_index_is_counted_from_the_end() -> None:
    table, index, out = np.arange(5.0), np.array([-1, -5, 0, 4]), np.zeros(4)
    steps = (("load", 1), ("load_at", 0, ((0, 8, 5),)), ("store", 2, 1))
    assert run(Loop((4,), (Pointer("f8", (0,)), pointer_of(index), pointer_of(out)), steps), [table, index, out]) == 0
    assert out.tolist() == [4, 0, 0, 4]


def test_a_gather_in_a_sum() -> None:
    """Indices out of range are found there, too."""
    random = np.random.default_rng(2)
    for n in (5, 40, 300):
        for dtype in ("f4", "f8"):
            table, index, out = made((50,), dtype, random), _indices((3, n), 50, "i8", random), np.empty(3, dtype)
            table = np.ascontiguousarray(np.nan_to_num(np.clip(table, -9, 9)))
            pair = ((0, table.itemsize, 50),)
            steps = (("load", 1), ("load_at", 0, pair), ("square", 1), ("reduce", "add", 2, 2, (1,)))
            pointers = (Pointer(dtype, (0, 0)), pointer_of(index), Pointer(dtype, (table.itemsize, 0)))
            loop = Loop((3, n), pointers, steps)
            assert run(loop, [table, index, out]) >= 0
            assert same(out, np.square(table[index]).sum(1))
            index[2, n - 1] = 50
            assert run(loop, [table, index, out]) == -1
