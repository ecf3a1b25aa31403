"""A simulated device, to find implicit conversions to host arrays on a machine without a GPU.

`DeviceArray` holds a NumPy array and behaves like CuPy's ndarray: it implements NumPy's protocols, combines with Python
numbers and NumPy scalars, and refuses to be combined with host arrays or converted to one implicitly. Only `to_host`
and `from_host` convert; `crossings` counts their calls, and the host arrays that CuPy copies to the device by itself
(indices). Functions that CuPy does not have are refused, with the error that NumPy raises for them.

There are `COUNT` devices. As in CuPy, each thread has a current one, where new arrays are made; an array of another one
is refused. `memory` counts the bytes that arrays on the devices take, at present and at most.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy

from autograd.arrays import device
from autograd.arrays.cupy_functions import ABSENT_FROM_CUPY, KEYWORDS_ABSENT_FROM_CUPY
from autograd.arrays.runtime import Memory, Program

from ..kernels.cuda import on_cpu
from . import fake_capture, fake_streams

crossings = {"to host": 0, "from host": 0}
staged = {"to host": 0, "from host": 0}
"""Those of `crossings` that a transport has made."""
COUNT = 2
_counting = threading.Lock()
_here = threading.local()


def _count(way: str) -> None:
    with _counting:
        crossings[way] += 1
        staged[way] += _is_staging()


def _is_staging() -> bool:
    """Whether a transport of `collectives` copies: one that needs host memory stages the arrays of a device."""
    frame: Any = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return False
        if "/collectives/transports/" in frame.f_code.co_filename.replace("\\", "/"):
            return True
        frame = frame.f_back
    return False


def to_host(x: DeviceArray) -> numpy.ndarray:
    """Copy a device array to the host."""
    fake_capture.refuse("a copy to the host")
    _count("to host")
    return x._values.copy()


def from_host(x: numpy.ndarray) -> DeviceArray:
    """Copy a host array to the current device."""
    fake_capture.refuse("a copy of a host array")
    _count("from host")
    return DeviceArray(numpy.array(x))


def current() -> int:
    """The number of this thread's current device."""
    return getattr(_here, "number", 0)


def use(number: int) -> None:
    """Make a device the current one of this thread."""
    assert 0 <= number < COUNT
    _here.number = number


@contextmanager
def on(number: int) -> Iterator[None]:
    """A block in which a device is the current one of this thread."""
    before = current()
    use(number)
    try:
        yield
    finally:
        use(before)


class Mixed(TypeError):
    """A host array was combined with a device array."""


def _root(values: numpy.ndarray) -> numpy.ndarray:
    """The array that owns the memory."""
    while isinstance(values.base, numpy.ndarray):
        values = values.base
    return values


class Counted:
    """The bytes of the arrays that exist on the devices; views count with the array whose memory they show."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._roots: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.RLock()  # a callback may run inside `add`

    def add(self, values: numpy.ndarray) -> None:
        """Count the memory of an array, once, until it is freed."""
        root = _root(values)
        key, n_bytes = id(root), root.nbytes
        with self._lock:
            if key in self._roots:
                return
            self._roots[key] = weakref.ref(root, lambda _: self._remove(key, n_bytes))
            self.live_bytes += n_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _remove(self, key: int, n_bytes: int) -> None:
        with self._lock:
            del self._roots[key]
            self.live_bytes -= n_bytes

    def reset_peak(self) -> None:
        """Let `peak_bytes` begin with what there is now."""
        self.peak_bytes = self.live_bytes


memory = Counted()


class Number:
    """What ``array.device`` is in CuPy: it has the number of the device."""

    def __init__(self, number: int):
        self.id = number

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


def _inside(x: Any) -> Any:
    """Replace device arrays by their values, anywhere in an argument; refuse host arrays and other devices."""
    if isinstance(x, DeviceArray):
        if x.device.id != current():
            raise ValueError(
                f"The device where the array resides ({x.device.id}) is different from the current device "
                f"({current()}). Peer access is unavailable between these devices."
            )
        return x._values
    if isinstance(x, numpy.ndarray):
        raise Mixed(f"a host array of shape {x.shape} was mixed with device arrays")
    if isinstance(x, tuple | list):
        return type(x)([_inside(item) for item in x])
    return x


def _wrap(x: Any) -> Any:
    if isinstance(x, numpy.ndarray | numpy.generic):
        return DeviceArray(numpy.asarray(x))
    if isinstance(x, tuple | list) and any(isinstance(item, numpy.ndarray | numpy.generic) for item in x):
        items = [_wrap(item) for item in x]
        return type(x)._make(items) if hasattr(type(x), "_make") else type(x)(items)
    return x


def _key(key: Any) -> Any:
    """Convert an index. Host arrays and lists are accepted, as in CuPy, which copies them to the device."""
    if isinstance(key, tuple):
        return tuple(_key(k) for k in key)
    if isinstance(key, numpy.ndarray | list):
        _count("from host")
        return key
    return _inside(key)


class DeviceArray(numpy.lib.mixins.NDArrayOperatorsMixin):
    """An array on the simulated device."""

    __slots__ = ("__weakref__", "_values", "base", "device")

    def __init__(self, values: numpy.ndarray, base: DeviceArray | None = None):
        assert type(values) is numpy.ndarray
        self._values = values
        self.base = base
        self.device = Number(current())
        memory.add(values)

    def _view(self, values: Any) -> DeviceArray:
        """An array on the device, which refers to the owner of its memory if it is a view of this one."""
        values = numpy.asarray(values)
        is_view = values.base is not None and _root(values) is _root(self._values)
        return DeviceArray(values, self if self.base is None else self.base) if is_view else DeviceArray(values)

    dtype = property(lambda self: self._values.dtype)
    shape = property(lambda self: self._values.shape)
    ndim = property(lambda self: self._values.ndim)
    size = property(lambda self: self._values.size)
    itemsize = property(lambda self: self._values.itemsize)
    nbytes = property(lambda self: self._values.nbytes)
    strides = property(lambda self: self._values.strides)
    flags = property(lambda self: self._values.flags)
    T = property(lambda self: self._view(self._values.T))
    real = property(lambda self: self._view(self._values.real))
    imag = property(lambda self: self._view(self._values.imag))

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("implicit conversion of a device array to the host")

    __array__ = __float__ = __int__ = __bool__ = __index__ = __complex__ = __iter__ = _refuse

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype})"

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: Any) -> DeviceArray:
        return self._view(_inside(self)[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, list | tuple):
            raise TypeError("CuPy takes no list in an assignment")
        _inside(self)[_key(key)] = _inside(value)

    def __deepcopy__(self, memo: Any) -> DeviceArray:
        return DeviceArray(self._values.copy())

    def view(self, dtype: Any = None) -> DeviceArray:
        return self._view(self._values.view() if dtype is None else self._values.view(dtype))

    def item(self) -> Any:
        """The one number, which is read from the device."""
        fake_capture.refuse("a copy to the host")
        _count("to host")
        return self._values.item()

    def get(self) -> numpy.ndarray:
        return to_host(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if any(hasattr(type(x), "__array_ufunc__") and not isinstance(x, _OURS) for x in inputs):
            return NotImplemented  # a class that handles this one: ringtape's Tensor
        calls.add((ufunc.__name__, method, len(inputs), tuple(sorted(options))))
        if ufunc.__name__ in ABSENT_FROM_CUPY:
            return NotImplemented
        if method == "at" and RUNTIME_HAS_KERNELS and inputs[0].dtype.name not in ATOMIC:
            raise TypeError(f"cupyx.scatter_add of {inputs[0].dtype}: the atomic addition of CUDA has no such type")
        inside = [_key(x) if method == "at" and i == 1 else _inside(x) for i, x in enumerate(inputs)]
        out = options.pop("out", None)
        if out is not None:
            options["out"] = tuple(_inside(x) for x in out)
        result = getattr(ufunc, method)(*inside, **{k: _inside(v) if k != "out" else v for k, v in options.items()})
        return out[0] if out is not None else _wrap(result)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not all(issubclass(t, _OURS) for t in types):
            return NotImplemented
        name = f"{function.__module__}.{function.__name__}".removeprefix("numpy.")
        calls.add((name, "", len(args), tuple(sorted(kwargs))))
        if name in ABSENT_FROM_CUPY:
            return NotImplemented
        for word in KEYWORDS_ABSENT_FROM_CUPY.get(name, ()):
            if word in kwargs:
                raise TypeError(f"{name}() got an unexpected keyword argument {word!r}")
        if name == "where" and not hasattr(args[0], "astype"):
            raise AttributeError(f"{type(args[0]).__name__!r} object has no attribute 'astype'")
        if name == "linalg.solve" and args[0].shape[:-2] != args[1].shape[:-2]:
            raise numpy.linalg.LinAlgError("solve: CuPy does not broadcast the batches of its operands")
        if name.endswith("_like") and kwargs.get("shape") == ():
            kwargs = {word: v for word, v in kwargs.items() if word != "shape"}  # CuPy takes it for no shape
        words = {k: _inside(v) for k, v in kwargs.items()}
        inside = [_key(x) if name in COPIES_HOST_ARRAYS else _inside(x) for x in args]
        result = function(*inside, **words)
        out = kwargs.get("out")
        return out if isinstance(out, DeviceArray) else _wrap(result)


ATOMIC = frozenset(("float16", "float32", "float64", "int32", "uint32", "uint64"))
"""The dtypes that CuPy adds at indices. Sums of float16 are rounded after each addition, as NumPy's are here."""
RUNTIME_HAS_KERNELS = not on_cpu.WHY_NOT

COPIES_HOST_ARRAYS = ("isclose", "take_along_axis")
"""Functions of CuPy that copy host arrays to the device by themselves, besides indices."""

calls: set[tuple[str, str, int, tuple[str, ...]]] = set()
"""Every use of NumPy's protocols so far: function, ufunc's method, number of arguments, names of keyword arguments."""


_OURS = (DeviceArray, numpy.ndarray, numpy.generic)


def _method(name: str) -> Any:
    def method(self: DeviceArray, *args: Any, **kwargs: Any) -> Any:
        calls.add((name, "method", len(args), tuple(sorted(kwargs))))
        words = {k: _inside(v) for k, v in kwargs.items()}
        result = getattr(_inside(self), name)(*_inside(args), **words)
        if result is self._values:
            return self
        return self._view(result) if isinstance(result, numpy.ndarray) else _wrap(result)

    method.__name__ = name
    return method


METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "astype", "conj", "copy", "cumsum", "diagonal", "dot", "fill",
    "flatten", "max", "mean", "min", "prod", "ravel", "repeat", "reshape", "squeeze", "sum", "swapaxes", "take",
    "trace",
    "transpose",
)  # fmt: skip
for _name in METHODS:
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

for _name in ("__setitem__", "__getitem__", "__array_ufunc__", "__array_function__", *METHODS):
    fake_capture.recorded(DeviceArray, _name)

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


class _Special:
    """The functions that are missing among the ufuncs of `scipy.special`."""

    @staticmethod
    def zeta(s: float, x: DeviceArray) -> DeviceArray:
        from scipy.special import zeta

        return _wrap(zeta(s, _inside(x)))


class FakeRuntime:
    """The runtime of the simulated device. Kernels run on the CPU; streams are those of `fake_streams`."""

    name = "fake"
    most_shared_bytes = 227 << 10

    def launch(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> None:  # fmt: skip
        """Queue a kernel of CUDA C++, which runs behind the header of `on_cpu`."""
        if fake_capture.record(lambda: self.launch(program, kernel, grid, block, arguments, shared_bytes)):
            return
        given = [x._values if isinstance(x, DeviceArray) else x for x in arguments]

        def run(values: list[Any]) -> None:
            on_cpu.run(program, kernel, grid, block, values, shared_bytes)

        if fake_streams.current().is_default and not fake_streams.state.is_tracked:
            run(given)  # as always in tests of kernels, whose arrays may have strides
        else:
            fake_streams.launch(run, given, fake_streams.current())

    def prepare(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> Callable[[Sequence[Any]], None]:  # fmt: skip
        def launch(given: Sequence[Any]) -> None:
            assert len(given) == sum(x is None for x in arguments), "arrays and their places"
            left = iter([numpy.uintp(0) if x is None else x for x in given])
            whole = [next(left) if x is None else x for x in arguments]
            self.launch(program, kernel, grid, block, whole, shared_bytes)

        return launch

    def address(self, array: Any) -> int:
        return int(array._values.ctypes.data)

    def current_stream(self) -> Any:
        return fake_streams.current()

    def new_stream(self) -> Any:
        return fake_streams.FakeStream()

    def new_event(self) -> Any:
        return fake_streams.FakeEvent()

    def on_this_device(self, function: Any) -> Any:
        number = current()

        def run() -> None:
            with on(number):
                function()

        return run

    def pinned(self, size_bytes: int) -> numpy.ndarray:
        return fake_streams.poisoned(size_bytes)

    def copy(self, out: Any, x: Any, stream: Any) -> None:
        if fake_capture.record(lambda: self.copy(out, x, stream)):
            return
        values = [a._values if isinstance(a, DeviceArray) else a for a in (out, x)]
        if not isinstance(out, DeviceArray) or not isinstance(x, DeviceArray):
            _count("from host" if isinstance(out, DeviceArray) else "to host")
        fake_streams.copy(values[0], values[1], stream)

    def matmul(self, a: Any, b: Any) -> Any:
        y = a @ b  # of bfloat16 NumPy's is float32, and cuBLAS's is not
        return y.astype(a.dtype) if a.dtype == b.dtype and y.dtype.itemsize != a.dtype.itemsize else y

    def special(self) -> Any:
        return _Special

    def memory(self) -> Memory:
        return Memory(memory.live_bytes, memory.peak_bytes, 1 << 40, 1 << 40)

    def reset_peak(self) -> None:
        memory.reset_peak()

    def capture(self, function: Any) -> Any:
        return fake_capture.capture(function)

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
device.register_device(DeviceArray, to_host, from_host, None if on_cpu.WHY_NOT else lambda: RUNTIME)


@contextmanager
def as_cuda() -> Iterator[None]:
    """A block in which the device name "cuda" means the simulated devices."""
    accelerator = device.Accelerator(DeviceArray, to_host, from_host, current, use, lambda: COUNT)
    before = device.accelerators.get("cuda")
    device.accelerators["cuda"] = accelerator
    try:
        yield
    finally:
        device.accelerators.pop("cuda")
        if before is not None:
            device.accelerators["cuda"] = before


@contextmanager
def without_crossings(**allowed: int) -> Iterator[None]:
    """A block in which values cross as often as stated: ``to_host=1, from_host=0``."""
    before = dict(crossings)
    yield
    found = {way.replace(" ", "_"): crossings[way] - before[way] for way in crossings}
    expected = {"to_host": 0, "from_host": 0} | allowed
    assert found == expected, f"values crossed between host and device: {found}, allowed: {expected}"
