"""Arrays of any device: which types are arrays, where they are, and the explicit moves between devices.

Devices have names: "cpu" is the host, "cuda:0" a GPU, and "cuda" the current GPU of the thread. The arrays of a program
are on one device. A move is always explicit, by `to_device`, `to_host` or `move`; operations on a host array and an
array of a GPU, or on arrays of two GPUs, raise `DeviceError`.

As in CuPy, operations run on the current GPU of the thread. So a program that uses another GPU than "cuda:0" calls
`use_device` first, and a move to a GPU that is not the current one is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, DependencyError, DeviceError, OptionError, ShapeError
from .capture import refuse
from .plain import require_plain, require_plain_array
from .read_only import Guarded
from .shape_only import Shaped, shape_only

if TYPE_CHECKING:
    from .runtime import Runtime

__all__ = [
    "Accelerator", "arange_beside", "as_array", "current_device", "device_of", "dtype_name", "dtype_named",
    "gpu_named", "is_array", "is_bfloat16", "is_device", "is_inexact", "mixed_devices", "move", "of_gpu", "on_host",
    "register_device", "require_one_device", "runtime_in_use", "runtime_of", "to_device", "to_host", "unavailable",
    "use_device", "where_to", "zeros_on",
]  # fmt: skip


@dataclass(frozen=True)
class Accelerator:
    """A kind of device. `current` and `use` read and set the number of the thread's current device."""

    kind: Any
    to_host: Callable[[Any], np.ndarray]
    from_host: Callable[[np.ndarray], Any]
    current: Callable[[], int]
    use: Callable[[int], None]
    count: Callable[[], int]


accelerators: dict[str, Accelerator] = {}
"""The kinds of devices that are in use, by the first part of their names: "cuda"."""


class _ArrayType(NamedTuple):
    """The functions of a registered array type."""

    to_host: Callable[[Any], np.ndarray]
    from_host: Callable[[np.ndarray], Any]
    runtime: Callable[[], Runtime] | None


_registered: dict[type, _ArrayType] = {}


def register_device(
    kind: type, to_host: Callable[[Any], np.ndarray], from_host: Callable[[np.ndarray], Any],
    runtime: Callable[[], Runtime] | None = None,
) -> None:  # fmt: skip
    """Register an array type, with the functions that copy its arrays to the host and host arrays to its device.

    `runtime` returns the runtime of the device. Without one there are no kernels and no pipelined staging.
    """
    _registered[kind] = _ArrayType(to_host, from_host, runtime)


def _find_device(kind: type) -> bool:
    if kind not in _registered and kind.__module__.partition(".")[0] == "cupy":
        _accelerator("an array of CuPy")  # CuPy is imported already, by whoever made the array
    return kind in _registered


def runtime_of(kind: type) -> Runtime | None:
    """The runtime of the device of an array type; None on the host, or if the device has none.

    Examples
    --------
    >>> import numpy
    >>> from autograd.arrays import runtime_of
    >>> runtime_of(numpy.ndarray) is None
    True
    """
    runtime = _registered[kind].runtime if _find_device(kind) else None
    return None if runtime is None else runtime()


def runtime_in_use() -> Runtime | None:
    """The runtime of the GPUs of this process; None if no array was on one."""
    return runtime_of(accelerators["cuda"].kind) if "cuda" in accelerators else None


_KNOWN = (np.ndarray, np.generic, Shaped)  # a tuple: a union would be made anew at each call
_HOST = (np.ndarray, np.generic)


def is_array(x: Any) -> bool:
    """Whether `x` is an array of some library that ringtape computes on (0-d NumPy scalars included)."""
    return isinstance(x, _KNOWN) or _find_device(type(x))


def as_array(x: Any, dtype: Any = None, device: str | None = None) -> Any:
    """`x` as an array: arrays of any device stay what they are, lists and numbers become NumPy arrays.

    With `device` the result is there; a move is a copy. An array in another byte order, as files have it, is converted:
    transports, kernels and devices read memory in the native one.
    """
    if device is not None:
        return to_device(as_array(x, dtype), device)
    if x.__class__ is not np.ndarray or x.dtype.kind not in "biufc":
        if not is_array(x) or isinstance(x, Guarded):
            return _made_of(x, dtype)
        if not isinstance(x, _KNOWN):
            _require_current(x)
        if isinstance(x, np.ndarray) or x.dtype.kind not in "biufc":
            require_plain_array(x)
    if dtype is None and isinstance(x, np.ndarray) and x.dtype is not (same := np.dtype(x.dtype.type)):
        if not x.dtype.isnative:
            return np.array(x, same)
        # equal dtypes can be two objects; dispatch compares them by identity
        return x.view(same) if type(x) is np.ndarray and x.dtype == same else x
    return x if dtype is None or x.dtype == dtype else x.astype(dtype)


def _made_of(x: Any, dtype: Any) -> np.ndarray:
    """A NumPy array made of a list, a number, or an object that gives one."""
    try:
        if isinstance(x, list | tuple):
            require_plain(x)
        result = np.asarray(x, dtype=dtype) if isinstance(x, Guarded) else np.asanyarray(x, dtype=dtype)
    except TypeError as error:
        if isinstance(x, list | tuple) and any(not isinstance(item, _KNOWN) and is_array(item) for item in x):
            raise DeviceError(
                "a list of arrays on a GPU was given, which NumPy would copy to the host; needed: one array\n"
                "  fix: autograd.numpy.stack(list)"
            ) from error
        raise
    except ValueError as error:
        raise ShapeError(
            f"given {type(x).__name__}, of which NumPy makes no array: {error}; needed: lists of equal lengths"
        ) from None
    if type(result) is not np.ndarray or result.dtype.kind not in "biufc":
        require_plain_array(result, f"given {type(x).__name__}")
    return result if result.dtype.isnative else result.astype(result.dtype.type)


def to_host(x: Any) -> np.ndarray:
    """The values of `x` as a NumPy array."""
    if isinstance(x, _HOST):
        return np.asarray(x)
    if _find_device(type(x)):
        refuse("values of the device were read on the host", "return them from the step, and read them after it")
        return _registered[type(x)].to_host(x)
    return np.asarray(x)  # a Shaped raises AbsentError here


def move(host: np.ndarray, like: Any) -> Any:
    """Copy `host` to the device of `like`; in a dry run, return an array with its shape only."""
    kind = type(like)
    if kind is Shaped and not like.absent:
        return shape_only(host)
    if kind is np.ndarray or not _find_device(kind):
        return host
    refuse("a host array was copied to the device", "make it an argument of the step, or move it before")
    return _registered[kind].from_host(host)


def is_device(x: Any) -> bool:
    """Whether `x` is the name of a device: "cpu", "cuda" or "cuda:0"."""
    return isinstance(x, str) and x.partition(":")[0] in ("cpu", "cuda")


def device_of(x: Any) -> str:
    """The name of the device of an array: "cpu" or "cuda:0". An array that has a shape only is on "cpu".

    Examples
    --------
    >>> import numpy
    >>> device_of(numpy.ones(2))
    'cpu'
    """
    number = getattr(getattr(x, "device", None), "id", None)
    return "cpu" if number is None else f"cuda:{number}"


def current_device() -> str:
    """The name of the thread's current GPU, which "cuda" means.

    Raises
    ------
    DependencyError
        CuPy is not installed.
    """
    return f"cuda:{_accelerator().current()}"


def use_device(device: str) -> None:
    """Make a GPU the current one of this thread: ``use_device("cuda:1")``. For "cpu" and "cuda" nothing is done.

    Each rank of a job that has several GPUs calls this once, before it makes arrays.

    Raises
    ------
    OptionError
        The device is unknown.
    DependencyError
        CuPy is not installed.
    DeviceError
        There is no GPU of this number.
    """
    kind, number = _parsed(device)
    if kind != "cpu":
        accelerator = _accelerator(f"the device {device!r}")
        _require_number(accelerator, device, number or 0)
        if number is not None:
            accelerator.use(number)


def to_device(array: Any, device: str) -> Any:
    """The array on a device: itself if it is there, else a copy.

    Raises
    ------
    OptionError
        The device is unknown.
    DependencyError
        The device is "cuda", and CuPy is not installed.
    DeviceError
        The device is a GPU that does not exist, or that is not the current one of the thread.
    """
    kind, number = _parsed(device)
    if type(array) is Shaped:
        return array
    if kind == "cpu":
        return array if isinstance(array, _HOST) else to_host(array)
    accelerator = _accelerator(f"the device {device!r}")
    _require_number(accelerator, device, number or 0)
    here = accelerator.current()
    if number is not None and number != here:
        raise DeviceError(f"the device {device!r} was given" + _not_current(device, here))
    if isinstance(array, _HOST):
        return accelerator.from_host(np.asarray(array))
    if device_of(array) == f"cuda:{here}":
        return array
    return accelerator.from_host(to_host(array))  # from another GPU


def _not_current(device: str, here: int) -> str:
    return (
        f", and the current device of this thread is 'cuda:{here}', where operations run; needed: arrays on the current"
        f" device\n  fix: ag.use_device({device!r}) before the arrays are made"
    )


def _require_current(x: Any) -> None:
    """Raise DeviceError for an array on a GPU that is not the current one."""
    accelerator = accelerators.get("cuda")
    if accelerator is not None and type(x) is accelerator.kind and x.device.id != accelerator.current():
        place = device_of(x)
        raise DeviceError(f"an array on {place!r} was given" + _not_current(place, accelerator.current()))


def where_to(args: tuple[Any, ...], dtype: Any, device: str | None, caller: str) -> tuple[Any, str | None]:
    """The dtype and the device that the arguments of a method `to` name, as torch's: each may be None.

    An argument is a dtype, a device, or a Tensor or array, whose dtype and device are meant.
    """
    for given in args:
        if is_device(given):
            device = given
        elif hasattr(given, "dtype") and not isinstance(given, type):
            array = getattr(given, "array", given)
            dtype, device = array.dtype, device_of(array)
        elif given is not None:
            dtype = given
    if device is not None:
        if not isinstance(device, str):
            raise OptionError(f"{caller}: device={device!r} was given; needed: 'cpu', 'cuda' or 'cuda:0'")
        _parsed(device)
    return dtype, device


def gpu_named(device: int | str | None) -> str:
    """The device that a method `cuda` is given: None is the current GPU, and a number is that of a GPU."""
    return "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device


def _parsed(device: Any) -> tuple[str, int | None]:
    """A device's name as its kind and its number, if that is given."""
    kind, colon, number = str(device).partition(":")
    if not is_device(device) or (colon and not number.isdecimal()) or (kind == "cpu" and number not in ("", "0")):
        raise OptionError(f"the device {device!r} was given; needed: 'cpu', 'cuda' or 'cuda:0'")
    return kind, int(number) if number else None


def _accelerator(use: str = "the device 'cuda'") -> Accelerator:
    """The GPUs; DependencyError if there is no CuPy, which `use` needs."""
    if "cuda" not in accelerators:
        from . import cuda  # programs on the CPU start without it

        cupy = cuda.library(use)
        register_device(cupy.ndarray, cupy.asnumpy, cupy.asarray, cuda.runtime)
        runtime = cupy.cuda.runtime
        accelerators["cuda"] = Accelerator(
            cupy.ndarray, cupy.asnumpy, cupy.asarray, runtime.getDevice, runtime.setDevice, runtime.getDeviceCount
        )
    return accelerators["cuda"]


def of_gpu(x: Any) -> Any:
    """CuPy's array with the memory of another library's array on a GPU, which has ``__dlpack__``."""
    _accelerator(f"{type(x).__name__} on a GPU")
    from . import cuda

    return cuda.library("from_dlpack").from_dlpack(x)


def _require_number(accelerator: Accelerator, device: str, number: int) -> None:
    """Raise DeviceError if there is no GPU of a number."""
    try:
        count = accelerator.count()
    except RuntimeError as error:  # of the CUDA runtime: no driver, or no GPU
        raise DeviceError(f"the device {device!r} was given, and no GPU was found: {error}") from error
    if number >= count:
        raise DeviceError(f"the device {device!r} was given; there are {count} GPUs, from 'cuda:0' on")


def require_one_device(caller: str, **named: Any) -> None:
    """Raise DeviceError if arrays or Tensors, given by name, are on different devices; numbers are on all of them."""
    text = mixed_devices(caller, named.items())
    if text:
        raise DeviceError(text)


def mixed_devices(caller: str, named: Iterable[tuple[str, Any]]) -> str:
    """The text of the error about operands, given as (name, Tensor or array), on different devices; "" if there is one.

    Numbers, NumPy's scalars among them, and arrays that have a shape only are on every device.
    """
    found = []
    for name, x in named:
        array = getattr(x, "array", x)
        if isinstance(array, np.ndarray) or _find_device(type(array)):
            found.append((name, x, array, device_of(array)))
    accelerated = [place for *_, place in found if place != "cpu"]
    if len({place for *_, place in found}) < 2:
        return ""
    shown = ", ".join(f"{name}: {a.dtype}[{','.join(map(str, a.shape))}] on {place}" for name, _, a, place in found)
    if len(set(accelerated)) > 1:
        fix = f"one GPU in a thread: ag.use_device({accelerated[0]!r}) before the arrays are made"
    else:
        fix = "\n  or:  ".join(
            f"{name}.to({to!r})" if x is not a and type(x).__name__ != "Given"
            else f"ag.tensor({name}, device={to!r})"
            for to in ("cuda", "cpu") for name, x, a, place in found if (place == "cpu") != (to == "cpu")
        )  # fmt: skip
    return f"{caller}({shown}): the operands are on different devices; needed: one device\n  fix: {fix}"


_NOT_IMPLEMENTED = (  # compiled at the first error
    r"no implementation found for '([\w.]+)'|type\(s\) all returned NotImplemented from .*<ufunc '(\w+)'"
)


def unavailable(error: Exception) -> str:
    """Why an operation does not run on a device, if `error` says so: a function that CuPy does not have; else ""."""
    if not isinstance(error, TypeError):
        return ""
    found = re.search(_NOT_IMPLEMENTED, str(error))
    if found is not None:
        return f"CuPy has no {found[1] or found[2]}"
    return "it computes on NumPy's arrays only" if "mplicit conversion" in str(error) else ""


def on_host(x: Any, caller: str, name: str) -> Any:
    """`x` as a NumPy array, where a list, a slice or an array of plain numbers is needed.

    Raises
    ------
    DeviceError
        It is on a GPU, from which it would have to be read.
    """
    if not isinstance(x, _HOST) and _find_device(type(x)):
        raise DeviceError(
            f"{caller}: {name} of shape {x.shape} on {device_of(x)} were given; needed: on the host, because the shape "
            f"of the result depends on their values\n  fix: {name}.to('cpu')"
        )
    return x if isinstance(x, slice | Shaped) else np.asarray(x)


def arange_beside(like: Any, n: int) -> Any:
    """``numpy.arange(n)`` on the device of the array `like`."""
    return np.arange(n) if isinstance(like, (*_HOST, Shaped)) else np.arange(n, like=like)


@lru_cache(maxsize=512)  # of dtypes, whose names NumPy composes anew; without it each call takes 2 us
def dtype_name(dtype: Any) -> str:
    """The name of a dtype.

    Examples
    --------
    >>> import numpy as np
    >>> dtype_name(np.dtype("f4"))
    'float32'
    """
    return str(np.dtype(dtype))


def dtype_named(dtype: Any) -> np.dtype[Any]:
    """The native NumPy dtype of a name or type. "bfloat16" is that of ml_dtypes, the one that CuPy's arrays have.

    Raises
    ------
    DependencyError
        "bfloat16" was given, and ml_dtypes is not installed.
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            text = "the dtype 'bfloat16' was given, which needs ml_dtypes: pip install ml_dtypes"
            raise DependencyError(text) from error
        return np.dtype(ml_dtypes.bfloat16)
    try:
        if isinstance(dtype, str) and dtype.startswith("a"):  # NumPy warns of its old name of texts, and will refuse it
            raise TypeError
        found = np.dtype(dtype)
        return found if found.isnative else found.newbyteorder("=")
    except (TypeError, ValueError) as error:  # a ValueError: of a dictionary
        raise ArgumentError(f"{dtype!r} was given; needed: a dtype, or the name of a device") from error


def is_bfloat16(dtype: Any) -> bool:
    """Whether a dtype is bfloat16, which NumPy counts among the dtypes of unknown kind ("V")."""
    return bool(dtype.kind == "V" and dtype.name == "bfloat16")


def is_inexact(dtype: Any) -> bool:
    """Whether values of this dtype have derivatives: floating dtypes (bfloat16 too) and complex ones."""
    return bool(dtype.kind in "fc" or is_bfloat16(dtype))


def zeros_on(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Zeros of a shape and dtype on the device of the array `like`."""
    if isinstance(like, _HOST):
        return np.zeros(shape, dtype)
    return Shaped(shape, dtype, like.why) if type(like) is Shaped else np.zeros(shape, dtype, like=like)
