"""The functions of Python's arithmetic operators, with the arguments of NumPy's: ``divide(a, b, out=, where=)``.

Without a Tensor NumPy's own function runs, so the result of Python numbers has a dtype, lists are arrays, and every
argument of NumPy's function is legal. With one the operation runs. It has no ``out=`` and no ``where=``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.device import dtype_named
from ..engine.tensor import TENSORS
from ..errors import refused, typed
from ..ops import elementwise
from ..ops import ufuncs as _ufuncs
from ..ops.arguments import ask, of_rank_numbers, refusal, tensors_in
from ..ops.contractions import matmul as _matmul

__all__ = ["add", "divide", "matmul", "mod", "multiply", "negative", "power", "subtract"]


def _cast(x: Any, dtype: Any) -> Any:
    """An operand as NumPy computes with it where a dtype is given. A number has none of its own."""
    if x.__class__ not in TENSORS:
        if np.ndim(x) == 0 and not isinstance(x, np.ndarray | np.generic):
            return x
        x = np.asarray(x)
    try:
        return x.astype(dtype_named(dtype))
    except (TypeError, ValueError) as error:  # such as texts
        raise typed(error, f"dtype={dtype!r}: {error}") from error


class _OfOperator:
    """A function of NumPy's name that runs NumPy's own or an operation. Its docstring is the operation's."""

    __slots__ = ("__call__", "__dict__")  # a slot, as in `Primitive`: a call is a call of the function itself

    __call__: Any

    def __init__(self, operation: Any, theirs: Any):
        count, name, run = len(operation.words), theirs.__name__, operation.call

        def call(*args: Any, **words: Any) -> Any:
            try:
                for x in args:
                    if x.__class__ in TENSORS:
                        break
                else:
                    if not tensors_in(args) and not (words and tensors_in(words.values())):
                        return of_rank_numbers(theirs, args, words)
                if len(args) > count + ("out" not in words):
                    ask(theirs, args, words)  # raises what NumPy raises
                extra = dict(zip(("out",), args[count:], strict=False)) | words
                if extra.get("where") is True:
                    del extra["where"]
                extra = {key: x for key, x in extra.items() if x is not None or key not in ("out", "dtype", "order")}
                dtype = extra.pop("dtype", None)
                if extra or len(args) < count:
                    raise refusal(name, extra)
                if dtype is None:
                    return run(*args[:count])
                ask(theirs, args[:count], {"dtype": dtype})  # raises what NumPy raises
                return run(*(_cast(x, dtype) for x in args[:count])).astype(dtype)
            except RecursionError as error:  # as of a list that contains itself
                raise refused(error, name, args, words) from error

        self.__call__ = call
        self.__name__ = self.__qualname__ = name
        self.__module__ = "autograd.numpy"
        self.__wrapped__ = theirs
        self._operation = operation

    def __getattr__(self, name: str) -> Any:
        """The methods and attributes of the ufunc: ``add.reduce(x)``, which takes Tensors, too."""
        return getattr(object.__getattribute__(self, "__wrapped__"), name)

    def __reduce__(self) -> str:
        return self.__name__  # of this module

    def __repr__(self) -> str:
        return f"<function {self.__name__} of autograd.numpy>"


# Made when it is read: it takes milliseconds for each operation.
_OfOperator.__doc__ = property(lambda self: self._operation.__doc__)  # type: ignore[assignment]  # it gives a string


add = _OfOperator(elementwise.add, np.add)
subtract = _OfOperator(elementwise.subtract, np.subtract)
multiply = _OfOperator(elementwise.multiply, np.multiply)
divide = _OfOperator(elementwise.divide, np.divide)
mod = _OfOperator(_ufuncs.mod, np.mod)
power = _OfOperator(elementwise.power, np.power)
negative = _OfOperator(elementwise.negative, np.negative)
matmul = _OfOperator(_matmul, np.matmul)
