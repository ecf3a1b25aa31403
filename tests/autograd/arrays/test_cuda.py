"""The runtime of CuPy with a module in the place of CuPy: launches, and the reasons why no GPU can be used."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from autograd.arrays import cuda
from autograd.arrays.runtime import Program


class Function:
    """A kernel with static shared memory, which refuses launches as CUDA does."""

    def __init__(self, shared_size_bytes: int):
        self.shared_size_bytes = shared_size_bytes
        self.max_dynamic_shared_size_bytes = 49_152 - shared_size_bytes
        self.launches: list[int] = []

    def __call__(self, grid: Any, block: Any, given: Any, *, shared_mem: int) -> None:
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "CUDA_ERROR_INVALID_VALUE"
        self.launches.append(shared_mem)


@pytest.mark.parametrize("static_bytes", [0, 256, 1024, 2048])
def test_launches_near_the_limit_of_shared_memory(static_bytes: int) -> None:
    """Static and dynamic shared memory count together: `norm_backward` used to fail at widths 761 to 764."""
    function = Function(static_bytes)
    module = SimpleNamespace(get_function=lambda name: function)
    runtime: Any = cuda.CudaRuntime.__new__(cuda.CudaRuntime)
    runtime._made = {}
    runtime._cupy = SimpleNamespace(
        RawModule=lambda **options: module, cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))
    )
    sizes = [0, 48_000, 49_152 - static_bytes, 49_153 - static_bytes, 49_152, 60_000, 49_152]
    for size in sizes:
        runtime.launch(Program("p", "", ("k",)), "k", (1,), (32,), (numpy.int32(1),), size)
    assert function.launches == sizes


class Array:
    """An array of CuPy's, of which a launch reads the address."""

    def __init__(self, address: int):
        self.data = SimpleNamespace(ptr=address)


class Driver:
    """``cuLaunchKernel``, which reads the arguments of a kernel of three arrays, a long and two doubles."""

    KINDS = (ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64, ctypes.c_double, ctypes.c_uint64, ctypes.c_double)

    def __init__(self, wait: Any = lambda: None) -> None:
        self.launches: list[Any] = []
        self.wait = wait

    def launchKernel(self, *given: int) -> None:
        self.wait()
        assert len(given) == 11 and all(type(x) is int for x in given)
        function, *sizes, shared_bytes, stream, arguments, extra = given
        assert extra == 0
        addresses = (ctypes.c_void_p * 6).from_address(arguments)
        values = [kind.from_address(at or 0).value for kind, at in zip(self.KINDS, addresses, strict=True)]
        self.launches.append((function, sizes, shared_bytes, stream, values))


def prepared(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> tuple[Any, list[Any], SimpleNamespace]:
    """A prepared launch, the launches by CuPy, and the number of the current device."""
    first: list[Any] = []
    here = SimpleNamespace(device=0)
    runtime: Any = cuda.CudaRuntime.__new__(cuda.CudaRuntime)
    runtime._local, runtime._made = threading.local(), {}
    runtime._cupy = SimpleNamespace(cuda=SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: here.device), driver=driver,
        get_current_stream=lambda: SimpleNamespace(ptr=77)))  # fmt: skip
    function = SimpleNamespace(kernel=SimpleNamespace(ptr=5))
    monkeypatch.setattr(runtime, "launch", lambda *given: first.append(given))
    monkeypatch.setattr(runtime, "_kernel", lambda program, kernel: SimpleNamespace(function=function))
    arguments = (None, numpy.int64(-3), None, numpy.float64(0.5), None, numpy.void(numpy.float64(1.5).tobytes()))
    return runtime.prepare(Program("p", "", ("k",)), "k", (4, 2), (32,), arguments, 48), first, here


def test_prepared_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of a thread and device is CuPy's; the others pass what the driver takes."""
    driver = Driver()
    launch, first, here = prepared(monkeypatch, driver)
    launch((Array(1), None, Array(3)))
    assert not driver.launches and [type(x) for x in first[0][4][:3]] == [Array, numpy.int64, numpy.uintp]
    for address in (10, 20):
        launch((Array(address), Array(2**63 + 1), None))
    sizes = [4, 2, 1, 32, 1, 1]
    values = [[address, -3, 2**63 + 1, 0.5, 0, 1.5] for address in (10, 20)]
    assert driver.launches == [(5, sizes, 48, 77, each) for each in values] and len(first) == 1
    here.device = 1
    launch((Array(1), None, None))
    assert len(driver.launches) == 2 and len(first) == 2


def test_prepared_launches_of_threads_have_arguments_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=20)
    driver = Driver(both.wait)  # until each thread has set its addresses
    launch, first, _ = prepared(monkeypatch, driver)

    def work(number: int) -> None:
        for _ in range(3):
            launch((Array(number), Array(number), Array(number)))

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(first) == 2
    assert sorted(set(map(str, (values[::2] for *_, values in driver.launches)))) == ["[1, 1, 1]", "[2, 2, 2]"]


@pytest.mark.parametrize("version, why", [
    ("13.6.0", "CuPy 13.6.0 is installed; needed: 14.1 or later (extra: gpu)"), ("14.0.1", "CuPy 14.0.1"),
    ("14.1.0", ""), ("14.10.0rc1", ""), ("15.0.0", ""),
])  # fmt: skip
def test_versions_of_cupy(version: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
    fake = SimpleNamespace(__version__=version, cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", fake)  # type: ignore[misc]
    found = cuda.why_not()
    assert found.startswith(why) if why else not found
