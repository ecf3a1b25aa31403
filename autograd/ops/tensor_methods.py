"""The methods, properties and operators that Tensors share with NumPy's arrays, in tables of name and function."""

from __future__ import annotations

from importlib import import_module
from operator import index
from typing import Any

import numpy as np

from ..arrays.device import device_of
from ..arrays.read_only import guarded
from ..engine.state import state
from ..errors import ArgumentError, OptionError, SavedArrayError, typed_errors
from ..layouts.rank_values import INTEGERS
from . import (
    einsum,
    elementwise,
    indexing,
    manipulation,
    reductions,
    shape,
    sorting,
    statistics,
    torch_methods,
    ufuncs,
)
from .arguments import normal_axis, run_plain
from .contractions import matmul
from .numpy_protocol import from_function, from_ufunc

__all__ = ["METHODS", "OPERATORS", "PROPERTIES", "TENSOR_ATTRIBUTES", "UNREFLECTED_OPERATORS"]


def _reshape(x: Any, *given: Any, order: str = "C", copy: Any = None) -> Any:
    """Return the same elements in another shape, given as one tuple or as several integers."""
    return shape.reshape(x, given[0] if len(given) == 1 else given, order)


def _transpose(x: Any, *axes: Any, dim0: Any = None, dim1: Any = None) -> Any:
    """Return the dimensions permuted by axes, given as one tuple or several integers; reversed without any.

    Two integers exchange these two of more dimensions, as in torch. NumPy refuses them. Of two dimensions ``(0, 1)``
    has two meanings, and is refused.
    """
    if dim0 is not None or dim1 is not None:
        return shape.swapaxes(x, *axes, dim0=dim0, dim1=dim1)
    if len(axes) == 2 and all(isinstance(axis, INTEGERS) for axis in axes):
        if len(x.array.shape) > 2:
            return shape.swapaxes(x, *axes)
        if tuple(axes) in ((0, 1), (-2, -1)) and len(x.array.shape) == 2:
            raise ArgumentError(
                f"transpose({axes[0]}, {axes[1]}) of a Tensor of two dimensions: NumPy's permutation leaves it as it "
                "is, torch's exchange transposes it\n  fix: x.T, or x itself"
            )
    one = len(axes) == 1 and not isinstance(axes[0], INTEGERS)
    return shape.transpose(x, axes[0] if one else axes or None)


def _astype(x: Any, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True,
            copy: bool = True) -> Any:  # fmt: skip
    """Return the Tensor converted to another dtype."""
    return elementwise.astype(x, dtype)


@typed_errors
def _flatten(x: Any, start_dim: Any = 0, end_dim: Any = -1, *, order: str = "C") -> Any:
    """Return all elements in one dimension, or those of the dimensions from `start_dim` to `end_dim`, as torch does.

    NumPy's only argument is the order, which is a text.
    """
    if isinstance(start_dim, str):
        start_dim, order = 0, start_dim
    if (start_dim, end_dim) == (0, -1) or not x.array.shape:
        return shape.ravel(x, order)
    first, last = normal_axis(start_dim, x.ndim, "start_dim"), normal_axis(end_dim, x.ndim, "end_dim")
    if first > last:
        text = f"flatten: start_dim={start_dim} and end_dim={end_dim} of an array of {x.ndim} dimensions were given"
        raise ArgumentError(f"{text}; needed: start_dim before end_dim")
    return shape.reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))


def _dot(x: Any, b: Any, out: None = None) -> Any:
    """Return ``numpy.dot(x, b)``."""
    return einsum.dot(x, b) if out is None else einsum.dot(x, b, out)


def _nonzero(x: Any) -> Any:
    """Return the indices of the nonzero elements, one array per dimension."""
    return run_plain(np.nonzero, (x,), {})


def _searchsorted(x: Any, v: Any, side: Any = "left", sorter: Any = None) -> Any:
    """Return the indices at which values would be inserted to keep the order."""
    return run_plain(np.searchsorted, (x, v, side, sorter), {})


def _device(x: Any) -> str:
    """The device of its array: "cpu", or the name of an accelerator such as "cuda:0"."""
    return device_of(x.array)


_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")  # of the array standard


@typed_errors
def _array_namespace(x: Any, /, *, api_version: str | None = None) -> Any:
    """Return `autograd.numpy`, whose functions are those of the array standard, and differentiable.

    Raises
    ------
    OptionError
        Another version of the standard is asked for than 2021.12 to 2024.12.
    """
    if api_version is not None and api_version not in _VERSIONS:
        raise OptionError(
            f"__array_namespace__: api_version={api_version!r} was given; needed: one of {', '.join(_VERSIONS)}"
        )
    return import_module(f"{__package__.partition('.')[0]}.numpy")  # it stands above this module


@typed_errors
def _dlpack(x: Any, /, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
    """Return this rank's array as a capsule of DLPack: the same memory, marked read-only where the protocol can say so.

    While a tape needs the array it is copied, unless the consumer insists with ``copy=False``: several libraries write
    to memory that is marked read-only. The consumer keeps the memory alive.

    Raises
    ------
    TapeError, LayoutError, AbsentError
        As ``x.numpy()`` does: no gradient flows through the memory, and an addend is not the value.
    SavedArrayError
        ``copy=False``, a tape needs the array, and the consumer does not know read-only memory.
    """
    x._refuse_addend("from_dlpack")
    if state.recording is not None and x.requires_grad:
        x._refuse_exit("from_dlpack({x})", "from_dlpack(stop_gradient({x}))", False)
    array = x.local  # AbsentError where it is absent
    array = np.asarray(array) if isinstance(array, np.generic) else array
    if max_version is not None and tuple(max_version) < (1, 0):
        max_version = None  # which has no flag for read-only memory
    if copy is not True and isinstance(array, np.ndarray):
        if not array.flags.writeable and copy is False and max_version is None:
            raise SavedArrayError(
                f"from_dlpack with copy=False of an array of shape {array.shape} that a tape needs or that is "
                "read-only; needed: a consumer that knows read-only memory (DLPack 1.0)\n  fix: copy=True, or after "
                "tape.backward(...), which releases it"
            )
        if not array.flags.writeable and copy is None:
            copy = True
        elif max_version is not None:
            array = guarded(array)
    words = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
    if isinstance(array, np.ndarray) and copy is True:
        array, words["copy"] = array.copy(), None
    return array.__dlpack__(**{key: value for key, value in words.items() if value is not None})


def _dlpack_device(x: Any) -> tuple[int, int]:
    """Return the kind and the number of the device of its array, as DLPack numbers them."""
    found: tuple[int, int] = (np.empty(0) if isinstance(x.array, np.generic) else x.array).__dlpack_device__()
    return found


def _to_device(x: Any, device: Any, /, *, stream: Any = None) -> Any:
    """Return `x` on a device, "cpu" or "cuda", as ``to`` does; with a gradient."""
    return x if isinstance(device, str) and device == device_of(x.array) else x.to(device)


STANDARD: dict[str, Any] = {
    "__array_namespace__": _array_namespace,
    "__dlpack__": _dlpack,
    "__dlpack_device__": _dlpack_device,
    "to_device": _to_device,
}
"""The methods of the array standard, of which NumPy's arrays have some in another form."""
METHODS: dict[str, Any] = {
    "all": reductions.all,
    "any": reductions.any,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "argpartition": sorting.argpartition,
    "argsort": sorting.argsort,
    "astype": _astype,
    "choose": sorting.choose,
    "clip": ufuncs.clip,
    "compress": lambda x, condition, *args, **words: sorting.compress(condition, x, *args, **words),
    "conj": elementwise.conj,
    "conjugate": elementwise.conj,
    "cumprod": statistics.cumprod,
    "cumsum": statistics.cumsum,
    "diagonal": manipulation.diagonal,
    "dot": _dot,
    "flatten": _flatten,
    "copy": torch_methods.copy,
    "max": reductions.max,
    "mean": reductions.mean,
    "min": reductions.min,
    "nonzero": _nonzero,
    "prod": statistics.prod,
    "ptp": ufuncs.ptp,
    "ravel": shape.ravel,
    "repeat": manipulation.repeat,
    "reshape": _reshape,
    "round": ufuncs.round,
    "searchsorted": _searchsorted,
    "squeeze": shape.squeeze,
    "std": statistics.std,
    "sum": reductions.sum,
    "swapaxes": shape.swapaxes,
    "take": sorting.take,
    "trace": manipulation.trace,
    "transpose": _transpose,
    "var": statistics.var,
    "tolist": lambda x: x.numpy().tolist(),
}
PROPERTIES: dict[str, Any] = {
    "T": shape.transpose,
    "mT": shape.matrix_transpose,
    "real": elementwise.real,
    "imag": elementwise.imag,
    "itemsize": lambda x: x.dtype.itemsize,
    "device": _device,
    "nbytes": lambda x: x.size * x.dtype.itemsize,
}
OPERATORS: dict[str, Any] = {
    "add": elementwise.add,
    "sub": elementwise.subtract,
    "mul": elementwise.multiply,
    "truediv": elementwise.divide,
    "matmul": matmul,
    "pow": elementwise.power,
    "mod": ufuncs.mod,
    "floordiv": ufuncs.floor_divide,
    "divmod": ufuncs.divmod,
    "and": ufuncs.bitwise_and,
    "or": ufuncs.bitwise_or,
    "xor": ufuncs.bitwise_xor,
    "lshift": ufuncs.left_shift,
    "rshift": ufuncs.right_shift,
}
"""Operators with a reflected form, such as ``__radd__``."""
UNREFLECTED_OPERATORS: dict[str, Any] = {
    "neg": elementwise.negative,
    "abs": elementwise.absolute,
    "eq": lambda x, other: NotImplemented if other is None else elementwise.equal(x, other),
    "ne": lambda x, other: NotImplemented if other is None else elementwise.not_equal(x, other),
    "lt": elementwise.less,
    "le": elementwise.less_equal,
    "gt": elementwise.greater,
    "ge": elementwise.greater_equal,
    "getitem": indexing.getitem,
    "invert": ufuncs.invert,
}
"""Operators without a reflected form."""
IN_PLACE = ("fill", "itemset", "partition", "put", "resize", "setfield", "sort")


def _index(x: Any) -> int:
    """Return the integer that a Tensor of one integer holds."""
    try:
        return index(x._whole("index"))
    except TypeError as error:
        text = f"a Tensor of shape {x.array.shape} and dtype {x.dtype} was given for an integer"
        raise ArgumentError(text) from error


def _refused(name: str) -> Any:
    def method(self: Any, *args: Any, **words: Any) -> Any:
        fix = "where(mask, new, x), or write to x.numpy().copy()"
        fix = f"autograd.numpy.{name}(x)" if name in ("sort", "partition") else fix
        raise SavedArrayError(
            f"{name} of a Tensor of shape {self.array.shape} would write to an array that a tape may have saved; "
            f"needed: an operation that returns a new Tensor. Fix: {fix}"
        )

    return method


def _method(function: Any) -> Any:
    """The function to install as a method. Of a Primitive it is its call function, which saves a Python frame."""
    return getattr(function, "call", function)


def _reflected(function: Any, unchanged: Any) -> Any:
    def reflected(self: Any, other: Any) -> Any:
        if unchanged is not None and other.__class__ is int and other == 0:
            return unchanged(self)  # the builtin sum([...]) begins with 0
        return function(other, self)

    return reflected


def _attributes() -> dict[str, Any]:
    """The attributes of Tensors that are operations, by name."""
    found: dict[str, Any] = {
        "_from_ufunc": staticmethod(from_ufunc),
        "_from_function": staticmethod(from_function),
        "__pos__": lambda self: self,
        "__round__": lambda self, decimals=0: ufuncs.round(self, decimals),
        "__index__": _index,
    }
    found |= {name: _method(function) for name, function in (METHODS | STANDARD | torch_methods.METHODS).items()}
    found |= {name: property(function) for name, function in PROPERTIES.items()}
    for name, function in OPERATORS.items():
        found[f"__{name}__"] = _method(function)
        found[f"__r{name}__"] = _reflected(_method(function), function.unchanged if name == "add" else None)
    found |= {f"__{name}__": _method(function) for name, function in UNREFLECTED_OPERATORS.items()}
    return found | {name: _refused(name) for name in IN_PLACE}


TENSOR_ATTRIBUTES = _attributes()
"""The methods, properties and operators of Tensors, which the class takes from here (`autograd.engine.first_use`)."""
