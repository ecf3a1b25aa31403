"""Tables of calls that machine code makes: compiled loops, NumPy's inner loops, and its products.

`compile_loops` gives the addresses of loops, `ufunc_row` those of NumPy's own, as do the functions of `linear_algebra`;
a `Table` holds the calls, and `Table.finish` makes the function that runs them (`walker` describes the words of a
table). All functions have the form of NumPy's inner loops, ``int f(context, char **pointers, int64 *dims, int64
*strides, auxiliary)``.

Inner loops check nothing: arrays are aligned, have the loop's dtypes, and lie apart, except that the result of an
elementwise ufunc may be one of its operands.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..kernels import compiled_loops
from . import walker
from .build import check, compile_loops, compile_texts, is_available, is_compiled, noted
from .loops import Pointer, Unsupported
from .walker import DIVISION, INVALID, OVERFLOW

__all__ = ["DIVISION", "FASTCALL", "INVALID", "OVERFLOW", "Definition", "Operand", "Row", "Table", "Unsupported",
           "arguments_of", "builtin", "check", "compile_loops", "is_available", "loop_of", "loop_row", "symbols_of",
           "ufunc_row", "walk"]  # fmt: skip

_CAPSULE = b"numpy_1.24_ufunc_call_info"
"""The form in which NumPy gives a loop. Another version of the form has another name, and is refused."""

_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_BY_PLACE = (np.fmax, np.fmin, np.isnan, np.isinf, np.isfinite, np.signbit)
"""Ufuncs whose loops give other zeros in the rest of a vector, or have faults for results with gaps (NumPy 2.4)."""

FASTCALL = 0x80
"""METH_FASTCALL: a built-in function is given the address of its arguments, and their number."""
_ALIGNED = 64
_DATA = object.__basicsize__  # the place in an ndarray of the pointer to its data, its first field


class _Info(ctypes.Structure):
    """The content of a capsule, as `numpy.ufunc._get_strided_loop` describes it."""

    _fields_ = (("loop", ctypes.c_int64), ("context", ctypes.c_int64), ("auxiliary", ctypes.c_int64),
                ("requires_python", ctypes.c_bool), ("has_no_errors", ctypes.c_bool))  # fmt: skip


class Operand(NamedTuple):
    """An array without its address."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: Any) -> Operand:
        return cls(array.dtype.str[1:], array.shape, array.strides)


class Row(NamedTuple):
    """A call without its pointers, for `Table.add`.

    Attributes
    ----------
    function : int
        The address of a function in the form of NumPy's inner loops.
    context, auxiliary : int
    dims, strides : tuple of int
        Its arguments.
    checks : bool
        Whether its floating-point errors count.
    repeat : (extents, strides) or None
        The call is made for all places of outer dimensions, the outermost first: their extents, and by pointer the
        strides in them.
    owner : object
        It lives as long as the table.
    scratch : int
        Bytes of memory that the function uses while it runs, whose address is its `auxiliary`.
    """

    function: int
    context: int = 0
    auxiliary: int = 0
    dims: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    checks: bool = False
    repeat: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] | None = None
    owner: Any = None
    scratch: int = 0


class Table:
    """Calls in order, which `finish` makes a function of.

    Examples
    --------
    >>> x, y = np.arange(4.0), np.zeros(4)
    >>> table = Table()
    >>> if is_available():
    ...     _ = table.add(ufunc_row(np.square, (4,), [Pointer("f8", (8,))] * 2), [(0, 0), y.ctypes.data])
    ...     run = table.finish()
    ...     assert run(x) == 0 and (y == x * x).all()
    """

    def __init__(self) -> None:
        self.rows = 0
        self._words: list[int] = []
        self._moves: list[int] = []
        self._inner: list[tuple[int, int]] = []  # words that are addresses in the table: their place, and that of it
        self._bases = 0
        self._kept: list[Any] = []
        self._scratch, self._scratched = 0, list[int]()  # bytes, and the words that are their address

    def add(self, row: Row, pointers: Sequence[int | tuple[int, int]]) -> int:
        """Add the call of a row, and return its number.

        The pointers are addresses, or the number of a base and an offset from it; bases are given in each walk.
        """
        n, at = len(pointers), len(self._words)
        extents, steps = row.repeat or ((), ())
        checks = row.checks + 2 * (not is_compiled(row.function))
        words = [0, row.function, row.context, row.auxiliary, checks, 0, 0, len(extents), n]
        if row.scratch:
            self._scratch = max(self._scratch, row.scratch)
            self._scratched.append(at + 3)
        for pointer in pointers:
            if isinstance(pointer, tuple):
                base, offset = pointer
                self._moves += [at + len(words), base, offset]
                self._bases = max(self._bases, base + 1)
                pointer = 0
            words.append(pointer)
        if extents:
            if len(steps) != n or min(extents) < 1:
                raise Unsupported(f"a repeated call over {extents} with strides {steps}")
            words += [
                *extents,
                *(step[d] for d in range(len(extents)) for step in steps),
                *[0] * (2 * n + len(extents)),
            ]
        for place, values in ((5, row.dims), (6, row.strides)):
            if values:
                self._inner.append((at + place, at + len(words)))
                words += values
        words[0] = len(words)
        self._words += words
        self._kept.append(row.owner)
        self.rows += 1
        return self.rows - 1

    def finish(self, bases: int | None = None, holds: bool = False) -> Callable[..., int]:
        """A function that makes the calls; its arguments are the bases, NumPy arrays or addresses.

        Other threads of the interpreter run meanwhile, unless it `holds` its lock: to get the lock back from a thread
        that computes takes up to 5 ms (`sys.getswitchinterval`), so a walk of some microseconds may better keep it.

        It returns the floating-point errors seen, a union of `DIVISION`, `OVERFLOW` and `INVALID`; or, if a call does
        not return 0, minus its number minus 1, and the calls after it are not made. The errors of a compiled loop may
        be too many (a comparison with a NaN counts as invalid), never too few.

        The function may not run twice at the same time. It holds the table, not the arrays of its pointers.
        """
        count = self._bases if bases is None else bases
        table, moves = np.array([*self._words, 0], np.int64), np.array([*self._moves, 0], np.int64)
        start = table.ctypes.data
        for place, at in self._inner:
            table[place] = start + 8 * at
        scratch = np.empty(self._scratch + _ALIGNED, np.uint8)
        table[self._scratched] = -(-scratch.ctypes.data // _ALIGNED) * _ALIGNED
        given = np.zeros(count + 1, np.int64)
        head = np.array([start, self.rows, moves.ctypes.data, len(moves) // 3, given.ctypes.data, count,
                         id(np.ndarray), _DATA, int(holds)], np.int64)  # fmt: skip
        return builtin(_walker()[1], head.ctypes.data, (head, table, moves, given, scratch, *self._kept))


class Definition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))  # fmt: skip


@cache  # one entry: the walker is compiled once in a process
def _walker() -> tuple[Any, Any]:
    """The function `walk`, and the definition of built-in functions that walk a table: `entry`."""
    if not is_available():
        raise Unsupported("machine code: llvmlite is missing, or RINGTAPE_COMPILED=0")
    ((walks, entry),) = compile_texts([walker.text()], ["walk", "entry"], symbols_of(*walker.NEEDED))
    called = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(walks)
    return called, Definition(b"run", entry, FASTCALL, b"Run a table of calls.")


def symbols_of(*names: str) -> dict[str, int]:
    """The addresses of functions of CPython and of the C library."""
    here, found = ctypes.CDLL(None), {}
    for name in names:
        library = (
            ctypes.pythonapi if name.startswith("Py") else here if hasattr(here, name) else ctypes.CDLL("libm.so.6")
        )
        found[name] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    return found


def builtin(definition: Definition, head: int, kept: Any) -> Callable[..., Any]:
    """The built-in function of a definition whose `self` is an address; it owns what is kept.

    Its definition, too: where two threads ask for the first one, each gets another, and the cache keeps one of them.
    """
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    made: Callable[..., Any] = new(ctypes.addressof(definition), head, (definition, kept))
    return made


def walk(table: int, rows: int, moves: int, moved: int, bases: int = 0) -> int:
    """Make the calls of a table, all given by addresses; `Table.finish` makes a function that is called faster."""
    return int(_walker()[0](table, rows, moves, moved, bases))


# -- NumPy's own loops -------------------------------------------------------------------------------------------------
def ufunc_row(ufunc: Any, shape: Sequence[int], pointers: Sequence[Pointer]) -> Row:
    """The row of a ufunc's inner loop over a shape, with the bits of the ufunc; the last pointers are its results.

    Dimensions are ordered and merged as by NumPy's iterator. For some ufuncs (`exp` of float64, `power`) the bits
    depend on whether strides are negative, and whether NumPy turns them round depends on how they were given: such
    operands are refused. So are the few ufuncs whose bits depend on the place of an element in a row.

    Raises
    ------
    Unsupported
        NumPy would convert an operand, a stride is negative, or the loop needs Python.

    Examples
    --------
    >>> ufunc_row(np.add, (2, 8), [Pointer("f4", (32, 4))] * 3).dims
    (16,)
    """
    if ufunc.signature is not None or len(pointers) != ufunc.nargs:
        raise Unsupported(f"{ufunc.__name__} of {len(pointers)} operands, or with core dimensions")
    if 0 in shape:
        raise Unsupported(f"{ufunc.__name__} over {tuple(shape)}, which has no elements")
    if ufunc in _BY_PLACE and pointers[0].dtype in ("f4", "f8"):
        raise Unsupported(f"{ufunc.__name__} of floats: some results depend on the place")
    if any(stride < 0 for pointer in pointers for stride in pointer.strides):
        raise Unsupported(f"{ufunc.__name__} with negative strides")
    if ufunc is np.power and pointers[-1].dtype[0] == "i":
        raise Unsupported("power of integers: its loop raises an error of Python for a negative exponent")
    dims, strides = _merged(shape, [pointer.strides for pointer in pointers])
    inner = tuple(each[-1] for each in strides)
    if ufunc in (np.power, np.float_power) and len(dims) > 1 and inner[1] == 0 and any(strides[1]):
        raise Unsupported("power with an exponent for each row: NumPy may copy the exponents, or see that one is 2")
    info, owner = loop_of(ufunc, tuple(pointer.dtype for pointer in pointers), inner)
    outer = tuple(dims[:-1]) or (1,)  # some loops move the pointers that they are given: those of a repeated call
    repeat = outer, tuple(tuple(each[:-1]) or (0,) for each in strides)
    return Row(info.loop, info.context, info.auxiliary or 0, (dims[-1],), inner, not info.has_no_errors, repeat, owner)


def loop_of(ufunc: Any, dtypes: tuple[str, ...], strides: tuple[int, ...]) -> tuple[_Info, Any]:
    """NumPy's loop for dtypes and the strides of the inner dimension."""
    given = tuple(np.dtype(dtype) for dtype in dtypes)
    try:
        resolved, capsule = ufunc._resolve_dtypes_and_context(given)
        ufunc._get_strided_loop(capsule, fixed_strides=strides)
        info = _Info.from_address(_pointer_in(capsule, _CAPSULE))
    except (AttributeError, TypeError, ValueError) as error:
        raise Unsupported(f"{ufunc.__name__} of {dtypes}: {error}") from None
    if tuple(resolved) != given or info.requires_python:
        raise Unsupported(f"{ufunc.__name__} of {dtypes}: NumPy computes it in {[*map(str, resolved)]}, or by Python")
    return info, capsule


def _merged(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The dimensions in the order of NumPy's iterator, merged where all operands allow it; there is at least one."""
    order = [d for d in _order(strides) if shape[d] != 1]
    dims: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d in order:
        if dims and all(each[-1] == own[d] * shape[d] for each, own in zip(steps, strides, strict=True)):
            dims[-1] *= shape[d]
            for each, own in zip(steps, strides, strict=True):
                each[-1] = own[d]
            continue
        dims.append(shape[d])
        for each, own in zip(steps, strides, strict=True):
            each.append(own[d])
    return (dims, steps) if dims else ([1], [[0] for _ in strides])


def _order(strides: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions, outermost first, as NumPy's iterator sorts them: an insertion sort by strides."""
    ndim = len(strides[0]) if strides else 0
    order: list[int] = []  # innermost first
    for d in reversed(range(ndim)):
        at = len(order)
        for place in reversed(range(len(order))):
            other, is_larger = order[place], None
            for each in strides:
                if each[d] and each[other]:
                    is_larger = is_larger is not False and abs(each[other]) > abs(each[d])
            if is_larger is None:
                continue
            if not is_larger:
                break
            at = place
        order.insert(at, d)
    return order[::-1]

# -- loops of `autograd.kernels` ---------------------------------------------------------------------------------------
# Numba has compiled them. An adapter has the form of NumPy's inner loops, and calls the same machine code as the
# operations do, so a row has the bits of its call.
_KINDS = {"f4": "float", "f8": "double", "i8": "i64"}


def arguments_of(loop: Any) -> list[tuple[Any, int, bool]]:
    """Of each argument of a loop the dtype, the dimensions (0 of a number), and whether it is written."""
    found: list[tuple[Any, int, bool]] = compiled_loops().arguments_of(loop)
    return found


def loop_row(loop: Any, shapes: Sequence[tuple[int, ...]], refuses: bool) -> Row:
    """The row of a loop, with a pointer for each argument, to C-contiguous arrays of these shapes.

    It fails where the loop `refuses` its arguments.
    """
    kinds = tuple((dtype.str[1:], ndim) for dtype, ndim, _ in arguments_of(loop))
    dims = tuple(n for shape in shapes for n in (*shape, 0, 0)[:2])
    return Row(_adapter(kinds, refuses), 0, compiled_loops().address_of(loop), dims, checks=True, owner=loop)


@cache  # linked code is never unloaded, and loops with the same arguments share it
def _adapter(kinds: tuple[tuple[str, int], ...], refuses: bool) -> int:
    """The address of a function that calls loops with such arguments; the address of the loop is its `auxiliary`.

    Numba's functions return a status, and take pointers to the result and to an error. An array is the fields of
    `numba.np.arrayobj`: two objects that own it, the number of elements, their size, the data, the shape, the strides.
    """
    lines, given = [], []
    for k, (dtype, ndim) in enumerate(kinds):
        kind, size = _KINDS[dtype], int(dtype[1:])
        lines.append(f"  %p{k} = word ptr %pointers, {k}")
        if not ndim:
            lines.append(f"  %v{k} = load {kind}, ptr %p{k}")
            given.append(f"{kind} %v{k}")
            continue
        lines += [f"  %n{k} = word i64 %dims, {2 * k}", f"  %m{k} = word i64 %dims, {2 * k + 1}",
                  f"  %all{k} = mul i64 %n{k}, {f'%m{k}' if ndim == 2 else 1}",
                  f"  %row{k} = mul i64 %m{k}, {size}"]  # fmt: skip
        shape = f"i64 %n{k}, i64 %m{k}, i64 %row{k}" if ndim == 2 else f"i64 %n{k}"
        given.append(f"ptr null, ptr null, i64 %all{k}, i64 {size}, ptr %p{k}, {shape}, i64 {size}")
    head = ["define i32 @NAME(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %loop) {",
            "  %result = alloca i64", "  %error = alloca ptr"]  # fmt: skip
    lines.append(f"  %status = call i32 %loop(ptr %result, ptr %error, {', '.join(given)})")
    if refuses:
        lines += ["  %truth = load i8, ptr %result", "  %fails = icmp eq i8 %truth, 0",
                  "  %failed = sext i1 %fails to i32", "  ret i32 %failed", "}"]  # fmt: skip
    else:
        lines += ["  ret i32 %status", "}"]
    ((address,),) = compile_texts(["\n".join([*head, *lines])], ["NAME"])
    return noted(address)
