"""Walks a table of inner loops, compiled by Numba; `kernels.compiled` loads this file.

A row of the table is a call of the loop of a ufunc, in the form that NumPy gives to compilers
(`numpy.ufunc._get_strided_loop`): ``loop(context, pointers, dims, strides, auxiliary)``, which is 0 on success. The
loops of `loops` are called in this form through an adapter, which calls the same machine code as the operations do.
So a row has the bits of its call.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import cfunc, njit
from numba import types as numba_types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.np.numpy_support import as_dtype

from .loops import is_cached

__all__ = ["DIVISION", "INVALID", "OVERFLOW", "ROW", "adapted", "arguments_of", "is_supported", "walk"]

types: Any = numba_types  # whose calls are signatures, which mypy does not know

_FLAGS = {"x86_64": (4, 8, 1), "aarch64": (2, 4, 1), "arm64": (2, 4, 1)}
is_supported = platform.machine() in _FLAGS and os.name == "posix"

ROW = np.dtype([
    ("loop", "i8"), ("context", "i8"), ("auxiliary", "i8"),
    ("count", "i8"),  # calls of the loop, between which the pointers go on by `steps`
    ("checks", "i8"),  # whether the loop may tell of floating-point errors
    ("pointers", "i8", 5), ("steps", "i8", 5), ("current", "i8", 5), ("dims", "i8", 10), ("strides", "i8", 9),
])  # fmt: skip
"""A row of the table."""

DIVISION, OVERFLOW, INVALID = _FLAGS.get(platform.machine(), (0, 0, 0))
"""The bits of floating-point errors in the result of a walk, which are those of <fenv.h>."""

_ERRORS = DIVISION | OVERFLOW | INVALID
_SIZE = ROW.itemsize
_PLACES = {name: ROW.fields[name][1] for name in ROW.names}  # type: ignore[index, union-attr]
_COUNT, _CHECKS, _STEPS, _POINTERS, _CURRENT = (
    _PLACES[name] // 8 for name in ("count", "checks", "steps", "pointers", "current")
)  # fmt: skip
_DIMS, _STRIDES = _PLACES["dims"], _PLACES["strides"]
_DATA = object.__basicsize__  # the place in an ndarray of the pointer to its data, its first field
_test: Any = types.ExternalFunction("fetestexcept", types.int32(types.int32))
_clear: Any = types.ExternalFunction("feclearexcept", types.int32(types.int32))
_WORD = ir.IntType(64)


def _as_words(context: Any, address: Any) -> Any:
    """The words from an address on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _WORD.as_pointer())

    return types.CPointer(types.int64)(types.int64), generate


def _as_call(context: Any, loop: Any, of: Any, pointers: Any, dims: Any, strides: Any, auxiliary: Any) -> Any:
    """A call of a loop by its address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [_WORD] * 5).as_pointer()
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int32(*[types.int64] * 6), generate


_words, _call = cast(Any, intrinsic(_as_words)), cast(Any, intrinsic(_as_call))


def _walk(table: Any, rows: Any, moves: Any, moved: Any, target: Any) -> Any:
    """Make the calls of a table; -1 where a loop gives up, or the floating-point errors of all.

    `table` and `moves` are addresses. Each move is the address of a pointer in the table, and an offset: the pointer
    is set to the data of the array with the id `target`, plus the offset.
    """
    if moved > 0:
        data, at = _words(target + _DATA)[0], _words(moves)
        for i in range(moved):
            _words(at[2 * i])[0] = data + at[2 * i + 1]
    found = 0
    for k in range(rows):
        start = table + k * _SIZE
        row = _words(start)
        loop, context, auxiliary, checks = row[0], row[1], row[2], row[_CHECKS]
        if checks and _test(_ERRORS):
            _clear(_ERRORS)
        if row[_COUNT] == 1:
            if _call(loop, context, start + 8 * _POINTERS, start + _DIMS, start + _STRIDES, auxiliary):
                return -1
        else:
            for i in range(3):
                row[_CURRENT + i] = row[_POINTERS + i]
            for _ in range(row[_COUNT]):
                if _call(loop, context, start + 8 * _CURRENT, start + _DIMS, start + _STRIDES, auxiliary):
                    return -1
                for i in range(3):
                    row[_CURRENT + i] += row[_STEPS + i]
        if checks:
            found |= _test(_ERRORS)
    return found


def _compiled() -> Any:
    make: Any = njit
    signature = types.int64(*[types.int64] * 5)
    return make([signature], cache=is_cached(_walk), nogil=True)(_walk)


walk = _compiled()
"""`_walk`, compiled in 0.2 seconds or from Numba's cache. While it runs, other threads run."""


# -- compiled loops as rows --------------------------------------------------------------------------------------------
def arguments_of(loop: Any) -> list[tuple[Any, int, bool]] | None:
    """Of each argument of a loop of `loops` the dtype, the dimensions, and whether it is written; None for no loop."""
    if not isinstance(loop, Dispatcher):
        return None
    (kinds,) = cast(Any, loop).signatures
    return [
        (as_dtype(kind.dtype), kind.ndim, kind.mutable) if isinstance(kind, types.Array) else (as_dtype(kind), 0, False)
        for kind in kinds
    ]


def adapted(loop: Any) -> tuple[Any, int]:
    """The adapter of a loop of `loops`, which has the `address` for a row, and the row's `auxiliary`.

    The row has a pointer and two dims for each argument. An array of one dimension has the first of its dims; a number
    is the first in an array.
    """
    (kinds,) = loop.signatures
    made = loop.overloads[kinds]
    address = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    return _adapter(kinds, made.signature.return_type), address


@cache
def _adapter(kinds: Any, result: Any) -> Any:
    """The adapter of loops with arguments of these types of Numba."""

    def as_call(context: Any, address: Any, pointers: Any, dims: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address, pointers, dims = args

            def word(start: Any, k: int) -> Any:
                words = builder.inttoptr(start, _WORD.as_pointer())
                return builder.load(builder.gep(words, [ir.Constant(_WORD, k)]))

            given = []
            for k, kind in enumerate(kinds):
                is_array = isinstance(kind, types.Array)
                of = context.get_data_type(kind.dtype if is_array else kind)
                data = builder.inttoptr(word(pointers, k), of.as_pointer())
                if not is_array:
                    given.append(builder.load(data))
                    continue
                item = ir.Constant(_WORD, context.get_abi_sizeof(of))
                shape = [word(dims, 2 * k + i) for i in range(kind.ndim)]
                strides = [item] if kind.ndim == 1 else [builder.mul(shape[1], item), item]
                array = arrayobj.make_array(kind)(context, builder)
                arrayobj.populate_array(array, data, shape, strides, item, None)
                given.append(array._getvalue())
            function = builder.inttoptr(address, context.call_conv.get_function_type(result, kinds).as_pointer())
            _, found = context.call_conv.call_function(builder, function, result, kinds, given)
            return found if result == types.boolean else ir.Constant(ir.IntType(1), 1)

        return types.boolean(*[types.int64] * 3), generate

    invoke: Any = intrinsic(as_call)

    def adapter(context: Any, pointers: Any, dims: Any, strides: Any, auxiliary: Any) -> Any:
        return 0 if invoke(auxiliary, pointers, dims) else -1

    return cfunc(types.int32(*[types.int64] * 5))(adapter)
