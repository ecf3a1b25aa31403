"""Linear algebra as rows of a table: NumPy's loops, which call the BLAS and LAPACK; small products as straight code.

A call of the BLAS takes 50 to 150 ns before it computes. Where a product of few numbers, written out as fused
multiplications and additions in the order of its inner dimension, has the BLAS's bits, it takes its place. So does a
product of large matrices in code of our own (`gemm`) that has these bits and, in a short trial, is faster.

Checks and conversions of `numpy.linalg.inv` take as long as the inverse of a matrix of 15 rows. A loop that finds a
matrix for which it has no result, such as a singular one, sets the flag of invalid operations; the row then fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from .build import compile_texts, noted
from .gemm import blocked
from .loops import Unsupported
from .machine import INVALID, Operand, Row, Table, loop_of, symbols_of

__all__ = ["matrix_row", "product_row", "rows_of_product"]

_PROVED = 256  # results of a product that are compared
_MOST = 512  # multiplications that are written out, which are compiled in 50 ms
_MANY, _FEW = 1 << 19, 1 << 10  # multiplications from which on code of our own is tried
_LEAST_BLOCK, _MOST_BLOCK = 192, 1024  # of the inner dimension
_ROUNDS = 4  # in which two rows are timed
_DRAWN = 65521  # numbers, after which they repeat
_SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)


# -- products ----------------------------------------------------------------------------------------------------------
def product_row(a: Operand, b: Operand, out: Operand, function: str = "matmul", same: bool = False) -> Row:
    """The row of ``np.matmul(a, b)``, ``np.dot(a, b)`` or ``np.vecdot(a, b)``, by NumPy's loop, which calls the BLAS.

    The loop of `dot` is that of `matmul`.

    In which order numbers are added depends on shapes and strides, so random numbers show, once for each form, whether
    the row has the bits of NumPy's function, with and without ``out=``. `same` says that both operands begin at one
    address, for which NumPy may choose another function of the BLAS.

    Raises
    ------
    Unsupported
        The bits differ, or NumPy would convert an operand.

    Examples
    --------
    >>> from autograd.compiler.machine import is_available
    >>> a, b, out = Operand("f4", (4, 8), (32, 4)), Operand("f4", (8, 2), (8, 4)), Operand("f4", (4, 2), (8, 4))
    >>> not is_available() or product_row(a, b, out).dims == (1, 4, 8, 2)
    True
    """
    found = _proved_product(a, b, out, function, same)
    if isinstance(found, str):
        raise Unsupported(found)
    return found


@cache
def _proved_product(a: Operand, b: Operand, out: Operand, function: str, same: bool) -> Row | str:
    """The row, or why there is none."""
    try:
        row, own = rows_of_product(a, b, out, function, same)
    except Unsupported as error:
        return str(error)
    is_better = own is not None and (not own.scratch or _Trial(a, b, out, same).is_faster(own, row))
    return own if own is not None and is_better else row


def rows_of_product(
    a: Operand, b: Operand, out: Operand, function: str = "matmul", same: bool = False
) -> tuple[Row, Row | None]:  # fmt: skip
    """The row of NumPy's loop, and the row in code of our own that has the same bits, or None; see `product_row`."""
    row, tried = _product(a, b, out, function), _Trial(a, b, out, same)
    if not tried.is_of_numpy(row, function):
        raise Unsupported(f"{function} of {a} and {b} to {out}: another order of additions")
    core = row.dims[1:]
    is_small = math.prod(core) <= _MOST
    if len(core) == 3 and a.dtype in _TYPES and (is_small or _is_worth_trying(core, row.strides)):
        k = core[1]
        with suppress(Unsupported):
            for adds_zero in (False, True):  # some functions of the BLAS do, so that no result is a negative zero
                if is_small:
                    own = row._replace(function=_written_out(core, row.strides[3:], a.dtype, adds_zero), owner=None)
                else:
                    own = blocked(row, _ends(k, *_block(a.dtype)) if k > _LEAST_BLOCK else [k], adds_zero, a.dtype)
                if tried.is_same(own, row):
                    return row, own
    return row, None


def _is_worth_trying(core: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether `blocked` may be faster than the BLAS: for many rows, or where the second operand is transposed."""
    (m, k, n), (b_row, b_column) = core, strides[5:7]
    return min(m, n) > 1 and m * k * n >= (_MANY if b_column <= b_row else _FEW)


def _ends(k: int, block: int, step: int) -> list[int]:
    """Where OpenBLAS ends the blocks of an inner dimension: less than two blocks are two halves, rounded up."""
    ends, begin = [], 0
    while begin < k:
        left = k - begin
        size = block if left >= 2 * block else left if left <= block else -(-(left // 2) // step) * step
        ends.append(begin := begin + size)
    return ends


@cache
def _block(dtype: str) -> tuple[int, int]:
    """The size of the blocks in which this BLAS adds, and the multiple to which it rounds, by trial.

    Raises
    ------
    Unsupported
        It adds in another order.
    """
    sides, size = (1000, 1536), int(dtype[1:])
    trials, rows = [], []
    for k in sides:
        a, b, out = (Operand(dtype, (m, n), (n * size, size)) for m, n in ((64, k), (k, 64), (64, 64)))
        trials.append(_Trial(a, b, out, False))
        rows.append(_product(a, b, out, "matmul"))

    @cache
    def has_bits(i: int, ends: tuple[int, ...]) -> bool:
        return trials[i].is_same(blocked(rows[i], ends, True, dtype), rows[i], ["random"])

    for step in (16, 8, 4, 2, 1):
        for block in range(_LEAST_BLOCK, _MOST_BLOCK + 1, 16):
            if all(has_bits(i, tuple(_ends(k, block, step))) for i, k in enumerate(sides)):
                return block, step
    raise Unsupported("another order of additions")


_TYPES = {"f4": "float", "f8": "double"}


@cache  # linked code is never unloaded, and products of other places share it
def _written_out(core: tuple[int, ...], strides: tuple[int, ...], dtype: str, adds_zero: bool) -> int:
    """The address of the code of a product of matrices of ``(m, k)`` and ``(k, n)`` numbers."""
    (m, k, n), kind, size = core, _TYPES[dtype], int(dtype[1:])
    lines = ["define i32 @NAME(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary) {"]
    for p, name in enumerate("xyz"):
        lines += [f"  %{name}_at = getelementptr ptr, ptr %pointers, i64 {p}", f"  %{name} = load ptr, ptr %{name}_at"]
    shapes = (("x", m, k), ("y", k, n), ("z", m, n))
    for p, (name, rows, columns) in enumerate(shapes):
        for i in range(rows):
            for j in range(columns):
                at = i * strides[2 * p] + j * strides[2 * p + 1]
                lines.append(f"  %{name}p{i}_{j} = getelementptr i8, ptr %{name}, i64 {at}")
                if name != "z":
                    lines.append(f"  %{name}{i}_{j} = load {kind}, ptr %{name}p{i}_{j}, align {size}")
    stores: list[str] = []
    for i in range(m):
        for j in range(n):
            total = "0.0"
            for q in range(k):
                given = f"{kind} %x{i}_{q}, {kind} %y{q}_{j}, {kind} {total}"
                total = f"%t{i}_{j}_{q}"
                lines.append(f"  {total} = call {kind} @llvm.fma.f{8 * size}({given})")
            if adds_zero:
                lines.append(f"  %t{i}_{j} = fadd {kind} {total}, 0.0")
                total = f"%t{i}_{j}"
            stores.append(f"  store {kind} {total}, ptr %zp{i}_{j}, align {size}")
    ((address,),) = compile_texts(["\n".join([*lines, *stores, "  ret i32 0", "}"])], ["NAME"])
    return noted(address)


class _Trial:
    """Operands on which the rows of a product are compared.

    Numbers are random; or some are special ones; or all products are so small that they become a negative zero, which
    shows for each result whether it is added to a zero.
    """

    def __init__(self, a: Operand, b: Operand, out: Operand, same: bool):
        self._x, self._y, self._out = map(_empty, (a, b, out))
        self._memories = [self._x.base, self._y.base]
        if same:
            self._memories = [max(self._x.base, self._y.base, key=len)]
            self._x, self._y = (np.ndarray(z.shape, z.dtype, self._memories[0], 0, z.strides) for z in (a, b))
        self._random = np.random.default_rng(0)
        self._times = -(-_PROVED // math.prod(out.shape))  # a few numbers may be equal by chance

    def is_of_numpy(self, row: Row, name: str) -> bool:
        """Whether a row has the bits of a function of NumPy, with and without ``out=``."""
        function, run, apart = getattr(np, name), self._run(row), np.empty_like(self._out)
        with np.errstate(all="ignore"):
            for _ in range(self._times):
                self._fill("random")
                needed = np.asarray(function(self._x, self._y))
                if function is not np.dot or self._out.flags.c_contiguous:
                    function(self._x, self._y, out=self._out)
                else:
                    self._out[...] = needed
                apart[...] = self._out
                run()
                if needed.shape != apart.shape or not self._bytes() == needed.tobytes() == apart.tobytes():
                    return False
        return True

    def is_same(self, row: Row, other: Row, kinds: Sequence[str] = ("underflow", "random", "special")) -> bool:
        """Whether a row has the bits of another one."""
        run, run_other = self._run(row), self._run(other)
        for kind in kinds:
            for _ in range(self._times):
                self._fill(kind)
                run_other()
                needed = self._bytes()
                run()
                if self._bytes() != needed:
                    return False
        return True

    def is_faster(self, row: Row, other: Row) -> bool:
        """Whether a row takes less time than another one."""
        self._fill("random")
        runs, times = [self._run(row), self._run(other)], list[float]()
        for _ in range(_ROUNDS):
            for run in runs:
                start = perf_counter()
                run()
                times.append(perf_counter() - start)
        return min(times[::2]) < min(times[1::2])

    def _run(self, row: Row) -> Callable[..., int]:
        table = Table()
        table.add(row, [x.ctypes.data for x in (self._x, self._y, self._out)])
        return table.finish()

    def _bytes(self) -> bytes:
        return bytes(self._out.tobytes())

    def _fill(self, kind: str) -> None:
        for memory in self._memories:
            first = int(self._random.integers(_DRAWN))
            numbers = _drawn(memory.dtype.str, kind == "special")[first : first + _DRAWN]
            for at in range(0, len(memory), _DRAWN):
                part = memory[at : at + _DRAWN]
                part[:] = numbers[: len(part)]
        if kind == "underflow":
            self._x[...], self._y[...] = -np.finfo(self._x.dtype).smallest_subnormal, np.finfo(self._x.dtype).tiny


def _product(a: Operand, b: Operand, out: Operand, function: str) -> Row:
    text = f"{function} of {a.dtype}{a.shape} and {b.dtype}{b.shape} to {out.dtype}{out.shape}"
    if not a.dtype == b.dtype == out.dtype or 0 in (*a.shape, *b.shape, *out.shape) or not (a.shape and b.shape):
        raise Unsupported(text)
    if any(stride < 0 for each in (a, b, out) for stride in each.strides):
        raise Unsupported(f"{text}, with negative strides")
    ufunc: Any
    sizes: tuple[int, ...]
    if function == "vecdot" and hasattr(np, "vecdot"):
        ufunc, ndims, sizes, steps = np.vecdot, (1, 1, 0), (a.shape[-1],), (a.strides[-1], b.strides[-1])
        is_right = a.shape[-1] == b.shape[-1]
    elif function == "matmul" or (function == "dot" and len(a.shape) <= 2 >= len(b.shape)):
        ufunc, ndims, sizes, steps, is_right = _core(a, b, out)
    else:
        raise Unsupported(text)
    batch = out.shape[: len(out.shape) - ndims[2]]
    outer = [_outer_strides(each, inner, batch, text) for each, inner in zip((a, b, out), ndims, strict=True)]
    if not is_right:
        raise Unsupported(text)
    # The walker goes over the outer dimensions: NumPy's loop would change the pointers of the table.
    info, owner = loop_of(ufunc, (a.dtype, b.dtype, out.dtype), (0, 0, 0))
    return Row(
        info.loop, info.context, info.auxiliary or 0, (1, *sizes), (0, 0, 0, *steps),
        not info.has_no_errors and function != "dot", (batch, tuple(outer)) if batch else None, owner,
    )  # fmt: skip


def _outer_strides(x: Operand, inner: int, batch: tuple[int, ...], text: str) -> tuple[int, ...]:
    """The strides of an operand along the dimensions of a batch, to which it is broadcast."""
    n = len(x.shape) - inner
    shape, missing = x.shape[:n], len(batch) - n
    if missing < 0 or any(p not in (1, q) for p, q in zip(shape, batch[missing:], strict=True)):
        raise Unsupported(text)
    return (0,) * missing + tuple(0 if p == 1 else s for p, s in zip(shape, x.strides[:n], strict=True))


def _core(a: Operand, b: Operand, out: Operand) -> tuple[Any, tuple[int, int, int], tuple[int, ...], Any, bool]:
    """For the loop of `matmul` the dimensions of a product, their sizes and strides, and whether they fit.

    A missing dimension has one element; its stride is that of an array with this dimension.
    """
    size, a_ndim, b_ndim = int(a.dtype[1:]), min(len(a.shape), 2), min(len(b.shape), 2)
    ndim = (a_ndim == 2) + (b_ndim == 2)
    to = out.strides[len(out.strides) - ndim :]
    m, k = a.shape[-2:] if a_ndim == 2 else (1, a.shape[0])
    rows, n = b.shape[-2:] if b_ndim == 2 else (b.shape[0], 1)
    a_steps = a.strides[-2:] if a_ndim == 2 else (k * a.strides[0], a.strides[0])
    b_steps = b.strides[-2:] if b_ndim == 2 else (b.strides[0], size)
    row_step = to[0] if a_ndim == 2 and to else n * (to[-1] if to else size)
    column_step = to[-1] if b_ndim == 2 and to else size
    core = (m,) * (a_ndim == 2) + (n,) * (b_ndim == 2)
    fits = k == rows and len(out.shape) >= ndim and out.shape[len(out.shape) - ndim :] == core
    return np.matmul, (a_ndim, b_ndim, ndim), (m, k, n), (*a_steps, *b_steps, row_step, column_step), fits


def _empty(operand: Operand) -> Any:
    """An array that lies in memory as an operand, on a base of one dimension."""
    span = sum((n - 1) * stride for n, stride in zip(operand.shape, operand.strides, strict=True))
    memory = np.empty(1 + span // int(operand.dtype[1:]), operand.dtype)
    return np.ndarray(operand.shape, operand.dtype, memory, 0, operand.strides)


@cache
def _drawn(dtype: str, special: bool) -> Any:
    """A prime count of random numbers, twice; with `special` some of them are zeros, extremes and others."""
    random, kind = np.random.default_rng(0), np.dtype(dtype).kind
    numbers = 3 * random.standard_normal(_DRAWN)
    if kind == "c":
        numbers = numbers + 3j * random.standard_normal(_DRAWN)
    elif special:
        info = np.finfo(dtype)
        extremes = [sign * float(x) for x in (info.max, info.tiny, info.smallest_subnormal) for sign in (1, -1)]
        numbers = np.where(random.random(_DRAWN) < 0.4, random.choice([*_SPECIAL, *extremes], _DRAWN), numbers)
    return np.tile(numbers.astype(dtype), 2)


# -- functions of numpy.linalg -----------------------------------------------------------------------------------------
_LOOPS = {
    (np.linalg.inv, 1): ("inv", ("mm", "mm")), (np.linalg.cholesky, 1): ("cholesky_lo", ("mm", "mm")),
    (np.linalg.solve, 1): ("solve1", ("mm", "m", "m")), (np.linalg.solve, 2): ("solve", ("mm", "mn", "mn")),
}  # fmt: skip
"""By a function, and the dimensions of its last operand (1 where it does not count): NumPy's loop, and its operands."""

_TEXT = f"""
declare i32 @linalg_loop(ptr, ptr, ptr, ptr, ptr)
declare i32 @feclearexcept(i32)
declare i32 @fetestexcept(i32)

define i32 @NAME(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary) {{
  %cleared = call i32 @feclearexcept(i32 {INVALID})
  %r = call i32 @linalg_loop(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary)
  %invalid = call i32 @fetestexcept(i32 {INVALID})
  %both = or i32 %r, %invalid
  ret i32 %both
}}
"""


def matrix_row(function: Any, operands: Sequence[Operand]) -> Row:
    """The row of a function of `numpy.linalg` of float64 matrices, or batches; the last operand is its result.

    Raises
    ------
    Unsupported
        It is another function, or NumPy would convert an operand.

    Examples
    --------
    >>> from autograd.compiler.machine import is_available
    >>> x = Operand("f8", (3, 3), (24, 8))
    >>> not is_available() or matrix_row(np.linalg.inv, [x, x]).dims == (1, 3)
    True
    """
    ndim = min(len(operands[-2].shape), 2) if function is np.linalg.solve else 1
    name, kinds = _LOOPS.get((function, ndim), ("", ()))
    ufunc = getattr(getattr(np.linalg, "_umath_linalg", None), name, None) if name else None
    text = f"{function.__name__} of {', '.join(f'{x.dtype}{x.shape}' for x in operands)}"
    if ufunc is None or len(kinds) != len(operands) or any(x.dtype != "f8" for x in operands):
        raise Unsupported(text)
    sizes: dict[str, int] = {}
    for x, kind in zip(operands, kinds, strict=True):
        named = zip(kind, x.shape[-len(kind) :], strict=False)
        if len(x.shape) < len(kind) or 0 in x.shape or any(sizes.setdefault(d, n) != n for d, n in named):
            raise Unsupported(text)
    batch = operands[-1].shape[: -len(kinds[-1])]
    outer = tuple([_outer_strides(x, len(kind), batch, text) for x, kind in zip(operands, kinds, strict=True)])
    inner = [x.strides[-len(kind) :] for x, kind in zip(operands, kinds, strict=True)]
    info, owner = loop_of(ufunc, ("f8",) * len(operands), (0,) * len(operands))
    return Row(
        _failing(info.loop), info.context, info.auxiliary or 0, (1, *sizes.values()),
        (*(0,) * len(operands), *(step for steps in inner for step in steps)), False,
        (batch, outer) if batch else None, owner,
    )  # fmt: skip


@cache
def _failing(loop: int) -> int:
    """A function that calls a loop, and does not return 0 where the loop has set the flag of invalid operations."""
    symbols = {"linalg_loop": loop, **symbols_of("feclearexcept", "fetestexcept")}
    ((address,),) = compile_texts([_TEXT], ["NAME"], symbols)
    return address
