"""Rows that call the loops of `numpy.linalg`: the bits of its functions, and a failure where these raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autograd.compiler import linear_algebra
from autograd.compiler.linear_algebra import matrix_row
from autograd.compiler.loops import Pointer
from autograd.compiler.machine import INVALID, Operand, Table, Unsupported, is_available, ufunc_row

pytestmark = pytest.mark.skipif(not is_available(), reason="llvmlite is missing, or RINGTAPE_COMPILED=0")

FUNCTIONS = {
    "inv": (np.linalg.inv, ()), "cholesky": (np.linalg.cholesky, ()), "solve of a vector": (np.linalg.solve, (1,)),
    "solve of a matrix": (np.linalg.solve, (2,)),
}  # fmt: skip


def operands_of(name: str, n: int, turned: bool, batch: tuple[int, ...] = ()) -> tuple[Any, list[Any], Any]:
    """A function, its arguments, and an array for its result. The last argument of a system has no batch of 1."""
    function, ndims = FUNCTIONS[name]
    random = np.random.default_rng(n)
    x = random.standard_normal((*batch, n, n))
    others = [random.standard_normal((*(m for m in batch if m > 1 and ndim > 1), *(n, 3)[:ndim])) for ndim in ndims]
    xs = [x @ x.swapaxes(-1, -2) + n * np.eye(n), *others]
    xs = [np.repeat(x, 2, -1)[..., ::2].T.copy().T if turned else x for x in xs]
    return function, xs, np.full_like(function(*xs), 7.0)


def called(function: Any, xs: list[Any], out: Any, before: bool = False) -> int:
    table = Table()
    if before:  # a row that sets the flag of invalid operations
        minus, root = -np.ones(4), np.empty(4)
        table.add(ufunc_row(np.sqrt, (4,), [Pointer("f8", (8,))] * 2), [minus.ctypes.data, root.ctypes.data])
    table.add(matrix_row(function, [Operand.of(x) for x in (*xs, out)]), [x.ctypes.data for x in (*xs, out)])
    return table.finish()()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_the_bits_of_the_function(name: str, turned: bool) -> None:
    for n in (1, 2, 5, 17, 40):
        function, xs, out = operands_of(name, n, turned)
        assert called(function, xs, out) == 0
        assert out.tobytes() == function(*xs).tobytes(), n
        out[...] = 7.0
        assert called(function, xs, out, before=True) == INVALID  # that of the other row
        assert out.tobytes() == function(*xs).tobytes(), n


@pytest.mark.parametrize("batch", [(3,), (2, 3), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_of_a_batch_has_the_bits_of_the_function(name: str, turned: bool, batch: tuple[int, ...]) -> None:
    for n in (1, 5, 17):
        function, xs, out = operands_of(name, n, turned, batch)
        assert called(function, xs, out) == 0
        assert out.tobytes() == function(*xs).tobytes(), n


def test_a_row_of_a_batch_fails_where_one_matrix_has_no_result() -> None:
    for k in range(4):
        function, xs, out = operands_of("inv", 5, False, (2, 2))
        xs[0].reshape(4, 5, 5)[k] = 0
        assert called(function, xs, out) < 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_fails_where_the_function_raises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, xs, out = operands_of(name, 5, False)
    xs[0][2] = 0
    xs[0][:, 2] = 0
    with pytest.raises(np.linalg.LinAlgError):
        function(*xs)
    assert called(function, xs, out) < 0
    monkeypatch.setattr(linear_algebra, "_failing", lambda loop: loop)
    assert called(function, xs, out) == 0  # without the question for the flag nothing is told


def test_what_numpy_would_convert_is_refused() -> None:
    x, single, stack = (Operand(dtype, shape, strides) for dtype, shape, strides in (
        ("f8", (3, 3), (24, 8)), ("f4", (3, 3), (12, 4)), ("f8", (2, 3, 3), (72, 24, 8))))  # fmt: skip
    for function, operands in (
        (np.linalg.inv, [single, single]), (np.linalg.inv, [stack, x]), (np.linalg.det, [x, x]),
        (np.linalg.solve, [x, Operand("f8", (4,), (8,)), Operand("f8", (4,), (8,))]),
        (np.linalg.inv, [Operand("f8", (0, 0), (8, 8))] * 2),
    ):  # fmt: skip
        with pytest.raises(Unsupported):
            matrix_row(function, operands)
