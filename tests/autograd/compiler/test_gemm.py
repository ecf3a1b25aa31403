"""Products of matrices in machine code of our own: all elements, order of additions, errors, threads, memory."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import autograd as ag
import autograd.numpy as anp
from autograd import optim
from autograd.compiler import gemm, linear_algebra
from autograd.compiler.build import has_vectors, is_available
from autograd.compiler.gemm import blocked
from autograd.compiler.linear_algebra import product_row
from autograd.compiler.machine import INVALID, Operand, Row, Table, Unsupported

pytestmark = pytest.mark.skipif(
    not (is_available() and has_vectors()), reason="no vectors of 64 bytes here, or no compiler"
)


of_openblas = pytest.mark.skipif(
    "openblas" not in str(np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]).lower(),  # type: ignore[index]
    reason="NumPy has another BLAS, whose order of additions is not known",
)


def operands(m: int, k: int, n: int, form: str, dtype: str, gap: int = 0) -> tuple[Any, Any, Any]:
    """Arrays of small integers, whose products are exact in each order; `form` says which are transposed."""
    random = np.random.default_rng([m, k, n])

    def matrix(rows: int, columns: int, is_transposed: bool) -> Any:
        shape = (columns, rows + gap) if is_transposed else (rows, columns + gap)
        x = random.integers(-8, 9, shape).astype(dtype)
        return x.T[:rows] if is_transposed else x[:, :columns]

    out = np.full((m, n + gap), np.nan, dtype)
    return matrix(m, k, form[0] == "t"), matrix(k, n, form[1] == "t"), out[:, :n]


def own_row(a: Any, b: Any, out: Any, ends: list[int] | None = None, adds_zero: bool = False) -> Row:
    row = linear_algebra._product(*map(Operand.of, (a, b, out)), "matmul")
    return blocked(row, ends or [a.shape[-1]], adds_zero, a.dtype.str[1:])


def run(row: Row, *arrays: Any) -> int:
    table = Table()
    table.add(row, [x.ctypes.data for x in arrays])
    return table.finish()()


def in_blocks(a: Any, b: Any, ends: list[int]) -> Any:
    """The product as sums of blocks, each of which is added one after another and rounded once (float32)."""
    total, begin = None, 0
    for end in ends:
        part = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for p in range(begin, end):
            part = (a[:, p : p + 1].astype(float) * b[p : p + 1].astype(float) + part).astype(np.float32)
        total, begin = part if total is None else total + part, end
    return total


sizes = st.one_of(st.integers(1, 40), st.sampled_from([48, 64, 100, 113, 200]))


@settings(max_examples=200, deadline=None)
@given(sizes, sizes, sizes, st.sampled_from(["nn", "nt", "tn", "tt"]), st.sampled_from(["f4", "f8"]),
       st.sampled_from([0, 3]), st.booleans())  # fmt: skip
@example(300, 20, 33, "nn", "f4", 0, False)
@example(1, 1, 1, "nn", "f4", 0, True)
def test_each_element_of_a_product(m: int, k: int, n: int, form: str, dtype: str, gap: int, in_two: bool) -> None:
    a, b, out = operands(m, k, n, form, dtype, gap)
    before = out.base.copy()
    ends = [max(1, k // 3), k] if in_two and k > 1 else [k]
    assert run(own_row(a, b, out, ends), a, b, out) == 0
    assert (out == a @ b).all()
    assert np.array_equal(out.base[:, n:], before[:, n:], equal_nan=True)


@pytest.mark.parametrize("form", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("packed", [(1, 1), (1 << 12, 1 << 12), (1 << 22, 1)])
@pytest.mark.parametrize("cached", [1, 15_000])
@pytest.mark.parametrize("few", [1, 20])
def test_operands_that_are_packed_in_parts(
    form: str, packed: tuple[int, int], cached: int, few: int, monkeypatch: Any
) -> None:  # fmt: skip
    """Rows in parts, while all columns stay, or columns in parts, too; or columns are read where they are."""
    monkeypatch.setattr(gemm, "_PACKED", packed)
    monkeypatch.setattr(gemm, "_CACHED", cached)
    monkeypatch.setattr(gemm, "_FEW", few)
    a, b, out = operands(182, 40, 150, form, "f4")
    assert run(own_row(a, b, out, [17, 40]), a, b, out) == 0
    assert (out == a @ b).all()


def test_products_are_added_in_order_and_blocks_after_that() -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((30, 50), (50, 40)))
    out = np.empty((30, 40), np.float32)
    run(own_row(a, b, out, [20, 50]), a, b, out)
    # the reference rounds twice in about one of 2 ** 29 additions
    assert (out == in_blocks(a, b, [20, 50])).mean() > 0.999
    assert (out == in_blocks(a, b, [50])).mean() < 0.9
    assert (out == in_blocks(a, b, [21, 50])).mean() < 0.9


@pytest.mark.parametrize("adds_zero", [False, True])
def test_a_negative_zero_stays_unless_zero_is_added(adds_zero: bool) -> None:
    tiny = np.finfo(np.float32).tiny
    a, b = np.full((20, 3), -tiny, np.float32), np.full((3, 40), tiny, np.float32)
    out = np.ones((20, 40), np.float32)
    run(own_row(a, b, out, adds_zero=adds_zero), a, b, out)
    assert (out == 0).all()
    assert np.signbit(out).all() == (not adds_zero)


def test_elements_that_fill_a_vector_raise_no_errors() -> None:
    """With zeros in the rest of a vector infinities would be invalid, and no number of the result would show it."""
    for form in ("nn", "nt", "tn", "tt"):
        a, b, out = operands(20, 9, 35, form, "f4")
        a[3, 4], b[...] = np.inf, np.abs(b) + 1
        a[:, 5:] = 1
        assert run(own_row(a, b, out), a, b, out) == 0
        assert np.isinf(out[3]).all()
        assert np.isfinite(np.delete(out, 3, 0)).all()
        b[4, 2] = 0
        assert run(own_row(a, b, out), a, b, out) == INVALID


def test_tables_in_threads_have_memory_of_their_own() -> None:
    a, b, _ = operands(150, 64, 150, "nn", "f4")
    row, needed = own_row(a, b, np.empty((150, 150), np.float32)), a @ b
    wrong = []

    def work() -> None:
        out, c = np.empty((150, 150), np.float32), a.copy()
        table = Table()
        table.add(row, [x.ctypes.data for x in (c, b, out)])
        walk = table.finish()
        for sign in (1, -1) * 100:
            c[...] = sign * a
            walk()
            if not (out == sign * needed).all():
                wrong.append(sign)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_product_over_a_batch() -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-5, 6, shape).astype("f4") for shape in ((3, 40, 30), (30, 50)))
    out = np.empty((3, 40, 50), np.float32)
    run(own_row(a, b, out), a, b, out)
    assert (out == a @ b).all()


def test_operands_without_elements_side_by_side_are_refused() -> None:
    a, b, out = operands(20, 30, 40, "nn", "f4")
    gaps = Operand("f4", (20, 30), (240, 8)), Operand("f4", (20, 40), (320, 8))
    for xs in ((gaps[0], Operand.of(b), Operand.of(out)), (Operand.of(a), Operand.of(b), gaps[1])):
        row = linear_algebra._product(*xs, "matmul")
        with pytest.raises(Unsupported, match="side by side"):
            blocked(row, [30], False, "f4")


# -- the choice --------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def nothing_is_kept() -> Any:
    yield
    linear_algebra._proved_product.cache_clear()


def fresh(monkeypatch: Any, is_faster: bool = True) -> None:
    """No product is known, and one of our own is said to be faster, or slower."""
    linear_algebra._proved_product.cache_clear()
    monkeypatch.setattr(linear_algebra._Trial, "is_faster", lambda *rows: is_faster)


def is_own(row: Row) -> bool:
    return row.scratch > 0


FORMS = [(32, 64, 64, "nt"), (64, 500, 96, "nn"), (40, 1000, 70, "tn"), (256, 784, 128, "nt")]


@pytest.mark.parametrize(("m", "k", "n", "form"), FORMS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_row_has_the_bits_of_numpy(m: int, k: int, n: int, form: str, dtype: str, monkeypatch: Any) -> None:
    fresh(monkeypatch)
    a, b, out = operands(m, k, n, form, dtype)
    row = product_row(*map(Operand.of, (a, b, out)))
    random = np.random.default_rng(1)
    for _ in range(3):
        a[...], b[...] = random.standard_normal(a.shape), random.standard_normal(b.shape)
        run(row, a, b, out)
        assert out.tobytes() == (a @ b).tobytes()


@of_openblas
def test_a_row_is_chosen_if_it_is_faster(monkeypatch: Any) -> None:
    forms = [tuple(map(Operand.of, operands(*form, "f4"))) for form in FORMS]
    fresh(monkeypatch)
    assert all(is_own(product_row(*form)) for form in forms)
    fresh(monkeypatch, is_faster=False)
    assert not any(is_own(product_row(*form)) for form in forms)


@of_openblas
@pytest.mark.parametrize("fault", ["block", "zero", "order"])
def test_a_wrong_order_is_not_chosen(fault: str, monkeypatch: Any) -> None:
    """Each planted fault changes some bits, and the row of the BLAS stays."""
    fresh(monkeypatch)
    form = tuple(map(Operand.of, operands(256, 1000, 128, "nn", "f4")))
    assert is_own(product_row(*form))
    right = gemm.blocked

    def wrong(row: Row, ends: list[int], adds_zero: bool, dtype: str) -> Row:
        if fault == "block":
            ends = [ends[0] + 1, *ends[1:]]
        elif fault == "order":
            ends = [*ends[:-1], math.ceil((ends[-2] + ends[-1]) / 2), ends[-1]]
        return right(row, ends, adds_zero and fault != "zero", dtype)

    monkeypatch.setattr(linear_algebra, "blocked", wrong)
    linear_algebra._proved_product.cache_clear()
    assert not is_own(product_row(*form))


# -- in captured steps -------------------------------------------------------------------------------------------------
def _plain(loss: Any, ws: list[Any], x: Any) -> Any:
    with ag.Tape() as tape:
        value = loss(ws, x)
    tape.backward(value)
    return value


def _accumulated(loss: Any, ws: list[Any], x: Any) -> Any:
    return _plain(loss, ws, x[:64]) + _plain(loss, ws, x[64:])


def _penalized(loss: Any, ws: list[Any], x: Any) -> Any:
    return _plain(lambda ws, x: loss(ws, x) + (ag.grad(lambda y: loss(ws, y))(x) ** 2).sum(), ws, x)


def _recomputed(loss: Any, ws: list[Any], x: Any) -> Any:
    return _plain(lambda ws, x: ag.checkpoint(lambda y: loss(ws, y))(x), ws, x)


STEPS = {"plain": _plain, "accumulated": _accumulated, "second derivatives": _penalized, "recomputed": _recomputed}


@of_openblas
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("optimizer", [optim.SGD, optim.Adam])
def test_a_step_with_such_products_has_its_bits(name: str, dtype: str, optimizer: Any, monkeypatch: Any) -> None:
    fresh(monkeypatch)
    taken = []
    products_of = linear_algebra.rows_of_product

    def noted(*args: Any) -> Any:
        rows = products_of(*args)
        taken.append(rows[1] is not None and is_own(rows[1]))
        return rows

    monkeypatch.setattr(linear_algebra, "rows_of_product", noted)
    random = np.random.default_rng(0)
    first = [(random.standard_normal(shape) / 16).astype(dtype) for shape in ((96, 130), (130, 70))]
    xs = [ag.tensor(random.standard_normal((128, 96)).astype(dtype)) for _ in range(8)]

    def loss(ws: list[Any], x: Any) -> Any:
        return (anp.tanh(x @ ws[0]) @ ws[1]).sum() / 128

    def trained(captured: bool) -> list[bytes]:
        ws = [ag.Parameter(w.copy()) for w in first]
        rule = optimizer(ws, lr=0.01)

        def step(x: Any) -> Any:
            rule.zero_grad()
            value = STEPS[name](loss, ws, x)
            rule.step()
            return value

        do = ag.capture(step, verify=False) if captured else step
        found = [do(x).array.tobytes() for x in xs]
        assert not captured or do.replays == len(xs) - 4
        return found + [w.array.tobytes() for w in ws]

    assert trained(True) == trained(False)
    assert any(taken)
