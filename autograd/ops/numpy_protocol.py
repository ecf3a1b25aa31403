"""NumPy's own functions called on Tensors: ``numpy.exp(x)``, ``array * x``, ``numpy.concatenate([x, y])``.

Which operation stands for which of NumPy's functions follows from the names: `autograd.numpy` registers itself here,
with its `linalg` and `fft`, and the table is made of them when the first such call comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..engine.primitive import registry
from ..engine.tensor import TENSORS
from ..errors import NotDifferentiable, call_site
from ..layouts.messages import describe
from .arguments import followed, operand, refusal
from .shape import reshape

__all__ = ["CONSTANT", "from_function", "from_ufunc", "register", "values"]

CONSTANT = frozenset((
    "allclose", "argwhere", "array2string", "array_equal", "array_equiv", "array_repr", "array_str",
    "broadcast_shapes", "can_cast", "common_type", "diag_indices_from", "digitize", "flatnonzero", "gcd", "in1d",
    "iscomplexobj", "isdtype", "isin", "isrealobj", "isscalar", "issubdtype", "lcm", "lexsort", "matrix_rank",
    "may_share_memory", "min_scalar_type", "nanargmax", "nanargmin", "ndim", "nonzero", "packbits",
    "ravel_multi_index", "result_type", "save", "savetxt", "savez", "savez_compressed", "searchsorted", "shape",
    "shares_memory", "size", "tril_indices_from", "triu_indices_from", "typename", "unique", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unpackbits", "unravel_index",
))  # fmt: skip
"""Functions of NumPy whose results are constant, discrete or text: on a Tensor they run on its values."""

_REDUCED = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
            "logical_or": "any"}  # fmt: skip
_ACCUMULATED = {"add": "cumsum", "multiply": "cumprod"}
_ours: dict[Any, Any] = {}
_faces: list[tuple[dict[str, Any], Any]] = []


def register(ours: dict[str, Any], theirs: Any) -> None:
    """Use the functions of a namespace in the place of those of the same name in a module of NumPy's."""
    _faces.append((ours, theirs))
    _ours.clear()


def table() -> dict[Any, Any]:
    """NumPy's function -> ours, for every registered name that is not NumPy's own object."""
    if not _ours:
        for here, there in _faces:
            for name, ours in here.items():
                theirs = getattr(there, name, None)
                if callable(theirs) and ours is not theirs and not isinstance(theirs, type) and name[0] != "_":
                    _ours[theirs] = ours
    return _ours


def values(x: Any) -> Any:
    """Arguments with arrays in the place of Tensors, in lists and tuples too."""
    if x.__class__ in TENSORS:
        return x.array
    if isinstance(x, list | tuple) and type(x) in (list, tuple):
        return type(x)([values(item) for item in x])
    return x


def _first_followed(xs: Iterable[Any]) -> Any:
    for x in xs:
        if followed(x):
            return x
        if isinstance(x, list | tuple):
            found = _first_followed(x)
            if found is not None:
                return found
    return None


def _on_values(name: str, function: Any, xs: Any, options: Any) -> Any:
    """What has no derivative here: refused where a tape follows an operand, else computed on the values."""
    x = _first_followed((*xs, *options.values()))
    if x is not None and name not in CONSTANT:
        raise NotDifferentiable(
            f"numpy.{name} has no derivative here, and a tape follows its operand "
            f"{describe(x.array, x.array.shape, x.layout)}. Fix: x.numpy() or stop_gradient(x) where no gradient is "
            "wanted, or a function of autograd.numpy that has one" + call_site()
        )
    return function(*values(tuple(xs)), **{k: values(v) for k, v in options.items()})


def from_ufunc(ufunc: Any, method: str, xs: Any, options: Any) -> Any:
    """``Tensor.__array_ufunc__``: a call, a reduction, a running or an outer application of a universal function."""
    name = ufunc.__name__
    out = options.get("out")
    if out is not None and any(target is not None for target in out):
        raise refusal(name, {"out": out})
    options = {k: v for k, v in options.items() if k != "out" and not (k == "where" and v is True)}
    ours = table().get(ufunc)
    if ours is None and name in registry and registry[name].function is ufunc:
        ours = registry[name]
    if method == "__call__" and ours is not None and not options:
        return ours(*xs)
    if method == "reduce" and name in _REDUCED and not options.keys() - {"axis", "keepdims", "dtype"}:
        options = {k: v for k, v in options.items() if v is not None or k == "axis"}
        return table()[getattr(np, _REDUCED[name])](*xs, **{"axis": 0, **options})
    if method == "accumulate" and name in _ACCUMULATED and not options.keys() - {"axis", "dtype"}:
        return table()[getattr(np, _ACCUMULATED[name])](*xs, **{"axis": 0, **options})
    if method == "outer" and ours is not None and not options:
        a, b = map(operand, xs)
        return ours(reshape(a, (*a.shape, *(1,) * b.ndim)), b)
    return _on_values(name if method == "__call__" else f"{name}.{method}", getattr(ufunc, method), xs, options)


def from_function(function: Any, args: Any, words: Any) -> Any:
    """``Tensor.__array_function__``: any other function of NumPy."""
    ours = table().get(function)
    if ours is not None:
        return ours(*args, **words)
    return _on_values(function.__name__, function, args, words)
