"""Array creation from Tensors: `array` of nested lists, stacks and blocks, `full`, `linspace`, `meshgrid`."""

from __future__ import annotations

import math
from functools import wraps
from operator import index
from typing import Any

import numpy as np

from ..arrays.device import device_of, of_gpu, to_device
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import ArgumentError, DtypeError, OptionError, ShapeError, short, typed_errors
from ..layouts.layout import Shard, V
from ..layouts.rank_values import INTEGERS, has_local_count, plain, rank_axes, rank_number
from .arguments import (
    constant_like,
    instead_of,
    leaves,
    made_of,
    named,
    normal_axis,
    of_rank_numbers,
    on_values,
    operand,
    operands,
    raw,
    run_plain,
    shaped,
    strong,
    tensors_in,
)
from .elementwise import power
from .shape import (
    broadcast_to,
    common_shape,
    concatenate,
    expand_dims,
    moveaxis,
    ravel,
    repeated_to,
    reshape,
    swapaxes,
)
from .ufuncs import floor

__all__ = [
    "append", "arange", "array", "asanyarray", "asarray", "ascontiguousarray", "atleast_1d", "atleast_2d",
    "atleast_3d", "block", "broadcast_arrays", "column_stack", "copy", "dstack", "empty_like", "eye", "from_dlpack",
    "full", "full_like", "hstack", "identity", "linspace", "logspace", "meshgrid", "ones", "ones_like", "row_stack",
    "tri", "vstack", "zeros", "zeros_like",
]  # fmt: skip


# -- array() ---------------------------------------------------------------------------------------------------------
@instead_of(np.array, checked=1)
def array(object: Any, dtype: Any = None, *, copy: Any = True, order: Any = None, subok: bool = False,
          ndmin: int = 0) -> Any:  # fmt: skip
    """Return an array. From a Tensor, or nested lists that hold Tensors, it is a Tensor with a gradient.

    Adjoint: the part of the cotangent at the place of each Tensor.

    Examples
    --------
    >>> import autograd as ag, autograd.numpy as np
    >>> [float(g) for g in ag.grad(lambda x, y: np.sum(np.array([[x, y], [y, 1.0]])), (0, 1))(2.0, 3.0)]
    [1.0, 2.0]
    """
    y = operand(object)
    if dtype is not None:
        y = y.astype(np.dtype(dtype))
    return expand_dims(y, tuple(range(ndmin - y.ndim))) if y.ndim < ndmin else y


def _array_converter(theirs: Any) -> Any:
    """A function like ``np.asarray``: NumPy's own on arrays, `array` on Tensors."""

    @instead_of(theirs)
    def converted(a: Any, dtype: Any = None, order: Any = None, **words: Any) -> Any:
        return array.__wrapped__(a, dtype, ndmin=int(theirs is np.ascontiguousarray))

    summary = f"Return `a` as an array, as `numpy.{theirs.__name__}` does; a Tensor as it is. Adjoint: the cotangent."
    return named(converted, theirs, summary)


_CONVERTERS: tuple[Any, ...] = np.asarray, np.asanyarray, np.ascontiguousarray
asarray, asanyarray, ascontiguousarray = map(_array_converter, _CONVERTERS)


@instead_of(np.copy)
def copy(a: Any, order: Any = "K", subok: bool = False) -> Any:
    """Return `a` itself. Tensors are never changed in place, so a copy is not needed. Adjoint: the cotangent."""
    return array(a)


@typed_errors
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> np.ndarray | Any:
    """Return the memory of another library's array as an array, without a copy: of torch, JAX, CuPy, or a Tensor.

    It is an array of NumPy or, where the memory is that of a GPU, of CuPy. The array keeps the memory alive. It has no
    derivative: no gradient flows between the libraries.

    Parameters
    ----------
    x : object with ``__dlpack__``
    device : str, optional
        Where the array has to be: "cpu" or "cuda". A move is a copy.
    copy : bool, optional
        True: always copy. False: never, or raise.

    Raises
    ------
    DtypeError
        `x` has no ``__dlpack__``.
    OptionError
        ``copy=False``, and the array is on another device.

    Examples
    --------
    >>> import numpy, autograd.numpy as np
    >>> a = numpy.arange(3.0)
    >>> numpy.shares_memory(np.from_dlpack(a), a)
    True
    """
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise DtypeError(f"from_dlpack: {short(x)} was given; needed: an array with __dlpack__, as torch's and JAX's")
    if copy not in (None, True, False):
        raise ArgumentError(f"from_dlpack: copy={short(copy)} was given; needed: True, False or None")
    kind = x.__dlpack_device__()[0]
    if kind == 2:  # kDLCUDA of DLPack's header
        array = of_gpu(x)
        array = array.copy() if copy is True else array
    else:
        array = np.from_dlpack(x, copy=copy)
    if device is None or device == device_of(array):
        return array
    if copy is False:
        here = device_of(array)
        raise OptionError(f"from_dlpack: copy=False and device={device!r} were given for an array on {here}")
    return to_device(array, device)


# -- at least n dimensions, stacks and blocks ------------------------------------------------------------------------
def _at_least(n: int) -> Any:
    theirs = (np.atleast_1d, np.atleast_2d, np.atleast_3d)[n - 1]

    @instead_of(theirs, checked=1)
    def at_least(*arys: Any) -> Any | tuple[Any, ...]:
        found = []
        for a in arys:
            a = operand(a)
            ndim = len(raw(a).shape)
            if ndim < n:
                last = (n - 1,) if n == 3 and ndim else ()
                a = expand_dims(a, (*range(n - ndim - len(last)), *last))
            found.append(a)
        return found[0] if len(found) == 1 else tuple(found)

    dimensions = "dimensions" if n > 1 else "dimension"
    return named(at_least, theirs, f"Return each operand with at least {n} {dimensions}. Adjoint: a reshape.")


atleast_1d, atleast_2d, atleast_3d = map(_at_least, (1, 2, 3))


def _has_dims(x: Any, n: int) -> bool:
    return x.__class__ in TENSORS and len(x.array.shape) >= n


@instead_of(np.vstack, checked=1)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Return the arrays joined along the first dimension. One-dimensional operands are rows.

    Adjoint: the part of the cotangent that an operand has become.
    """
    return concatenate([x if _has_dims(x, 2) else atleast_2d(shaped(x)) for x in tup], 0, dtype=dtype, casting=casting)


row_stack = vstack


@instead_of(np.hstack, checked=1)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Return the arrays joined along the second dimension, or along the only one of one-dimensional operands.

    Adjoint: the part of the cotangent that an operand has become.
    """
    xs = [x if _has_dims(x, 1) else atleast_1d(shaped(x)) for x in tup]
    return concatenate(xs, 0 if xs[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@instead_of(np.dstack, checked=1)
def dstack(tup: Any) -> Any:
    """Return the arrays joined along the third dimension.

    Adjoint: the part of the cotangent that an operand has become.
    """
    return concatenate([x if _has_dims(x, 3) else atleast_3d(shaped(x)) for x in tup], 2)


@instead_of(np.column_stack)
def column_stack(tup: Any) -> Any:
    """Return the arrays joined along the second dimension. One-dimensional operands are columns.

    Adjoint: the part of the cotangent that an operand has become.
    """
    xs = [operand(x) for x in tup]
    return concatenate([reshape(x, (-1, 1)) if x.ndim < 2 else x for x in xs], 1)


@instead_of(np.append)
def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """Return `values` appended to `arr` along an axis, or both flattened without one.

    Adjoint: the part of the cotangent that an operand has become.
    """
    arr, values = strong(arr, values)
    if axis is None:
        return concatenate([reshape(arr, (-1,)), reshape(values, (-1,))])
    return concatenate([arr, values], axis)


@instead_of(np.block)
def block(arrays: Any) -> Any:
    """Return an array assembled from nested lists of blocks.

    Adjoint: the part of the cotangent that an operand has become.

    The innermost lists are joined along the last dimension, the lists around them along the one before, and so on.
    """

    def depth(x: Any) -> int:
        return 1 + max(map(depth, x)) if isinstance(x, list) else 0

    levels = depth(arrays)

    def joined(x: Any, axis: int) -> Any:
        if not isinstance(x, list):
            x = operand(x)
            return expand_dims(x, tuple(range(ndim - x.ndim))) if x.ndim < ndim else x
        return concatenate([joined(part, axis + 1) for part in x], axis)

    ndim = max((levels, *(operand(x).ndim for x in leaves([arrays]))))
    return joined(arrays, ndim - levels)


# -- filled with a value, and evenly spaced --------------------------------------------------------------------------
def _maker(theirs: Any) -> Any:
    """A function like ``np.zeros``: NumPy's own, and under a mesh a constant."""

    @wraps(theirs)
    def made(*args: Any, **words: Any) -> Any:
        return made_of(theirs(*args, **words), *args, *words.values())

    made.__module__ = __name__  # where `pickle` finds it; `wraps` has copied NumPy's
    made.__doc__ = (
        f"Return what `numpy.{theirs.__name__}` returns; under a mesh a Tensor that is the same on all ranks (C).\n\n"
        "It is V on the axes of an argument that differs between ranks. To fill an array element by element, use "
        f"`numpy.{theirs.__name__}`."
    )
    return made


_THEIRS: tuple[Any, ...] = np.zeros, np.ones, np.eye, np.identity, np.tri, np.arange
zeros, ones, eye, identity, tri, arange = map(_maker, _THEIRS)


@typed_errors
def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", **words: Any) -> Any:
    """Return an array filled with a value. Adjoint: the sum of the cotangent. A plain number gives a constant."""
    if not tensors_in((fill_value,)):
        filled = run_plain(np.full, (shape, plain(fill_value), dtype, order), words)
        return made_of(filled, shape, fill_value) if np.shape(fill_value) == () else filled
    return (_full if state.grid is None else _full.__wrapped__)(shape, fill_value, dtype, order, **words)


@instead_of(np.full)
def _full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    value = operand(fill_value)
    value = value if dtype is None else value.astype(dtype)
    shape = (int(shape),) if isinstance(shape, INTEGERS) else tuple(shape)
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0]
    return broadcast_to(value, shape)


def _made_like(array: Any, a: Any, shape: Any, *by: Any) -> Any:
    """An array made in the shape of the Tensor `a`, or in `shape`.

    It has the labels V and Shard of `a`, where the shapes may differ between ranks, and is constant elsewhere.
    """
    made = made_of(array, shape, *by)
    grid = state.grid
    if shape is not None or grid is None:
        return made
    labels = zip(made.layout.labels, a.labelled(grid).labels, strict=True)
    made.layout = grid.layout([b if b is V or isinstance(b, Shard) else a for a, b in labels])
    return made


@typed_errors
def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True,
              shape: Any = None) -> Any:  # fmt: skip
    """Return an array of the shape and dtype of `a` filled with a value. Adjoint: the sum of the cotangent."""
    if not tensors_in((a, fill_value)):
        return of_rank_numbers(np.full_like, (a, plain(fill_value), dtype, order, subok, shape), {})
    return (_full_like if state.grid is None else _full_like.__wrapped__)(a, fill_value, dtype, order, subok, shape)


@instead_of(np.full_like)
def _full_like(a: Any, fill_value: Any, dtype: Any, order: str, subok: bool, shape: Any) -> Any:
    like = raw(a)
    dtype = np.asarray(like).dtype if dtype is None and not hasattr(like, "dtype") else dtype or like.dtype
    if fill_value.__class__ not in TENSORS:
        filled = constant_like(np.full(np.shape(like) if shape is None else shape, plain(fill_value), dtype), a)
        return filled if state.grid is None or np.shape(fill_value) else _made_like(raw(filled), a, shape, fill_value)
    if shape is None and a.__class__ in TENSORS and state.grid is not None and fill_value.layout is not None:
        own = _made_like(np.ones(np.shape(like), dtype), a, None)  # so that the labels of the shape count, too
        if np.broadcast_shapes(raw(fill_value).shape, own.array.shape) == own.array.shape:
            return operand(fill_value).astype(dtype) * own
    return full(np.shape(like) if shape is None else shape, fill_value, dtype)


def _filled_like(theirs: Any) -> Any:
    def filled(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, **words: Any) -> Any:
        array = run_plain(theirs, (a,), {"dtype": dtype, "shape": shape, **words})
        if a.__class__ in TENSORS and getattr(getattr(array, "dtype", None), "kind", "O") == "O":
            raise DtypeError(f"{theirs.__name__}: dtype={short(dtype)} was given; needed: a dtype of numbers")
        return _made_like(array, a, shape) if a.__class__ in TENSORS else array

    summary = f"Return what `numpy.{theirs.__name__}` returns; for a Tensor under a mesh a constant."
    return named(filled, theirs, summary)


zeros_like, ones_like, empty_like = map(_filled_like, (np.zeros_like, np.ones_like, np.empty_like))


@typed_errors
def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
             axis: int = 0) -> Any:  # fmt: skip
    """Return `num` evenly spaced values from `start` to `stop`, both of which have derivatives.

    Raises
    ------
    ShapeError
        `num` is negative.
    """
    if not tensors_in((start, stop)):
        words = {"num": num, "endpoint": endpoint, "retstep": retstep, "dtype": dtype, "axis": axis}
        y = np.linspace(plain(start), plain(stop), **words)
        if np.ndim(start) or np.ndim(stop):
            return y
        by = start, stop, num
        if not retstep:
            return made_of(y, *by)
        return made_of(y[0], *by), rank_number(y[1], rank_axes(by), has_local_count(by))
    make = _linspace if state.grid is None else _linspace.__wrapped__
    return make(start, stop, num, endpoint, retstep, dtype, axis)


@instead_of(np.linspace)
def _linspace(start: Any, stop: Any, num: int, endpoint: bool, retstep: bool, dtype: Any, axis: int) -> Any:
    if num < 0:
        raise ShapeError(f"linspace: num={num} was given; needed: at least 0")
    start, stop, num = *operands(start, stop), index(num)
    is_whole = dtype is not None and np.dtype(dtype).kind in "iu"
    parts = num - 1 if endpoint else num
    step = (stop - start) / parts if retstep and parts > 0 else math.nan
    if is_whole and state.grid is None:
        y = on_values(np.linspace, (start, stop, num, endpoint), {"dtype": dtype, "axis": axis})
        return (y, step) if retstep else y
    parts = parts or 1
    at = np.arange(num) / parts
    ndim = max((start.ndim, stop.ndim))
    axis = normal_axis(axis, ndim + 1)
    like = start if start.__class__ in TENSORS else stop
    kind = np.result_type(start.dtype, stop.dtype, 1.0)
    along = constant_like(at.reshape((-1,) + (1,) * ndim).astype(kind), like)
    y = expand_dims(start, 0) * (1 - along) + expand_dims(stop, 0) * along
    y = moveaxis(y, 0, axis) if axis else y
    y = floor(y) if is_whole else y
    y = y if dtype is None else y.astype(dtype)
    return (y, step) if retstep else y


@instead_of(np.logspace)
def logspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None,
             axis: int = 0) -> Any:  # fmt: skip
    """Return powers of `base` with evenly spaced exponents from `start` to `stop`.

    Adjoint: ``sum(ct * y * log(base) * t)``, where the exponent is ``start + t * (stop - start)``, for `stop`, and with
    ``1 - t`` for `start`.
    """
    y = power(base, linspace(start, stop, num, endpoint, axis=axis))
    return y if dtype is None else y.astype(dtype)


@instead_of(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Any, ...]:
    """Return all operands broadcast to their common shape.

    Adjoint: the cotangent summed over the dimensions that were broadcast.
    """
    xs = [operand(x) for x in args]
    shape = common_shape(*(x.shape for x in xs))
    return tuple(repeated_to(x, shape) for x in xs)


@instead_of(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    """Return the coordinate arrays of a grid, given the coordinates along each dimension.

    Adjoint: the cotangents summed over the other dimensions.
    """
    n = len(xi)
    flat = [x if x.ndim == 1 else ravel(x) for x in map(operand, xi)]
    xs = [expand_dims(x, tuple(j for j in range(n) if j != i)) for i, x in enumerate(flat)]
    if indexing == "xy" and n > 1:
        xs = [swapaxes(x, 0, 1) for x in xs]
    return tuple(xs) if sparse else broadcast_arrays(*xs)
