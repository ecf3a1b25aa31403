"""Arrays that have a shape and a dtype and no values.

They stand for a value that is on another rank (`Rooted`), and for every value of a dry run. The reason that a `Shaped`
carries tells the two apart: `DRY`, or another text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import AbsentError

__all__ = ["DRY", "Shaped", "is_absent", "shape_only"]


DRY = "this is a dry run: arrays have shapes and no values"
"""The reason of the arrays of a dry world."""


class Shaped(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with a shape and a dtype and no values; reading a value raises `AbsentError` with the reason given.

    Examples
    --------
    >>> a = Shaped((2, 3), "float32")
    >>> (a @ Shaped((3, 5), "float32")).shape, np.tanh(a).dtype.name
    ((2, 5), 'float32')
    """

    __slots__ = ("dtype", "shape", "why")

    def __init__(self, shape: Sequence[int], dtype: Any = np.float64, why: str = "it has a shape only"):
        self.shape = tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.why = why

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    T = property(lambda self: Shaped(self.shape[::-1], self.dtype, self.why))
    real = property(lambda self: Shaped(self.shape, np.zeros((), self.dtype).real.dtype, self.why))
    imag = property(lambda self: Shaped(self.shape, np.zeros((), self.dtype).real.dtype, self.why))
    absent = property(lambda self: self.why != DRY, doc="Whether the value is on another rank; not so in a dry run.")

    def _no_value(self, *args: Any, **kwargs: Any) -> Any:
        raise AbsentError(f"the value {self!r} cannot be read here: {self.why}")

    __array__ = __float__ = __int__ = __bool__ = __index__ = __complex__ = item = tolist = tobytes = _no_value
    __setitem__ = _no_value

    def __repr__(self) -> str:
        return f"Shaped({self.shape}, {self.dtype.name})"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Shaped:
        return Shaped(_stand_in(self)[_stand_in_key(key)].shape, self.dtype, self.why)

    def astype(self, dtype: Any, copy: bool = True) -> Shaped:
        return Shaped(self.shape, dtype, self.why)

    def reshape(self, *shape: Any) -> Shaped:
        return Shaped(_stand_in(self).reshape(*shape).shape, self.dtype, self.why)

    def copy(self) -> Shaped:
        return self

    def ravel(self) -> Shaped:
        return Shaped((self.size,), self.dtype, self.why)

    def view(self, dtype: Any) -> Shaped:
        """The same bytes under another dtype, along the last dimension."""
        new, bytes_there = np.dtype(dtype), self.dtype.itemsize * (self.shape[-1] if self.shape else 1)
        if bytes_there % new.itemsize or (not self.shape and new.itemsize != self.dtype.itemsize):
            raise ValueError(f"a view of {self!r} as {new}: its last dimension does not fit")
        return Shaped((*self.shape[:-1], bytes_there // new.itemsize) if self.shape else (), new, self.why)

    def conj(self) -> Shaped:
        return self

    def dot(self, other: Any) -> Shaped:
        return self @ other

    def sum(self, **options: Any) -> Shaped:
        return np.sum(self, **options)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if any(hasattr(type(x), "__array_ufunc__") and not isinstance(x, _OURS) for x in inputs):
            return NotImplemented  # a class that handles this one: a Tensor
        why = self.why
        if method == "at" or any(not isinstance(target, Shaped) for target in out):
            raise AbsentError(f"numpy.{ufunc.__name__} was to write to a real array what is not known: {why}")
        if out:
            result = self.__array_ufunc__(ufunc, method, *inputs, **options)
            if result.shape != out[0].shape:
                raise ValueError(f"a result of shape {result.shape} does not fit into one of shape {out[0].shape}")
            return Shaped(result.shape, out[0].dtype, why)
        if ufunc is np.matmul and method == "__call__":
            a, b = inputs
            return Shaped(
                _matmul_shape(np.shape(_stand_in(a)), np.shape(_stand_in(b))), np.result_type(a.dtype, b.dtype), why
            )
        if method == "reduce":
            return _reduced(ufunc.reduce, inputs[0], options.pop("axis", 0), options.pop("keepdims", False))
        if method != "__call__" or ufunc.nout != 1 or ufunc.signature is not None:
            return _wrap(getattr(ufunc, method)(*map(_stand_in, inputs), **options), why)
        weak = (bool, int, float, complex)
        dtypes = [type(x) if type(x) in weak else np.asarray(_stand_in(x)).dtype for x in inputs]
        shape = np.broadcast_shapes(*(np.shape(_stand_in(x)) for x in inputs))
        return Shaped(shape, ufunc.resolve_dtypes((*dtypes, None))[-1], why)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in _READ_VALUES:
            raise AbsentError(
                f"numpy.{function.__name__} of {self!r} reads values, also for the shape of its result: {self.why}\n"
                "  fix: a function whose result has a shape that does not depend on values, such as where(mask, x, 0)"
            )
        if function in _REDUCTIONS:
            axis = kwargs.get("axis", args[1] if len(args) > 1 else None)
            return _reduced(function, args[0], axis, kwargs.get("keepdims", False))
        if function is np.where:  # computed here, because NumPy would allocate the result of stand-ins
            tiny = [np.zeros((), x.dtype) if hasattr(x, "dtype") else x for x in args]
            return Shaped(np.broadcast_shapes(*(np.shape(_stand_in(x)) for x in args)), np.where(*tiny).dtype, self.why)
        if function is np.concatenate:
            parts, axis = args[0], kwargs.get("axis", args[1] if len(args) > 1 else 0)
            shape = list(parts[0].shape)
            shape[axis] = sum(p.shape[axis] for p in parts)
            return Shaped(shape, np.result_type(*(p.dtype for p in parts)), self.why)
        if function in _LIKE:
            given, dtype = kwargs.get("shape"), kwargs.get("dtype")
            whole: Any = self.shape if given is None else (given,) if isinstance(given, int | np.integer) else given
            return Shaped(whole, self.dtype if dtype is None else dtype, self.why)
        if function is np.cumsum and kwargs.get("axis") is not None:
            return Shaped(self.shape, np.cumsum(np.zeros(1, self.dtype), dtype=kwargs.get("dtype")).dtype, self.why)
        return _wrap(function(*_stand_ins(args), **{k: _stand_ins(v) for k, v in kwargs.items()}), self.why)


_OURS = (Shaped, np.ndarray, np.generic)
_REDUCTIONS = {np.sum, np.mean, np.max, np.min, np.prod, np.any, np.all, np.argmax, np.argmin}
_READ_VALUES = {
    np.allclose, np.argwhere, np.array2string, np.array_equal, np.array_equiv, np.array_repr, np.array_str, np.bincount,
    np.extract, np.flatnonzero, np.intersect1d, np.nonzero, np.setdiff1d, np.setxor1d, np.trim_zeros, np.union1d,
    np.unique, np.unique_all, np.unique_counts, np.unique_inverse, np.unique_values,
}  # fmt: skip
"""Functions of which a stand-in gives a number, a text or a shape that the values would not."""
_LIKE = {np.zeros_like, np.ones_like, np.empty_like, np.full_like}


def _reduced(function: Any, x: Shaped, axis: Any, keepdims: bool) -> Shaped:
    """A reduction: the dtype from one element, the shape from the axes."""
    axes = range(x.ndim) if axis is None else [a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)]
    dtype = function(np.zeros((1,) * x.ndim, x.dtype), axis=axis).dtype
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    return Shaped(shape, dtype, x.why)


def _matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if not a or not b or a[-1] != b[max(len(b) - 2, 0)]:
        raise ValueError(f"matmul of shapes {a} and {b}: the inner extents do not fit")
    return (*np.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _stand_in(x: Any) -> Any:
    """A NumPy array of the same shape that takes no memory (all strides are zero), to find a result's shape."""
    return np.broadcast_to(np.zeros((), x.dtype), x.shape) if isinstance(x, Shaped) else x


def _stand_in_key(key: Any) -> Any:
    """An index with stand-ins for its arrays. A boolean mask is refused: the result's shape depends on its values."""
    if isinstance(key, tuple):
        return tuple(map(_stand_in_key, key))
    if isinstance(key, Shaped) and key.dtype == bool:
        key._no_value()
    return _stand_in(key)


def _stand_ins(x: Any) -> Any:
    return type(x)(_stand_ins(item) for item in x) if isinstance(x, list | tuple) else _stand_in(x)


def _wrap(result: Any, why: str) -> Any:
    if isinstance(result, list | tuple):
        return getattr(type(result), "_make", type(result))(_wrap(item, why) for item in result)
    if isinstance(result, np.ndarray | np.generic):
        return Shaped(result.shape, result.dtype, why)
    return result


def is_absent(x: Any) -> bool:
    """Whether the value of `x` is on another rank."""
    return type(x) is Shaped and x.absent


def shape_only(x: Any) -> Any:
    """The shape-only array of a dry world for `x`."""
    return x if type(x) is Shaped and not x.absent else Shaped(x.shape, x.dtype, DRY)
