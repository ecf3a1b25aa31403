"""NumPy's functions called on Tensors: ``numpy.exp(x)``, ``array * x``, ``numpy.concatenate([x, y])``.

They run the function of the same name in `autograd.numpy` (or its `linalg` and `fft`). The first such call loads these
modules, by name because they stand above this one, and builds the table from NumPy's functions to ours.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..engine.primitive import registry
from ..engine.tensor import TENSORS, may_need_gradient
from ..errors import NotDifferentiable, RingtapeError, SavedArrayError, instead_of, typed
from ..layouts.messages import describe
from .arguments import followed, leaves, operand, refusal, refuse_addends, refuse_parts, run_plain
from .shape import reshape

__all__ = ["CONSTANT", "from_function", "from_ufunc"]

_OF_SHAPES = frozenset((
    "can_cast", "common_type", "iscomplexobj", "isdtype", "isrealobj", "isscalar", "issubdtype", "may_share_memory",
    "min_scalar_type", "ndim", "result_type", "shape", "shares_memory", "size",
))  # fmt: skip
"""Functions that read no values."""

_OF_ELEMENTS = {"array2string": 0, "array_repr": 0, "array_str": 0, "digitize": 0, "in1d": 0, "isin": 0,
                "searchsorted": 1}  # fmt: skip
"""Those that treat each element of an operand alike, with its index: of a part they give the part of the result."""

CONSTANT = _OF_SHAPES.union(_OF_ELEMENTS, (
    "allclose", "argwhere", "array_equal", "array_equiv", "broadcast_shapes", "diag_indices_from", "flatnonzero", "gcd",
    "lcm", "lexsort", "matrix_rank", "nanargmax", "nanargmin", "nonzero", "packbits", "ravel_multi_index", "save",
    "savetxt", "savez", "savez_compressed", "tril_indices_from", "triu_indices_from", "typename", "unpackbits",
    "unravel_index",
))  # fmt: skip
"""NumPy's functions whose results are piecewise constant, discrete or text. On a Tensor they run on its values."""

_INSTEAD = {
    "add.at": instead_of("Tensor", "scatter_add"),
    "intersect1d": "numpy.unique(x[numpy.isin(x, y)]), which selects the elements by their places",
    "setdiff1d": "numpy.unique(x[~numpy.isin(x, y)]), which selects the elements by their places",
    "setxor1d": "numpy.union1d(x[~numpy.isin(x, y)], y[~numpy.isin(y, x)]), which selects the elements by their places",
}
"""What is differentiable and computes the same as a function that is not in `CONSTANT`."""

_ALONG = {
    "reduce": ({"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
                "logical_or": "any"}, {"axis", "keepdims", "dtype"}),
    "accumulate": ({"add": "cumsum", "multiply": "cumprod"}, {"axis", "dtype"}),
}  # fmt: skip
"""The methods of ufuncs along an axis: NumPy's functions that do the same, by ufunc, and the options that they take."""
_OPTIONS = {"vecdot": {"axis"}}
"""Options of ufuncs that our functions take, too."""

_MODULES = ("numpy", "numpy.linalg", "numpy.fft")
"""NumPy's modules. Below `autograd` ours have the same names."""


@cache  # one entry; without it each call of a NumPy function on a Tensor takes 74 us more
def table() -> dict[Any, Any]:
    """Return the map from NumPy's functions to ours, for every name in ours that is not NumPy's own object."""
    package, found = __package__.partition(".")[0], {}
    for module in _MODULES:
        there = import_module(module)
        for name, ours in vars(import_module(f"{package}.{module}")).items():
            theirs = getattr(there, name, None)
            if callable(theirs) and ours is not theirs and not isinstance(theirs, type) and name[0] != "_":
                found[theirs] = ours
    return found


def _on_values(name: str, function: Any, xs: Any, options: Any) -> Any:
    """Run a function without derivative on plain arrays.

    Raises
    ------
    NotDifferentiable
        A tape records an operand, and the function is not in `CONSTANT`.
    LayoutError
        An operand is Partial, or it is Shard and the function combines its elements: the result would be that of this
        rank's addend or part.
    """
    every = (*xs, *options.values())
    x = next(filter(followed, leaves(every)), None)
    if x is not None and name not in CONSTANT:
        fix = "stop_gradient(x) where no gradient is wanted, or a function of autograd.numpy that has one"
        raise NotDifferentiable(
            f"numpy.{name} has no derivative here, and a tape records its operand "
            f"{describe(x.array, x.array.shape, x.layout)}. Fix: {_INSTEAD.get(name, fix)}"
        )
    if name in _OF_SHAPES:
        return run_plain(function, tuple(xs), options)
    caller = f"numpy.{name}"
    refuse_addends(caller, every)
    if not isinstance(function, np.ufunc):
        alike = _OF_ELEMENTS.get(name, -1)
        refuse_parts(caller, (*(x for i, x in enumerate(xs) if i != alike), *options.values()))
    return run_plain(function, tuple(xs), options)


def _ours(ufunc: Any) -> Any:
    """Our function for a ufunc, or None; of some, such as SciPy's, there is an operation only."""
    found = table().get(ufunc)
    declared = registry.get(ufunc.__name__) if found is None else None
    return declared if declared is not None and declared.function is ufunc else found


def from_ufunc(ufunc: Any, method: str, xs: Any, options: Any) -> Any:
    """``Tensor.__array_ufunc__``: a call of a ufunc, or its `reduce`, `accumulate` or `outer` method."""
    name = ufunc.__name__
    out = options.get("out")
    if out is not None and any(target is not None for target in out):
        return _with_out(ufunc, method, xs, options)
    if method == "at" and xs and xs[0].__class__ in TENSORS:
        raise SavedArrayError(
            f"numpy.{name}.at: {describe(xs[0].array, xs[0].array.shape, xs[0].layout)} was given, which it would "
            f"write to; needed: a functional form, because a tape may have saved the array\n  fix: {_INSTEAD['add.at']}"
        )
    options = {k: v for k, v in options.items() if k != "out" and not (k == "where" and v is True)}
    ours = _ours(ufunc)
    if method == "__call__" and ours is not None and not options.keys() - _OPTIONS.get(name, set()):
        return ours(*xs, **options)
    functions, taken = _ALONG.get(method, ({}, set()))
    if name in functions and not options.keys() - taken:
        options = {k: v for k, v in options.items() if v is not None or k == "axis"}
        return table()[getattr(np, functions[name])](*xs, **{"axis": 0, **options})
    if method == "outer" and ours is not None and not options:
        a, b = map(operand, xs)
        return ours(reshape(a, (*a.shape, *(1,) * b.ndim)), b)
    return _on_values(name if method == "__call__" else f"{name}.{method}", getattr(ufunc, method), xs, options)


def _with_out(ufunc: Any, method: str, xs: Any, options: Any) -> Any:
    """Run a ufunc in place, on an array and Tensors that have no gradient, as in ``w.data -= lr * w.grad``.

    Raises
    ------
    SavedArrayError, NotDifferentiable
        A Tensor may have a gradient, or the result is to be written elsewhere.
    """
    out = options["out"]
    if not xs or out[0] is not xs[0]:
        raise refusal(ufunc.__name__, {"out": out})
    is_followed = any(x.__class__ in TENSORS and may_need_gradient(x) for x in xs)
    if method != "__call__" or out[0].__class__ is not np.ndarray or is_followed:
        raise SavedArrayError(
            f"{ufunc.__name__} of an array and a Tensor, in place: a value that a tape may follow would be written to "
            "it\n  fix: w.data = w.numpy() - lr * w.grad.numpy(), for an update by hand; otherwise a = a - x, or "
            "a -= x.numpy() where no gradient is wanted"
        )
    try:
        return ufunc(*(x.numpy() if x.__class__ in TENSORS else x for x in xs), **options)
    except (TypeError, ValueError) as error:
        if isinstance(error, RingtapeError):
            raise
        raise typed(error, f"{ufunc.__name__} of an array and a Tensor, in place: {error}") from error


def from_function(function: Any, args: Any, words: Any) -> Any:
    """``Tensor.__array_function__``: a call of a NumPy function that is not a ufunc."""
    ours = table().get(function)
    if ours is None:
        return _on_values(function.__name__, function, args, words)
    try:
        return ours(*args, **words)
    except RingtapeError:
        raise
    except TypeError as error:  # arguments that ours does not have
        raise refusal(function.__name__, words, str(error)) from error
