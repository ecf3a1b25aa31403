"""A simulated device, to find implicit conversions to host arrays on a machine without a GPU.

`DeviceArray` holds a NumPy array and behaves like CuPy's ndarray: it implements NumPy's protocols, combines with Python
numbers and NumPy scalars, and refuses to be combined with host arrays or converted to one implicitly. Only `to_host`
and `from_host` convert; `crossings` counts their calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from autograd.arrays.device import register_device
from autograd.arrays.runtime import Program

from ..kernels.cuda import on_cpu
from . import fake_streams

crossings = {"to host": 0, "from host": 0}


def to_host(x: DeviceArray) -> numpy.ndarray:
    """Copy a device array to the host."""
    crossings["to host"] += 1
    return x._values.copy()


def from_host(x: numpy.ndarray) -> DeviceArray:
    """Copy a host array to the device."""
    crossings["from host"] += 1
    return DeviceArray(numpy.array(x))


class Mixed(TypeError):
    """A host array was combined with a device array."""


def _inside(x: Any) -> Any:
    """Replace device arrays by their values, anywhere in an argument; refuse host arrays."""
    if isinstance(x, DeviceArray):
        return x._values
    if isinstance(x, numpy.ndarray):
        raise Mixed(f"a host array of shape {x.shape} was mixed with device arrays")
    if isinstance(x, tuple | list):
        return type(x)(_inside(item) for item in x)
    return x


def _wrap(x: Any) -> Any:
    if isinstance(x, numpy.ndarray | numpy.generic):
        return DeviceArray(numpy.asarray(x))
    if isinstance(x, tuple | list) and any(isinstance(item, numpy.ndarray | numpy.generic) for item in x):
        return getattr(type(x), "_make", type(x))([_wrap(item) for item in x])
    return x


def _key(key: Any) -> Any:
    """Convert an index. Host arrays are accepted, as in CuPy, which copies them to the device."""
    if isinstance(key, tuple):
        return tuple(_key(k) for k in key)
    return key if isinstance(key, numpy.ndarray) else _inside(key)


class DeviceArray(numpy.lib.mixins.NDArrayOperatorsMixin):
    """An array on the simulated device."""

    __slots__ = ("_values",)

    def __init__(self, values: numpy.ndarray):
        assert type(values) is numpy.ndarray
        self._values = values

    dtype = property(lambda self: self._values.dtype)
    shape = property(lambda self: self._values.shape)
    ndim = property(lambda self: self._values.ndim)
    size = property(lambda self: self._values.size)
    nbytes = property(lambda self: self._values.nbytes)
    itemsize = property(lambda self: self._values.itemsize)
    strides = property(lambda self: self._values.strides)
    flags = property(lambda self: self._values.flags)
    T = property(lambda self: DeviceArray(self._values.T))
    real = property(lambda self: DeviceArray(self._values.real))

    @property
    def base(self) -> Any:
        return None if self._values.base is None else self

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("implicit conversion of a device array to the host")

    __array__ = __float__ = __int__ = __bool__ = __index__ = __complex__ = __iter__ = _refuse

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype})"

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(numpy.asarray(self._values[_key(key)]))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._values[_key(key)] = _inside(value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(hasattr(type(x), "__array_ufunc__") and not isinstance(x, _OURS) for x in inputs):
            return NotImplemented  # a class that handles this one: ringtape's Tensor
        inside = [_key(x) if method == "at" and i == 1 else _inside(x) for i, x in enumerate(inputs)]
        out = options.pop("out", None)
        if out is not None:
            options["out"] = tuple(_inside(x) for x in out)
        result = getattr(ufunc, method)(*inside, **{k: _inside(v) if k != "out" else v for k, v in options.items()})
        return out[0] if out is not None else _wrap(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _wrap(function(*_inside(args), **{k: _inside(v) for k, v in kwargs.items()}))


_OURS = (DeviceArray, numpy.ndarray, numpy.generic)


def _method(name: str) -> Any:
    def method(self: DeviceArray, *args: Any, **kwargs: Any) -> Any:
        return _wrap(getattr(self._values, name)(*_inside(args), **{k: _inside(v) for k, v in kwargs.items()}))

    method.__name__ = name
    return method


for _name in ("sum", "mean", "max", "min", "argmax", "reshape", "transpose", "swapaxes", "astype", "copy", "ravel",
              "squeeze", "conj", "fill"):  # fmt: skip
    setattr(DeviceArray, _name, _method(_name))


def _ordered(name: str) -> None:
    """Let a method of arrays run after the work of the current stream, and count as an operation of it."""
    true = getattr(DeviceArray, name)

    def method(self: DeviceArray, *args: Any, **options: Any) -> Any:
        fake_streams.before_operation()
        found = true(self, *args, **options)
        written = (self,) if name == "__setitem__" else options.get("out") or ()
        written = written if isinstance(written, tuple) else (written,)
        fake_streams.after_operation(*(x._values for x in written if isinstance(x, DeviceArray)))
        return found

    method.__name__ = name
    setattr(DeviceArray, name, method)


for _name in ("__setitem__", "__array_ufunc__", "__array_function__"):
    _ordered(_name)

_init = DeviceArray.__init__


def _made(self: DeviceArray, *args: Any, **options: Any) -> None:
    _init(self, *args, **options)
    fake_streams.after_operation(self._values, made=True)


DeviceArray.__init__ = _made  # type: ignore[method-assign]


def _interface(self: DeviceArray) -> dict[str, Any]:
    """As of CuPy's arrays: a library that reads it takes the address for one of the device."""
    values = self._values
    return {"shape": values.shape, "typestr": values.dtype.str, "data": (values.ctypes.data, False), "version": 3}


DeviceArray.__cuda_array_interface__ = property(_interface)  # type: ignore[attr-defined]


class FakeRuntime:
    """The runtime of the simulated device. Kernels run on the CPU; streams are those of `fake_streams`."""

    name = "fake"

    def launch(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> None:  # fmt: skip
        """Queue a kernel of CUDA C++, which runs behind the header of `on_cpu`."""
        given = [x._values if isinstance(x, DeviceArray) else x for x in arguments]

        def run(values: list[Any]) -> None:
            on_cpu.run(program, kernel, grid, block, values, shared_bytes)

        if fake_streams.current().is_default and not fake_streams.state.is_tracked:
            run(given)  # as always in tests of kernels, whose arrays may have strides
        else:
            fake_streams.launch(run, given, fake_streams.current())

    def address(self, array: Any) -> int:
        return int(array._values.ctypes.data)

    def current_stream(self) -> Any:
        return fake_streams.current()

    def new_stream(self) -> Any:
        return fake_streams.FakeStream()

    def new_event(self) -> Any:
        return fake_streams.FakeEvent()

    def pinned(self, size_bytes: int) -> numpy.ndarray:
        return fake_streams.poisoned(size_bytes)

    def copy(self, out: Any, x: Any, stream: Any) -> None:
        values = [a._values if isinstance(a, DeviceArray) else a for a in (out, x)]
        if not isinstance(out, DeviceArray) or not isinstance(x, DeviceArray):
            crossings["from host" if isinstance(out, DeviceArray) else "to host"] += 1
        fake_streams.copy(values[0], values[1], stream)

    def device_id(self) -> str:
        return "the simulated device"

    def nccl(self) -> Any:
        from . import fake_nccl

        return fake_nccl.LIBRARY

    def exportable(self, size_bytes: int) -> Any:
        return DeviceArray(fake_streams.exportable(size_bytes))

    def export_handle(self, array: Any) -> bytes:
        return fake_streams.handle_of(array._values)

    def open_handle(self, handle: bytes, size_bytes: int) -> Any:
        return DeviceArray(fake_streams.opened(handle, size_bytes))

    def close_handle(self, array: Any) -> None:
        fake_streams.close(array._values)


RUNTIME = FakeRuntime()
register_device(DeviceArray, to_host, from_host, None if on_cpu.WHY_NOT else lambda: RUNTIME)
