"""Adapters: compiled loops of `loops` as rows of a table of calls; `kernels.compiled` loads this file.

A row of the table is a call in the form of the inner loops of ufuncs (`numpy.ufunc._get_strided_loop`):
``loop(context, pointers, dims, strides, auxiliary)``, which is 0 on success. An adapter calls the same machine code as
the operations do, so a row has the bits of its call.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from llvmlite import ir
from numba import cfunc
from numba import types as numba_types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.np.numpy_support import as_dtype

__all__ = ["adapted", "arguments_of"]

types: Any = numba_types  # whose calls are signatures, which mypy does not know

_WORD = ir.IntType(64)


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


@cache  # of the loops' types; without it Numba compiles an adapter again for each loop
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
