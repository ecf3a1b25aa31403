"""Tables of calls: the walker, NumPy's inner loops as rows, products, and threads."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autograd.compiler import machine
from autograd.compiler.linear_algebra import product_row
from autograd.compiler.loops import Loop, Pointer, Unsupported, pointer_of
from autograd.compiler.machine import (
    DIVISION,
    INVALID,
    OVERFLOW,
    Operand,
    Row,
    Table,
    compile_loops,
    is_available,
    ufunc_row,
    walk,
)

from .running import made, same

pytestmark = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")

STEP = Pointer("f8", (8,))


def _square() -> int:
    return compile_loops([Loop((4,), (STEP, STEP), (("load", 0), ("square", 0), ("store", 1, 1)))])[0]


# -- the walker --------------------------------------------------------------------------------------------------------
def test_rows_run_in_order_on_bases_and_addresses() -> None:
    x, y, z = np.arange(6.0), np.zeros(8), np.zeros(4)
    table = Table()
    assert table.add(Row(_square()), [(0, 16), (1, 32)]) == 0
    assert table.add(Row(_square()), [(1, 32), z.ctypes.data]) == 1
    run = table.finish()
    assert run(x, y) == 0
    assert y.tolist() == [0] * 4 + [4, 9, 16, 25] and z.tolist() == [16, 81, 256, 625]
    other = np.ones(8)
    assert run(other.ctypes.data, y) == 0  # an address, and another base
    assert z.tolist() == [1] * 4


def test_an_empty_table() -> None:
    assert Table().finish()() == 0


def test_wrong_arguments_raise() -> None:
    table = Table()
    table.add(Row(_square()), [(0, 0), (1, 0)])
    run = table.finish()
    x = np.zeros(4)
    with pytest.raises(TypeError):
        run(x)
    with pytest.raises(TypeError):
        run(x, "text")
    with pytest.raises(OverflowError):
        run(x, 2**70)
    assert run(x, x) == 0


def test_the_table_lives_as_long_as_its_function() -> None:
    table = Table()
    table.add(Row(_square(), owner=(owner := type("Owner", (), {})())), [(0, 0), (1, 0)])
    import weakref

    dead = weakref.ref(owner)
    run = table.finish()
    del table, owner
    gc.collect()
    x, y = np.full(4, 3.0), np.zeros(4)
    assert dead() is not None and run(x, y) == 0 and y.tolist() == [9] * 4
    del run
    gc.collect()
    assert dead() is None


def test_the_function_of_addresses() -> None:
    x, y = np.full(4, 3.0), np.zeros(4)
    words = np.array([11, _square(), 0, 0, 1, 0, 0, 0, 2, x.ctypes.data, y.ctypes.data], np.int64)
    assert walk(words.ctypes.data, 1, 0, 0) == 0 and y.tolist() == [9] * 4


_Inner = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)


def test_a_row_has_its_arguments_and_is_repeated_over_outer_dimensions() -> None:
    seen: list[Any] = []

    def inner(context: int, pointers: int, dims: int, strides: int, auxiliary: int) -> int:
        def words(at: int, n: int) -> list[int]:
            return list((ctypes.c_int64 * n).from_address(at))

        seen.append((context, words(pointers, 2), words(dims, 1), words(strides, 2), auxiliary))
        return 0

    function = _Inner(inner)
    table = Table()
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    repeat = (2, 3), ((100, 10), (-1, 0))
    table.add(Row(address, 7, 9, (3,), (8, 16), repeat=repeat, owner=function), [1000, (0, 5)])
    run = table.finish()
    for base in (2000, 3000):  # twice: counters and pointers begin anew
        seen.clear()
        assert run(base) == 0
        needed = [(7, [1000 + 100 * i + 10 * j, base + 5 - i], [3], [8, 16], 9) for i in range(2) for j in range(3)]
        assert seen == needed


def test_a_row_that_fails_ends_the_walk() -> None:
    calls: list[int] = []
    bad = _Inner(lambda *_: calls.append(0) or 1)
    good = _Inner(lambda *_: calls.append(1) or 0)
    for at in range(4):
        calls.clear()
        table = Table()
        for k in range(4):
            function = bad if k == at else good
            address = ctypes.cast(function, ctypes.c_void_p).value or 0
            table.add(Row(address, owner=function, repeat=((3,), ((1,),)) if k % 2 else None), [0])
        assert table.finish()() == -at - 1
        assert calls[-1] == 0 and sum(calls) == (0, 1, 4, 5)[at]


def test_floating_point_errors() -> None:
    x, y, out = np.zeros(1), np.zeros(1), np.zeros(1)
    table = Table()
    one = [Pointer("f8", (8,))] * 3
    table.add(ufunc_row(np.divide, (1,), one), [(0, 0), (1, 0), (2, 0)])
    table.add(ufunc_row(np.multiply, (1,), one), [(2, 0), (2, 0), (2, 0)])
    run = table.finish()
    cases = {(1.0, 0.0): DIVISION, (0.0, 0.0): INVALID, (1e200, 1.0): OVERFLOW, (3.0, 1.0): 0}
    for (x[0], y[0]), needed in cases.items():
        assert run(x, y, out) == needed
    assert len({DIVISION, INVALID, OVERFLOW, 0}) == 4


def test_errors_of_rows_that_are_not_checked_do_not_count() -> None:
    x, zero, out = np.ones(1), np.zeros(1), np.zeros(1)
    row = ufunc_row(np.divide, (1,), [Pointer("f8", (8,))] * 3)
    for checks in ((True, False), (False, True), (False, False)):
        table = Table()
        for check, given_ in zip(checks, (zero, x), strict=True):
            table.add(row._replace(checks=check), [given_.ctypes.data, zero.ctypes.data, out.ctypes.data])
        needed = (INVALID if checks[0] else 0) | (DIVISION if checks[1] else 0)
        assert table.finish()() == needed


@pytest.mark.parametrize("name", ["maximum", "greater", "tanh", "negative", "absolute", "logical_and"])
def test_errors_are_kept_by_rows_that_clear_the_flags(name: str) -> None:
    """NumPy's loops for comparisons and others clear the flags that earlier rows have raised."""
    ufunc, x, zero, out = getattr(np, name), np.ones(40), np.zeros(40), np.empty(40)
    to = np.empty(40, ufunc(x, *[x] * (ufunc.nin - 1)).dtype)
    loop = Loop((40,), (STEP, STEP, STEP), (("load", 0), ("load", 1), ("divide", 0, 1), ("store", 2, 2)))
    for is_compiled in (True, False):
        for checks in (True, False):
            table = Table()
            if is_compiled:
                table.add(Row(compile_loops([loop])[0], checks=True), [(0, 0), (1, 0), (2, 0)])
            else:
                table.add(ufunc_row(np.divide, (40,), [STEP] * 3), [(0, 0), (1, 0), (2, 0)])
            row = ufunc_row(ufunc, (40,), [*[STEP] * ufunc.nin, pointer_of(to)])
            table.add(row._replace(checks=checks), [*[(0, 0)] * ufunc.nin, (3, 0)])
            assert table.finish()(x, zero, out, to) == DIVISION


def test_other_threads_run_during_a_walk() -> None:
    """A row waits for another thread, which can go on only if the walk does not hold the interpreter's lock."""
    has_begun, may_end = threading.Event(), threading.Event()

    def inner(*_: Any) -> int:
        has_begun.set()
        return 0 if may_end.wait(60) else 1

    function = _Inner(inner)
    table = Table()
    table.add(Row(ctypes.cast(function, ctypes.c_void_p).value or 0, owner=function), [0])
    other = threading.Thread(target=lambda: has_begun.wait(60) and may_end.set())
    other.start()
    assert table.finish()() == 0
    other.join()


def test_a_walk_that_holds_the_lock() -> None:
    """A thread that waits for the interpreter's lock gets it after the walk."""
    loop = Loop((3_000_000,), (STEP, STEP), (("load", 0), ("sqrt", 0), ("store", 1, 1)))
    x, y, table = np.ones(3_000_000), np.empty(3_000_000), Table()
    table.add(Row(compile_loops([loop])[0]), [(0, 0), (1, 0)])
    run = table.finish(holds=True)
    order: list[str] = []
    may_begin = threading.Event()
    thread = threading.Thread(target=lambda: may_begin.wait(60) and order.append("other"))
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no thread gives the lock away unless it waits
    try:
        may_begin.set()
        order.append("before")
        run(x, y)
        order.append("after")
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert order[order.index("before") + 1] == "after" and y[-1] == 1


def test_walks_of_different_tables_at_the_same_time() -> None:
    loop = Loop((100_000,), (STEP, STEP), (("load", 0), ("sqrt", 0), ("square", 1), ("store", 1, 2)))
    (address,) = compile_loops([loop])
    failures: list[int] = []

    def work(k: int) -> None:
        x, y = np.full(100_000, float(k)), np.zeros(100_000)
        table = Table()
        table.add(Row(address), [(0, 0), (1, 0)])
        run = table.finish()
        for _ in range(50):
            y[:] = 0
            if run(x, y) != 0 or not (y == np.square(np.sqrt(x))).all():
                failures.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# -- rows of NumPy -----------------------------------------------------------------------------------------------------
UFUNCS = ("exp", "log", "tanh", "sin", "cos", "expm1", "log1p", "power", "logaddexp", "arctan2", "add", "maximum",
          "floor_divide", "remainder", "greater", "logical_and", "heaviside")  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_a_ufunc_as_a_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    ufunc, dtype = getattr(np, str(random.choice(UFUNCS))), str(random.choice(["f4", "f8"]))
    shape = tuple(int(n) for n in random.choice([1, 2, 3, 9, 40], random.integers(0, 4)))
    arrays = [made(shape, dtype, random) for _ in range(ufunc.nin)]
    order = random.permutation(len(shape))
    kind = bool if ufunc in (np.greater, np.logical_and) else dtype
    out, needed = (np.empty([shape[d] for d in order], kind).transpose(np.argsort(order)) for _ in range(2))
    with np.errstate(all="ignore"):
        ufunc(*arrays, out=needed)
    try:
        row = ufunc_row(ufunc, shape, [pointer_of(x) for x in (*arrays, out)])
    except Unsupported:
        assert ufunc is np.power or any(s < 0 for x in arrays for s in x.strides)
        return
    table = Table()
    table.add(row, [(k, 0) for k in range(len(arrays) + 1)])
    assert table.finish()(*arrays, out) >= 0
    assert same(out, needed)


def test_a_ufunc_without_a_row_is_refused() -> None:
    x = Pointer("f4", (4,))
    for ufunc, pointers in (
        (np.add, [x, Pointer("f8", (8,)), x]),  # would convert
        (np.add, [x, x]),
        (np.matmul, [x, x, x]),
        (np.exp, [Pointer("i4", (4,)), x]),
        (np.exp, [Pointer("f4", (-4,)), x]),
        (np.fmax, [x, x, x]),
        (np.isnan, [x, Pointer("b1", (2,))]),
        (np.frompyfunc(abs, 1, 1), [x, x]),
    ):
        with pytest.raises(Unsupported):
            ufunc_row(ufunc, (8,), pointers)
    with pytest.raises(Unsupported):
        ufunc_row(np.exp, (0,), [x, x])
    rows, exponents = Pointer("f4", (64, 4)), Pointer("f4", (4, 0))
    with pytest.raises(Unsupported):
        ufunc_row(np.power, (8, 8), [rows, exponents, rows])
    assert ufunc_row(np.power, (8, 8), [rows, Pointer("f4", (0, 0)), rows]).dims == (8,)


def _matrix(shape: tuple[int, ...], dtype: str, layout: str, random: np.random.Generator) -> Any:
    x = random.standard_normal(shape).astype(dtype)
    if layout == "transposed" and x.ndim > 1:
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "gaps":
        return np.repeat(x, 2, -1)[..., ::2]
    if layout == "rows":
        return np.repeat(x, 2, -2)[..., ::2, :] if x.ndim > 1 else x
    return x


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["matmul", "dot"]))
def test_products(seed: int, function: str) -> None:
    random = np.random.default_rng(seed)
    dtype = str(random.choice(["f4", "f8"]))
    m, k, n = (int(each) for each in random.choice([1, 2, 3, 8, 17, 64], 3))
    layouts = random.choice(["plain", "transposed", "gaps", "rows"], 2)
    a_shape: tuple[int, ...] = (k,) if random.integers(6) == 0 else (m, k)
    b_shape: tuple[int, ...] = (k,) if random.integers(6) == 0 else (k, n)
    if function == "matmul" and random.integers(3) == 0:
        a_shape = (3, 2, *a_shape) if len(a_shape) > 1 else a_shape
        b_shape = (2, *b_shape) if len(b_shape) > 1 and random.integers(2) else b_shape
    a, b = _matrix(a_shape, dtype, layouts[0], random), _matrix(b_shape, dtype, layouts[1], random)
    is_same = a.ndim == 2 and bool(random.integers(8) == 0)
    b = a.T if is_same else b
    needed = np.asarray(getattr(np, function)(a, b))
    out = np.empty_like(needed)
    try:
        row = product_row(Operand.of(a), Operand.of(b), Operand.of(out), function, same=is_same)
    except Unsupported:
        assert function == "dot" and {"gaps", "rows"} & {*layouts}
        return
    table = Table()
    table.add(row, [(0, 0), (1, 0), (2, 0)])
    assert table.finish()(a, b, out) == 0
    assert same(out, needed)


@pytest.mark.skipif(not hasattr(np, "vecdot"), reason="NumPy before 2.0")
@pytest.mark.parametrize("layout", ["plain", "gaps", "transposed"])
@pytest.mark.parametrize("shape", [(5,), (6, 33), (2, 3, 64), (2, 3, 4, 100)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_dots_of_vectors(dtype: str, shape: tuple[int, ...], layout: str) -> None:
    random = np.random.default_rng(8)
    a, b = _matrix(shape, dtype, layout, random), _matrix(shape[-2:], dtype, "plain", random)
    needed = np.asarray(np.vecdot(a, b))
    out = np.empty_like(needed)
    table = Table()
    table.add(product_row(Operand.of(a), Operand.of(b), Operand.of(out), "vecdot"), [(0, 0), (1, 0), (2, 0)])
    assert table.finish()(a, b, out) == 0
    assert same(out, needed)


def test_a_product_that_adds_in_another_order_is_refused() -> None:
    """`dot` copies an operand with gaps, and `matmul` does not."""
    a, b, out = Operand("f8", (64,), (8,)), Operand("f8", (64, 3), (48, 16)), Operand("f8", (3,), (8,))
    x, y = np.random.default_rng(0).standard_normal((2, 64, 6))
    if all(same(np.dot(row, y[:, ::2]), np.matmul(row, y[:, ::2])) for row in x.T.copy()):
        pytest.skip("this BLAS adds in one order")
    with pytest.raises(Unsupported, match="order"):
        product_row(a, b, out, "dot")
    assert product_row(a, b, out, "matmul").dims == (1, 1, 64, 3)


def test_what_is_no_product_is_refused() -> None:
    a, b, out = Operand("f4", (4, 8), (32, 4)), Operand("f4", (8, 2), (8, 4)), Operand("f4", (4, 2), (8, 4))
    assert product_row(a, b, out).dims == (1, 4, 8, 2)
    wrong = [
        (b, b, out), (a, b, a), (a._replace(dtype="f8"), b, out), (a, b, Operand("f4", (2,), (4,))),
        (Operand("f4", (4, 0), (4, 4)), Operand("f4", (0, 2), (8, 4)), out), (a, Operand("f4", (8, 2), (-8, 4)), out),
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(Unsupported):
            product_row(*each)
    with pytest.raises(Unsupported):
        product_row(Operand("f4", (3, 4, 8), (128, 32, 4)), b, Operand("f4", (3, 4, 2), (32, 8, 4)), "dot")


# -- imports -----------------------------------------------------------------------------------------------------------
def test_imports() -> None:
    """The package loads nothing, its modules no LLVM, and a compiled loop no Numba."""
    text = """
import sys
import autograd.compiler
assert not [m for m in sys.modules if m.startswith("autograd.compiler.")]
from autograd.compiler import machine, loops, emit
assert "llvmlite" not in sys.modules
p = loops.Pointer("f4", (4,))
machine.compile_loops([loops.Loop((8,), (p, p), (("load", 0), ("square", 0), ("store", 1, 1)))])
assert "llvmlite.binding" in sys.modules and "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", text], check=True)


@pytest.mark.parametrize("how", ["variable", "missing"])
def test_without_llvm(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
import sys
if sys.argv[1] == "missing":
    sys.modules["llvmlite"] = None
from autograd.compiler import machine, loops
assert not machine.is_available()
p = loops.Pointer("f4", (4,))
for call in (
    lambda: machine.compile_loops([loops.Loop((8,), (p, p), (("load", 0), ("square", 0), ("store", 1, 1)))]),
    lambda: machine.Table().finish(),
):
    try:
        call()
    except loops.Unsupported:
        continue
    raise SystemExit("no error")
"""
    if how == "variable":
        monkeypatch.setenv("RINGTAPE_COMPILED", "0")
    subprocess.run([sys.executable, "-c", text, how], check=True)


def test_a_table_owns_the_definition_of_its_function() -> None:
    """Where two threads ask for the first one, the cache keeps one of two, and the other one was freed."""
    machine._walker.cache_clear()
    run, definition = Table().finish(), weakref.ref(machine._walker()[1])
    machine._walker.cache_clear()
    gc.collect()
    assert definition() is not None
    assert run() >= 0
    del run
    gc.collect()
    assert definition() is None
