"""Arrays of any device: which types are arrays, and the explicit moves to the host and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import DtypeError, OptionError, ShapeError, call_site
from . import cuda
from .capture import refuse
from .read_only import Guarded
from .runtime import Runtime
from .shape_only import Shaped, shape_only

__all__ = [
    "as_array", "is_array", "is_device", "is_inexact", "move", "register_device", "runtime_of", "to_device", "to_host",
    "zeros_on",
]  # fmt: skip


_to_host: dict[type, Callable[[Any], np.ndarray]] = {}
_from_host: dict[type, Callable[[np.ndarray], Any]] = {}
_runtime: dict[type, Callable[[], Runtime]] = {}


def register_device(
    kind: type, to_host: Callable[[Any], np.ndarray], from_host: Callable[[np.ndarray], Any],
    runtime: Callable[[], Runtime] | None = None,
) -> None:  # fmt: skip
    """Register an array type, with the functions that copy its arrays to the host and host arrays to its device.

    `runtime` returns the runtime of the device. Without one there are no kernels and no pipelined staging.
    """
    _to_host[kind] = to_host
    _from_host[kind] = from_host
    if runtime is not None:
        _runtime[kind] = runtime


def _find_device(kind: type) -> bool:
    if kind in _to_host:
        return True
    if kind.__module__.partition(".")[0] == "cupy":  # CuPy is imported already, by whoever made the array
        cupy = cuda.library("an array of CuPy")
        register_device(cupy.ndarray, cupy.asnumpy, cupy.asarray, cuda.runtime)
        return kind in _to_host
    return False


def runtime_of(kind: type) -> Runtime | None:
    """The runtime of the device of an array type; None on the host, or if the device has none.

    Examples
    --------
    >>> import numpy
    >>> from autograd.arrays import runtime_of
    >>> runtime_of(numpy.ndarray) is None
    True
    """
    return _runtime[kind]() if _find_device(kind) and kind in _runtime else None


_KNOWN = (np.ndarray, np.generic, Shaped)  # a tuple: a union would be made anew at each call
_HOST = (np.ndarray, np.generic)


def is_array(x: Any) -> bool:
    """Whether `x` is an array of some library that ringtape computes on (0-d NumPy scalars included)."""
    return isinstance(x, _KNOWN) or _find_device(type(x))


def as_array(x: Any, dtype: Any = None) -> Any:
    """`x` as an array: arrays of any device stay what they are, lists and numbers become NumPy arrays."""
    if is_array(x) and not isinstance(x, Guarded):
        if x.dtype.kind not in "biufc":
            raise DtypeError(f"an array of {_named(x.dtype)} was given; needed: numbers or booleans")
        if type(x) is np.ndarray and dtype is None and x.dtype is not np.dtype(x.dtype.type) and x.dtype.isnative:
            same = np.dtype(x.dtype.type)  # equal dtypes can be two objects; dispatch compares them by identity
            return x.view(same) if x.dtype == same else x
        return x if dtype is None or x.dtype == dtype else x.astype(dtype)
    try:
        result = np.asarray(x, dtype=dtype)
    except ValueError as error:
        raise ShapeError(
            f"given {type(x).__name__}, of which NumPy makes no array: {error}; needed: lists of equal lengths"
            + call_site()
        ) from None
    if result.dtype.kind not in "biufc":
        raise DtypeError(
            f"given {type(x).__name__}, which makes an array of {_named(result.dtype)}; needed: numbers" + call_site()
        )
    return result


def _named(dtype: Any) -> str:
    return "objects" if dtype.kind == "O" else f"dtype {dtype}"


def to_host(x: Any) -> np.ndarray:
    """The values of `x` as a NumPy array."""
    if isinstance(x, _HOST):
        return np.asarray(x)
    if _find_device(type(x)):
        refuse("values of the device were read on the host", "return them from the step, and read them after it")
        return _to_host[type(x)](x)
    return np.asarray(x)  # a Shaped raises AbsentError here


def move(host: np.ndarray, like: Any) -> Any:
    """Copy `host` to the device of `like`; in a dry run, return an array with its shape only."""
    if type(like) is Shaped and not like.absent:
        return shape_only(host)
    if not _find_device(type(like)):
        return host
    refuse("a host array was copied to the device", "make it an argument of the step, or move it before")
    return _from_host[type(like)](host)


def is_device(x: Any) -> bool:
    """Whether `x` is the name of a device: "cpu", "cuda" or "cuda:0"."""
    return isinstance(x, str) and x.partition(":")[0] in ("cpu", "cuda")


def to_device(array: Any, device: str) -> Any:
    """The array on a device: itself if it is there, else a copy.

    Raises
    ------
    OptionError
        The device is unknown.
    DependencyError
        The device is "cuda", and CuPy is not installed.
    """
    kind, _, number = str(device).partition(":")
    if not is_device(device) or (number and not number.isdigit()) or (kind == "cpu" and number not in ("", "0")):
        raise OptionError(f"the device {device!r} was given; needed: 'cpu', 'cuda' or 'cuda:0'" + call_site())
    if type(array) is Shaped or (kind == "cpu" and isinstance(array, _HOST)):
        return array
    if kind == "cpu":
        return to_host(array)
    cupy = cuda.library(f"the device {device!r}")
    with cupy.cuda.Device(int(number or 0)):
        return cupy.asarray(array)


def is_inexact(dtype: Any) -> bool:
    """Whether values of this dtype have derivatives: floating and complex dtypes."""
    return bool(dtype.kind in "fc")


def zeros_on(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Zeros of a shape and dtype on the device of the array `like`."""
    if isinstance(like, _HOST):
        return np.zeros(shape, dtype)
    return Shaped(shape, dtype, like.why) if type(like) is Shaped else np.zeros(shape, dtype, like=like)
