"""The functions of Python's arithmetic operators, with the arguments of NumPy's: ``divide(a, b, out=, where=)``.

Without a Tensor NumPy's own function runs, so the result of Python numbers has a dtype, lists are arrays, and every
argument of NumPy's function is legal. With one the operation runs. It has no ``out=`` and no ``where=``.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import numpy as np

from ..engine.tensor import TENSORS
from ..ops import elementwise
from ..ops import ufuncs as _ufuncs
from ..ops.arguments import ask, of_rank_numbers, refusal, tensors_in
from ..ops.matmul import matmul as _matmul

__all__ = ["add", "divide", "matmul", "mod", "multiply", "negative", "power", "subtract"]


def _of_operator(operation: Any, theirs: Any) -> Any:
    count, name, run = len(operation.words), theirs.__name__, operation.call

    @wraps(theirs)
    def call(*args: Any, **words: Any) -> Any:
        for x in args:
            if x.__class__ in TENSORS:
                break
        else:
            if not tensors_in(args) and not (words and tensors_in(words.values())):
                return of_rank_numbers(theirs, args, words)
        extra = dict(zip(("out",), args[count:], strict=False)) | words
        extra = {key: x for key, x in extra.items() if not (x is None or (key == "where" and x is True))}
        dtype = extra.pop("dtype", None)
        if extra or len(args) < count:
            raise refusal(name, extra)
        if dtype is None:
            return run(*args[:count])
        ask(theirs, args[:count], {"dtype": dtype})  # raises what NumPy raises
        return run(*args[:count]).astype(dtype)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = operation.__doc__
    call.__module__ = "autograd.numpy"
    return call


add = _of_operator(elementwise.add, np.add)
subtract = _of_operator(elementwise.subtract, np.subtract)
multiply = _of_operator(elementwise.multiply, np.multiply)
divide = _of_operator(elementwise.divide, np.divide)
mod = _of_operator(_ufuncs.mod, np.mod)
power = _of_operator(elementwise.power, np.power)
negative = _of_operator(elementwise.negative, np.negative)
matmul = _of_operator(_matmul, np.matmul)
